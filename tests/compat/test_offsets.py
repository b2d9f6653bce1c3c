"""Committed offsets: metadata, where the next reader starts, and that a restart or a crash keeps them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, TopicPartition
from confluent_kafka.admin import AdminClient
from group_members import ConfluentMember, closing_members, poll_until
from kafka.errors import OffsetMetadataTooLargeError
from real_clients import CLIENTS, Sent

import kafka
from culver.testing import Broker

PRODUCER = CLIENTS["confluent-kafka"]


@contextmanager
def simple_consumer(bootstrap: str, group: str, **settings: Any) -> Iterator[confluent_kafka.Consumer]:
    """A consumer that assigns itself and commits, but never joins its group."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            **{name.replace("_", "."): value for name, value in settings.items()},
        }
    )
    try:
        yield consumer
    finally:
        consumer.close()


def commit(bootstrap: str, group: str, *positions: TopicPartition) -> None:
    with simple_consumer(bootstrap, group) as consumer:
        for answer in consumer.commit(offsets=list(positions), asynchronous=False) or []:
            if answer.error is not None:
                raise confluent_kafka.KafkaException(answer.error)


def committed(bootstrap: str, group: str, *positions: TopicPartition) -> list[tuple[int, str | None]]:
    with simple_consumer(bootstrap, group) as consumer:
        return [
            (answer.offset, answer.metadata) for answer in consumer.committed(list(positions), timeout=20)
        ]


@contextmanager
def kafka_python_consumer(bootstrap: str, group: str, topic: str) -> Iterator[kafka.KafkaConsumer]:
    """For commits with metadata: confluent-kafka takes it for a C string and sends the closing NUL along."""
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False)
    try:
        consumer.assign([kafka.TopicPartition(topic, 0)])
        yield consumer
    finally:
        consumer.close()


def commit_with_metadata(bootstrap: str, group: str, topic: str, offset: int, metadata: str) -> None:
    with kafka_python_consumer(bootstrap, group, topic) as consumer:
        consumer.commit({kafka.TopicPartition(topic, 0): kafka.OffsetAndMetadata(offset, metadata, -1)})


def committed_with_metadata(bootstrap: str, group: str, topic: str) -> tuple[int, str]:
    with kafka_python_consumer(bootstrap, group, topic) as consumer:
        found = consumer.committed(kafka.TopicPartition(topic, 0), metadata=True)
    return found.offset, found.metadata


def test_a_commit_with_metadata_comes_back_to_every_client(bootstrap: str, topic: str, group: str) -> None:
    commit_with_metadata(bootstrap, group, topic, 42, "checkpoint ✓")
    assert committed_with_metadata(bootstrap, group, topic) == (42, "checkpoint ✓")

    with simple_consumer(bootstrap, group) as consumer:
        [found] = consumer.committed([TopicPartition(topic, 0)], timeout=20)
    assert found.offset == 42

    async def ask() -> Any:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, group_id=group) as consumer:
            return await consumer.committed(aiokafka.TopicPartition(topic, 0))

    assert asyncio.run(ask()) == 42


def test_commits_of_other_clients_come_back_too(bootstrap: str, topic: str, group: str) -> None:
    async def go() -> None:
        async with aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, group_id=group, enable_auto_commit=False
        ) as consumer:
            place = aiokafka.TopicPartition(topic, 0)
            consumer.assign([place])
            await consumer.commit({place: (8, "by aiokafka")})

    asyncio.run(go())
    assert committed_with_metadata(bootstrap, group, topic) == (8, "by aiokafka")
    commit(bootstrap, group, TopicPartition(topic, 0, 9, "by confluent-kafka"))
    assert committed_with_metadata(bootstrap, group, topic) == (9, "by confluent-kafka\0")
    assert committed(bootstrap, group, TopicPartition(topic, 0)) == [(9, "by confluent-kafka")]


def test_metadata_beyond_the_limit_is_refused(bootstrap: str, topic: str, group: str) -> None:
    """offset.metadata.max.bytes is 4096 by default."""
    commit_with_metadata(bootstrap, group, topic, 1, "x" * 4096)
    with pytest.raises(OffsetMetadataTooLargeError):
        commit_with_metadata(bootstrap, group, topic, 2, "x" * 4097)
    assert committed_with_metadata(bootstrap, group, topic) == (1, "x" * 4096)


def test_a_commit_for_an_unknown_topic_is_refused(bootstrap: str, group: str) -> None:
    with pytest.raises(confluent_kafka.KafkaException) as refusal:
        commit(bootstrap, group, TopicPartition("no-such-topic", 0, 1))
    assert refusal.value.args[0].name() == "UNKNOWN_TOPIC_OR_PART"


