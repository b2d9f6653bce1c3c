"""Scripts about configuration: what is described, with its sources, and what may be changed to what."""

from __future__ import annotations

from culver.protocol.messages import alter_configs as whole
from culver.protocol.messages import incremental_alter_configs as single
from culver.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from culver.protocol.messages.metadata import MetadataRequest
from differential.play import Play, script

UNKNOWN, TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 0, 2, 4, 8, 16, 32
SET, DELETE, APPEND, SUBTRACT = 0, 1, 2, 3

# What Culver has of the broker's settings, apart from ids and addresses.
BROKER_SETTINGS = [
    "auto.create.topics.enable",
    "compression.type",
    "connections.max.idle.ms",
    "delete.topic.enable",
    "fetch.max.bytes",
    "group.max.session.timeout.ms",
    "group.max.size",
    "group.min.session.timeout.ms",
    "log.cleaner.delete.retention.ms",
    "log.cleanup.policy",
    "log.flush.interval.messages",
    "log.flush.interval.ms",
    "log.index.interval.bytes",
    "log.message.timestamp.type",
    "log.retention.bytes",
    "log.retention.hours",
    "log.retention.ms",
    "log.roll.hours",
    "log.segment.bytes",
    "log.segment.delete.delay.ms",
    "max.connections",
    "message.max.bytes",
    "min.insync.replicas",
    "num.partitions",
    "offset.metadata.max.bytes",
    "offsets.retention.minutes",
    "offsets.topic.num.partitions",
    "producer.id.expiration.ms",
    "queued.max.request.bytes",
    "socket.request.max.bytes",
]


def describe_request(
    *resources: tuple[int, str, list[str] | None], synonyms: bool = False, documentation: bool = False
) -> DescribeConfigsRequest:
    return DescribeConfigsRequest(
        resources=[
            DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=keys)
            for kind, name, keys in resources
        ],
        include_synonyms=synonyms,
        include_documentation=documentation,
    )


def alter(
    kind: int, name: str, *settings: tuple[str, str | None], validate_only: bool = False
) -> whole.AlterConfigsRequest:
    return whole.AlterConfigsRequest(
        resources=[
            whole.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[whole.AlterableConfig(name=key, value=value) for key, value in settings],
            )
        ],
        validate_only=validate_only,
    )


def change(
    kind: int, name: str, *operations: tuple[int, str, str | None], validate_only: bool = False
) -> single.IncrementalAlterConfigsRequest:
    return single.IncrementalAlterConfigsRequest(
        resources=[
            single.AlterConfigsResource(
                resource_type=kind,
                resource_name=name,
                configs=[
                    single.AlterableConfig(name=key, config_operation=operation, value=value)
                    for operation, key, value in operations
                ],
            )
        ],
        validate_only=validate_only,
    )


def own_settings(play: Play, topic: str) -> dict[str, str | None]:
    """What is set on the topic itself."""
    answer = play.quiet(describe_request((TOPIC, topic, None)), 4)
    return {entry.name: entry.value for entry in answer.results[0].configs if entry.config_source == 1}


@script
def describe_topic_configs(play: Play) -> None:
    play.topic("configs", 1, retention_ms="12345678", cleanup_policy="compact,delete")
    for version in range(1, 5):
        play.step(f"all, v{version}", describe_request((TOPIC, "configs", None)), version)
        play.step(
            f"all with synonyms, v{version}",
            describe_request((TOPIC, "configs", None), synonyms=True),
            version,
        )
    play.step("documentation", describe_request((TOPIC, "configs", None), documentation=True), 4)
    play.step(
        "some", describe_request((TOPIC, "configs", ["retention.ms", "segment.bytes"]), synonyms=True), 4
    )
    play.step(
        "one that does not exist", describe_request((TOPIC, "configs", ["no.such.config", "retention.ms"])), 4
    )
    play.step("an empty list", describe_request((TOPIC, "configs", [])), 4)
    play.step("a missing topic", describe_request((TOPIC, "configs.missing", None)), 4)
    play.step("a bad name", describe_request((TOPIC, "bad name", None)), 4)
    play.step("an empty name", describe_request((TOPIC, "", None)), 4)
    play.step(
        "a topic twice",
        describe_request((TOPIC, "configs", ["retention.ms"]), (TOPIC, "configs", ["retention.ms"])),
        4,
    )
    play.step("nothing", describe_request(), 4)
    play.step("an unknown type of resource", describe_request((UNKNOWN, "x", None)), 4)
    play.step("a type nobody knows", describe_request((99, "x", None)), 4)


