"""ListGroups and DescribeGroups.

ListGroups 0-5: since 4 filtered by state, since 5 by type. DescribeGroups 0-6: since 4 instance ids, since 6
an unknown group is an error with a message.
"""

from __future__ import annotations

from collections.abc import Iterable

from culver.core.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, GroupState
from culver.core.group_partition import GroupPartition
from culver.errors import ErrorCode
from culver.protocol.messages.describe_groups import DescribedGroup, DescribedGroupMember
from culver.protocol.messages.list_groups import ListedGroup

CLASSIC_TYPE = "classic"
CONSUMER_TYPE = "consumer"


def list_groups(
    partitions: Iterable[GroupPartition], states_filter: Iterable[str], types_filter: Iterable[str]
) -> list[ListedGroup]:
    """All groups in one of these states and of one of these types; no filter lets all pass."""
    states = {state.strip().lower() for state in states_filter}
    types = {name.strip().lower() for name in types_filter} or {CLASSIC_TYPE, CONSUMER_TYPE}
    listed = []
    for partition in partitions:
        if CLASSIC_TYPE in types:
            listed += [
                _listed(group.group_id, group.protocol_type or "", group.state.value, CLASSIC_TYPE)
                for group in partition.groups.values()
            ]
        if CONSUMER_TYPE in types:
            listed += [
                _listed(group.group_id, CONSUMER_PROTOCOL_TYPE, group.state.value, CONSUMER_TYPE)
                for group in partition.consumer_groups.groups.values()
            ]
    return [group for group in listed if not states or group.group_state.lower() in states]


def _listed(group_id: str, protocol_type: str, state: str, group_type: str) -> ListedGroup:
    return ListedGroup(
        group_id=group_id, protocol_type=protocol_type, group_state=state, group_type=group_type
    )


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
