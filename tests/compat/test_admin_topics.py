"""Topics through the admin clients: create, describe, grow, trim, delete; and topics that create themselves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import confluent_kafka
import pytest
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin import NewTopic as AiokafkaNewTopic
from confluent_kafka import KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from deadlines import eventually
from kafka.errors import UnknownTopicOrPartitionError
from real_clients import CLIENTS, Sent

import kafka
from culver.testing import Broker

PRODUCER = CLIENTS["confluent-kafka"]


@pytest.fixture
def kafka_python_admin(bootstrap: str) -> Iterator[kafka.KafkaAdminClient]:
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def refusal_of(future: Any) -> str:
    with pytest.raises(KafkaException) as refusal:
        future.result()
    name: str = refusal.value.args[0].name()
    return name


def create(admin: AdminClient, name: str, partitions: int = 1, **rest: Any) -> Any:
    replication_factor = rest.pop("replication_factor", 1)
    config = rest.pop("config", {})
    wanted = NewTopic(name, num_partitions=partitions, replication_factor=replication_factor, config=config)
    return admin.create_topics([wanted], **rest)[name]


def test_a_topic_is_described_as_it_was_created(admin: AdminClient, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    found = admin.describe_topics(TopicCollection([topic]))[topic].result()
    assert found.name == topic
    assert not found.is_internal
    assert len(str(found.topic_id)) == 22, "a uuid in base64"
    assert [partition.id for partition in found.partitions] == [0, 1, 2]
    for partition in found.partitions:
        assert partition.leader is not None
        assert [node.id for node in partition.replicas] == [partition.leader.id]
        assert [node.id for node in partition.isr] == [partition.leader.id]


def test_other_clients_create_describe_and_delete(
    bootstrap: str, group: str, admin: AdminClient, kafka_python_admin: kafka.KafkaAdminClient
) -> None:
    by_kafka_python, by_aiokafka = f"{group}-kafka-python", f"{group}-aiokafka"
    kafka_python_admin.create_topics(
        {by_kafka_python: {"num_partitions": 2, "configs": {"retention.ms": "1000000"}}}, timeout_ms=20000
    )
    kafka_python_admin.wait_for_topics([by_kafka_python])
    [described] = kafka_python_admin.describe_topics([by_kafka_python])
    assert len(described["partitions"]) == 2

    async def with_aiokafka() -> None:
        client = AIOKafkaAdminClient(bootstrap_servers=bootstrap)
        await client.start()
        try:
            await client.create_topics([AiokafkaNewTopic(by_aiokafka, 4, 1)])
            # Kafka answers before the new topic is in its metadata.
            kafka_python_admin.wait_for_topics([by_aiokafka])
            assert {by_aiokafka, by_kafka_python} <= set(await client.list_topics())
            [described] = await client.describe_topics([by_aiokafka])
            assert len(described["partitions"]) == 4
            await client.delete_topics([by_aiokafka])
        finally:
            await client.close()

    asyncio.run(with_aiokafka())
    kafka_python_admin.delete_topics([by_kafka_python])
    eventually("gone", lambda: not {by_aiokafka, by_kafka_python} & set(admin.list_topics(timeout=20).topics))


def test_a_broker_default_for_partitions_and_replication(
    bootstrap: str, group: str, kafka_python_admin: kafka.KafkaAdminClient
) -> None:
    """-1 asks for num.partitions and default.replication.factor, one each unless set otherwise."""
    kafka_python_admin.create_topics([group])
    kafka_python_admin.wait_for_topics([group])
    [described] = kafka_python_admin.describe_topics([group])
    assert [len(partition["replica_nodes"]) for partition in described["partitions"]] == [1]


@pytest.mark.parametrize(
    ("name", "partitions", "rest", "refusal"),
    [
        ("bad/name", 1, {}, "TOPIC_EXCEPTION"),
        ("..", 1, {}, "TOPIC_EXCEPTION"),
        ("x" * 250, 1, {}, "TOPIC_EXCEPTION"),
        ("zero-partitions", 0, {}, "INVALID_PARTITIONS"),
        ("three-replicas", 1, {"replication_factor": 3}, "INVALID_REPLICATION_FACTOR"),
        ("no-such-setting", 1, {"config": {"no.such.setting": "1"}}, "INVALID_CONFIG"),
        ("bad-value", 1, {"config": {"retention.ms": "soon"}}, "INVALID_CONFIG"),
        ("out-of-range", 1, {"config": {"cleanup.policy": "shred"}}, "INVALID_CONFIG"),
    ],
)
def test_what_makes_no_sense_is_refused(
    name: str, partitions: int, rest: dict[str, Any], refusal: str, admin: AdminClient
) -> None:
    assert refusal_of(create(admin, name, partitions, **rest)) == refusal
    assert name not in admin.list_topics(timeout=20).topics


def test_a_topic_that_exists_is_not_created_again(admin: AdminClient, topic: str) -> None:
    assert refusal_of(create(admin, topic)) == "TOPIC_ALREADY_EXISTS"


def test_names_that_would_clash_in_metrics_are_refused(admin: AdminClient, group: str) -> None:
    create(admin, f"{group}.a_b").result()
    assert refusal_of(create(admin, f"{group}.a.b")) == "TOPIC_EXCEPTION"


def test_validation_only_creates_nothing(admin: AdminClient, group: str) -> None:
    create(admin, group, validate_only=True).result()
    assert group not in admin.list_topics(timeout=20).topics


def test_partitions_are_added_and_never_taken_away(admin: AdminClient, topic: str, bootstrap: str) -> None:
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"before")])
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
    eventually("three", lambda: len(admin.list_topics(topic, timeout=20).topics[topic].partitions) == 3)
    assert refusal_of(admin.create_partitions([NewPartitions(topic, 2)])[topic]) == "INVALID_PARTITIONS"
    assert refusal_of(admin.create_partitions([NewPartitions(topic, 3)])[topic]) == "INVALID_PARTITIONS"
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"new", partition=p) for p in (1, 2)])
    found = PRODUCER.consume(bootstrap, topic, 3, partitions=range(3))
    assert [record.value for record in found] == [b"before", b"new", b"new"]


def test_a_deleted_topic_is_gone_and_its_name_starts_afresh(
    admin: AdminClient, topic: str, bootstrap: str
) -> None:
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"old")])
    old_id = str(admin.describe_topics(TopicCollection([topic]))[topic].result().topic_id)
    admin.delete_topics([topic])[topic].result()
    eventually("gone", lambda: topic not in admin.list_topics(timeout=20).topics)
    assert refusal_of(admin.delete_topics([topic])[topic]) == "UNKNOWN_TOPIC_OR_PART"

    def created() -> bool:
        # Kafka finishes the deletion behind the answer.
        try:
            create(admin, topic).result()
        except KafkaException as refusal:
            if refusal.args[0].name() == "TOPIC_ALREADY_EXISTS":
                return False
            raise
        return True

    eventually("created again", created)
    assert str(admin.describe_topics(TopicCollection([topic]))[topic].result().topic_id) != old_id
    assert PRODUCER.produce(bootstrap, topic, [Sent(value=b"new")]) == [0]
    assert [record.value for record in PRODUCER.consume(bootstrap, topic, 1)] == [b"new"]


def test_records_are_deleted_up_to_an_offset(admin: AdminClient, topic: str, bootstrap: str) -> None:
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"%d" % n) for n in range(10)])
    place = TopicPartition(topic, 0, 4)
    answer = admin.delete_records([place])[place].result()
    assert answer.low_watermark == 4
    found = PRODUCER.consume(bootstrap, topic, 6)
    assert [record.value for record in found] == [b"%d" % n for n in range(4, 10)]
    place = TopicPartition(topic, 0, 11)
    assert refusal_of(admin.delete_records([place])[place]) == "OFFSET_OUT_OF_RANGE"
    place = TopicPartition(topic, 0, confluent_kafka.OFFSET_END)
    assert admin.delete_records([place])[place].result().low_watermark == 10


def test_a_reader_of_deleted_records_is_moved_to_the_first_that_is_left(
    admin: AdminClient, topic: str, bootstrap: str
) -> None:
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"%d" % n) for n in range(10)])
    place = TopicPartition(topic, 0, 7)
    admin.delete_records([place])[place].result()
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "earliest"}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 2)])
        message = consumer.poll(20)
        assert message is not None
        assert (message.offset(), message.value()) == (7, b"7")
    finally:
        consumer.close()


def test_the_cluster_is_described(admin: AdminClient, kafka_python_admin: kafka.KafkaAdminClient) -> None:
    found = admin.describe_cluster().result()
    assert len(found.nodes) == 1
    assert found.controller.id == found.nodes[0].id
    assert found.nodes[0].host == "127.0.0.1"
    assert found.cluster_id == admin.list_topics(timeout=20).cluster_id == admin.cluster_id()
    other = kafka_python_admin.describe_cluster()
    assert other["cluster_id"] == found.cluster_id
    assert len(other["brokers"]) == 1


def test_log_directories_tell_the_size_of_each_partition(
    bootstrap: str, new_topic: Callable[..., str], kafka_python_admin: kafka.KafkaAdminClient
) -> None:
    topic = new_topic(2)
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"x" * 10_000, partition=1)])
    answers = kafka_python_admin.describe_log_dirs({topic: [0, 1]})
    sizes = {
        partition["partition_index"]: partition["partition_size"]
        for answer in answers
        for directory in answer["log_dirs"]
        for described in directory["topics"]
        if described["name"] == topic
        for partition in described["partitions"]
    }
    assert sizes[0] == 0
    assert 10_000 < sizes[1] < 10_200


@pytest.mark.parametrize("client", CLIENTS.values(), ids=list(CLIENTS))
def test_producing_to_a_new_name_creates_the_topic(client: Any, bootstrap: str, group: str) -> None:
    """auto.create.topics.enable is on by default."""
    assert client.produce(bootstrap, group, [Sent(value=b"first")]) == [0]
    assert [record.value for record in client.consume(bootstrap, group, 1)] == [b"first"]


def test_a_consumer_that_may_not_create_does_not(bootstrap: str, group: str, admin: AdminClient) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, allow_auto_create_topics=False)
    try:
        assert not consumer.partitions_for_topic(group)
    finally:
        consumer.close()
    assert group not in admin.list_topics(timeout=20).topics


def test_describing_a_name_does_not_create_it(
    group: str, admin: AdminClient, kafka_python_admin: kafka.KafkaAdminClient
) -> None:
    [described] = kafka_python_admin.describe_topics([group])
    assert described["error_code"] == UnknownTopicOrPartitionError.errno
    assert refusal_of(admin.describe_topics(TopicCollection([group]))[group]) == "UNKNOWN_TOPIC_OR_PART"
    assert group not in admin.list_topics(timeout=20).topics


def test_a_broker_that_may_not_create_does_not() -> None:
    with Broker(config={"auto.create.topics.enable": False}) as broker:
        # The client waits this long for a topic that may be on its way.
        settings = {"bootstrap.servers": broker.bootstrap_servers, "topic.metadata.propagation.max.ms": 100}
        outcomes: list[Any] = []
        with confluent_kafka.Producer(settings) as producer:
            producer.produce(
                "nobody-made-it", b"v", on_delivery=lambda error, _message: outcomes.append(error)
            )
            assert producer.flush(20) == 0
        assert [error.code() for error in outcomes] == [confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART]
        with AdminClient({"bootstrap.servers": broker.bootstrap_servers}) as admin:
            assert admin.list_topics(timeout=20).topics == {}
