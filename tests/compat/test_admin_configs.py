"""Configurations through the admin clients: defaults and their sources, changes and their effect."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource, ConfigSource
from confluent_kafka.admin._resource import ResourceType
from deadlines import eventually
from kafka.admin import ConfigResource as KafkaPythonResource
from real_clients import CLIENTS, Sent

import kafka
from culver.testing import Broker

# What Kafka 4.3 answers for a topic that sets nothing.
TOPIC_DEFAULTS = {
    "cleanup.policy": "delete",
    "compression.type": "producer",
    "delete.retention.ms": "86400000",
    "file.delete.delay.ms": "60000",
    "flush.messages": "9223372036854775807",
    "flush.ms": "9223372036854775807",
    "index.interval.bytes": "4096",
    "max.compaction.lag.ms": "9223372036854775807",
    "max.message.bytes": "1048588",
    "message.timestamp.after.max.ms": "3600000",
    "message.timestamp.before.max.ms": "9223372036854775807",
    "message.timestamp.type": "CreateTime",
    "min.cleanable.dirty.ratio": "0.5",
    "min.compaction.lag.ms": "0",
    "min.insync.replicas": "1",
    "preallocate": "false",
    "retention.bytes": "-1",
    "retention.ms": "604800000",
    "segment.bytes": "1073741824",
    "segment.index.bytes": "10485760",
    "segment.jitter.ms": "0",
    "segment.ms": "604800000",
    "unclean.leader.election.enable": "false",
}


def resource(topic: str, changes: dict[str, tuple[AlterConfigOpType, str | None]] | None = None) -> Any:
    entries = [
        ConfigEntry(name, value, incremental_operation=operation)
        for name, (operation, value) in (changes or {}).items()
    ]
    return ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries or None)


def describe(admin: AdminClient, topic: str) -> dict[str, Any]:
    [future] = admin.describe_configs([resource(topic)]).values()
    found: dict[str, Any] = future.result()
    return found


def alter(admin: AdminClient, topic: str, **rest: Any) -> None:
    changes = rest.pop("changes")
    [future] = admin.incremental_alter_configs([resource(topic, changes)], **rest).values()
    future.result()


def value(admin: AdminClient, topic: str, name: str) -> str:
    found: str = describe(admin, topic)[name].value
    return found


SET, DELETE = AlterConfigOpType.SET, AlterConfigOpType.DELETE
APPEND, SUBTRACT = AlterConfigOpType.APPEND, AlterConfigOpType.SUBTRACT


def test_a_topic_that_sets_nothing_has_kafkas_defaults(admin: AdminClient, topic: str) -> None:
    found = describe(admin, topic)
    assert {name: found[name].value for name in TOPIC_DEFAULTS} == TOPIC_DEFAULTS
    for name in TOPIC_DEFAULTS:
        assert found[name].source != ConfigSource.DYNAMIC_TOPIC_CONFIG.value, name
        assert not found[name].is_sensitive
        assert not found[name].is_read_only


def test_what_a_topic_sets_is_told_apart_from_defaults(
    admin: AdminClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(config={"retention.ms": "5000", "cleanup.policy": "compact,delete"})
    found = describe(admin, topic)
    assert found["retention.ms"].value == "5000"
    assert found["retention.ms"].source == ConfigSource.DYNAMIC_TOPIC_CONFIG.value
    assert found["cleanup.policy"].value == "compact,delete"
    assert found["segment.ms"].source == ConfigSource.DEFAULT_CONFIG.value
    synonyms = found["retention.ms"].synonyms
    assert synonyms["retention.ms"].value == "5000"


def test_settings_change_one_by_one(admin: AdminClient, topic: str) -> None:
    alter(admin, topic, changes={"retention.ms": (SET, "7000"), "max.message.bytes": (SET, "2000")})
    eventually("changed", lambda: value(admin, topic, "retention.ms") == "7000")
    assert value(admin, topic, "max.message.bytes") == "2000"
    alter(admin, topic, changes={"retention.ms": (DELETE, None)})
    eventually("back to the default", lambda: value(admin, topic, "retention.ms") == "604800000")
    assert value(admin, topic, "max.message.bytes") == "2000", "the other change stays"
    alter(admin, topic, changes={"cleanup.policy": (APPEND, "compact")})
    eventually("both", lambda: value(admin, topic, "cleanup.policy") == "delete,compact")
    alter(admin, topic, changes={"cleanup.policy": (SUBTRACT, "delete")})
    eventually("one", lambda: value(admin, topic, "cleanup.policy") == "compact")


def test_the_old_way_replaces_all_that_was_set(
    bootstrap: str, admin: AdminClient, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(config={"retention.ms": "5000"})
    replacement = ConfigResource(ResourceType.TOPIC, topic, set_config={"segment.ms": "60000"})
    [future] = admin.alter_configs([replacement]).values()
    future.result()
    eventually("set", lambda: value(admin, topic, "segment.ms") == "60000")
    assert value(admin, topic, "retention.ms") == "604800000"


@pytest.mark.parametrize(
    "changes",
    [
        {"retention.ms": (SET, "soon")},
        {"no.such.setting": (SET, "1")},
        {"max.message.bytes": (SET, "-1")},
        {"retention.ms": (APPEND, "1")},
        {"segment.bytes": (SET, "100"), "retention.ms": (SET, "9000")},
    ],
    ids=["not a number", "unknown", "out of range", "not a list", "one of two"],
)
def test_a_bad_change_is_refused_whole(
    changes: dict[str, tuple[AlterConfigOpType, str]], admin: AdminClient, topic: str
) -> None:
    before = {name: entry.value for name, entry in describe(admin, topic).items()}
    with pytest.raises(KafkaException) as refusal:
        alter(admin, topic, changes=changes)
    assert refusal.value.args[0].name() == "INVALID_CONFIG"
    assert {name: entry.value for name, entry in describe(admin, topic).items()} == before


def test_validation_only_changes_nothing(admin: AdminClient, topic: str) -> None:
    alter(admin, topic, changes={"retention.ms": (SET, "7000")}, validate_only=True)
    assert value(admin, topic, "retention.ms") == "604800000"


def test_a_change_takes_effect(admin: AdminClient, topic: str, bootstrap: str) -> None:
    alter(admin, topic, changes={"max.message.bytes": (SET, "1000")})
    client = CLIENTS["confluent-kafka"]

    def refused() -> bool:
        try:
            client.produce(bootstrap, topic, [Sent(value=b"x" * 5000)])
        except KafkaException as refusal:
            if refusal.args[0].name() == "MSG_SIZE_TOO_LARGE":
                return True
            raise
        return False

    eventually("refused", refused)
    alter(admin, topic, changes={"max.message.bytes": (SET, "10000")})
    eventually("taken", lambda: not refused())


def test_an_unknown_topic_has_no_configuration(admin: AdminClient, group: str) -> None:
    with pytest.raises(KafkaException) as refusal:
        describe(admin, group)
    assert refusal.value.args[0].name() == "UNKNOWN_TOPIC_OR_PART"


def test_the_broker_describes_itself(admin: AdminClient) -> None:
    node = admin.describe_cluster().result().nodes[0]
    asked = ConfigResource(ResourceType.BROKER, str(node.id))
    [future] = admin.describe_configs([asked]).values()
    found: dict[str, Any] = future.result()
    assert found["log.retention.hours"].value == "168"
    assert found["log.retention.hours"].source == ConfigSource.DEFAULT_CONFIG.value
    assert found["group.initial.rebalance.delay.ms"].source == ConfigSource.STATIC_BROKER_CONFIG.value
    assert found["auto.create.topics.enable"].value == "true"


@pytest.fixture
def kafka_python_admin(bootstrap: str) -> Iterator[kafka.KafkaAdminClient]:
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def test_kafka_python_sees_and_changes_the_same(
    kafka_python_admin: kafka.KafkaAdminClient, admin: AdminClient, topic: str
) -> None:
    kafka_python_admin.alter_configs([KafkaPythonResource("TOPIC", topic, {"retention.ms": "4321"})])
    eventually("changed", lambda: value(admin, topic, "retention.ms") == "4321")
    kafka_python_admin.reset_configs([KafkaPythonResource("TOPIC", topic, ["retention.ms"])])
    eventually("back", lambda: value(admin, topic, "retention.ms") == "604800000")


def test_changes_survive_a_crash(own_broker: Broker) -> None:
    own_broker.create_topic("t", 1, {"retention.ms": "5000"})
    with AdminClient({"bootstrap.servers": own_broker.bootstrap_servers}) as admin:
        alter(admin, "t", changes={"max.message.bytes": (SET, "2000")})
    own_broker.kill()
    own_broker.start()
    with AdminClient({"bootstrap.servers": own_broker.bootstrap_servers}) as admin:
        assert value(admin, "t", "retention.ms") == "5000"
        assert value(admin, "t", "max.message.bytes") == "2000"