@script
def describe_broker_configs(play: Play) -> None:
    node = str(play.quiet(MetadataRequest(topics=[]), 9).brokers[0].node_id)

    def ask(title: str, name: str, keys: list[str] | None = None, *, synonyms: bool = False) -> None:
        answer = play.quiet(describe_request((BROKER, name, keys), synonyms=synonyms), 4)
        (result,) = answer.results
        if result.resource_name == node:
            result.resource_name = "<node>"
        play.note(title, play.normal.message(answer))

    ask("known settings", node, BROKER_SETTINGS, synonyms=True)
    ask("a setting that does not exist", node, ["no.such.setting"])
    ask("the cluster's defaults", "", synonyms=True)
    ask("another broker", "4711")
    ask("no number", "abc")


@script
def alter_topic_configs(play: Play) -> None:
    play.topic("altered", 1, retention_ms="1000000")
    for version in range(3):
        setting = ("segment.bytes", str(2_000_000 + version))
        play.step(f"one setting, v{version}", alter(TOPIC, "altered", setting), version)
        play.until(
            lambda version=version: (
                own_settings(play, "altered").get("segment.bytes") == str(2_000_000 + version)
            )
        )
        play.note(f"what is set after v{version}", own_settings(play, "altered"))
    play.step("only validated", alter(TOPIC, "altered", ("retention.ms", "1"), validate_only=True), 2)
    for title, name, value in (
        ("an unknown name", "no.such.config", "1"),
        ("no number", "retention.ms", "abc"),
        ("an empty number", "retention.ms", ""),
        ("out of range", "segment.bytes", "5"),
        ("a null value", "retention.ms", None),
        ("an unknown policy", "cleanup.policy", "shred"),
        ("an unknown codec", "compression.type", "brotli"),
        ("a negative number", "max.message.bytes", "-1"),
        ("too large a number", "segment.bytes", "99999999999"),
        ("an empty name", "", "1"),
    ):
        play.step(title, alter(TOPIC, "altered", (name, value)), 2)
    play.note("what is set after the refusals", own_settings(play, "altered"))
    play.step("nothing set", alter(TOPIC, "altered"), 2)
    play.until(lambda: not own_settings(play, "altered"))
    play.step("a setting twice", alter(TOPIC, "altered", ("retention.ms", "1"), ("retention.ms", "2")), 2)
    play.step("a missing topic", alter(TOPIC, "altered.missing", ("retention.ms", "1")), 2)
    play.step("a bad name", alter(TOPIC, "bad name", ("retention.ms", "1")), 2)
    play.step("an empty resource name", alter(TOPIC, "", ("retention.ms", "1")), 2)
    play.step("an unknown type of resource", alter(UNKNOWN, "x", ("retention.ms", "1")), 2)
    twice = alter(TOPIC, "altered", ("retention.ms", "1"))
    twice.resources *= 2
    play.step("a resource twice", twice, 2, timeout_seconds=3)  # Kafka fails inside and never answers
    play.step("none", whole.AlterConfigsRequest(resources=[], validate_only=False), 2)


@script
def change_topic_configs(play: Play) -> None:
    play.topic("changed", 1)

    def ask(
        title: str, *operations: tuple[int, str, str | None], version: int = 1, validate_only: bool = False
    ) -> None:
        play.step(title, change(TOPIC, "changed", *operations, validate_only=validate_only), version)

    for version in (0, 1):
        ask(f"set, v{version}", (SET, "retention.ms", f"100000{version}"), version=version)
        play.until(
            lambda version=version: own_settings(play, "changed").get("retention.ms") == f"100000{version}"
        )
    ask("only validated", (SET, "retention.ms", "5"), validate_only=True)
    ask("append to a list", (APPEND, "cleanup.policy", "compact"))
    play.until(lambda: "compact" in (own_settings(play, "changed").get("cleanup.policy") or ""))
    play.note("after the append", own_settings(play, "changed"))
    ask("append what is there", (APPEND, "cleanup.policy", "compact"))
    ask("subtract from a list", (SUBTRACT, "cleanup.policy", "delete"))
    play.until(lambda: own_settings(play, "changed").get("cleanup.policy") == "compact")
    ask("subtract what is not there", (SUBTRACT, "cleanup.policy", "delete"))
    ask("subtract all", (SUBTRACT, "cleanup.policy", "compact"))
    play.note("after subtracting all", own_settings(play, "changed"))
    ask("append to a number", (APPEND, "retention.ms", "5"))
    ask("subtract from a number", (SUBTRACT, "retention.ms", "5"))
    ask("append rubbish", (APPEND, "cleanup.policy", "shred"))
    ask("delete", (DELETE, "retention.ms", None))
    play.until(lambda: "retention.ms" not in own_settings(play, "changed"))
    ask("delete what is not set", (DELETE, "retention.ms", None))
    ask("delete with a value", (DELETE, "segment.bytes", "5"))
    ask("delete what does not exist", (DELETE, "no.such.config", None))
    ask("set what does not exist", (SET, "no.such.config", "1"))
    ask("set null", (SET, "retention.ms", None))
    ask("set an empty value", (SET, "retention.ms", ""))
    ask("set no number", (SET, "retention.ms", "abc"))
    ask("set out of range", (SET, "min.cleanable.dirty.ratio", "2"))
    ask("set with spaces", (SET, "segment.bytes", " 3000000 "))
    ask("an unknown operation", (4, "retention.ms", "1"))
    ask("a negative operation", (-1, "retention.ms", "1"))
    ask("one setting twice", (SET, "retention.ms", "1"), (SET, "retention.ms", "2"))
    ask("set and delete", (SET, "retention.ms", "1"), (DELETE, "retention.ms", None))
    ask("a good and a bad one", (SET, "retention.ms", "777"), (SET, "segment.bytes", "1"))
    ask("nothing")
    play.note("what is set in the end", own_settings(play, "changed"))
    play.step("a missing topic", change(TOPIC, "changed.missing", (SET, "retention.ms", "1")), 1)
    play.step("a bad name", change(TOPIC, "bad name", (SET, "retention.ms", "1")), 1)
    twice = change(TOPIC, "changed", (SET, "retention.ms", "1"))
    twice.resources *= 2
    play.step("a resource twice", twice, 1)
    play.step("an unknown type of resource", change(UNKNOWN, "x", (SET, "retention.ms", "1")), 1)
    play.step("none", single.IncrementalAlterConfigsRequest(resources=[], validate_only=False), 1)


