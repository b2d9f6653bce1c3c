"""Scripts about committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from __future__ import annotations

from culver.protocol.messages.delete_topics import DeleteTopicsRequest
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from culver.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from culver.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopic,
    OffsetFetchRequestTopics,
)
from culver.protocol.schema import ZERO_UUID
from differential.play import Play, script
from differential.script_groups import join, leave, stable_member
from differential.script_metadata import SOME_ID


def commit(
    group: str,
    topic: str | bytes,
    *offsets: tuple[int, int],
    member: str = "",
    generation: int = -1,
    instance: str | None = None,
    metadata: str | None = "",
    epoch: int = -1,
) -> OffsetCommitRequest:
    """`offsets` holds pairs of partition and offset."""
    return OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=generation,
        member_id=member,
        group_instance_id=instance,
        topics=[
            OffsetCommitRequestTopic(
                name=topic if isinstance(topic, str) else "",
                topic_id=topic if isinstance(topic, bytes) else ZERO_UUID,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=partition,
                        committed_offset=offset,
                        committed_leader_epoch=epoch,
                        committed_metadata=metadata,
                    )
                    for partition, offset in offsets
                ],
            )
        ],
    )


def fetched(
    group: str, topic: str | bytes | None, *partitions: int, version: int, stable: bool = False
) -> OffsetFetchRequest:
    """What a group has committed, in the shape that `version` has; no topic asks for everything."""
    if version < 8:
        topics = None
        if topic is not None:
            assert isinstance(topic, str)
            topics = [OffsetFetchRequestTopic(name=topic, partition_indexes=list(partitions))]
        return OffsetFetchRequest(group_id=group, topics=topics, require_stable=stable)
    wanted = None
    if topic is not None:
        wanted = [
            OffsetFetchRequestTopics(
                name=topic if isinstance(topic, str) else "",
                topic_id=topic if isinstance(topic, bytes) else ZERO_UUID,
                partition_indexes=list(partitions),
            )
        ]
    return OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=wanted)], require_stable=stable
    )


@script
def commit_without_members(play: Play) -> None:
    topic_id = play.topic("committed", 3)
    play.coordinator("commits")
    for version in range(2, 11):
        group = f"commits.v{version}"
        by = topic_id if version >= 10 else "committed"
        play.step(
            f"commit, v{version}",
            commit(group, by, (0, 5), (1, 7), metadata=f"note {version}", epoch=0),
            version,
        )
        play.step(f"fetch, v{version}", fetched(group, by, 0, 1, 2, version=version), version)
        play.step(f"fetch all, v{version}", fetched(group, None, version=version), version)
        play.step(f"a missing partition, v{version}", commit(group, by, (0, 8), (9, 1), (-1, 1)), version)
        if version < 10:
            play.step(f"a missing topic, v{version}", commit(group, "committed.missing", (0, 5)), version)
    play.step("by an unknown id", commit("commits", SOME_ID, (0, 5)), 10)
    play.step("by no id", commit("commits", ZERO_UUID, (0, 5)), 10)
    play.step("a bad name", commit("commits", "bad name", (0, 5)), 8)
    play.step("no group", commit("", "committed", (0, 5)), 8)
    play.step("a negative offset", commit("commits", "committed", (0, -5)), 8)
    play.step("offset -1", commit("commits", "committed", (1, -1)), 8)
    play.step("a huge offset", commit("commits", "committed", (2, 2**63 - 1)), 8)
    play.step("what that left", fetched("commits", "committed", 0, 1, 2, version=7), 7)
    play.step("null metadata", commit("commits", "committed", (0, 5), metadata=None), 8)
    play.step("what null metadata left", fetched("commits", "committed", 0, version=7), 7)
    play.step("metadata of 4096 bytes", commit("commits", "committed", (0, 5), metadata="m" * 4096), 8)
    play.step("metadata of 4097 bytes", commit("commits", "committed", (0, 6), metadata="m" * 4097), 8)
    play.step("what long metadata left", fetched("commits", "committed", 0, version=7), 7)
    play.step("a partition twice", commit("commits", "committed", (0, 1), (0, 2)), 8)
    play.step("what the second left", fetched("commits", "committed", 0, version=7), 7)
    play.step("a leader epoch of -2", commit("commits", "committed", (0, 5), epoch=-2), 8)
    play.step("what that epoch left", fetched("commits", "committed", 0, version=7), 7)
    play.step("no topics", OffsetCommitRequest(group_id="commits", member_id="", topics=[]), 8)
    play.step("no partitions", commit("commits", "committed"), 8)
    play.step("an unknown member", commit("commits", "committed", (0, 5), member="nobody", generation=1), 8)
    play.step("a generation without a member", commit("commits", "committed", (0, 5), generation=3), 8)
    play.step("a member without a generation", commit("commits", "committed", (0, 5), member="nobody"), 8)
    fresh = commit("commits.fresh", "committed", (0, 5), member="nobody", generation=1)
    play.step("an unknown member of an unknown group", fresh, 8)
    kept = commit("commits", "committed", (0, 9))
    kept.retention_time_ms = 1000
    play.step("with a retention time", kept, 4)


@script
def commit_as_a_member(play: Play) -> None:
    play.topic("member.commits", 1)
    group = "members"
    member, generation = stable_member(play, group)

    def ask(title: str, version: int = 8, **how: object) -> None:
        play.step(title, commit(group, "member.commits", (0, 5), **how), version)  # type: ignore[arg-type]

    for version in (2, 7, 9):
        ask(f"the member, v{version}", version, member=member, generation=generation)
        ask(f"an old generation, v{version}", version, member=member, generation=generation - 1)
        ask(f"a future generation, v{version}", version, member=member, generation=generation + 1)
        ask(f"an unknown member, v{version}", version, member="nobody", generation=generation)
        ask(f"nobody, v{version}", version)
    ask("with an instance id nobody has", member=member, generation=generation, instance="nobody")
    play.step("fetch by the member", fetched(group, "member.commits", 0, version=7), 7)
    joined = play.quiet(join("members.joining"), 3)
    request = commit(
        "members.joining", "member.commits", (0, 5), member=joined.member_id, generation=joined.generation_id
    )
    play.step("before the sync", request, 8)
    play.quiet(leave(group, (member, None)), 4)
    ask("after it left", member=member, generation=generation)
    ask("nobody, now that it is empty")
    static, generation = stable_member(play, "members.static", "one")
    for who, instance in ((static, "one"), ("wrong", "one"), (static, "two"), (static, None)):
        title = f"static: member {'right' if who == static else 'wrong'}, instance {instance}"
        request = commit(
            "members.static", "member.commits", (0, 5), member=who, generation=generation, instance=instance
        )
        play.step(title, request, 8)


@script
def fetch_committed_offsets(play: Play) -> None:
    topic_id = play.topic("fetched.commits", 2)
    play.coordinator("fetched")
    play.quiet(commit("fetched", "fetched.commits", (0, 11)), 8)
    for version in range(1, 11):
        by = topic_id if version >= 10 else "fetched.commits"
        if version >= 2:
            play.step(
                f"all of an unknown group, v{version}",
                fetched("fetched.unknown", None, version=version),
                version,
            )
        play.step(
            f"an unknown group, v{version}", fetched("fetched.unknown", by, 0, version=version), version
        )
        play.step(f"no group, v{version}", fetched("", by, 0, version=version), version)
        play.step(
            f"a missing partition, v{version}", fetched("fetched", by, 0, 5, -1, version=version), version
        )
        play.step(f"no partitions, v{version}", fetched("fetched", by, version=version), version)
        if version < 10:
            play.step(
                f"a missing topic, v{version}",
                fetched("fetched", "fetched.missing", 0, version=version),
                version,
            )
    play.step("an unknown id", fetched("fetched", SOME_ID, 0, version=10), 10)
    play.step("no id", fetched("fetched", ZERO_UUID, 0, version=10), 10)
    play.step("stable ones only", fetched("fetched", "fetched.commits", 0, version=7, stable=True), 7)
    play.step("a partition twice", fetched("fetched", "fetched.commits", 0, 0, version=7), 7)
    groups = [
        OffsetFetchRequestGroup(group_id=name, topics=None)
        for name in ("fetched", "fetched.unknown", "fetched")
    ]
    play.step("several groups", OffsetFetchRequest(groups=groups), 8)
    play.step("no groups", OffsetFetchRequest(groups=[]), 8)
    as_member = OffsetFetchRequestGroup(group_id="fetched", member_id="nobody", member_epoch=3, topics=None)
    play.step("as an unknown member", OffsetFetchRequest(groups=[as_member]), 9)
    as_member = OffsetFetchRequestGroup(group_id="fetched", member_id="", member_epoch=-1, topics=None)
    play.step("as an empty member", OffsetFetchRequest(groups=[as_member]), 9)


@script
def committed_offsets_of_a_deleted_topic(play: Play) -> None:
    play.topic("commits.gone", 1)
    play.topic("commits.kept", 1)
    play.coordinator("gone")
    play.quiet(commit("gone", "commits.gone", (0, 3)), 8)
    play.quiet(commit("gone", "commits.kept", (0, 4)), 8)
    play.quiet(DeleteTopicsRequest(topic_names=["commits.gone"], timeout_ms=9000), 5)
    play.until(lambda: len(play.quiet(fetched("gone", None, version=7), 7).topics) == 1)
    play.step("after the delete", fetched("gone", "commits.gone", 0, version=7), 7)
    play.step("all after the delete", fetched("gone", None, version=7), 7)


@script
def offset_delete(play: Play) -> None:
    play.topic("deleted.commits", 3)
    play.coordinator("deletes")
    play.quiet(commit("deletes", "deleted.commits", (0, 1), (1, 2), (2, 3)), 8)

    def ask(title: str, group: str, topic: str, *partitions: int) -> None:
        request = OffsetDeleteRequest(
            group_id=group,
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic,
                    partitions=[OffsetDeleteRequestPartition(partition_index=index) for index in partitions],
                )
            ],
        )
        play.step(title, request, 0)

    ask("one", "deletes", "deleted.commits", 0)
    play.step("what is left", fetched("deletes", None, version=7), 7)
    ask("the same again", "deletes", "deleted.commits", 0)
    ask("a missing partition", "deletes", "deleted.commits", 1, 9)
    ask("a missing topic", "deletes", "deleted.missing", 0)
    ask("a bad name", "deletes", "bad name", 0)
    ask("an unknown group", "deletes.unknown", "deleted.commits", 0)
    ask("no group", "", "deleted.commits", 0)
    ask("no partitions", "deletes", "deleted.commits")
    play.step("no topics", OffsetDeleteRequest(group_id="deletes", topics=[]), 0)
    ask("the last", "deletes", "deleted.commits", 2)
    play.step("nothing is left", fetched("deletes", None, version=7), 7)
    member, generation = stable_member(play, "deletes.live")
    play.quiet(commit("deletes.live", "deleted.commits", (0, 1), member=member, generation=generation), 8)
    ask("of a group with a member", "deletes.live", "deleted.commits", 0)
