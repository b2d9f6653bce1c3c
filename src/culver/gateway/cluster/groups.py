"""Consumer groups, asked about and changed: listed, described, their offsets read, set and deleted."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from culver.errors import ErrorCode, KafkaError, MalformedRequest
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.every_broker import ask_every_broker
from culver.gateway.cluster.group_offsets import (
    ELSEWHERE,
    CommittedOffset,
    all_offsets,
    commit_offsets,
    coordinated,
)
from culver.gateway.cluster.parts import in_parts
from culver.gateway.cluster.view import TopicPartition, refusal
from culver.protocol.messages import consumer_group_describe as consumer
from culver.protocol.messages import describe_groups as classic
from culver.protocol.messages.consumer_protocol import ConsumerProtocolAssignment
from culver.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from culver.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from culver.protocol.schema import decoder
from culver.wire_client import Unreachable

CLASSIC = "classic"
CONSUMER = "consumer"

# A coordinator answers nobody else while it looks all of these up.
_GROUPS_PER_REQUEST = 200
_TRIES_MAX = 3
_PAUSE_S = 0.1
_UNKNOWN_GROUP = frozenset((ErrorCode.GROUP_ID_NOT_FOUND, ErrorCode.INVALID_GROUP_ID))

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list. `type` is "classic" or "consumer", empty where the broker does not say."""

    group: str
    protocol_type: str
    state: str
    type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group and what it reads at the moment."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members. `error` when the coordinator has none to describe, or could not be asked."""

    group: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    epoch: int
    coordinator: int
    members: tuple[MemberDescription, ...]
    error: KafkaError | None = None


async def list_groups(cluster: Cluster) -> list[GroupListing]:
    """All groups, by name. Groups of brokers that cannot be reached are missing; Unreachable when none can."""
    found: dict[str, GroupListing] = {}
    for broker_id, answer in (
        await ask_every_broker(cluster, ListGroupsRequest(), ListGroupsResponse)
    ).items():
        for group in answer.groups:
            found[group.group_id] = GroupListing(
                group.group_id, group.protocol_type, group.group_state, group.group_type.lower(), broker_id
            )
    return [found[name] for name in sorted(found)]


async def describe_groups(cluster: Cluster, groups: Sequence[str]) -> dict[str, GroupDescription]:
    """Every group asked for, of either protocol."""

    async def describe(coordinator: int, some: list[str]) -> dict[str, GroupDescription | KafkaError]:
        return await _describe(cluster, coordinator, some)

    found = await _ask_coordinators(cluster, groups, describe)
    return {
        group: _unknown(group, description) if isinstance(description, KafkaError) else description
        for group, description in found.items()
    }


async def committed_offsets(
    cluster: Cluster, groups: Sequence[str]
) -> dict[str, dict[TopicPartition, CommittedOffset]]:
    """All offsets of the groups; a group whose coordinator cannot be asked now is left out."""

    async def offsets(
        coordinator: int, some: list[str]
    ) -> dict[str, dict[TopicPartition, CommittedOffset] | KafkaError]:
        return await all_offsets(cluster, coordinator, some)

    found = await _ask_coordinators(cluster, groups, offsets)
    return {group: offsets for group, offsets in found.items() if not isinstance(offsets, KafkaError)}


