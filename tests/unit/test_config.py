"""Settings: their declarations, where they come from, what is refused, and what is documented."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culver.config import (
    BrokerConfig,
    GatewayConfig,
    Setting,
    TopicConfig,
    environment_name,
    load_broker_config,
    load_gateway_settings,
    parse_address,
    validate_topic_setting,
)
from culver.config.reference import reference_markdown, setting_rows
from culver.errors import ConfigError, ErrorCode, KafkaError

ALL_SETTINGS = [
    *BrokerConfig.settings.values(),
    *TopicConfig.settings.values(),
    *GatewayConfig.settings.values(),
]


def load(
    file: Path | None = None, environment: dict[str, str] | None = None, **overrides: str
) -> BrokerConfig:
    dotted = {name.replace("_", "."): value for name, value in overrides.items()}
    return load_broker_config(str(file) if file else None, environment or {}, dotted)


def refusal(name: str, value: str) -> str:
    with pytest.raises(KafkaError) as caught:
        validate_topic_setting(name, value)
    assert caught.value.code == ErrorCode.INVALID_CONFIG
    return caught.value.message


class TestDeclarations:
    def test_the_topic_settings_are_those_of_kafka_and_one_of_our_own(self) -> None:
        # name: type number, default, synonyms; as a Kafka 4.3.1 broker describes them
        assert {
            setting.name: (int(setting.type), setting.default_text, setting.synonyms)
            for setting in TopicConfig.settings.values()
            if not setting.internal and setting.name != "culver.flush"
        } == KAFKA_TOPIC_SETTINGS

    def test_every_setting_is_documented_and_its_default_is_valid(self) -> None:
        for setting in ALL_SETTINGS:
            assert setting.documentation.endswith("."), setting.name
            if setting.default_text is not None:
                assert setting.parse(setting.default_text) == setting.default, setting.name

    def test_a_topic_setting_has_the_type_range_and_default_of_the_broker_setting_behind_it(self) -> None:
        def facts(setting: Setting) -> tuple[object, ...]:
            return (setting.type, setting.minimum, setting.maximum, setting.also, setting.choices)

        for setting in TopicConfig.settings.values():
            if setting.synonyms:
                behind = BrokerConfig.settings[setting.synonyms[0]]
                if setting.name != "retention.bytes":
                    assert facts(behind) == facts(setting), setting.name
                assert behind.default in (setting.default, None)
                assert behind.dynamic

    def test_no_setting_is_a_table_to_another_in_toml(self) -> None:
        names = [*BrokerConfig.settings, *GatewayConfig.settings]
        for name in names:
            assert not any(other.startswith(f"{name}.") for other in names)

    def test_attributes_are_the_names_with_underscores(self) -> None:
        for name, setting in BrokerConfig.settings.items():
            assert setting.attribute == name.replace(".", "_")
        for name, setting in TopicConfig.settings.items():
            assert setting.attribute == name.removeprefix("culver.").replace(".", "_")


class TestValues:
    def test_configurations_are_frozen_and_compare_by_value(self) -> None:
        config = TopicConfig(segment_bytes=5)
        with pytest.raises(AttributeError, match="frozen"):
            config.segment_bytes = 6  # type: ignore[misc]
        with pytest.raises(AttributeError, match="frozen"):
            del config.segment_bytes
        assert config == TopicConfig(segment_bytes=5) != TopicConfig(segment_bytes=6)
        assert hash(config) == hash(TopicConfig(segment_bytes=5))
        assert config.replace(retention_ms=1) == TopicConfig(segment_bytes=5, retention_ms=1)
        assert repr(config) == "TopicConfig(segment_bytes=5)"
        assert not hasattr(config, "__dict__")
        with pytest.raises(TypeError, match="no 'colour'"):
            TopicConfig(colour="red")  # type: ignore[call-arg]

    @pytest.mark.parametrize(
        ("name", "text", "value"),
        [
            ("retention.ms", " 5 ", 5),
            ("retention.ms", "+5", 5),
            ("retention.ms", "-1", -1),
            ("retention.ms", str(2**63 - 1), 2**63 - 1),
            ("segment.bytes", "1048576", 1 << 20),
            ("preallocate", " TRUE ", True),
            ("preallocate", "false", False),
            ("min.cleanable.dirty.ratio", ".5", 0.5),
            ("min.cleanable.dirty.ratio", "5e-1", 0.5),
            ("min.cleanable.dirty.ratio", "1", 1.0),
            ("compression.type", " gzip ", "gzip"),
            ("compression.gzip.level", "-1", -1),
            ("cleanup.policy", "compact , delete", frozenset({"compact", "delete"})),
            ("cleanup.policy", "compact,compact", frozenset({"compact"})),
            ("cleanup.policy", " ", frozenset()),
            ("follower.replication.throttled.replicas", "0:1, 1:2", ("0:1", "1:2")),
            ("follower.replication.throttled.replicas", "*", ("*",)),
            ("follower.replication.throttled.replicas", "", ()),
            ("culver.flush", "always", "always"),
        ],
    )
    def test_what_kafka_accepts_is_accepted(self, name: str, text: str, value: object) -> None:
        assert validate_topic_setting(name, text) == value

    @pytest.mark.parametrize(
        ("name", "text", "says"),
        [
            ("retention.ms", "", "retention.ms: '' is not a whole number; write it in digits"),
            ("retention.ms", "0x10", "retention.ms: '0x10' is not a whole number; write it in digits"),
            ("retention.ms", "1e3", "retention.ms: '1e3' is not a whole number; write it in digits"),
            ("retention.ms", "1_000", "retention.ms: '1_000' is not a whole number; write it in digits"),
            ("retention.ms", "-2", "retention.ms: -2 is too small; it must be -1 or more"),
            (
                "retention.ms",
                str(2**63),
                f"retention.ms: {2**63} does not fit into 64 bits; the largest is {2**63 - 1}",
            ),
            (
                "segment.bytes",
                str(2**31),
                f"segment.bytes: {2**31} does not fit into 32 bits; the largest is {2**31 - 1}",
            ),
            ("segment.bytes", "14", "segment.bytes: 14 is too small; it must be 1048576 or more"),
            ("preallocate", "yes", "preallocate: 'yes' is neither true nor false"),
            ("preallocate", "", "preallocate: '' is neither true nor false"),
            (
                "min.cleanable.dirty.ratio",
                "1.1",
                "min.cleanable.dirty.ratio: 1.1 is too large; it must be 0 to 1",
            ),
            ("min.cleanable.dirty.ratio", "nan", "min.cleanable.dirty.ratio: 'nan' is not a finite number"),
            ("min.cleanable.dirty.ratio", "half", "min.cleanable.dirty.ratio: 'half' is not a number"),
            (
                "compression.type",
                "GZIP",
                "compression.type: 'GZIP' is not allowed; choose one of uncompressed, zstd, lz4, snappy, gzip, "
                "producer",
            ),
            (
                "compression.gzip.level",
                "0",
                "compression.gzip.level: 0 is too small; it must be -1, or 1 to 9",
            ),
            (
                "compression.gzip.level",
                "10",
                "compression.gzip.level: 10 is too large; it must be -1, or 1 to 9",
            ),
            ("cleanup.policy", "foo", "cleanup.policy: 'foo' is not allowed; choose from compact, delete"),
            (
                "cleanup.policy",
                "compact,",
                "cleanup.policy: 'compact,' has an empty entry; leave out the comma",
            ),
            (
                "leader.replication.throttled.replicas",
                "0:",
                "leader.replication.throttled.replicas: '0:' is no replica; write PARTITION:BROKER, separated by "
                "commas, or * for all",
            ),
            (
                "remote.storage.enable",
                "true",
                "remote.storage.enable: this broker has no tiered storage; leave it false",
            ),
            ("retention.m", "1", "there is no topic setting 'retention.m'; did you mean retention.ms?"),
            ("xyzzy", "1", "there is no topic setting 'xyzzy'; `culver config` lists them all"),
        ],
    )
    def test_what_is_refused_says_what_to_do(self, name: str, text: str, says: str) -> None:
        assert refusal(name, text) == says

    @given(text=st.text(max_size=30))
    def test_any_text_is_a_value_or_a_configuration_error(self, text: str) -> None:
        for setting in ALL_SETTINGS:
            try:
                value = setting.parse(text)
            except ConfigError as error:
                assert error.name == setting.name  # noqa: PT017 - either outcome is fine
            else:
                assert setting.parse(setting.format(value) or "") == value

    @pytest.mark.parametrize(
        ("text", "address"),
        [("localhost:9092", ("localhost", 9092)), (":0", ("", 0)), ("[::1]:65535", ("::1", 65535))],
    )
    def test_addresses(self, text: str, address: tuple[str, int]) -> None:
        assert parse_address(text) == address

    @pytest.mark.parametrize(
        "text", ["", "host", "host:", "host:x", "host:65536", "host:-1", "::1:9092", "h:٣"]
    )
    def test_what_is_no_address(self, text: str) -> None:
        with pytest.raises(ValueError):
            parse_address(text)
        with pytest.raises(ConfigError, match=r"^listen: "):
            load(listen=text)

    def test_an_advertised_address_needs_a_host(self) -> None:
        with pytest.raises(ConfigError, match="has no host"):
            load(advertise=":9092")


class TestSources:
    def test_without_any_all_is_at_its_default(self) -> None:
        config = load()
        assert config == BrokerConfig()
        assert config.socket_request_max_bytes == 104857600
        assert config.fetch_max_bytes == 57671680
        assert config.message_max_bytes == 1048588
        assert config.culver_flush == "replicated"
        assert config.log_level == "warning"
        assert config.node_id == config.broker_id == 1

    def test_a_file_with_tables_dotted_and_quoted_keys(self, tmp_path: Path) -> None:
        file = tmp_path / "culver.toml"
        file.write_text(
            """
            listen = "0.0.0.0:9093"
            num.partitions = 3
            "default.replication.factor" = 1
            auto.create.topics.enable = false
            [log]
            level = "info"
            cleanup.policy = ["compact", "delete"]
            cleaner.min.cleanable.ratio = 0.25
            [log.retention]
            ms = 3600000
            [culver]
            flush = "os"
            """
        )
        config = load(file)
        assert config.listen == "0.0.0.0:9093"
        assert config.num_partitions == 3
        assert config.auto_create_topics_enable is False
        assert config.log_level == "info"
        assert config.log_cleanup_policy == {"compact", "delete"}
        assert config.log_cleaner_min_cleanable_ratio == 0.25
        assert config.log_retention_ms == 3600000
        assert config.culver_flush == "os"

    def test_the_environment_beats_the_file_and_the_command_line_both(self, tmp_path: Path) -> None:
        file = tmp_path / "culver.toml"
        file.write_text("num.partitions = 1\nnode.id = 1\ndelete.topic.enable = false")
        environment = {
            "CULVER_NUM_PARTITIONS": "2",
            "CULVER_NODE_ID": "2",
            "PATH": "/bin",
            "CULVER_BOOTSTRAP": "x",
            "CULVER_LOG_STORE": "x",
        }
        config = load(file, environment, num_partitions="3")
        assert (config.num_partitions, config.node_id, config.delete_topic_enable) == (3, 2, False)

    def test_variables_that_kubernetes_makes_of_a_service_are_no_settings(self) -> None:
        links = {
            "CULVER_SERVICE_HOST": "10.0.0.1",
            "CULVER_SERVICE_PORT_KAFKA": "9092",
            "CULVER_PORT": "tcp://10.0.0.1:9092",
            "CULVER_PORT_9092_TCP_ADDR": "10.0.0.1",
            "CULVER_BROKER_PORT_9092_TCP": "tcp://10.0.0.1:9092",
        }
        assert load(environment=links).static == {}

    def test_names_of_environment_variables(self) -> None:
        assert environment_name("log.retention.ms") == "CULVER_LOG_RETENTION_MS"
        assert environment_name("culver.flush") == "CULVER_FLUSH"
        assert load(environment={"CULVER_FLUSH": "always"}).culver_flush == "always"
        names = [*BrokerConfig.settings, *GatewayConfig.settings]
        assert len({environment_name(name) for name in names}) == len(names)

    def test_broker_and_gateway_each_take_their_own_from_the_same_places(self, tmp_path: Path) -> None:
        file = tmp_path / "culver.toml"
        file.write_text("num.partitions = 3\nculver.http.body.max.bytes = 2048\n")
        environment = {"CULVER_HTTP_LISTEN": "127.0.0.1:0"}
        assert load(file, environment).static == {"num.partitions": "3"}
        assert load_gateway_settings(str(file), environment, {}) == {
            "http": "127.0.0.1:0",
            "body_max_bytes": 2048,
        }
        with pytest.raises(ConfigError, match=r"HTTP_BODY_MAX_BYTES: culver\.http\.body\.max\.bytes: 'much'"):
            load(environment={"CULVER_HTTP_BODY_MAX_BYTES": "much"})

    def test_broker_id_is_another_name_for_node_id(self) -> None:
        assert load(broker_id="7").node_id == 7
        assert load(environment={"CULVER_BROKER_ID": "7"}).broker_id == 7

    def test_what_is_wrong_names_its_source(self, tmp_path: Path) -> None:
        file = tmp_path / "culver.toml"
        file.write_text("[num]\npartition = 3")
        with pytest.raises(ConfigError) as caught:
            load(file)
        assert str(caught.value) == (
            f"{file}: there is no broker setting 'num.partition'; did you mean num.partitions?"
        )
        file.write_text("num.partitions = 0")
        with pytest.raises(ConfigError) as caught:
            load(file)
        assert str(caught.value) == f"{file}: num.partitions: 0 is too small; it must be 1 or more"
        with pytest.raises(ConfigError) as caught:
            load(environment={"CULVER_NUM_PARTITON": "1"})
        assert str(caught.value) == (
            "environment variable CULVER_NUM_PARTITON: there is no broker setting 'num.partiton'; "
            "did you mean num.partitions?"
        )
        with pytest.raises(ConfigError) as caught:
            load(environment={"CULVER_NUM_PARTITIONS": "many"})
        assert str(caught.value).startswith(
            "environment variable CULVER_NUM_PARTITIONS: num.partitions: 'many' is"
        )

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            (
                b"num.partitions = [1, 2]",
                "num.partitions: give text, a number, true, false or a list of texts",
            ),
            (b"when = 2026-01-01", "when: give text"),
            (b"this is not toml", "is not TOML"),
            (b"\xff\xfe", "is not TOML"),
        ],
    )
    def test_files_that_cannot_be_used(self, tmp_path: Path, content: bytes, says: str) -> None:
        file = tmp_path / "culver.toml"
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"culver\.toml") as caught:
            load(file)
        assert says in str(caught.value)

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(ConfigError, match=r"cannot read the configuration file .*nowhere: No such file"):
            load(tmp_path / "nowhere")

    def test_values_that_contradict_each_other(self) -> None:
        with pytest.raises(ConfigError, match="no member could join"):
            load(group_min_session_timeout_ms="10", group_max_session_timeout_ms="9")
        with pytest.raises(ConfigError, match="is more than"):
            load(log_cleaner_min_compaction_lag_ms="10", log_cleaner_max_compaction_lag_ms="9")


class TestResolve:
    def test_a_topic_takes_its_own_then_the_brokers_then_the_default(self) -> None:
        broker = load(log_segment_bytes="2000000", log_cleanup_policy="compact", culver_flush="os")
        config = TopicConfig.resolve(broker, {"segment.bytes": "3000000", "retention.ms": "5"})
        assert (config.segment_bytes, config.retention_ms) == (3000000, 5)
        assert (config.cleanup_policy, config.flush) == (frozenset({"compact"}), "os")
        assert config.index_interval_bytes == 4096
        assert TopicConfig.resolve(BrokerConfig(), {}) == TopicConfig()

    @pytest.mark.parametrize(
        ("broker", "retention_ms"),
        [
            ({}, 604_800_000),
            ({"log_retention_hours": "2"}, 7_200_000),
            ({"log_retention_hours": "2", "log_retention_minutes": "3"}, 180_000),
            ({"log_retention_hours": "2", "log_retention_minutes": "3", "log_retention_ms": "4"}, 4),
            ({"log_retention_hours": "-1"}, -1),
            ({"log_retention_ms": "-1"}, -1),
        ],
    )
    def test_retention_in_hours_minutes_or_milliseconds(
        self, broker: dict[str, str], retention_ms: int
    ) -> None:
        assert TopicConfig.resolve(load(**broker), {}).retention_ms == retention_ms

    def test_rolling_and_flushing_in_coarser_units(self) -> None:
        config = TopicConfig.resolve(
            load(log_roll_hours="1", log_roll_jitter_hours="2", log_flush_scheduler_interval_ms="9"), {}
        )
        assert (config.segment_ms, config.segment_jitter_ms, config.flush_ms) == (3_600_000, 7_200_000, 9)

    def test_a_tiny_segment_for_tests(self) -> None:
        assert TopicConfig.resolve(BrokerConfig(), {"internal.segment.bytes": "500"}).segment_bytes == 500

    def test_what_cannot_be_resolved(self) -> None:
        with pytest.raises(ConfigError, match=r"did you mean retention\.ms\?"):
            TopicConfig.resolve(BrokerConfig(), {"retentions.ms": "5"})
        with pytest.raises(ConfigError, match=r"min.compaction.lag.ms \(9\) is more than"):
            TopicConfig.resolve(BrokerConfig(), {"min.compaction.lag.ms": "9", "max.compaction.lag.ms": "8"})


class TestReference:
    def test_the_page_is_up_to_date(self) -> None:
        page = Path(__file__).parents[2] / "docs" / "configuration.md"
        assert page.read_text() == reference_markdown(), (
            "run: python -m culver.config.reference > docs/configuration.md"
        )

    def test_rows_for_the_command_line(self) -> None:
        rows = {(row.scope, row.name): row for row in setting_rows()}
        assert ("topic", "internal.segment.bytes") not in rows
        retention = rows["topic", "retention.ms"]
        assert (retention.default, retention.range, retention.synonym) == (
            "604800000 (7 days)",
            "-1 or more",
            "log.retention.ms",
        )
        assert rows["broker", "log.segment.bytes"].default == "1073741824 (1 GiB)"
        assert rows["broker", "log.segment.bytes"].environment == "CULVER_LOG_SEGMENT_BYTES"
        assert rows["broker", "group.max.size"].default == "2147483647 (no limit)"
        assert rows["broker", "advertise"].default == "not set"
        assert rows["topic", "cleanup.policy"].range == "any of compact, delete"


def test_importing_the_settings_stays_light() -> None:
    script = "import sys; import culver.config; print('\\n'.join(sys.modules))"
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": _SOURCE},
    ).stdout.split()
    heavy = {"dataclasses", "inspect", "difflib", "tomllib", "json", "logging", "asyncio", "msgspec"}
    assert heavy.isdisjoint(loaded)


_SOURCE = str(Path(__file__).parents[2] / "src")

LONG_MAX = "9223372036854775807"
KAFKA_TOPIC_SETTINGS = {
    "cleanup.policy": (7, "delete", ("log.cleanup.policy",)),
    "compression.gzip.level": (3, "-1", ("compression.gzip.level",)),
    "compression.lz4.level": (3, "9", ("compression.lz4.level",)),
    "compression.type": (2, "producer", ("compression.type",)),
    "compression.zstd.level": (3, "3", ("compression.zstd.level",)),
    "delete.retention.ms": (5, "86400000", ("log.cleaner.delete.retention.ms",)),
    "file.delete.delay.ms": (5, "60000", ("log.segment.delete.delay.ms",)),
    "flush.messages": (5, LONG_MAX, ("log.flush.interval.messages",)),
    "flush.ms": (5, LONG_MAX, ("log.flush.interval.ms", "log.flush.scheduler.interval.ms")),
    "follower.replication.throttled.replicas": (7, "", ()),
    "index.interval.bytes": (3, "4096", ("log.index.interval.bytes",)),
    "leader.replication.throttled.replicas": (7, "", ()),
    "local.retention.bytes": (5, "-2", ("log.local.retention.bytes",)),
    "local.retention.ms": (5, "-2", ("log.local.retention.ms",)),
    "max.compaction.lag.ms": (5, LONG_MAX, ("log.cleaner.max.compaction.lag.ms",)),
    "max.message.bytes": (3, "1048588", ("message.max.bytes",)),
    "message.timestamp.after.max.ms": (5, "3600000", ("log.message.timestamp.after.max.ms",)),
    "message.timestamp.before.max.ms": (5, LONG_MAX, ("log.message.timestamp.before.max.ms",)),
    "message.timestamp.type": (2, "CreateTime", ("log.message.timestamp.type",)),
    "min.cleanable.dirty.ratio": (6, "0.5", ("log.cleaner.min.cleanable.ratio",)),
    "min.compaction.lag.ms": (5, "0", ("log.cleaner.min.compaction.lag.ms",)),
    "min.insync.replicas": (3, "1", ("min.insync.replicas",)),
    "preallocate": (1, "false", ("log.preallocate",)),
    "remote.log.copy.disable": (1, "false", ()),
    "remote.log.delete.on.disable": (1, "false", ()),
    "remote.storage.enable": (1, "false", ()),
    "retention.bytes": (5, "-1", ("log.retention.bytes",)),
    "retention.ms": (5, "604800000", ("log.retention.ms", "log.retention.minutes", "log.retention.hours")),
    "segment.bytes": (3, "1073741824", ("log.segment.bytes",)),
    "segment.index.bytes": (3, "10485760", ("log.index.size.max.bytes",)),
    "segment.jitter.ms": (5, "0", ("log.roll.jitter.ms", "log.roll.jitter.hours")),
    "segment.ms": (5, "604800000", ("log.roll.ms", "log.roll.hours")),
    "unclean.leader.election.enable": (1, "false", ("unclean.leader.election.enable",)),
}
