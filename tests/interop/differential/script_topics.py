"""Scripts about topics: CreateTopics, DeleteTopics, CreatePartitions."""

from __future__ import annotations

from collections.abc import Sequence

from culver.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from culver.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from culver.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from culver.protocol.schema import ZERO_UUID
from differential.play import Play, script
from differential.script_metadata import BAD_NAMES, SOME_ID


def topic(
    name: str,
    partitions: int = 1,
    replicas: int = 1,
    configs: dict[str, str | None] | None = None,
    assignments: Sequence[tuple[int, list[int]]] = (),
) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        assignments=[CreatableReplicaAssignment(partition_index=p, broker_ids=ids) for p, ids in assignments],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )


def create(
    *topics: CreatableTopic, validate_only: bool = False, timeout_ms: int = 10_000
) -> CreateTopicsRequest:
    return CreateTopicsRequest(topics=list(topics), validate_only=validate_only, timeout_ms=timeout_ms)


@script
def create_topics(play: Play) -> None:
    for version in range(2, 8):
        play.step(f"a topic, v{version}", create(topic(f"create.v{version}", 2)), version)
        play.step(f"the same again, v{version}", create(topic(f"create.v{version}", 2)), version)
        validated = create(topic(f"create.never.v{version}", 2), validate_only=True)
        play.step(f"only validated, v{version}", validated, version)
    for version in (2, 3, 4, 7):
        play.step(f"default counts, v{version}", create(topic(f"create.default.v{version}", -1, -1)), version)
    play.step("no topics", create(), 7)
    play.step("twice in one request", create(topic("create.twice"), topic("create.twice", 3)), 7)
    play.step(
        "twice, and another", create(topic("create.twice2"), topic("create.twice2"), topic("create.once")), 7
    )
    for number, name in enumerate(BAD_NAMES):
        play.step(f"bad name {number}", create(topic(name)), 7)
    play.step("a name of 249 characters", create(topic("n" * 249)), 7)
    play.step("an internal name", create(topic("__consumer_offsets")), 7)
    play.step("the metadata topic's name", create(topic("__cluster_metadata")), 7)
    play.step("a name that collides", create(topic("create_v7")), 7)
    for partitions in (0, -2, -2147483648):
        play.step(f"{partitions} partitions", create(topic("create.bad", partitions)), 7)
    play.step("a million partitions", create(topic("create.bad", 1_000_000), validate_only=True), 7)
    half = [topic(f"create.half.{number}", 5001) for number in (1, 2)]
    play.step("too many partitions in all", create(*half, validate_only=True), 7)
    play.step("too many and a bad name", create(*half, topic("bad name"), validate_only=True), 7)
    most = [topic(f"create.most.{number}", 5000) for number in (1, 2)]
    play.step("as many partitions as may be", create(*most, validate_only=True), 7)
    for replicas in (0, -2, 2, 32767):
        play.step(f"{replicas} replicas", create(topic("create.bad", 1, replicas)), 7)
    play.step("timeout 0", create(topic("create.timeout.0"), timeout_ms=0), 7)
    play.step("negative timeout", create(topic("create.timeout.negative"), timeout_ms=-1), 7)
    play.step("good and bad ones", create(topic("create.good"), topic("bad name"), topic("create.bad", 0)), 7)


@script
def create_topics_with_assignments(play: Play) -> None:
    node = play.quiet(MetadataRequest(topics=[]), 9).brokers[0].node_id

    def ask(
        title: str, assignments: Sequence[tuple[int, list[int]]], partitions: int = -1, replicas: int = -1
    ) -> None:
        name = "assigned." + title.replace(" ", ".").replace(",", "")
        play.step(title, create(topic(name, partitions, replicas, assignments=assignments)), 7)

    ask("two partitions", [(0, [node]), (1, [node])])
    ask("out of order", [(1, [node]), (0, [node])])
    ask("with a count too", [(0, [node])], partitions=1)
    ask("with a replication factor too", [(0, [node])], replicas=1)
    ask("a gap", [(0, [node]), (2, [node])])
    ask("not from zero", [(1, [node])])
    ask("a partition twice", [(0, [node]), (0, [node])])
    ask("no brokers", [(0, [])])
    ask("an unknown broker", [(0, [node + 100])])
    ask("a broker twice", [(0, [node, node])])
    ask("a negative broker", [(0, [-1])])
    ask("a negative partition", [(-1, [node])])
    ask("different numbers of replicas", [(0, [node]), (1, [node, node + 100])])


