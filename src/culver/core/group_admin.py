"""ListGroups, DescribeGroups and DeleteGroups.

ListGroups 0-5: since 4 filtered by state, since 5 by type. DescribeGroups 0-6: since 4 instance ids, since 6
an unknown group is an error with a message. DeleteGroups 0-2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from culver.core.coordinator_effects import Effects, append_error
from culver.core.group import ClassicGroup, GroupState
from culver.core.group_partition import GroupPartition
from culver.core.group_records import StateRecord, group_tombstone, offset_tombstone
from culver.errors import ErrorCode
from culver.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from culver.protocol.messages.list_groups import ListedGroup

CLASSIC_TYPE = "classic"


def list_groups(
    partitions: Iterable[GroupPartition], states_filter: Iterable[str], types_filter: Iterable[str]
) -> list[ListedGroup]:
    """All groups in one of these states and of one of these types; no filter lets all pass."""
    states = {state.strip().lower() for state in states_filter}
    types = {name.strip().lower() for name in types_filter}
    if types and CLASSIC_TYPE not in types:
        return []
    return [
        ListedGroup(
            group_id=group.group_id,
            protocol_type=group.protocol_type or "",
            group_state=group.state.value,
            group_type=CLASSIC_TYPE,
        )
        for partition in partitions
        for group in partition.groups.values()
        if not states or group.state.value.lower() in states
    ]


def describe_group(group: ClassicGroup | None, group_id: str, api_version: int) -> DescribedGroup:
    """One group with its members; their metadata only while it says what the group works by."""
    if group is None:
        described = describe_error(group_id, ErrorCode.NONE)
        described.group_state = GroupState.DEAD.value
        if api_version >= 6:
            described.error_code = ErrorCode.GROUP_ID_NOT_FOUND
            described.error_message = f"there is no group {group_id}"
        return described
    stable = group.state is GroupState.STABLE
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group_id,
        group_state=group.state.value,
        protocol_type=group.protocol_type or "",
        protocol_data=(group.protocol_name or "") if stable else "",
        members=[
            DescribedGroupMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                member_metadata=member.metadata(group.protocol_name) if stable else b"",
                member_assignment=member.assignment,
            )
            for member in group.members.values()
        ],
    )


def describe_error(group_id: str, error: ErrorCode) -> DescribedGroup:
    """The answer for a group that cannot be asked."""
    return DescribedGroup(
        error_code=error, group_id=group_id, group_state="", protocol_type="", protocol_data="", members=[]
    )


def delete_groups(
    partition: GroupPartition,
    group_ids: list[str],
    done: Callable[[dict[str, ErrorCode], Effects], None],
    now_ms: float,
    out: Effects,
) -> None:
    """Remove groups of one partition that nobody is in, with their offsets; `done` hears how it went."""

    def go_on(_now_ms: float, out: Effects) -> None:
        results: dict[str, ErrorCode] = {}
        records: list[StateRecord] = []
        for group_id in group_ids:
            group = partition.groups.get(group_id)
            if partition.closed:
                results[group_id] = ErrorCode.NOT_COORDINATOR
            elif group is None:
                results[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not GroupState.EMPTY:
                results[group_id] = ErrorCode.NON_EMPTY_GROUP
            elif group_id not in results:
                results[group_id] = ErrorCode.NONE
                # A pending offset goes too: its transaction must not bring the group back.
                keys = {
                    (topic, index): None
                    for topic, offsets in partition.offsets.get(group_id, {}).items()
                    for index in offsets
                }
                keys |= dict.fromkeys(partition.pending.of_group(group_id))
                records += [offset_tombstone(group_id, topic, index) for topic, index in keys]
                records.append(group_tombstone(group_id))
        if not records:
            done(results, out)
            return

        def finish(error: ErrorCode, _now_ms: float, out: Effects) -> None:
            if error is not ErrorCode.NONE:
                for group_id, result in results.items():
                    if result is ErrorCode.NONE:
                        results[group_id] = append_error(error)
            done(results, out)

        partition.append(records, finish, out)

    partition.after_in_flight(go_on, now_ms, out)
