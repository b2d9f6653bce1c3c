"""Members of consumer groups: they share partitions, take over from each other, and commit as members do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from wire_produce import connected, run, until

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster, Unreachable
from culver.gateway.cluster.topics import create_topic, delete_topics
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.membership.group_member import GroupMember
from culver.testing import Broker
from culver.testing import Cluster as Brokers

PLACES = {TopicPartition("orders", partition) for partition in range(4)}


class Member(GroupMember):
    """A member that notes what happens to it, and commits on revocation when told to."""

    def __init__(
        self, cluster: Cluster, group: str, name: str, topics: tuple[str, ...] = ("orders",)
    ) -> None:
        self.assigned: dict[TopicPartition, int | None] = {}
        self.revoked: list[set[TopicPartition]] = []
        self.to_commit: dict[TopicPartition, int] = {}
        self.commit_error: KafkaError | None = None
        super().__init__(
            cluster, group, topics, instance_name=name, on_assigned=self.take, on_revoked=self.give
        )

    def take(self, offsets: dict[TopicPartition, int | None]) -> None:
        self.assigned |= offsets

    async def give(self, places: set[TopicPartition]) -> None:
        self.revoked.append(set(places))
        for place in places:
            self.assigned.pop(place)
        try:
            await self.commit({place: offset for place, offset in self.to_commit.items() if place in places})
        except KafkaError as error:
            self.commit_error = error

    def die(self) -> None:
        """Fall silent, as a gateway does whose machine is gone."""
        self._closing = self._closed = True
        self._stop_timer()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    config = {
        "group.consumer.heartbeat.interval.ms": 100,
        "group.consumer.session.timeout.ms": 1000,
        "group.consumer.max.size": 2,
    }
    with Broker(topics={"orders": 4}, config=config) as started:
        yield started


def committed(bootstrap: str, group: str) -> dict[TopicPartition, int]:
    """What a Kafka client's administrator sees."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    request = [confluent_kafka.ConsumerGroupTopicPartitions(group)]
    answer = admin.list_consumer_group_offsets(request)[group].result(timeout=10)
    return {TopicPartition(part.topic, part.partition): part.offset for part in answer.topic_partitions}


def test_two_members_split_the_partitions_and_one_takes_over_when_the_other_leaves(broker: Broker) -> None:
    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            first, second = Member(cluster, "split", "first"), Member(cluster, "split", "second")
            await first.start()
            await until(lambda: set(first.assigned) == PLACES)
            assert set(first.assigned.values()) == {None}, "nothing has been committed yet"
            first.to_commit = dict.fromkeys(PLACES, 7)
            await second.start()
            await until(lambda: len(first.assigned) == len(second.assigned) == 2)
            assert (
                set(first.assigned) | set(second.assigned) == PLACES == first.assignment | second.assignment
            )
            assert first.commit_error is None
            assert set(second.assigned.values()) == {7}, (
                "what the first committed when it gave them up counts"
            )
            first.to_commit = dict.fromkeys(PLACES, 8)
            await first.close()
            assert first.commit_error is None
            await until(lambda: set(second.assigned) == PLACES)
            assert sorted(second.assigned.values()) == [7, 7, 8, 8]
            await second.close()

    run(scenario)


def test_a_member_that_falls_silent_loses_its_partitions_to_the_other(broker: Broker) -> None:
    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            dead, living = Member(cluster, "silent", "dead"), Member(cluster, "silent", "living")
            await dead.start()
            await living.start()
            await until(lambda: len(dead.assigned) == len(living.assigned) == 2)
            dead.die()
            await until(lambda: set(living.assigned) == PLACES)
            with pytest.raises(KafkaError) as refused:
                await dead.commit({TopicPartition("orders", 0): 1})
            assert refused.value.code is ErrorCode.UNKNOWN_MEMBER_ID
            await living.close()

    run(scenario)


def test_a_fenced_member_gives_its_partitions_up_and_joins_again(broker: Broker) -> None:
    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            member = Member(cluster, "fenced", "member")
            await member.start()
            await until(lambda: set(member.assigned) == PLACES)
            member.to_commit = {TopicPartition("orders", 0): 3}

            def fenced() -> bool:
                if not member.revoked:
                    # As if the coordinator had forgotten what it said. The answer to a heartbeat that is under way
                    # puts it right again, hence more than once.
                    member.epoch = 99
                return member.revoked == [PLACES] and member.commit_error is not None

            await until(fenced)
            await until(lambda: set(member.assigned) == PLACES)
            await member.close()

    run(scenario)


def test_a_member_that_is_refused_says_why_and_does_not_disturb_the_others(broker: Broker) -> None:
    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            members = [Member(cluster, "full", f"member {number}") for number in range(2)]
            for member in members:
                await member.start()
            await until(lambda: all(len(member.assigned) == 2 for member in members))
            third = Member(cluster, "full", "one too many")
            await third.start()
            await until(lambda: third.error is not None)
            assert third.error.code is ErrorCode.GROUP_MAX_SIZE_REACHED
            await third.close()
            assert [len(member.assigned) for member in members] == [2, 2]
            await asyncio.gather(*(member.close() for member in members))

    run(scenario)


