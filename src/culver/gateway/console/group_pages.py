"""/api/groups: the list of groups, page by page, and one group with its members and lag."""

from __future__ import annotations

import asyncio
from collections import Counter

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.groups import (
    GroupDescription,
    GroupListing,
    MemberDescription,
    delete_group,
    describe_groups,
    list_groups,
)
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.console.lag import Progress, behind, progress_of
from culver.gateway.console.parameters import (
    GROUP,
    PAGING,
    choice,
    choice_parameter,
    matching,
    paging,
    path_name,
    words,
)
from culver.gateway.errors import HttpError, Problem
from culver.gateway.routing import Answer, Endpoint, Parameter, json_response
from culver.gateway.services import Services, services_of

_TOPICS_SHOWN_MAX = 5
_DEAD = "dead"


class GroupItem(msgspec.Struct, frozen=True):
    """One group in a list. None: not known."""

    group: str
    state: str
    type: str
    protocol_type: str
    members: int | None
    lag: int | None
    partitions: int | None
    topics: list[str]
    error: str | None


class GroupTotals(msgspec.Struct, frozen=True):
    """Over all groups, whatever was asked for."""

    groups: int


class GroupsAnswer(msgspec.Struct, frozen=True):
    """A page of groups; how many are in each state."""

    total: int
    offset: int
    limit: int
    items: list[GroupItem]
    states: dict[str, int]
    totals: GroupTotals


class Place(msgspec.Struct, frozen=True):
    """A partition."""

    topic: str
    partition: int