@script
def create_topics_with_configs(play: Play) -> None:
    def ask(title: str, version: int = 7, **configs: str | None) -> None:
        named = {key.replace("_", "."): value for key, value in configs.items()}
        play.step(title, create(topic("configured." + title.replace(" ", "."), configs=named)), version)

    ask("retention", retention_ms="86400000", cleanup_policy="compact,delete")
    ask("retention in v5", 5, retention_ms="86400000")
    ask("a name nobody knows", no_such_config="1")
    ask("a number that is none", retention_ms="soon")
    ask("a number too small", segment_bytes="1")
    ask("a number with spaces", retention_ms=" 100000 ")
    ask("a null value", retention_ms=None)
    ask("an empty value", retention_ms="")
    ask("an empty policy", cleanup_policy="")
    ask("an unknown policy", cleanup_policy="shred")
    ask("an unknown codec", compression_type="brotli")
    ask("a boolean that is none", preallocate="maybe")
    ask("a ratio above one", min_cleanable_dirty_ratio="1.5")
    ask("min insync above replicas", min_insync_replicas="2")
    ask("an old message format", message_format_version="0.10.0")
    duplicate = topic("configured.duplicate")
    duplicate.configs = [
        CreatableTopicConfig(name="retention.ms", value="1000"),
        CreatableTopicConfig(name="retention.ms", value="2000"),
    ]
    play.step("a config twice", create(duplicate), 7)


@script
def delete_topics(play: Play) -> None:
    for version in range(1, 6):
        play.topic(f"delete.v{version}")
        play.step(
            f"a topic, v{version}",
            DeleteTopicsRequest(topic_names=[f"delete.v{version}"], timeout_ms=9000),
            version,
        )
        request = DeleteTopicsRequest(topic_names=["delete.missing", "bad name", ""], timeout_ms=9000)
        play.step(f"missing ones, v{version}", request, version)
    play.topic("delete.twice")
    play.step("twice", DeleteTopicsRequest(topic_names=["delete.twice", "delete.twice"], timeout_ms=9000), 5)
    play.step("none", DeleteTopicsRequest(topic_names=[], timeout_ms=9000), 5)

    def by_state(title: str, *states: DeleteTopicState) -> None:
        play.step(title, DeleteTopicsRequest(topics=list(states), timeout_ms=9000), 6)

    topic_id = play.topic("delete.by.id")
    other_id = play.topic("delete.other")
    by_state("id and name", DeleteTopicState(name="delete.by.id", topic_id=topic_id))
    by_state("neither id nor name", DeleteTopicState(name=None, topic_id=ZERO_UUID))
    by_state("an unknown id", DeleteTopicState(name=None, topic_id=SOME_ID))
    by_state("the same id twice", *[DeleteTopicState(name=None, topic_id=other_id)] * 2)
    by_state(
        "a topic by id and by name",
        DeleteTopicState(name=None, topic_id=other_id),
        DeleteTopicState(name="delete.other", topic_id=ZERO_UUID),
    )
    by_state("by id", DeleteTopicState(name=None, topic_id=topic_id))
    by_state("by name", DeleteTopicState(name="delete.other", topic_id=ZERO_UUID))
    by_state("by name, gone", DeleteTopicState(name="delete.other", topic_id=ZERO_UUID))
    gone = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)])
    play.until(lambda: play.quiet(gone, 12).topics[0].error_code)
    play.step("metadata of a deleted id", gone, 12)
    again = play.topic("delete.by.id")
    play.note("a topic created again has a new id", again != topic_id)


@script
def create_partitions(play: Play) -> None:
    play.topic("grow", 2)
    node = play.quiet(MetadataRequest(topics=[]), 9).brokers[0].node_id

    def ask(
        title: str,
        *topics: tuple[str, int],
        assignments: list[list[int]] | None = None,
        version: int = 3,
        validate_only: bool = False,
    ) -> None:
        request = CreatePartitionsRequest(
            topics=[
                CreatePartitionsTopic(
                    name=name,
                    count=count,
                    assignments=None
                    if assignments is None
                    else [CreatePartitionsAssignment(broker_ids=ids) for ids in assignments],
                )
                for name, count in topics
            ],
            timeout_ms=9000,
            validate_only=validate_only,
        )
        play.step(title, request, version)

    for version in range(4):
        ask(f"to {3 + version}, v{version}", ("grow", 3 + version), version=version)
        ask(f"only validated, v{version}", ("grow", 50), version=version, validate_only=True)
    play.until(
        lambda: (
            len(
                play.quiet(MetadataRequest(topics=[MetadataRequestTopic(name="grow")]), 9)
                .topics[0]
                .partitions
            )
            == 6
        )
    )
    play.step("metadata", MetadataRequest(topics=[MetadataRequestTopic(name="grow")]), 12)
    ask("the same count", ("grow", 6))
    ask("fewer", ("grow", 1))
    ask("zero", ("grow", 0))
    ask("negative", ("grow", -1))
    ask("a missing topic", ("grow.missing", 3))
    ask("a bad name", ("bad name", 3))
    ask("a topic twice", ("grow", 8), ("grow", 9))
    ask("none")
    ask("assigned", ("grow", 7), assignments=[[node]])
    ask("too few assignments", ("grow", 10), assignments=[[node]])
    ask("too many assignments", ("grow", 8), assignments=[[node], [node]])
    ask("an empty assignment", ("grow", 8), assignments=[[]])
    ask("no assignments for one more", ("grow", 8), assignments=[])
    ask("an unknown broker", ("grow", 8), assignments=[[node + 100]])
    ask("a broker twice", ("grow", 8), assignments=[[node, node]])
    ask("a good and a bad one", ("grow", 8), ("grow.missing", 2))
    ask("far too many", ("grow", 20_000), validate_only=True)
