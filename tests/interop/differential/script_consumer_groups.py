"""Scripts about groups whose broker assigns (KIP-848): members come, change, go; bad heartbeats; offsets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from culver.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from culver.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from culver.protocol.messages.delete_groups import DeleteGroupsRequest
from culver.protocol.messages.describe_groups import DescribeGroupsRequest
from culver.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from differential.play import COORDINATOR_NOT_THERE, Play, script
from differential.producer import TransactionalProducer
from differential.script_group_offsets import commit
from differential.script_groups import beat, join, leave, stable_member, sync

FIRST = "00000000-0000-4000-8000-000000000001"
SECOND = "00000000-0000-4000-8000-000000000002"
THIRD = "00000000-0000-4000-8000-000000000003"
NOBODY = "00000000-0000-4000-8000-00000000000f"
REBALANCE_MS = 60_000
PARTITIONS = 4


class Member:
    """One member of a group: what it owns, and the heartbeats that it sends."""

    def __init__(self, play: Play, group: str, member_id: str, topic_id: bytes) -> None:
        self.play = play
        self.group = group
        self.id = member_id
        self.topic_id = topic_id
        self.epoch = 0
        self.owned: list[int] = []
        self.first_epoch = 0
        play.normal.member_is_known(member_id)
        ready = ConsumerGroupDescribeRequest(group_ids=[group], include_authorized_operations=False)
        play.until(lambda: play.quiet(ready, 1).groups[0].error_code not in COORDINATOR_NOT_THERE)

    def request(self, **fields: Any) -> ConsumerGroupHeartbeatRequest:
        return heartbeat(self.group, self.id, self.epoch, **fields)

    def joining(self, *topics: str, **fields: Any) -> ConsumerGroupHeartbeatRequest:
        wanted = {"subscribed_topic_names": list(topics), "rebalance_timeout_ms": REBALANCE_MS}
        return heartbeat(self.group, self.id, 0, **{**wanted, "topic_partitions": [], **fields})

    def join(self, title: str, *topics: str, version: int = 1, **fields: Any) -> Any:
        return self._take(self.play.step(title, self.joining(*topics, **fields), version))

    def beat(self, title: str, version: int = 1, **fields: Any) -> Any:
        return self._take(self.play.step(title, self.request(**fields), version))

    def own(self, title: str) -> Any:
        """Say that all that was assigned is owned, and nothing else."""
        return self.beat(title, topic_partitions=owning(self.topic_id, self.owned))

    def settle(self, epoch: int) -> None:
        """Keep saying what is owned until the member has arrived at an epoch, unrecorded."""

        def arrived() -> bool:
            owned = owning(self.topic_id, self.owned)
            self._take(self.play.quiet(self.request(topic_partitions=owned), 1))
            return self.epoch >= epoch

        self.play.until(arrived)

    def count(self, answer: Any) -> dict[str, Any]:
        """An answer to a heartbeat without the choice of partitions."""
        assignment = answer.assignment
        partitions = (
            None
            if assignment is None
            else sum(len(topic.partitions) for topic in assignment.topic_partitions)
        )
        epoch = answer.member_epoch - self.first_epoch
        return {"error_code": answer.error_code, "epoch": epoch, "partitions": partitions}

    def _take(self, answer: Any) -> Any:
        if answer is not None and answer.error_code == 0:
            self.epoch = answer.member_epoch
            self.first_epoch = self.first_epoch or self.epoch
            if answer.assignment is not None:
                self.owned = sorted(
                    index for topic in answer.assignment.topic_partitions for index in topic.partitions
                )
        return answer


def heartbeat(group: str, member_id: str, epoch: int, **fields: Any) -> ConsumerGroupHeartbeatRequest:
    return ConsumerGroupHeartbeatRequest(group_id=group, member_id=member_id, member_epoch=epoch, **fields)


def owning(topic_id: bytes, partitions: Sequence[int]) -> list[TopicPartitions]:
    return [TopicPartitions(topic_id=topic_id, partitions=list(partitions))] if partitions else []


def described(play: Play, title: str, *groups: str, version: int = 1, operations: bool = False) -> None:
    request = ConsumerGroupDescribeRequest(group_ids=list(groups), include_authorized_operations=operations)
    play.step(title, request, version)


@script
def consumer_group_of_one(play: Play) -> None:
    topic_id = play.topic("server.one", PARTITIONS)
    for version in (0, 1):
        group = f"server.one.v{version}"
        play.coordinator(group)
        play.normal.new_group()
        member = Member(play, group, FIRST, topic_id)
        member.join(f"join, v{version}", "server.one", version=version)
        described(play, f"described, v{version}", group, version=version)
        member.own(f"owns it, v{version}")
        member.beat(f"nothing new, v{version}", version=version)
        described(play, f"described when stable, v{version}", group, version=version)
        member.join(f"joins again, v{version}", "server.one", version=version)
        member.own(f"owns it again, v{version}")
        member.beat(
            f"a topic that is not there, v{version}", version, subscribed_topic_names=["server.missing"]
        )
        member.beat(
            f"both topics, v{version}", version, subscribed_topic_names=["server.missing", "server.one"]
        )
        member.beat(
            f"the same again, v{version}", version, subscribed_topic_names=["server.one", "server.missing"]
        )
        member.beat(f"another assignor, v{version}", version, server_assignor="range")
        member.beat(f"a rack, v{version}", version, rack_id="rack")
        described(play, f"described after changes, v{version}", group, version=version)
        play.step(f"leaves, v{version}", heartbeat(group, FIRST, -1), version)
        play.step(f"leaves again, v{version}", heartbeat(group, FIRST, -1), version)
        described(play, f"described when empty, v{version}", group, version=version)
        play.step(f"a beat after leaving, v{version}", member.request(), version)
    unnamed = play.quiet(
        heartbeat(
            "server.unnamed", "", 0, subscribed_topic_names=[], rebalance_timeout_ms=1000, topic_partitions=[]
        ),
        0,
    )
    play.note("the broker makes a member id in version 0", bool(unnamed.member_id))


@script
def consumer_group_of_two(play: Play) -> None:
    topic_id = play.topic("server.two", PARTITIONS)
    group = "server.two"
    play.coordinator(group)
    first, second = Member(play, group, FIRST, topic_id), Member(play, group, SECOND, topic_id)
    first.join("the first joins", "server.two")
    first.own("the first owns all")
    second.join("the second joins", "server.two")
    described(play, "described when the second has come", group)
    # How many each gets; which ones is the assignor's affair.
    answer = play.quiet(first.request(), 1)
    play.note("the first is told to give up half", first.count(answer))
    first._take(answer)
    play.note("the second still waits", first.count(play.quiet(second.request(), 1)))
    first.settle(first.first_epoch + 1)
    second.settle(first.epoch)
    play.until(lambda: len(second.owned) == PARTITIONS // 2 or second.settle(first.epoch))
    play.note("both have half", [len(first.owned), len(second.owned), len({*first.owned, *second.owned})])
    play.note("epochs", [member.epoch - first.first_epoch for member in (first, second)])
    play.step("the second leaves", heartbeat(group, SECOND, -1), 1)
    first.beat("the first hears of it")
    first.own("the first owns all again")
    described(play, "described with one", group)
    play.step("the first leaves", heartbeat(group, FIRST, -1), 1)


@script
def consumer_groups_with_patterns(play: Play) -> None:
    first_id = play.topic("server.pattern.one", 2)
    play.topic("server.pattern.two", 1)
    group = "server.patterns"
    play.coordinator(group)
    member = Member(play, group, FIRST, first_id)
    member.join("a pattern", subscribed_topic_names=[], subscribed_topic_regex="server\\.pattern\\.o.*")
    play.until(lambda: member.owned or member._take(play.quiet(member.request(), 1)) is None)
    play.note("what it gets", member.owned)
    # Kafka has needed one epoch more: it looks for matching topics after it has answered.
    play.normal.new_group()
    member.own("owns it")
    described(play, "described", group)
    for title, pattern in (
        ("no pattern any more", ""),
        ("a bad pattern", "("),
        ("another bad one", "[a"),
        ("a bad repetition", "*"),
        ("a backreference", "(a)\\1"),
        ("looking ahead", "a(?=b)"),
    ):
        member.beat(title, subscribed_topic_regex=pattern)
    described(play, "described after that", group)
    play.step("leaves", heartbeat(group, FIRST, -1), 1)
    play.normal.new_group()
    bad = Member(play, "server.patterns.bad", SECOND, first_id)
    bad.join("join with a bad pattern", subscribed_topic_names=[], subscribed_topic_regex="(")
    bad.join("join with an empty pattern", subscribed_topic_names=[], subscribed_topic_regex="")
    described(play, "described after bad joins", "server.patterns.bad")


@script
def consumer_group_heartbeats_with_bad_input(play: Play) -> None:
    topic_id = play.topic("server.bad", PARTITIONS)
    group = "server.bad"
    play.coordinator(group)
    member = Member(play, group, FIRST, topic_id)
    for version in (0, 1):

        def ask(what: str, request: ConsumerGroupHeartbeatRequest, version: int = version) -> None:
            play.step(f"{what}, v{version}", request, version)

        fine = {
            "subscribed_topic_names": ["server.bad"],
            "rebalance_timeout_ms": REBALANCE_MS,
            "topic_partitions": [],
        }
        ask("no group", heartbeat("", FIRST, 0, **fine))
        if version == 1:
            ask("no member", heartbeat(group, "", 0, **fine))
        ask("no member, a later epoch", heartbeat(group, "", 1))
        ask("epoch -3", heartbeat(group, FIRST, -3))
        ask("an unknown member", heartbeat(group, SECOND, 1))
        ask("an unknown member leaves", heartbeat(group, NOBODY, -1))
        ask("an unknown member leaves for a while", heartbeat(group, NOBODY, -2))
        ask("an unknown static member leaves", heartbeat(group, NOBODY, -2, instance_id="nobody"))
        ask(
            "join without a rebalance timeout",
            heartbeat(group, NOBODY, 0, **{**fine, "rebalance_timeout_ms": -1}),
        )
        ask(
            "join with a rebalance timeout of 0",
            heartbeat(group, NOBODY, 0, **{**fine, "rebalance_timeout_ms": 0}),
        )
        ask("join without topics", heartbeat(group, NOBODY, 0, **{**fine, "subscribed_topic_names": None}))
        ask("join owning nothing said", heartbeat(group, NOBODY, 0, **{**fine, "topic_partitions": None}))
        ask(
            "join owning something",
            heartbeat(group, NOBODY, 0, **{**fine, "topic_partitions": owning(topic_id, [0])}),
        )
        ask("an unknown assignor", heartbeat(group, NOBODY, 0, **fine, server_assignor="nonsense"))
        ask("an empty assignor", heartbeat(group, NOBODY, 0, **fine, server_assignor=""))
        ask("an empty instance", heartbeat(group, NOBODY, 0, **fine, instance_id=""))
        ask("an empty rack", heartbeat(group, NOBODY, 0, **fine, rack_id=""))
        ask("a blank group", heartbeat(" ", FIRST, 0, **fine))
        ask("a rebalance timeout of 0 later", heartbeat(group, SECOND, 1, rebalance_timeout_ms=0))
        ask("whoever has come in leaves", heartbeat(group, NOBODY, -1))
        play.normal.new_group()
    described(play, "described after bad joins", group)
    member.join("join", "server.bad")
    member.own("owns it")
    epoch = member.epoch
    for title, wrong in (("the next", epoch + 1), ("the last", epoch - 1), ("far", 1000), ("negative", -3)):
        # An epoch of 0 would be a new beginning.
        member.epoch = wrong or -4
        member.beat(f"{title} epoch")
        member.epoch = wrong or -4
        owned = owning(topic_id, [0, 1, 2, 3])
        member.beat(f"{title} epoch with what it owns", topic_partitions=owned)
        member.epoch = epoch
    member.beat("partitions that are not there", topic_partitions=owning(topic_id, [0, 99]))
    member.beat("a topic that is not there", topic_partitions=owning(b"\x01" * 16, [0]))
    member.beat("nothing is owned", topic_partitions=[])
    member.beat("an unknown assignor", server_assignor="nonsense")
    member.beat("an instance id", instance_id="late")
    member.beat("no topics", subscribed_topic_names=[])
    member.beat("a bad topic name", subscribed_topic_names=["bad name"])
    described(play, "described in the end", group)
    play.step("leaves", heartbeat(group, FIRST, -1), 1)


@script
def consumer_groups_with_static_members(play: Play) -> None:
    topic_id = play.topic("server.static", PARTITIONS)
    group = "server.static"
    play.coordinator(group)
    first = Member(play, group, FIRST, topic_id)
    first.join("the first joins", "server.static", instance_id="one")
    first.own("the first owns all")
    intruder = Member(play, group, SECOND, topic_id)
    intruder.join("another with the same instance", "server.static", instance_id="one")
    play.step("leaves for a while", heartbeat(group, FIRST, -2, instance_id="one"), 1)
    described(play, "described while it is away", group)
    intruder.join("it is back with another member id", "server.static", instance_id="one")
    intruder.own("and owns all")
    play.step("the old member id", heartbeat(group, FIRST, 1, instance_id="one"), 1)
    play.step("the old member id, without the instance", heartbeat(group, FIRST, 1), 1)
    play.step("the old member id leaves", heartbeat(group, FIRST, -1, instance_id="one"), 1)
    play.step("an unknown instance", heartbeat(group, SECOND, intruder.epoch, instance_id="two"), 1)
    described(play, "described", group)
    play.step("leaves for good", heartbeat(group, SECOND, -1, instance_id="one"), 1)
    described(play, "described when empty", group)


@script
def consumer_groups_described_listed_and_deleted(play: Play) -> None:
    topic_id = play.topic("server.described", PARTITIONS)
    group = "server.described"
    play.coordinator(group)
    stable_member(play, "server.described.classic")
    member = Member(play, group, FIRST, topic_id)
    member.join("join", "server.described")
    member.own("owns it")
    for version in (0, 1):
        described(play, f"a consumer group, v{version}", group, version=version)
        described(play, f"a classic one, v{version}", "server.described.classic", version=version)
        described(play, f"one that is not there, v{version}", "server.described.missing", version=version)
        described(play, f"no name, v{version}", "", version=version)
        described(play, f"several, v{version}", group, "server.described.missing", group, version=version)
        described(play, f"none, v{version}", version=version)
        described(play, f"with operations, v{version}", group, version=version, operations=True)
    for version in (0, 5, 6):
        play.step(f"described as a classic one, v{version}", DescribeGroupsRequest(groups=[group]), version)
    play.step("delete it", DeleteGroupsRequest(groups_names=[group]), 2)
    play.step("leaves", heartbeat(group, FIRST, -1), 1)
    described(play, "described when empty", group)
    play.step("described as a classic one when empty", DescribeGroupsRequest(groups=[group]), 6)
    play.step("delete it when empty", DeleteGroupsRequest(groups_names=[group]), 2)
    described(play, "described when deleted", group)


@script
def consumer_groups_and_classic_requests(play: Play) -> None:
    topic_id = play.topic("server.classic", PARTITIONS)
    group = "server.classic"
    play.coordinator(group)
    member = Member(play, group, FIRST, topic_id)
    member.join("join", "server.classic")
    member.own("owns it")
    play.step("classic heartbeat of the member", beat(group, member.epoch, FIRST), 4)
    play.step("classic heartbeat of nobody", beat(group, member.epoch, "nobody"), 4)
    play.step("classic sync of the member", sync(group, member.epoch, FIRST), 5)
    play.step("classic leave of nobody", leave(group, ("nobody", None)), 5)
    play.step("classic join of another type", join(group, kind="connect"), 9)
    classic = play.quiet(join(group, NOBODY, protocols=("nonsense",)), 9)
    play.note(
        "classic join of another",
        [classic.error_code, classic.protocol_name, classic.generation_id - member.first_epoch],
    )
    member.beat("the member hears of it")
    described(play, "described with both kinds", group)
    play.step("classic join of the member", join(group, FIRST), 9)
    play.step("classic heartbeat of the other", beat(group, classic.generation_id, NOBODY), 4)
    play.step("classic leave of the other", leave(group, (NOBODY, None)), 5)
    play.step("leaves", heartbeat(group, FIRST, -1), 1)
    other, generation = stable_member(play, "server.classic.kept")
    joining = heartbeat(
        "server.classic.connect",
        FIRST,
        0,
        subscribed_topic_names=["server.classic"],
        rebalance_timeout_ms=REBALANCE_MS,
        topic_partitions=[],
    )
    play.quiet(join("server.classic.connect", kind="connect"), 3)
    play.step("join a group of another type", joining, 1)
    play.step("the classic member is still well", beat("server.classic.kept", generation, other), 4)


def fetch_offsets(
    group: str, topic: str, *partitions: int, member: str | None = None, epoch: int = -1
) -> OffsetFetchRequest:
    wanted = [OffsetFetchRequestTopics(name=topic, partition_indexes=list(partitions))]
    asked = OffsetFetchRequestGroup(group_id=group, member_id=member, member_epoch=epoch, topics=wanted)
    return OffsetFetchRequest(groups=[asked])


@script
def consumer_groups_and_offsets(play: Play) -> None:
    topic = "server.offsets"
    topic_id = play.topic(topic, PARTITIONS)
    group = "server.offsets"
    play.coordinator(group)
    member = Member(play, group, FIRST, topic_id)
    member.join("join", topic)
    member.own("owns it")
    producer = TransactionalProducer(play, "server.offsets").begun()
    for version in (2, 5, 8, 9):
        for title, who, epoch in (
            ("right", FIRST, member.epoch),
            ("a later epoch", FIRST, member.epoch + 1),
            ("an earlier epoch", FIRST, member.epoch - 1),
            ("epoch -1", FIRST, -1),
            ("nobody", NOBODY, member.epoch),
            ("no member", "", -1),
            ("no member with an epoch", "", member.epoch),
        ):
            request = commit(group, topic, (0, version), member=who, generation=epoch)
            play.step(f"commit, {title}, v{version}", request, version)
    for version in (3, 4, 5):
        for title, who, epoch in (
            ("right", FIRST, member.epoch),
            ("a later epoch", FIRST, member.epoch + 1),
            ("an earlier epoch", FIRST, member.epoch - 1),
            ("nobody", NOBODY, member.epoch),
            ("no member", "", -1),
        ):
            where = f"in a transaction, {title}, v{version}"
            if version < 5:
                producer.add_offsets(f"add, {where}", group)
            producer.commit_offsets(
                where, group, topic, (1, version), version=version, member_id=who, generation_id=epoch
            )
    producer.end("the transaction ends")
    for version in (8, 9):
        for title, who, epoch in (
            ("right", FIRST, member.epoch),
            ("a later epoch", FIRST, member.epoch + 1),
            ("an earlier epoch", FIRST, member.epoch - 1),
            ("nobody", NOBODY, member.epoch),
            ("no member", None, -1),
            ("an empty member", "", -1),
            ("no member with an epoch", None, member.epoch),
        ):
            request = fetch_offsets(group, topic, 0, 1, 2, member=who, epoch=epoch)
            play.step(f"fetch, {title}, v{version}", request, version)
    play.step("leaves", heartbeat(group, FIRST, -1), 1)
    play.step("commit when empty", commit(group, topic, (0, 77)), 8)
    play.step("commit of a member when empty", commit(group, topic, (0, 78), member=FIRST, generation=1), 9)