def test_a_partition_without_a_commit_has_no_offset(
    bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(2)
    commit(bootstrap, group, TopicPartition(topic, 1, 5))
    found = committed(bootstrap, group, TopicPartition(topic, 0), TopicPartition(topic, 1))
    assert [offset for offset, _ in found] == [confluent_kafka.OFFSET_INVALID, 5]


def test_the_next_member_starts_where_the_last_one_left(bootstrap: str, topic: str, group: str) -> None:
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"%d" % n) for n in range(10)])
    with closing_members() as members:
        members.append(ConfluentMember(bootstrap, group, [topic]))
        poll_until("read", members, lambda: len(members[0].values) == 10)
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"%d" % n) for n in range(10, 15)])
    with closing_members() as members:
        members.append(ConfluentMember(bootstrap, group, [topic]))
        poll_until("read on", members, lambda: len(members[0].values) >= 5)
        assert members[0].values == [b"%d" % n for n in range(10, 15)]


def test_groups_do_not_share_their_offsets(bootstrap: str, topic: str, group: str) -> None:
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"%d" % n) for n in range(5)])
    for name in (group, f"{group}-other"):
        with closing_members() as members:
            members.append(ConfluentMember(bootstrap, name, [topic]))
            poll_until("read all", members, lambda members=members: len(members[0].values) == 5)  # type: ignore[misc]


@pytest.mark.parametrize(("reset", "values"), [("earliest", [b"0", b"1", b"later"]), ("latest", [b"later"])])
def test_where_a_group_without_offsets_starts(
    reset: str, values: list[bytes], bootstrap: str, topic: str, group: str
) -> None:
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"0"), Sent(value=b"1")])
    with closing_members() as members:
        member = ConfluentMember(bootstrap, group, [topic], auto_offset_reset=reset)
        members.append(member)
        place = TopicPartition(topic, 0)
        # Reading has begun, at a known place, once the consumer knows the partition's end from a fetch.
        poll_until(
            "reading",
            members,
            lambda: (
                bool(member.partitions())
                and member.consumer.get_watermark_offsets(place, cached=True)[1] == 2
            ),
        )
        PRODUCER.produce(bootstrap, topic, [Sent(value=b"later")])
        poll_until("read", members, lambda: b"later" in member.values)
        assert member.values == values


def test_a_group_without_offsets_that_must_have_them_is_told(bootstrap: str, topic: str, group: str) -> None:
    with closing_members() as members:
        members.append(ConfluentMember(bootstrap, group, [topic], auto_offset_reset="error"))
        with pytest.raises(confluent_kafka.KafkaException) as refusal:
            poll_until("told", members, lambda: False)
        assert refusal.value.args[0].code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET


@pytest.mark.parametrize("crash", [False, True], ids=["clean restart", "SIGKILL"])
def test_offsets_survive(crash: bool, own_broker: Broker) -> None:
    own_broker.create_topic("t", 3)
    bootstrap = own_broker.bootstrap_servers
    for turn in range(3):
        for group in ("first", "second"):
            positions = [TopicPartition("t", p, 100 * turn + p, f"{group} {turn}") for p in range(3)]
            commit(bootstrap, group, *positions)
        if crash:
            own_broker.kill()
            own_broker.start()
        else:
            own_broker.restart()
        for group in ("first", "second"):
            found = committed(bootstrap, group, *(TopicPartition("t", p) for p in range(3)))
            assert found == [(100 * turn + p, f"{group} {turn}") for p in range(3)]


def test_deleted_offsets_and_groups_stay_deleted_after_a_crash(own_broker: Broker) -> None:
    own_broker.create_topic("t", 2)
    bootstrap = own_broker.bootstrap_servers
    commit(bootstrap, "kept", TopicPartition("t", 0, 1), TopicPartition("t", 1, 2))
    commit(bootstrap, "gone", TopicPartition("t", 0, 3))
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        client.delete_group_offsets("kept", [kafka.TopicPartition("t", 0)])
        client.delete_groups(["gone"])
    finally:
        client.close()
    own_broker.kill()
    own_broker.start()
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        listed = admin.list_consumer_groups().result()
        assert [each.group_id for each in listed.valid] == ["kept"]
        request = ConsumerGroupTopicPartitions("kept")
        answer = admin.list_consumer_group_offsets([request])["kept"].result()
        assert [(each.partition, each.offset) for each in answer.topic_partitions] == [(1, 2)]
