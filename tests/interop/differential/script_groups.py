"""Scripts about classic groups: joining, syncing, heartbeats, leaving, static members, listing and deleting."""

from __future__ import annotations

import struct
from typing import Any

from culver.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from culver.protocol.messages.delete_groups import DeleteGroupsRequest
from culver.protocol.messages.describe_groups import DescribeGroupsRequest
from culver.protocol.messages.heartbeat import HeartbeatRequest
from culver.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from culver.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from culver.protocol.messages.list_groups import ListGroupsRequest
from culver.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from culver.protocol.schema import encoder
from differential.play import Play, script
from raw_connection import RawConnection

SESSION_MS = 45_000
# Kafka reads the metadata of consumers, and does not answer at all when it cannot.
SUBSCRIPTION = struct.pack(">h", 0) + b"".join(
    bytes(part)
    for part in encoder(ConsumerProtocolSubscription, 0)(ConsumerProtocolSubscription(topics=["subscribed"]))
)


def join(
    group: str,
    member: str = "",
    *,
    instance: str | None = None,
    protocols: tuple[str, ...] = ("range",),
    kind: str = "consumer",
    session_ms: int = SESSION_MS,
    rebalance_ms: int = 60_000,
) -> JoinGroupRequest:
    return JoinGroupRequest(
        group_id=group,
        session_timeout_ms=session_ms,
        rebalance_timeout_ms=rebalance_ms,
        member_id=member,
        group_instance_id=instance,
        protocol_type=kind,
        protocols=[JoinGroupRequestProtocol(name=name, metadata=SUBSCRIPTION) for name in protocols],
    )


def sync(
    group: str,
    generation: int,
    member: str,
    assignments: dict[str, bytes] | None = None,
    *,
    instance: str | None = None,
    kind: str | None = "consumer",
    protocol: str | None = "range",
) -> SyncGroupRequest:
    return SyncGroupRequest(
        group_id=group,
        generation_id=generation,
        member_id=member,
        group_instance_id=instance,
        protocol_type=kind,
        protocol_name=protocol,
        assignments=[
            SyncGroupRequestAssignment(member_id=who, assignment=what)
            for who, what in (assignments or {}).items()
        ],
    )


