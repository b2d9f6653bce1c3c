"""Scripts about what the cluster says of itself: brokers, topics, coordinators."""

from __future__ import annotations

from culver.protocol.messages.describe_cluster import DescribeClusterRequest
from culver.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    TopicRequest,
)
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest
from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from differential.play import Play, script

SOME_ID = bytes(range(16))
BAD_NAMES = ("", ".", "..", "with space", "slash/name", "ümlaut", "x" * 250, "nul\0byte", "a:b", "new\nline")


def named(*names: str | None) -> list[MetadataRequestTopic]:
    return [MetadataRequestTopic(name=name) for name in names]


@script
def metadata(play: Play) -> None:
    play.topic("metadata.one", 3)
    for version in range(14):
        play.step(f"a topic, v{version}", MetadataRequest(topics=named("metadata.one")), version)
        missing = MetadataRequest(topics=named("metadata.missing"), allow_auto_topic_creation=False)
        if version >= 4:
            play.step(f"a missing topic, v{version}", missing, version)
        if version >= 1:
            play.step(f"no topics, v{version}", MetadataRequest(topics=[]), version)
    twice = MetadataRequest(topics=named("metadata.one", "metadata.one"), allow_auto_topic_creation=False)
    play.step("a topic twice", twice, 9)
    for number, name in enumerate(BAD_NAMES):
        for allowed in (False, True):
            request = MetadataRequest(topics=named(name), allow_auto_topic_creation=allowed)
            play.step(f"bad name {number}, creation {'allowed' if allowed else 'refused'}", request, 9)
    operations = MetadataRequest(
        topics=named("metadata.one"),
        include_cluster_authorized_operations=True,
        include_topic_authorized_operations=True,
    )
    for version in (8, 10, 11, 13):
        play.step(f"authorised operations, v{version}", operations, version)


@script
def metadata_by_id(play: Play) -> None:
    topic_id = play.topic("metadata.by.id", 2)
    by_id = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name=None)])
    both = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name="metadata.by.id")])
    wrong = MetadataRequest(topics=[MetadataRequestTopic(topic_id=topic_id, name="metadata.other")])
    unknown = MetadataRequest(topics=[MetadataRequestTopic(topic_id=SOME_ID, name=None)])
    neither = MetadataRequest(topics=[MetadataRequestTopic(name=None)])
    mixed = MetadataRequest(
        topics=[
            MetadataRequestTopic(topic_id=topic_id, name=None),
            MetadataRequestTopic(topic_id=SOME_ID, name=None),
        ]
    )
    with_name = MetadataRequest(
        topics=[MetadataRequestTopic(topic_id=topic_id, name=None), *named("metadata.by.id")],
        allow_auto_topic_creation=False,
    )
    for version in (10, 11, 12, 13):
        play.step(f"by id, v{version}", by_id, version)
        play.step(f"by id and name, v{version}", both, version)
        play.step(f"by id and a wrong name, v{version}", wrong, version)
        play.step(f"by an unknown id, v{version}", unknown, version)
        play.step(f"by neither, v{version}", neither, version)
        play.step(f"known and unknown ids, v{version}", mixed, version)
        play.step(f"one by id, one by name, v{version}", with_name, version)


@script
def metadata_creates_topics(play: Play) -> None:
    play.step("first ask", MetadataRequest(topics=named("metadata.auto")), 8)
    play.until(lambda: play.topic_id_if_ready("metadata.auto"))
    play.step("ask again", MetadataRequest(topics=named("metadata.auto")), 12)
    play.step("first ask in v1", MetadataRequest(topics=named("metadata.auto.v1")), 1)
    play.until(lambda: play.topic_id_if_ready("metadata.auto.v1"))
    play.step("two that collide", MetadataRequest(topics=named("metadata_auto")), 8)
    play.step(
        "not allowed", MetadataRequest(topics=named("metadata.never"), allow_auto_topic_creation=False), 8
    )