def test_commits_are_seen_by_kafka_clients(broker: Broker) -> None:
    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            member = Member(cluster, "commits", "committer")
            with pytest.raises(KafkaError):
                await member.commit({TopicPartition("orders", 0): 1})
            await member.start()
            await until(lambda: set(member.assigned) == PLACES)
            await member.commit({TopicPartition("orders", 1): 5, TopicPartition("orders", 2): 6})
            seen = await asyncio.to_thread(committed, broker.bootstrap_servers, "commits")
            assert seen == {TopicPartition("orders", 1): 5, TopicPartition("orders", 2): 6}
            await member.close()

    run(scenario)


def test_a_topic_that_is_made_later_is_assigned_when_it_is_there(broker: Broker) -> None:
    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            member = Member(cluster, "later", "early", topics=("to-come",))
            await member.start()
            await until(lambda: member.epoch > 0)
            assert not member.assigned
            await asyncio.to_thread(broker.create_topic, "to-come", 2)
            await until(lambda: len(member.assigned) == 2)
            await member.close()

    run(scenario)


async def make_again(broker: Broker, topic: str) -> None:
    """Delete a topic and make another of the same name, unknown to the members."""
    async with connected(broker.bootstrap_servers) as elsewhere:
        await delete_topics(elsewhere, [topic])
        await create_topic(elsewhere, topic, partitions=1)


def test_partitions_of_a_topic_that_is_made_again_are_given_up_and_assigned_anew(broker: Broker) -> None:
    async def scenario() -> None:
        await asyncio.to_thread(broker.create_topic, "again", 1)
        async with connected(broker.bootstrap_servers) as cluster:
            member = Member(cluster, "again", "member", topics=("again",))
            place = TopicPartition("again", 0)
            await member.start()
            await until(lambda: member.assigned)
            await member.commit({place: 5})
            await until(lambda: member._beating is None)
            member._stop_timer()  # it misses the moment in which there is no such topic
            await make_again(broker, "again")
            member._beat_now()
            await until(lambda: member.revoked == [{place}])
            await until(lambda: member.assigned)
            assert member.assigned == {place: None}, "what was committed was of the former one"
            await member.close()

    run(scenario)


def test_a_commit_for_a_topic_that_is_no_more_is_not_one_for_the_next_of_that_name(broker: Broker) -> None:
    async def scenario() -> None:
        await asyncio.to_thread(broker.create_topic, "former", 1)
        async with connected(broker.bootstrap_servers) as cluster:
            member = Member(cluster, "late", "member", topics=("former",))
            await member.start()
            await until(lambda: member.assigned)
            member.die()  # so that it does not hear of it
            await make_again(broker, "former")
            with pytest.raises(KafkaError) as refused:
                await member.commit({TopicPartition("former", 0): 100})
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_ID
            assert not await asyncio.to_thread(committed, broker.bootstrap_servers, "late")

    run(scenario)


def test_five_hundred_members_of_groups_of_their_own_are_cheap(broker: Broker) -> None:
    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            members = [Member(cluster, f"crowd-{number}", "one of many") for number in range(500)]
            for member in members:
                await member.start()
            await until(lambda: all(len(member.assigned) == 4 for member in members))
            # With nothing under way they are timers: no task of a member lasts longer than its heartbeat.
            await until(lambda: len(asyncio.all_tasks()) < 50)
            began = time.process_time()
            await asyncio.gather(*(member.close() for member in members))
            assert time.process_time() - began < 10

    run(scenario)


def test_a_member_whose_cluster_is_gone_does_not_wait_for_it_when_it_leaves() -> None:
    with Broker(topics={"orders": 4}) as broker:

        async def scenario() -> None:
            async with connected(broker.bootstrap_servers) as cluster:
                member = Member(cluster, "alone", "last")
                await member.start()
                await until(lambda: set(member.assigned) == PLACES)
                await asyncio.to_thread(broker.kill)
                committing = asyncio.create_task(member.commit({TopicPartition("orders", 0): 1}))
                async with asyncio.timeout(6):
                    await member.close()
                    with pytest.raises(Unreachable):
                        await committing

        run(scenario)


def test_members_stay_members_when_their_coordinator_is_killed() -> None:
    config = {
        "group.consumer.heartbeat.interval.ms": 200,
        "offsets.topic.num.partitions": 1,
    }
    with Brokers(brokers=3, topics={"orders": 4}, config=config) as brokers:

        async def scenario() -> None:
            async with connected(brokers.bootstrap_servers) as cluster:
                member = Member(cluster, "moving", "mover")
                await member.start()
                await until(lambda: set(member.assigned) == PLACES)
                coordinator = (await cluster.find_coordinators(["moving"]))["moving"]
                await asyncio.to_thread(brokers.broker(coordinator).kill)
                await member.commit({TopicPartition("orders", 0): 11})
                assert set(member.assigned) == PLACES
                await member.close()

        run(scenario)
        assert committed(brokers.bootstrap_servers, "moving")[TopicPartition("orders", 0)] == 11