@script
def values_of_topic_configs(play: Play) -> None:
    play.topic("values", 1)
    for name, values in (
        ("cleanup.policy", ("delete", "compact", "delete,compact", "compact, delete", "none", "DELETE")),
        ("compression.type", ("producer", "uncompressed", "gzip", "snappy", "lz4", "zstd", "none", "GZIP")),
        ("compression.gzip.level", ("-1", "0", "1", "9", "10")),
        ("compression.lz4.level", ("0", "1", "17", "18")),
        ("compression.zstd.level", ("-131073", "-131072", "0", "22", "23")),
        ("delete.retention.ms", ("-1", "0", "1")),
        ("file.delete.delay.ms", ("-1", "0")),
        ("flush.messages", ("0", "1", "9223372036854775807")),
        ("flush.ms", ("-1", "0")),
        ("index.interval.bytes", ("-1", "0")),
        ("max.compaction.lag.ms", ("0", "1")),
        ("max.message.bytes", ("-1", "0", "2147483647", "2147483648")),
        ("message.timestamp.type", ("CreateTime", "LogAppendTime", "createtime", "x")),
        ("message.timestamp.before.max.ms", ("-1", "0")),
        ("message.timestamp.after.max.ms", ("-1", "0")),
        ("min.cleanable.dirty.ratio", ("-0.1", "0", "0.5", "1", "1.1", "abc")),
        ("min.compaction.lag.ms", ("-1", "0")),
        ("min.insync.replicas", ("0", "1", "2", "100")),
        ("preallocate", ("true", "false", "TRUE", "yes", "1")),
        ("retention.bytes", ("-2", "-1", "0", "1")),
        ("retention.ms", ("-2", "-1", "0", "1", "1.5", "1e3", "0x10", "+5")),
        ("segment.bytes", ("13", "14", "1048575", "1048576", "2147483647")),
        ("segment.index.bytes", ("3", "4", "2147483647")),
        ("segment.jitter.ms", ("-1", "0")),
        ("segment.ms", ("0", "1")),
        ("unclean.leader.election.enable", ("true", "x")),
    ):
        for value in values:
            request = change(TOPIC, "values", (SET, name, value), validate_only=True)
            play.step(f"{name} = {value}", request, 1)
    together = change(
        TOPIC,
        "values",
        (SET, "min.compaction.lag.ms", "10"),
        (SET, "max.compaction.lag.ms", "5"),
        validate_only=True,
    )
    play.step("a minimal lag above the maximal", together, 1)


@script
def change_broker_configs(play: Play) -> None:
    node = str(play.quiet(MetadataRequest(topics=[]), 9).brokers[0].node_id)

    def ask(title: str, name: str, *operations: tuple[int, str, str | None]) -> None:
        answer = play.quiet(change(BROKER, name, *operations, validate_only=True), 1)
        (result,) = answer.responses
        if result.resource_name == node:
            result.resource_name = "<node>"
        play.note(title, play.normal.message(answer))

    ask("a dynamic setting", node, (SET, "log.retention.ms", "100000"))
    ask("a dynamic setting for all", "", (SET, "log.retention.ms", "100000"))
    ask("a setting that is read at the start only", node, (SET, "socket.request.max.bytes", "1000000"))
    ask("an unknown setting", node, (SET, "no.such.setting", "1"))
    ask("another broker", "4711", (SET, "log.retention.ms", "100000"))
    ask("no number", "abc", (SET, "log.retention.ms", "100000"))