@script
def describe_cluster(play: Play) -> None:
    for version in (0, 1, 2):
        play.step(f"v{version}", DescribeClusterRequest(), version)
        operations = DescribeClusterRequest(include_cluster_authorized_operations=True)
        play.step(f"operations, v{version}", operations, version)
    for version in (1, 2):
        play.step(f"endpoint type 2, v{version}", DescribeClusterRequest(endpoint_type=2), version)
        play.step(f"endpoint type 3, v{version}", DescribeClusterRequest(endpoint_type=3), version)
        play.step(f"endpoint type 0, v{version}", DescribeClusterRequest(endpoint_type=0), version)
    play.step("fenced brokers", DescribeClusterRequest(include_fenced_brokers=True), 2)


@script
def describe_topic_partitions(play: Play) -> None:
    for name, partitions in (("paged.a", 3), ("paged.b", 4), ("paged.c", 2)):
        play.topic(name, partitions)

    def ask(title: str, *names: str, limit: int = 2000, cursor: tuple[str, int] | None = None) -> None:
        request = DescribeTopicPartitionsRequest(
            topics=[TopicRequest(name=name) for name in names],
            response_partition_limit=limit,
            cursor=None if cursor is None else Cursor(topic_name=cursor[0], partition_index=cursor[1]),
        )
        play.step(title, request, 0, ordered=True)

    everything = ("paged.c", "paged.a", "paged.b")
    ask("all at once", *everything)
    ask("a page of five", *everything, limit=5)
    ask("the next five", *everything, limit=5, cursor=("paged.b", 2))
    ask("a page that ends with a topic", *everything, limit=3)
    ask("a page of one", *everything, limit=1)
    ask("a page of zero", *everything, limit=0)
    ask("a negative page", *everything, limit=-1)
    ask("a huge page", *everything, limit=2**31 - 1)
    ask("a cursor at a topic that is not asked for", *everything, cursor=("paged.aa", 0))
    ask("a cursor beyond the last topic", *everything, cursor=("zzz", 0))
    ask("a cursor beyond the topic's partitions", *everything, cursor=("paged.b", 10))
    ask("a negative cursor", *everything, cursor=("paged.b", -1))
    ask("a missing topic between", "paged.a", "paged.aa", "paged.b")
    ask("a missing topic with a page of one", "paged.aa", "paged.a", limit=1)
    ask("a topic twice", "paged.a", "paged.a")
    ask("a bad name", "with space")
    ask("an empty name", "")


@script
def find_coordinator(play: Play) -> None:
    play.coordinator("find-coordinator")
    for version in range(4):
        play.step(f"a group, v{version}", FindCoordinatorRequest(key="a-group"), version)
        play.step(f"an empty group id, v{version}", FindCoordinatorRequest(key=""), version)
    for version in (1, 3):
        play.step(f"key type 3, v{version}", FindCoordinatorRequest(key="a-group", key_type=3), version)
        play.step(f"key type 2, v{version}", FindCoordinatorRequest(key="a-group", key_type=2), version)
        play.step(f"key type -1, v{version}", FindCoordinatorRequest(key="a-group", key_type=-1), version)
    for version in (4, 5, 6):
        several = FindCoordinatorRequest(coordinator_keys=["b-group", "a-group", "b-group", ""])
        play.step(f"several groups, v{version}", several, version)
        play.step(f"no groups, v{version}", FindCoordinatorRequest(coordinator_keys=[]), version)
        play.step(
            f"key type 9, v{version}", FindCoordinatorRequest(key_type=9, coordinator_keys=["x"]), version
        )
        play.step(
            f"key type 2, v{version}", FindCoordinatorRequest(key_type=2, coordinator_keys=["x"]), version
        )
    share_key = FindCoordinatorRequest(key_type=2, coordinator_keys=["group:AAAAAAAAAAAAAAAAAAAAAA:0"])
    play.step("a share key", share_key, 6)