def beat(group: str, generation: int, member: str, instance: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(
        group_id=group, generation_id=generation, member_id=member, group_instance_id=instance
    )


def leave(group: str, *members: tuple[str, str | None]) -> LeaveGroupRequest:
    return LeaveGroupRequest(
        group_id=group,
        members=[
            MemberIdentity(member_id=member, group_instance_id=instance) for member, instance in members
        ],
    )


def stable_member(play: Play, group: str, instance: str | None = None) -> tuple[str, int]:
    """A group with one member that has its assignment: the member's id and the generation."""
    play.coordinator(group)
    joined = play.quiet(join(group, instance=instance), 5)
    if joined.error_code == 79:  # MEMBER_ID_REQUIRED
        joined = play.quiet(join(group, joined.member_id, instance=instance), 5)
    assert joined.error_code == 0, joined
    play.normal.member_is_known(joined.member_id)
    request = sync(
        group, joined.generation_id, joined.member_id, {joined.member_id: b"all"}, instance=instance
    )
    assert play.quiet(request, 5).error_code == 0
    return joined.member_id, joined.generation_id


def describe(play: Play, title: str, *groups: str, version: int = 6) -> Any:
    return play.step(title, DescribeGroupsRequest(groups=list(groups)), version)


@script
def group_life(play: Play) -> None:
    for version in range(10):
        group = f"life.v{version}"
        play.coordinator(group)
        joined = play.step(f"join, v{version}", join(group), version)
        if version >= 4:
            joined = play.step(f"join with the id, v{version}", join(group, joined.member_id), version)
        member, generation = joined.member_id, joined.generation_id
        describe(play, f"described while it syncs, v{version}", group)
        sync_version = min(version, 5)
        wanted = sync(group, generation, member, {member: b"mine"})
        play.step(f"sync, v{version}", wanted, sync_version)
        play.step(f"heartbeat, v{version}", beat(group, generation, member), min(version, 4))
        describe(play, f"described, v{version}", group, version=min(version, 6))
        play.step(f"sync again, v{version}", wanted, sync_version)
        play.step(f"join again, v{version}", join(group, member), version)
        if version < 3:
            play.step(f"leave, v{version}", LeaveGroupRequest(group_id=group, member_id=member), version)
            play.step(
                f"leave again, v{version}", LeaveGroupRequest(group_id=group, member_id=member), version
            )
        else:
            play.step(f"leave, v{version}", leave(group, (member, None)), min(version, 5))
            play.step(f"leave again, v{version}", leave(group, (member, None)), min(version, 5))
        describe(play, f"described when empty, v{version}", group)
        play.step(f"heartbeat after the end, v{version}", beat(group, generation, member), min(version, 4))


@script
def group_join_errors(play: Play) -> None:
    play.coordinator("joins")
    for version in (0, 4, 9):
        play.step(f"no group id, v{version}", join(""), version)
        play.step(f"an unknown member, v{version}", join("joins", "nobody"), version)
        play.step(f"session too short, v{version}", join("joins", session_ms=5999), version)
        play.step(f"session too long, v{version}", join("joins", session_ms=1_800_001), version)
        play.step(f"session negative, v{version}", join("joins", session_ms=-1), version)
        play.step(f"no protocols, v{version}", join(f"joins.{version}", protocols=()), version)
        play.step(f"no protocol type, v{version}", join(f"joins.{version}", kind=""), version)
    member, generation = stable_member(play, "joins.stable")
    for version in (0, 7, 9):
        play.step(f"another protocol type, v{version}", join("joins.stable", kind="connect"), version)
        play.step(f"no protocol in common, v{version}", join("joins.stable", protocols=("sticky",)), version)
        play.step(f"an unknown member of a stable group, v{version}", join("joins.stable", "nobody"), version)
    play.step("the member still is well", beat("joins.stable", generation, member), 4)
    play.step("no rebalance timeout", join("joins.negative", rebalance_ms=-1), 3)
    play.step("an instance id in use elsewhere", join("joins.static", instance="one"), 5)
    play.step("an empty instance id", join("joins.static.empty", instance=""), 5)
    play.step("an odd instance id", join("joins.static.odd", instance="a b/c"), 5)
    play.step("a dot as instance id", join("joins.static.dot", instance="."), 5)


@script
def group_sync_and_heartbeat_errors(play: Play) -> None:
    member, generation = stable_member(play, "errors")
    for version in (0, 2, 4):
        play.step(
            f"heartbeat of an unknown member, v{version}", beat("errors", generation, "nobody"), version
        )
        play.step(
            f"heartbeat of an old generation, v{version}", beat("errors", generation - 1, member), version
        )
        play.step(
            f"heartbeat of a future generation, v{version}", beat("errors", generation + 1, member), version
        )
        play.step(f"heartbeat of generation -1, v{version}", beat("errors", -1, member), version)
        play.step(f"heartbeat in an unknown group, v{version}", beat("errors.unknown", 1, member), version)
        play.step(f"heartbeat in no group, v{version}", beat("", 1, member), version)
        play.step(f"heartbeat of no member, v{version}", beat("errors", generation, ""), version)
    for version in (0, 3, 5):
        play.step(f"sync of an unknown member, v{version}", sync("errors", generation, "nobody"), version)
        play.step(f"sync of an old generation, v{version}", sync("errors", generation - 1, member), version)
        play.step(f"sync in an unknown group, v{version}", sync("errors.unknown", 1, member), version)
        play.step(f"sync in no group, v{version}", sync("", 1, member), version)
    play.step("sync with another protocol type", sync("errors", generation, member, kind="connect"), 5)
    play.step("sync with another protocol", sync("errors", generation, member, protocol="sticky"), 5)
    play.step("sync without a protocol type", sync("errors", generation, member, kind=None), 5)
    play.step("sync without a protocol", sync("errors", generation, member, protocol=None), 5)
    play.step("heartbeat with an instance id nobody has", beat("errors", generation, member, "nobody"), 4)
    play.step("sync with an instance id nobody has", sync("errors", generation, member, instance="nobody"), 5)


@script
def group_leave_errors(play: Play) -> None:
    for version in (0, 2):
        for title, group, member in (
            ("an unknown member", "leaving", "nobody"),
            ("an unknown group", "leaving.unknown", "nobody"),
            ("no group", "", "nobody"),
            ("no member", "leaving", ""),
        ):
            stable_member(play, "leaving") if (title, version) == ("an unknown member", 0) else None
            play.step(f"{title}, v{version}", LeaveGroupRequest(group_id=group, member_id=member), version)
    for version in (3, 5):
        play.step(
            f"unknown ones, v{version}",
            leave("leaving", ("nobody", None), ("", "no-instance"), ("", None)),
            version,
        )
        play.step(f"from an unknown group, v{version}", leave("leaving.unknown", ("nobody", None)), version)
        play.step(f"from no group, v{version}", leave("", ("nobody", None)), version)
        play.step(f"nobody, v{version}", leave("leaving"), version)


@script
def group_of_two(play: Play) -> None:
    group = "two"
    member, generation = stable_member(play, group)
    other = play.connect()
    first = other.call(join(group), 5)
    play.note("the second is given an id first", first.error_code)
    play.normal.member_is_known(first.member_id)
    waiting = other.begin(join(group, first.member_id), 5)
    play.until(lambda: play.quiet(beat(group, generation, member), 4).error_code)
    play.step("heartbeat while the second waits", beat(group, generation, member), 4)
    describe(play, "described while the second waits", group)
    play.step("sync while the second waits", sync(group, generation, member), 5)
    leader = play.step("the first joins again", join(group, member), 5)
    follower = play.finish("the second has joined", waiting, on=other)
    parked = other.begin(sync(group, follower.generation_id, follower.member_id), 5)
    assignments = {leader.member_id: b"one half", follower.member_id: b"the other"}
    play.step("the leader syncs", sync(group, leader.generation_id, leader.member_id, assignments), 5)
    play.finish("the follower has synced", parked, on=other)
    describe(play, "described with two", group, version=5)
    play.step("heartbeat of the leader", beat(group, leader.generation_id, leader.member_id), 4)
    play.step("the old generation", beat(group, generation, member), 4)
    play.step("the follower leaves", leave(group, (follower.member_id, None)), 5)
    play.step("heartbeat after that", beat(group, leader.generation_id, leader.member_id), 4)
    play.step("the leader joins again", join(group, member), 5)


@script
def group_with_different_protocols(play: Play) -> None:
    group = "protocols"
    play.coordinator(group)
    connections: list[RawConnection] = [play.connect(), play.connect()]
    offers = (("sticky", "range"), ("other", "sticky", "range"))
    ids = [
        connection.call(join(group, protocols=offer), 5).member_id
        for connection, offer in zip(connections, offers, strict=True)
    ]
    begun = connections[0].begin(join(group, ids[0], protocols=offers[0]), 7)
    first = play.finish("the first alone", begun, on=connections[0])
    waiting = connections[1].begin(join(group, ids[1], protocols=offers[1]), 7)
    play.until(lambda: play.quiet(beat(group, first.generation_id, ids[0]), 4).error_code)
    begun = connections[0].begin(join(group, ids[0], protocols=offers[0]), 7)
    play.finish("the first with the second", begun, on=connections[0])
    play.finish("the second with the first", waiting, on=connections[1])


@script
def static_members(play: Play) -> None:
    group = "static"
    play.coordinator(group)
    joined = play.step("first join, v5", join(group, instance="alpha"), 5)
    member, generation = joined.member_id, joined.generation_id
    play.step("sync", sync(group, generation, member, {member: b"all"}, instance="alpha"), 5)
    describe(play, "described", group)
    play.step("heartbeat", beat(group, generation, member, "alpha"), 4)
    play.step("heartbeat with the wrong member id", beat(group, generation, "wrong", "alpha"), 4)
    play.step("heartbeat of an unknown instance", beat(group, generation, member, "beta"), 4)
    again = play.step("restarted: joins without its member id, v5", join(group, instance="alpha"), 5)
    play.step("the old member id is fenced", beat(group, generation, member, "alpha"), 4)
    play.step("sync with the old member id", sync(group, generation, member, instance="alpha"), 5)
    play.step("sync with the new one", sync(group, again.generation_id, again.member_id, instance="alpha"), 5)
    play.step("restarted again, v9", join(group, instance="alpha"), 9)
    changed = join(group, instance="alpha", protocols=("range", "sticky"))
    play.step("restarted with more protocols, v9", changed, 9)
    play.step("join with the old member id", join(group, member, instance="alpha"), 5)
    play.step("leave by instance and a wrong member id", leave(group, ("wrong", "alpha")), 5)
    play.step("leave by instance", leave(group, ("", "alpha")), 5)
    play.step("leave by instance again", leave(group, ("", "alpha")), 5)
    describe(play, "described when empty", group)


@script
def describe_groups(play: Play) -> None:
    stable_member(play, "described")
    for version in range(7):
        describe(play, f"a stable one, v{version}", "described", version=version)
        describe(play, f"an unknown one, v{version}", "described.unknown", version=version)
        describe(play, f"no group id, v{version}", "", version=version)
    describe(play, "several", "described", "described.unknown", "described")
    describe(play, "none")
    request = DescribeGroupsRequest(
        groups=["described", "described.unknown"], include_authorized_operations=True
    )
    play.step("with authorised operations", request, 6)


@script
def list_and_delete_groups(play: Play) -> None:
    mine = {"listed.stable", "listed.empty"}
    stable_member(play, "listed.stable")
    member, _ = stable_member(play, "listed.empty")
    play.quiet(leave("listed.empty", (member, None)), 4)

    def ask(title: str, version: int, states: tuple[str, ...] = (), types: tuple[str, ...] = ()) -> None:
        # Other scripts leave groups behind: only this one's are shown.
        answer = play.quiet(ListGroupsRequest(states_filter=list(states), types_filter=list(types)), version)
        shown = [play.normal.message(group) for group in answer.groups if group.group_id in mine]
        play.note(
            title, {"error_code": answer.error_code, "groups": sorted(shown, key=lambda one: one["group_id"])}
        )

    for version in range(6):
        ask(f"all, v{version}", version)
    for states in (
        ("Stable",),
        ("stable",),
        ("Empty", "Dead"),
        ("PreparingRebalance",),
        ("Nonsense",),
        ("",),
    ):
        ask(f"states {' '.join(states)}", 5, states)
    for types in (("classic",), ("Classic",), ("consumer",), ("nonsense",), ("",)):
        ask(f"types {' '.join(types)}", 5, (), types)
    for version in range(3):
        play.step(
            f"delete a stable and an unknown one, v{version}",
            DeleteGroupsRequest(groups_names=["listed.stable", "listed.unknown", ""]),
            version,
        )
    play.step(
        "delete an empty one twice at once",
        DeleteGroupsRequest(groups_names=["listed.empty", "listed.empty"]),
        2,
    )
    play.step("delete it again", DeleteGroupsRequest(groups_names=["listed.empty"]), 2)
    play.step("delete none", DeleteGroupsRequest(groups_names=[]), 2)
    describe(play, "described after that", "listed.empty")
    ask("all after that", 5)


@script
def group_with_much_metadata(play: Play) -> None:
    play.coordinator("much")
    large = join("much.join", kind="other")
    large.protocols[0].metadata = bytes(2_000_000)
    play.note("join with 2 MB of metadata", {"error_code": play.quiet(large, 3).error_code})
    joined = play.quiet(join("much.sync", kind="other"), 3)
    member = joined.member_id
    request = sync("much.sync", joined.generation_id, member, {member: bytes(2_000_000)}, kind="other")
    play.step("sync with 2 MB of assignment", request, 5, timeout_seconds=5)
    play.step("heartbeat after the large sync", beat("much.sync", joined.generation_id, member), 4)
    describe(play, "described after the large sync", "much.sync")
