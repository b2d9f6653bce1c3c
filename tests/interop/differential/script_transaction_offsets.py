"""Scripts about offsets in transactions: AddOffsetsToTxn, TxnOffsetCommit, and what OffsetFetch shows of them."""

from __future__ import annotations

from culver.protocol.messages.delete_groups import DeleteGroupsRequest
from culver.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from differential.play import Play, script
from differential.producer import END_V2, OFFSETS_V2, TransactionalProducer
from differential.script_group_offsets import commit, fetched
from differential.script_groups import stable_member

VERSIONS = range(6)


def offsets(play: Play, title: str, group: str, topic: str, *partitions: int) -> None:
    """What a group has committed, asked with and without patience."""
    for version in (1, 5, 7, 8, 9):
        play.step(f"{title}, v{version}", fetched(group, topic, *partitions, version=version), version)
        if version >= 7:
            request = fetched(group, topic, *partitions, version=version, stable=True)
            play.step(f"{title}, stable, v{version}", request, version)


@script
def transaction_offsets(play: Play) -> None:
    topic, group = "txn.offsets", "txn.offsets.group"
    play.topic(topic, 3)
    play.coordinator(group)
    play.quiet(commit(group, topic, (0, 1), (1, 1)), 8)
    producer = TransactionalProducer(play, "txn.offsets").begun()
    for generation, end_version in ((1, 4), (2, END_V2)):
        for commits in (True, False):
            title = f"generation {generation}, {'commit' if commits else 'abort'}"
            if generation == 1:
                producer.add_offsets(f"{title}: add", group)
                producer.add_offsets(f"{title}: add again", group)
            version = 3 if generation == 1 else OFFSETS_V2
            producer.commit_offsets(f"{title}: offsets", group, topic, (0, 10), (2, 20), version=version)
            producer.commit_offsets(f"{title}: later ones", group, topic, (0, 11), version=version)
            producer.describe(f"{title}: described")
            offsets(play, f"{title}: seen while it is open", group, topic, 0, 1, 2)
            play.step(f"{title}: all", fetched(group, None, version=8, stable=True), 8)
            play.step(f"{title}: a plain commit over it", commit(group, topic, (2, 5)), 8)
            offsets(play, f"{title}: seen after a plain commit", group, topic, 2)
            producer.end(f"{title}: end", commit=commits, version=end_version)
            stable = fetched(group, topic, 0, 1, 2, version=8, stable=True)
            play.until(
                lambda: (
                    not any(
                        one.error_code
                        for one in play.quiet(stable, 8).groups[0].topics[0].partitions  # noqa: B023
                    )
                )
            )
            offsets(play, f"{title}: seen when it is over", group, topic, 0, 1, 2)


@script
def transaction_offsets_with_bad_input(play: Play) -> None:
    topic, group = "txn.offsets.bad", "txn.offsets.bad"
    play.topic(topic, 2)
    play.coordinator(group)
    producer = TransactionalProducer(play, "txn.offsets.bad").begun()
    for version in range(5):
        producer.add_offsets(f"add no group, v{version}", "", version)
        producer.add_offsets(f"add a group that nobody knows, v{version}", "txn.offsets.unknown", version)
    producer.add_offsets("add the group", group)
    for version in VERSIONS:
        title = f"v{version}"
        ask = producer.commit_offsets
        ask(f"no group, {title}", "", topic, (0, 1), version=version)
        ask(f"a topic that is not there, {title}", group, "txn.offsets.missing", (0, 1), version=version)
        ask(f"a partition that is not there, {title}", group, topic, (0, 1), (9, 1), version=version)
        ask(f"partition -1, {title}", group, topic, (-1, 1), version=version)
        ask(f"offset -1, {title}", group, topic, (0, -1), version=version)
        ask(f"offset -5, {title}", group, topic, (0, -5), version=version)
        ask(f"an empty topic name, {title}", group, "", (0, 1), version=version)
        ask(f"no partitions, {title}", group, topic, version=version)
        ask(f"null metadata, {title}", group, topic, (0, 7), version=version, metadata=None)
        ask(f"much metadata, {title}", group, topic, (0, 8), version=version, metadata="x" * 5000)
        ask(f"a partition twice, {title}", group, topic, (1, 3), (1, 4), version=version)
    for version in (3, 4, OFFSETS_V2):
        title = f"v{version}"
        for what, member in (
            ("a member of a group that is empty", {"member_id": "nobody", "generation_id": 1}),
            ("a generation without a member", {"generation_id": 1}),
            ("a member without a generation", {"member_id": "nobody"}),
            ("an instance of a group that is empty", {"group_instance_id": "nobody"}),
            ("generation -2", {"generation_id": -2}),
        ):
            producer.commit_offsets(f"{what}, {title}", group, topic, (0, 1), version=version, **member)
    producer.describe("described")
    producer.end("end")
    offsets(play, "what is left of it", group, topic, 0, 1)


