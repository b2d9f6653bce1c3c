"""What DescribeConfigs, AlterConfigs and IncrementalAlterConfigs do with settings."""

from __future__ import annotations

import pytest

from culver.config import BrokerConfig, ConfigType, TopicConfig, load_broker_config
from culver.config.alter import Alteration, AlterOperation, alter_broker, alter_topic, checked_topic_overrides
from culver.config.describe import ConfigEntry, ConfigSource, describe_broker, describe_topic
from culver.errors import ConfigError, ErrorCode, KafkaError

SET, DELETE, APPEND, SUBTRACT = AlterOperation


def load(**overrides: str) -> BrokerConfig:
    return load_broker_config(None, {}, {name.replace("_", "."): value for name, value in overrides.items()})


def entry(entries: list[ConfigEntry], name: str) -> ConfigEntry:
    return next(entry for entry in entries if entry.name == name)


class TestDescribe:
    """Compared with what a Kafka 4.3.1 broker answers for the same settings."""

    def test_a_topics_own_value_over_the_default(self) -> None:
        entries = describe_topic(
            BrokerConfig(), {"cleanup.policy": "delete,compact", "retention.ms": " 12345 "}
        )
        policy = entry(entries, "cleanup.policy")
        assert (policy.value, policy.source, policy.type) == ("delete,compact", 1, ConfigType.LIST)
        assert policy.synonyms == (
            ("cleanup.policy", "delete,compact", 1),
            ("log.cleanup.policy", "delete", 5),
        )
        assert not policy.is_default
        retention = entry(entries, "retention.ms")
        assert (retention.value, retention.source) == ("12345", ConfigSource.TOPIC)
        assert retention.synonyms == (("retention.ms", "12345", 1),)

    def test_values_of_the_broker_in_the_order_of_their_weight(self) -> None:
        broker = load(log_segment_bytes="2000000").with_dynamic(
            {"log.segment.bytes": "3000000"}, {"log.segment.bytes": "4000000"}
        )
        found = entry(describe_topic(broker, {}), "segment.bytes")
        assert (found.value, found.source) == ("4000000", ConfigSource.DYNAMIC_BROKER)
        assert [(s.value, s.source) for s in found.synonyms] == [
            ("4000000", 2),
            ("3000000", 3),
            ("2000000", 4),
            ("1073741824", 5),
        ]
        assert broker.log_segment_bytes == 4_000_000

    def test_a_static_value_is_known_as_such(self) -> None:
        found = entry(describe_topic(load(message_max_bytes="5000"), {}), "max.message.bytes")
        assert (found.value, found.source) == ("5000", ConfigSource.STATIC_BROKER)
        assert found.synonyms == (("message.max.bytes", "5000", 4), ("message.max.bytes", "1048588", 5))

    def test_other_units_count_without_being_synonyms_until_the_main_name_is_set(self) -> None:
        broker = load(log_retention_hours="100")
        found = entry(describe_topic(broker, {}), "retention.ms")
        assert (found.value, found.source, found.synonyms) == ("360000000", ConfigSource.DEFAULT, ())
        found = entry(
            describe_topic(broker.with_dynamic({}, {"log.retention.ms": "777000"}), {}), "retention.ms"
        )
        assert (found.value, found.source) == ("777000", ConfigSource.DYNAMIC_BROKER)
        assert found.synonyms == (
            ("log.retention.ms", "777000", 2),
            ("log.retention.hours", "100", 4),
            ("log.retention.hours", "168", 5),
        )

    def test_only_what_is_asked_for(self) -> None:
        entries = describe_topic(BrokerConfig(), {}, ["retention.ms", "no.such", "segment.bytes"])
        assert [found.name for found in entries] == ["retention.ms", "segment.bytes"]
        assert describe_broker(BrokerConfig(), []) == []

    def test_an_internal_setting_shows_only_when_set(self) -> None:
        assert len(describe_topic(BrokerConfig(), {})) == len(TopicConfig.settings) - 1
        entries = describe_topic(BrokerConfig(), {"internal.segment.bytes": "500"})
        assert entry(entries, "internal.segment.bytes").value == "500"
        assert entry(entries, "segment.bytes").value == "1073741824"

    def test_a_broker(self) -> None:
        entries = describe_broker(load(num_partitions="3"))
        assert len(entries) == len(BrokerConfig.settings)
        partitions = entry(entries, "num.partitions")
        assert (partitions.value, partitions.source, partitions.read_only) == (
            "3",
            ConfigSource.STATIC_BROKER,
            True,
        )
        assert partitions.synonyms == (("num.partitions", "3", 4), ("num.partitions", "1", 5))
        segment = entry(entries, "log.segment.bytes")
        assert (segment.is_default, segment.read_only) == (True, False)
        unset = entry(entries, "log.retention.ms")
        assert (unset.value, unset.source, unset.synonyms) == (None, ConfigSource.DEFAULT, ())