async def alter_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set offsets of a group without members. KafkaError for the first that is refused."""
    if offsets:
        await commit_offsets(cluster, group, offsets)


async def delete_group(cluster: Cluster, group: str) -> None:
    """Delete a group without members, with its offsets. KafkaError when refused."""

    async def attempt() -> None:
        request = DeleteGroupsRequest(groups_names=[group])
        answer = await cluster.ask_coordinator(group, request, DeleteGroupsResponse)
        for result in answer.results:
            if result.error_code:
                raise refusal(result.error_code, f"deleting group {group}")

    await coordinated(cluster, group, attempt)


async def _ask_coordinators(
    cluster: Cluster,
    groups: Sequence[str],
    question: Callable[[int, list[str]], Awaitable[dict[str, T | KafkaError]]],
) -> dict[str, T | KafkaError]:
    """Ask each coordinator about its groups, many at once; those that moved meanwhile are asked for again."""
    found: dict[str, T | KafkaError] = {}
    left = list(dict.fromkeys(groups))
    for tries_left in reversed(range(_TRIES_MAX)):
        coordinators = await cluster.find_coordinators(left)
        by_coordinator: dict[int, list[str]] = {}
        for group in left:
            if group in coordinators:
                by_coordinator.setdefault(coordinators[group], []).append(group)
            else:
                found[group] = KafkaError(
                    ErrorCode.COORDINATOR_NOT_AVAILABLE, f"group {group} has no coordinator at the moment"
                )
        parts = [
            (coordinator, part)
            for coordinator, some in by_coordinator.items()
            for part in in_parts(some, _GROUPS_PER_REQUEST)
        ]
        for answer in await asyncio.gather(*(_answer(question, *part) for part in parts)):
            found |= answer
        left = [group for group in left if _has_moved(found[group])]
        if not left or not tries_left:
            break
        for group in left:
            cluster.forget_coordinator(group)
        await asyncio.sleep(_PAUSE_S)
    return found


async def _answer(
    question: Callable[[int, list[str]], Awaitable[dict[str, T | KafkaError]]],
    coordinator: int,
    some: list[str],
) -> dict[str, T | KafkaError]:
    try:
        answer = await question(coordinator, some)
    except Unreachable as error:
        return dict.fromkeys(some, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)))
    missing = KafkaError(
        ErrorCode.UNKNOWN_SERVER_ERROR, f"broker {coordinator} left out a group in its answer"
    )
    return {group: answer.get(group, missing) for group in some}


def _has_moved(result: object) -> bool:
    return isinstance(result, KafkaError) and result.code in ELSEWHERE


# -- descriptions ---------------------------------------------------------------------------------------------


async def _describe(
    cluster: Cluster, coordinator: int, groups: list[str]
) -> dict[str, GroupDescription | KafkaError]:
    """As groups whose broker assigns first; those that are none of them are classic, or nothing."""
    found: dict[str, GroupDescription | KafkaError] = {}
    try:
        answer = await cluster.ask(
            consumer.ConsumerGroupDescribeRequest(group_ids=groups, include_authorized_operations=False),
            consumer.ConsumerGroupDescribeResponse,
            broker_id=coordinator,
        )
        found = {group.group_id: _consumer_group(group, coordinator) for group in answer.groups}
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
    others = [group for group in groups if _is_unknown(found.get(group))]
    if others:
        request = classic.DescribeGroupsRequest(groups=others)
        classic_answer = await cluster.ask(request, classic.DescribeGroupsResponse, broker_id=coordinator)
        found |= {group.group_id: _classic_group(group, coordinator) for group in classic_answer.groups}
    return found


def _is_unknown(result: GroupDescription | KafkaError | None) -> bool:
    return result is None or (isinstance(result, KafkaError) and result.code in _UNKNOWN_GROUP)


def _consumer_group(group: consumer.DescribedGroup, coordinator: int) -> GroupDescription | KafkaError:
    if group.error_code:
        return refusal(group.error_code, f"group {group.group_id}", group.error_message)
    members = tuple(
        MemberDescription(
            member_id=member.member_id,
            instance_id=member.instance_id,
            client_id=member.client_id,
            host=member.client_host,
            assignment=tuple(
                TopicPartition(topic.topic_name, partition)
                for topic in member.assignment.topic_partitions
                for partition in topic.partitions
            ),
        )
        for member in group.members
    )
    return GroupDescription(
        group=group.group_id,
        state=group.group_state,
        type=CONSUMER,
        protocol_type="consumer",
        assignor=group.assignor_name,
        epoch=group.group_epoch,
        coordinator=coordinator,
        members=members,
    )


def _classic_group(group: classic.DescribedGroup, coordinator: int) -> GroupDescription | KafkaError:
    if group.error_code:
        return refusal(group.error_code, f"group {group.group_id}", group.error_message)
    members = tuple(
        MemberDescription(
            member_id=member.member_id,
            instance_id=member.group_instance_id,
            client_id=member.client_id,
            host=member.client_host,
            assignment=_classic_assignment(group.protocol_type, member.member_assignment),
        )
        for member in group.members
    )
    return GroupDescription(
        group=group.group_id,
        state=group.group_state,
        type=CLASSIC,
        protocol_type=group.protocol_type,
        assignor=group.protocol_data,
        epoch=-1,
        coordinator=coordinator,
        members=members,
    )


def _classic_assignment(protocol_type: str, assignment: bytes) -> tuple[TopicPartition, ...]:
    """What consumers among themselves say in bytes that are none of the broker's business."""
    if protocol_type != "consumer" or len(assignment) < 2:
        return ()
    (version,) = struct.unpack_from(">h", assignment)
    newest = (ConsumerProtocolAssignment.SCHEMA.versions or (0, 0))[1]
    try:
        decoded, _ = decoder(ConsumerProtocolAssignment, min(max(version, 0), newest))(assignment, 2)
    except MalformedRequest:
        return ()
    return tuple(
        TopicPartition(entry.topic, partition)
        for entry in decoded.assigned_partitions
        for partition in entry.partitions
    )


def _unknown(group: str, error: KafkaError) -> GroupDescription:
    return GroupDescription(
        group=group,
        state="",
        type="",
        protocol_type="",
        assignor="",
        epoch=-1,
        coordinator=-1,
        members=(),
        error=error,
    )