@script
def transaction_offsets_of_members(play: Play) -> None:
    topic, group = "txn.offsets.member", "txn.offsets.member"
    play.topic(topic, 1)
    member, generation = stable_member(play, group)
    fixed, fixed_generation = stable_member(play, f"{group}.static", instance="one")
    producer = TransactionalProducer(play, "txn.offsets.member").begun()
    producer.add_offsets("add", group)
    producer.add_offsets("add the static one's", f"{group}.static")
    for version in (3, 4, OFFSETS_V2):
        title = f"v{version}"
        for what, fields in (
            ("right", {"member_id": member, "generation_id": generation}),
            ("an old generation", {"member_id": member, "generation_id": generation - 1}),
            ("a future generation", {"member_id": member, "generation_id": generation + 1}),
            ("no generation", {"member_id": member}),
            ("a generation without a member", {"generation_id": generation}),
            ("another member", {"member_id": "nobody", "generation_id": generation}),
            ("another member without a generation", {"member_id": "nobody"}),
            ("neither", {}),
            (
                "an instance that nobody is",
                {"member_id": member, "generation_id": generation, "group_instance_id": "two"},
            ),
        ):
            producer.commit_offsets(f"{what}, {title}", group, topic, (0, 5), version=version, **fields)
        for what, fields in (
            ("right", {"member_id": fixed, "generation_id": fixed_generation, "group_instance_id": "one"}),
            (
                "another member",
                {"member_id": "no", "generation_id": fixed_generation, "group_instance_id": "one"},
            ),
            ("without the instance", {"member_id": fixed, "generation_id": fixed_generation}),
            ("no member", {"generation_id": fixed_generation, "group_instance_id": "one"}),
        ):
            where = f"{group}.static"
            producer.commit_offsets(
                f"static: {what}, {title}", where, topic, (0, 6), version=version, **fields
            )
    producer.end("end")
    offsets(play, "what is left of it", group, topic, 0)
    offsets(play, "what is left of the static one's", f"{group}.static", topic, 0)


@script
def transaction_offsets_and_groups_that_go(play: Play) -> None:
    topic, group = "txn.offsets.gone", "txn.offsets.gone"
    play.topic(topic, 2)
    play.coordinator(group)
    producer = TransactionalProducer(play, "txn.offsets.gone").begun()
    producer.commit_offsets("offsets", group, topic, (0, 3), (1, 4), version=OFFSETS_V2)
    deleted = OffsetDeleteRequest(
        group_id=group,
        topics=[
            OffsetDeleteRequestTopic(name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=0)])
        ],
    )
    play.step("delete one of them", deleted, 0)
    offsets(play, "one is deleted", group, topic, 0, 1)
    play.step("delete the group", DeleteGroupsRequest(groups_names=[group]), 2)
    offsets(play, "the group is deleted", group, topic, 0, 1)
    producer.end("end", version=END_V2)
    offsets(play, "over", group, topic, 0, 1)
    play.step("delete the group when it is over", DeleteGroupsRequest(groups_names=[group]), 2)
    offsets(play, "all over", group, topic, 0, 1)