class TestAlter:
    def test_lists_grow_and_shrink(self) -> None:
        def altered(overrides: dict[str, str], operation: AlterOperation, value: str) -> str:
            return alter_topic(BrokerConfig(), overrides, [Alteration("cleanup.policy", operation, value)])[
                "cleanup.policy"
            ]

        assert altered({}, APPEND, "compact") == "delete,compact"
        assert altered({"cleanup.policy": "delete,compact"}, APPEND, "compact") == "delete,compact"
        assert altered({"cleanup.policy": "delete,compact"}, SUBTRACT, "delete,other") == "compact"
        assert altered({"cleanup.policy": "compact"}, SUBTRACT, "compact") == ""
        assert altered({"cleanup.policy": ""}, APPEND, "compact") == "compact"

    def test_set_and_delete(self) -> None:
        before = {"retention.ms": "5", "segment.ms": "6"}
        changes = [Alteration("retention.ms", SET, " 7 "), Alteration("segment.ms", DELETE, None)]
        assert alter_topic(BrokerConfig(), before, [*changes, Alteration("nope", DELETE, None)]) == {
            "retention.ms": "7"
        }
        assert before == {"retention.ms": "5", "segment.ms": "6"}

    @pytest.mark.parametrize(
        ("alterations", "code", "says"),
        [
            ([Alteration("retention.ms", APPEND, "5")], ErrorCode.INVALID_CONFIG, "APPEND is for lists"),
            ([Alteration("cleanup.policy", APPEND, "foo")], ErrorCode.INVALID_CONFIG, "'foo' is not allowed"),
            ([Alteration("retention.ms", SET, None)], ErrorCode.INVALID_REQUEST, "use DELETE"),
            ([Alteration("retention.ms", 9, "5")], ErrorCode.INVALID_REQUEST, "no operation 9"),
            ([Alteration("nope", SET, "5")], ErrorCode.INVALID_CONFIG, "no topic setting 'nope'"),
            (
                [Alteration("retention.ms", SET, "5"), Alteration("retention.ms", SET, "5")],
                ErrorCode.INVALID_REQUEST,
                "named twice",
            ),
            (
                [
                    Alteration("min.compaction.lag.ms", SET, "5"),
                    Alteration("max.compaction.lag.ms", SET, "4"),
                ],
                ErrorCode.INVALID_CONFIG,
                "is more than",
            ),
        ],
    )
    def test_what_a_topic_refuses(self, alterations: list[Alteration], code: ErrorCode, says: str) -> None:
        with pytest.raises(KafkaError, match=says) as caught:
            alter_topic(BrokerConfig(), {}, alterations)
        assert caught.value.code == code

    def test_settings_for_a_new_topic(self) -> None:
        assert checked_topic_overrides(BrokerConfig(), {"retention.ms": " 5 ", "preallocate": "TRUE"}) == {
            "retention.ms": "5",
            "preallocate": "true",
        }
        with pytest.raises(ConfigError, match="give a value"):
            checked_topic_overrides(BrokerConfig(), {"retention.ms": None})

    def test_a_broker_while_it_runs(self) -> None:
        broker = load(log_segment_bytes="2000000")
        dynamic = alter_broker(broker, {}, [Alteration("log.segment.bytes", SET, "3000000")])
        assert dynamic == {"log.segment.bytes": "3000000"}
        assert broker.with_dynamic({}, dynamic).log_segment_bytes == 3_000_000
        assert alter_broker(broker, dynamic, [Alteration("log.segment.bytes", DELETE, None)]) == {}
        appended = alter_broker(broker, {}, [Alteration("log.cleanup.policy", APPEND, "compact")])
        assert appended == {"log.cleanup.policy": "delete,compact"}

    @pytest.mark.parametrize(
        ("alteration", "code", "says"),
        [
            (
                Alteration("num.partitions", SET, "3"),
                ErrorCode.INVALID_REQUEST,
                "cannot change while the broker",
            ),
            (Alteration("num.partitions", DELETE, None), ErrorCode.INVALID_REQUEST, "cannot change while"),
            (Alteration("log.segment.bytes", SET, "3"), ErrorCode.INVALID_REQUEST, "too small"),
            (
                Alteration("log.segment.byte", SET, "3"),
                ErrorCode.INVALID_CONFIG,
                "did you mean log.segment.bytes",
            ),
        ],
    )
    def test_what_a_broker_refuses(self, alteration: Alteration, code: ErrorCode, says: str) -> None:
        with pytest.raises(KafkaError, match=says) as caught:
            alter_broker(BrokerConfig(), {}, [alteration])
        assert caught.value.code == code
