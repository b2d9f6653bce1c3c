"""Groups whose broker assigns (KIP-848): librdkafka with `group.protocol=consumer`, and classic members beside it."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupState, ConsumerGroupType
from confluent_kafka.admin import AdminClient, NewPartitions
from confluent_kafka.cimpl import NewTopic
from group_members import (
    AiokafkaMember,
    ConfluentMember,
    KafkaPythonMember,
    Member,
    closing_members,
    poll_until,
    shared_out,
)

from culver.core.coordinator_partitions import partition_for_name
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.testing import Broker, Cluster

MEMBER_PROGRAM = Path(__file__).with_name("consumer_member_process.py")
PARTITIONS = 6

# Members hear of changes with their next heartbeat, by default every 5 s.
SETTINGS = {
    "group.consumer.heartbeat.interval.ms": 100,
    "group.consumer.session.timeout.ms": 2000,
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "offsets.topic.num.partitions": 2,
}


@pytest.fixture(scope="module")
def bootstrap() -> Iterator[str]:
    with Broker(config=SETTINGS) as broker:
        yield broker.bootstrap_servers


class ConsumerMember(Member):
    """A member of the new kind; it counts what is taken from it."""

    def __init__(self, bootstrap: str, group: str, topics: list[str], **settings: Any) -> None:
        super().__init__()
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self._open = True
        self.revoked: set[int] = set()
        self.lost: set[int] = set()
        self.consumer.subscribe(topics, on_revoke=self._on_revoke, on_lost=self._on_lost)

    def _on_revoke(self, _consumer: Any, partitions: list[Any]) -> None:
        self.revoked |= {partition.partition for partition in partitions}

    def _on_lost(self, _consumer: Any, partitions: list[Any]) -> None:
        self.lost |= {partition.partition for partition in partitions}

    def step(self) -> None:
        for message in self.consumer.consume(500, timeout=0.02):
            error = message.error()
            if error is None:
                self.values.append(message.value())
            elif not error.retriable() and error.code() != confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise confluent_kafka.KafkaException(error)

    def partitions(self) -> set[int]:
        return {assigned.partition for assigned in self.consumer.assignment()}

    def close(self) -> None:
        if self._open:
            self._open = False
            self.consumer.close()


def produce(bootstrap: str, topic: str, values: list[bytes]) -> None:
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number, value in enumerate(values):
        producer.produce(topic, value, partition=number % PARTITIONS)
    assert producer.flush(20) == 0


def numbers(first: int, last: int) -> list[bytes]:
    return [b"%05d" % number for number in range(first, last)]


def read_by(members: list[Member]) -> list[bytes]:
    return sorted(value for member in members for value in member.values)


def test_members_come_and_go_and_only_what_has_to_move_moves(
    bootstrap: str, new_topic: Callable[..., str], group: str, admin: AdminClient
) -> None:
    topic = new_topic(PARTITIONS)
    with closing_members() as members:
        a = ConsumerMember(bootstrap, group, [topic])
        members.append(a)
        poll_until("one member has all", members, lambda: len(a.partitions()) == PARTITIONS)
        b = ConsumerMember(bootstrap, group, [topic])
        members.append(b)
        poll_until("two share", members, lambda: shared_out(members, PARTITIONS))
        c = ConsumerMember(bootstrap, group, [topic])
        members.append(c)
        poll_until("three share", members, lambda: shared_out(members, PARTITIONS))
        assert len(a.revoked) == PARTITIONS - 2, "it kept what it could keep"
        described = admin.describe_consumer_groups([group])[group].result()
        assert described.type is ConsumerGroupType.CONSUMER
        assert described.state is ConsumerGroupState.STABLE
        assert len(described.members) == 3

        produce(bootstrap, topic, numbers(0, 60))
        everyone: list[Member] = list(members)
        poll_until("all is read", members, lambda: read_by(everyone) == numbers(0, 60))
        before = a.partitions(), b.partitions()
        revoked = set(a.revoked), set(b.revoked)
        members.pop().close()
        poll_until("two share again", members, lambda: shared_out(members, PARTITIONS))
        assert a.partitions() >= before[0]
        assert b.partitions() >= before[1]
        assert (a.revoked, b.revoked) == revoked, "the departure of one takes nothing from the others"
        produce(bootstrap, topic, numbers(60, 120))
        poll_until("each record is read once", members, lambda: read_by(everyone) == numbers(0, 120))


@contextmanager
def member_process(bootstrap: str, group: str, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """A member in a process of its own, once it owns something; killed in the end if need be."""
    command = [sys.executable, str(MEMBER_PROGRAM), bootstrap, group, topic]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def test_the_others_go_on_reading_while_one_is_dead(
    bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(PARTITIONS)
    with member_process(bootstrap, group, topic) as process, closing_members() as members:
        a = ConsumerMember(bootstrap, group, [topic])
        b = ConsumerMember(bootstrap, group, [topic])
        members += [a, b]
        poll_until(
            "shared with the process", members, lambda: len(a.partitions()) == len(b.partitions()) == 2
        )
        kept = a.partitions() | b.partitions()
        revoked = set(a.revoked), set(b.revoked)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        produce(bootstrap, topic, numbers(0, 60))
        readable = [value for value in numbers(0, 60) if int(value) % PARTITIONS in kept]
        poll_until("theirs is read at once", members, lambda: set(read_by(members)) >= set(readable))
        poll_until("all taken over", members, lambda: shared_out(members, PARTITIONS))
        assert (a.revoked, b.revoked) == revoked
        assert not a.lost | b.lost
        poll_until("all is read", members, lambda: read_by(members) == numbers(0, 60))


def test_more_partitions_and_new_topics_are_found(
    bootstrap: str, new_topic: Callable[..., str], group: str, admin: AdminClient
) -> None:
    topic = new_topic(1)
    with closing_members() as members:
        a = ConsumerMember(bootstrap, group, [f"^{topic}.*"])
        members.append(a)
        poll_until("its only partition", members, lambda: len(a.consumer.assignment()) == 1)
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
        poll_until("three of them", members, lambda: len(a.consumer.assignment()) == 3)
        other = NewTopic(f"{topic}-b", num_partitions=2, replication_factor=1)
        admin.create_topics([other])[other.topic].result()
        poll_until("another that matches", members, lambda: len(a.consumer.assignment()) == 5)
        admin.delete_topics([topic])[topic].result()
        poll_until("only that one", members, lambda: len(a.consumer.assignment()) == 2)


def test_a_static_member_restarts_and_finds_its_partitions(
    bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(PARTITIONS)
    with closing_members() as members:
        a = ConsumerMember(bootstrap, group, [topic], group_instance_id="one")
        b = ConsumerMember(bootstrap, group, [topic], group_instance_id="two")
        members += [a, b]
        poll_until("shared", members, lambda: shared_out(members, PARTITIONS))
        owned, revoked = b.partitions(), set(a.revoked)
        members.pop().close()
        again = ConsumerMember(bootstrap, group, [topic], group_instance_id="two")
        members.append(again)
        poll_until("shared again", members, lambda: shared_out(members, PARTITIONS))
        assert again.partitions() == owned
        assert a.revoked == revoked


def test_members_survive_a_crash_of_the_broker_with_what_they_have(group: str) -> None:
    with Broker(config=SETTINGS, topics={"t": PARTITIONS}) as broker, closing_members() as members:
        bootstrap = broker.bootstrap_servers
        a = ConsumerMember(bootstrap, group, ["t"], reconnect_backoff_max_ms=200)
        b = ConsumerMember(bootstrap, group, ["t"], reconnect_backoff_max_ms=200)
        members += [a, b]
        poll_until("shared", members, lambda: shared_out(members, PARTITIONS))
        owned = a.partitions(), b.partitions()
        revoked = set(a.revoked), set(b.revoked)
        broker.kill()
        broker.restart()
        produce(bootstrap, "t", numbers(0, 60))
        poll_until("all is read", members, lambda: read_by(members) == numbers(0, 60))
        assert (a.partitions(), b.partitions()) == owned
        assert (a.revoked, b.revoked) == revoked
        assert not a.lost | b.lost
        c = ConsumerMember(bootstrap, group, ["t"])
        members.append(c)
        poll_until("three share", members, lambda: shared_out(members, PARTITIONS))


def test_members_of_a_cluster_keep_what_they_have_when_their_coordinator_dies(group: str) -> None:
    config = {**SETTINGS, "group.consumer.session.timeout.ms": 20_000}
    with Cluster(brokers=3, topics={"t": PARTITIONS}, config=config) as cluster, closing_members() as members:
        bootstrap = cluster.bootstrap_servers
        a = ConsumerMember(bootstrap, group, ["t"])
        b = ConsumerMember(bootstrap, group, ["t"])
        members += [a, b]
        poll_until("shared", members, lambda: shared_out(members, PARTITIONS))
        owned = a.partitions(), b.partitions()
        revoked = set(a.revoked), set(b.revoked)
        cluster.wait_until_in_sync("t", GROUP_OFFSETS_TOPIC)
        coordinator = cluster.leader(GROUP_OFFSETS_TOPIC, partition_for_name(group, 2))
        cluster.broker(coordinator).kill()
        c = ConsumerMember(bootstrap, group, ["t"])
        members.append(c)
        poll_until("the new coordinator has let a third in", members, lambda: shared_out(members, PARTITIONS))
        produce(bootstrap, "t", numbers(0, 60))
        poll_until("all is read", members, lambda: read_by(members) == numbers(0, 60))
        assert a.partitions() < owned[0]
        assert b.partitions() < owned[1]
        assert a.revoked - revoked[0] | b.revoked - revoked[1] == c.partitions()
        assert not a.lost | b.lost


@pytest.mark.parametrize("classic", [ConfluentMember, KafkaPythonMember, AiokafkaMember])
def test_a_classic_group_is_taken_over_by_new_members_and_given_back(
    classic: Callable[..., Member],
    bootstrap: str,
    new_topic: Callable[..., str],
    group: str,
    admin: AdminClient,
) -> None:
    topic = new_topic(PARTITIONS)

    def kind() -> ConsumerGroupType:
        listed = admin.list_consumer_groups().result().valid
        return next(found.type for found in listed if found.group_id == group)

    with closing_members() as members:
        old = classic(bootstrap, group, [topic])
        members.append(old)
        poll_until("the classic member has all", members, lambda: shared_out(members, PARTITIONS))
        assert kind() is ConsumerGroupType.CLASSIC
        produce(bootstrap, topic, numbers(0, 60))
        poll_until("all is read", members, lambda: set(read_by(members)) == set(numbers(0, 60)))

        new = ConsumerMember(bootstrap, group, [topic])
        members.append(new)
        poll_until("old and new share", members, lambda: shared_out(members, PARTITIONS))
        assert kind() is ConsumerGroupType.CONSUMER
        produce(bootstrap, topic, numbers(60, 120))
        poll_until("both read", members, lambda: set(read_by(members)) == set(numbers(0, 120)))

        everyone: list[Member] = list(members)
        members.remove(new)
        new.close()
        poll_until("the classic one has all again", members, lambda: shared_out(members, PARTITIONS))
        assert kind() is ConsumerGroupType.CLASSIC
        produce(bootstrap, topic, numbers(120, 180))
        poll_until("and reads it", members, lambda: set(read_by(everyone)) == set(numbers(0, 180)))