class MemberItem(msgspec.Struct, frozen=True):
    """A member and what it reads."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    partitions: list[Place]
    partitions_count: int


class GroupPartition(msgspec.Struct, frozen=True):
    """How far the group has come in one partition, and who reads it."""

    topic: str
    partition: int
    committed: int | None
    earliest: int | None
    latest: int | None
    lag: int | None
    metadata: str | None
    member_id: str | None
    client_id: str | None
    error: str | None


class GroupTopic(msgspec.Struct, frozen=True):
    """The lag in one topic."""

    topic: str
    lag: int | None
    partitions: int


class GroupAnswer(msgspec.Struct, frozen=True):
    """One group."""

    group: str
    state: str
    type: str
    protocol: str | None
    coordinator: int
    lag: int | None
    members: list[MemberItem]
    partitions: list[GroupPartition]
    topics: list[GroupTopic]


class GroupDeleted(msgspec.Struct, frozen=True):
    """A group that is no more."""

    group: str
    deleted: bool


# --- many ---


async def groups(request: Request) -> Response:
    services = services_of(request)
    cluster = services.cluster
    wanted_states = {state for state in words(request, "state").casefold().split(",") if state}
    wanted_type = words(request, "type").casefold()
    sort = choice(request, "sort", ("name", "-name"), "name")
    offset, limit = paging(request)
    listed = await services.console.groups.get("", lambda: list_groups(cluster))
    by_name = {each.group: each for each in listed}
    found = [
        by_name[name]
        for name in sorted(matching(by_name, words(request, "q")), reverse=sort == "-name")
        if (not wanted_states or by_name[name].state.casefold() in wanted_states)
        and (not wanted_type or by_name[name].type.casefold() == wanted_type)
    ]
    # Everything beyond the names is asked for the groups of this page alone.
    shown = found[offset : offset + limit]
    names = [each.group for each in shown]
    described: dict[str, GroupDescription] = {}
    progress = Progress({}, {}, {})
    if names:
        described, progress = await asyncio.gather(
            describe_groups(cluster, names), progress_of(cluster, names)
        )
    return json_response(
        GroupsAnswer(
            len(found),
            offset,
            limit,
            [_item(each, described.get(each.group), progress) for each in shown],
            dict(Counter(each.state for each in listed)),
            GroupTotals(len(listed)),
        )
    )


def _item(listing: GroupListing, described: GroupDescription | None, progress: Progress) -> GroupItem:
    committed = progress.committed.get(listing.group)
    error = described.error if described is not None else None
    is_known = described is not None and error is None
    assigned = {
        place.topic for member in (described.members if described else ()) for place in member.assignment
    }
    return GroupItem(
        group=listing.group,
        state=described.state if described is not None and is_known else listing.state,
        type=listing.type,
        protocol_type=listing.protocol_type,
        members=len(described.members) if described is not None and is_known else None,
        lag=progress.lag(listing.group),
        partitions=None if committed is None else len(committed),
        topics=sorted({place.topic for place in committed or ()} | assigned)[:_TOPICS_SHOWN_MAX],
        error=str(error) if error else None,
    )


# --- one ---


async def existing_group(services: Services, name: str) -> GroupDescription:
    """The group as it is now; 404 when there is none."""
    described = (await describe_groups(services.cluster, [name])).get(name)
    if described is None:
        raise HttpError(Problem.GROUP_NOT_FOUND, f"there is no group {name}")
    if described.error is not None and described.error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
        raise described.error
    # Of a group that nobody knows, older versions of the protocol say that it is dead.
    if described.error is not None or described.state.casefold() == _DEAD:
        raise HttpError(Problem.GROUP_NOT_FOUND, f"there is no group {name}")
    return described


async def group(request: Request) -> Response:
    services = services_of(request)
    described = await existing_group(services, path_name(request, "group"))
    owners = {place: member for member in described.members for place in member.assignment}
    progress = await progress_of(services.cluster, [described.group], list(owners))
    committed = progress.committed.get(described.group, {})
    partitions = [
        _partition(place, progress, described.group, owners.get(place))
        for place in sorted(committed.keys() | owners.keys())
    ]
    return json_response(
        GroupAnswer(
            group=described.group,
            state=described.state,
            type=described.type,
            protocol=described.assignor or None,
            coordinator=described.coordinator,
            lag=progress.lag(described.group),
            members=[_member(member) for member in described.members],
            partitions=partitions,
            topics=_topics(partitions),
        )
    )


def _partition(
    place: TopicPartition, progress: Progress, group_name: str, owner: MemberDescription | None
) -> GroupPartition:
    at = progress.committed.get(group_name, {}).get(place)
    bounds = progress.bounds.get(place)
    error: KafkaError | None = progress.errors.get(place)
    return GroupPartition(
        topic=place.topic,
        partition=place.partition,
        committed=at.offset if at else None,
        earliest=bounds.earliest if bounds else None,
        latest=bounds.latest if bounds else None,
        lag=behind(bounds, at.offset) if at and bounds else None,
        metadata=at.metadata if at else None,
        member_id=owner.member_id if owner else None,
        client_id=owner.client_id if owner else None,
        error=str(error) if error else None if bounds else "there is no such partition any more",
    )


def _member(member: MemberDescription) -> MemberItem:
    return MemberItem(
        member_id=member.member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        host=member.host,
        partitions=[Place(*place) for place in sorted(member.assignment)],
        partitions_count=len(member.assignment),
    )


def _topics(partitions: list[GroupPartition]) -> list[GroupTopic]:
    found = []
    for topic in dict.fromkeys(each.topic for each in partitions):
        own = [each for each in partitions if each.topic == topic]
        lags = [each.lag for each in own if each.lag is not None]
        found.append(GroupTopic(topic, sum(lags) if lags else None, len(own)))
    return found


async def delete(request: Request) -> Response:
    services = services_of(request)
    name = path_name(request, "group")
    await delete_group(services.cluster, name)
    services.console.groups.forget()
    return json_response(GroupDeleted(name, True))


ROUTES = [
    Endpoint(
        "GET",
        "/api/groups",
        groups,
        "A page of the groups, with their lag.",
        "console",
        parameters=(
            Parameter("q", "Only ids with this text in them."),
            *PAGING,
            Parameter("state", "Only in these states, with commas between: Stable, Empty, Dead, ..."),
            Parameter("type", "Only of this type: classic, consumer, share."),
            choice_parameter("sort", "Upwards or downwards.", ("name", "-name"), "name"),
        ),
        answers={200: Answer("The groups.", GroupsAnswer)},
        errors=(422, 503),
        description="Members and lag are asked for those groups alone that the page shows.",
    ),
    Endpoint(
        "GET",
        "/api/groups/{group}",
        group,
        "One group: members, what they read, and the lag of every partition.",
        "console",
        parameters=(GROUP,),
        answers={200: Answer("The group.", GroupAnswer)},
        errors=(404, 422, 503),
    ),
    Endpoint(
        "DELETE",
        "/api/groups/{group}",
        delete,
        "Delete a group that has no members, with its offsets.",
        "console",
        parameters=(GROUP,),
        answers={200: Answer("Deleted.", GroupDeleted)},
        errors=(403, 404, 409, 422, 503),
    ),
]
