"""/api/groups/{group}/offsets: set a group's offsets, after a look at what that would do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.groups import GroupDescription, alter_offsets
from culver.gateway.cluster.view import TopicPartition, refusal
from culver.gateway.console.bodies import body_of
from culver.gateway.console.browsing import Bounds
from culver.gateway.console.group_pages import existing_group
from culver.gateway.console.lag import Progress, behind, progress_of
from culver.gateway.console.parameters import GROUP, moment_ms, path_name, refused, words
from culver.gateway.console.places import offsets_at_time, view_with
from culver.gateway.errors import HttpError, Problem
from culver.gateway.routing import JSON, Answer, Endpoint, Parameter, json_response
from culver.gateway.services import services_of
from culver.protocol.messages import offset_delete

_Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
# How a coordinator refuses offsets from outside of a group that has members.
_HAS_MEMBERS = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.NON_EMPTY_GROUP,
    }
)
_Shift = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class PlaceToReset(msgspec.Struct, forbid_unknown_fields=True):
    """A partition, and for `to: offset` the offset of this one."""

    topic: str
    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    offset: _Offset | None = None


class Reset(msgspec.Struct, forbid_unknown_fields=True):
    """Where to set offsets to, and which: by default all that the group has committed."""

    to: Literal["earliest", "latest", "offset", "time", "shift"]
    offset: _Offset | None = None
    time: str | int | None = None
    shift: _Shift | None = None
    topics: list[str] = []
    partitions: list[PlaceToReset] = []
    # It shows what it would do, unless it is told to do it.
    dry_run: bool = True


class OffsetChange(msgspec.Struct, frozen=True):
    """What becomes of one partition. `clamped`: the offset that was asked for is not there any more, or not yet."""

    topic: str
    partition: int
    before: int | None
    after: int | None
    earliest: int | None
    latest: int | None
    change: int | None
    lag_after: int | None
    clamped: bool
    error: str | None


class ResetAnswer(msgspec.Struct, frozen=True):
    """What was done or, with dry_run, would be."""

    group: str
    dry_run: bool
    state: str
    members: int
    possible: bool
    reason: str | None
    offsets: list[OffsetChange]
    # Records that will be read again, and records that will never be read.
    records_again: int
    records_skipped: int


class OffsetsDeleted(msgspec.Struct, frozen=True):
    """How many offsets were forgotten."""

    group: str
    topic: str
    deleted: int


async def reset(request: Request) -> Response:
    services = services_of(request)
    wanted = await body_of(request, Reset)
    _check(wanted)
    described = await existing_group(services, path_name(request, "group"))
    reason = _hindrance(described)
    if reason and not wanted.dry_run:
        raise HttpError(Problem.GROUP_ACTIVE, reason)
    named = [TopicPartition(each.topic, each.partition) for each in wanted.partitions]
    view = await view_with(services.cluster, [*wanted.topics, *(place.topic for place in named)])
    for topic in wanted.topics:
        if topic not in view.topics:
            raise HttpError(Problem.TOPIC_NOT_FOUND, f"there is no topic {topic}")
        named += [TopicPartition(topic, each.index) for each in view.topics[topic].partitions]
    for place in named:
        view.partition(place)
    progress = await progress_of(services.cluster, [described.group], named)
    places = sorted(set(named)) or sorted(progress.committed.get(described.group, {}))
    targets = await _targets(services.cluster, wanted, places, progress, described.group)
    changes = [_change(place, targets.get(place), progress, described.group) for place in places]
    if not wanted.dry_run:
        new = {
            TopicPartition(each.topic, each.partition): each.after
            for each in changes
            if each.after is not None and each.after != each.before
        }
        if new:
            await store(services.cluster, described.group, new)
    moved = [each.change for each in changes if each.change is not None]
    return json_response(
        ResetAnswer(
            group=described.group,
            dry_run=wanted.dry_run,
            state=described.state,
            members=len(described.members),
            possible=reason is None,
            reason=reason,
            offsets=changes,
            records_again=-sum(change for change in moved if change < 0),
            records_skipped=sum(change for change in moved if change > 0),
        )
    )


async def store(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set the offsets of a group without members; GROUP_ACTIVE when it has some."""
    try:
        await alter_offsets(cluster, group, offsets)
    except KafkaError as error:
        if error.code not in _HAS_MEMBERS:
            raise
        # Somebody has joined since the group was looked at. Its coordinator has the last word, and nothing is set.
        raise HttpError(
            Problem.GROUP_ACTIVE, f"group {group} has got a member meanwhile: stop it first ({error})"
        ) from None


def _check(wanted: Reset) -> None:
    needs = {"offset": wanted.offset, "time": wanted.time, "shift": wanted.shift}
    has_own = (
        wanted.to == "offset"
        and wanted.partitions
        and all(each.offset is not None for each in wanted.partitions)
    )
    if wanted.to in needs and needs[wanted.to] is None and not has_own:
        raise refused(f"to={wanted.to} needs {wanted.to} as well")
    if has_own and wanted.topics:
        raise refused("name topics, or partitions with an offset each, but not both")


def _hindrance(described: GroupDescription) -> str | None:
    if not described.members:
        return None
    count = len(described.members)
    return (
        f"group {described.group} has {count} active member{'s' if count > 1 else ''}, which would set the offsets "
        "back to their own: stop them first"
    )


async def _targets(
    cluster: Cluster, wanted: Reset, places: list[TopicPartition], progress: Progress, group: str
) -> dict[TopicPartition, int]:
    """The offsets that are asked for, which may lie outside of what there is."""
    bounds = {place: progress.bounds[place] for place in places if place in progress.bounds}
    if wanted.to == "earliest":
        return {place: each.earliest for place, each in bounds.items()}
    if wanted.to == "latest":
        return {place: each.latest for place, each in bounds.items()}
    if wanted.to == "offset":
        own = {TopicPartition(each.topic, each.partition): each.offset for each in wanted.partitions}
        chosen = {place: own.get(place) for place in bounds}
        return {
            place: offset if offset is not None else wanted.offset or 0 for place, offset in chosen.items()
        }
    if wanted.to == "shift":
        committed = progress.committed.get(group, {})
        return {
            place: committed[place].offset + (wanted.shift or 0) for place in bounds if place in committed
        }
    assert wanted.time is not None
    return await _at_time(cluster, bounds, moment_ms(wanted.time))


async def _at_time(
    cluster: Cluster, bounds: Mapping[TopicPartition, Bounds], at_ms: int
) -> dict[TopicPartition, int]:
    targets: dict[TopicPartition, int] = {}
    for topic in sorted({place.topic for place in bounds}):
        own = {place.partition: each for place, each in bounds.items() if place.topic == topic}
        found = await offsets_at_time(cluster, topic, own, at_ms)
        targets |= {TopicPartition(topic, index): offset for index, offset in found.items()}
    return targets


def _change(place: TopicPartition, target: int | None, progress: Progress, group: str) -> OffsetChange:
    at = progress.committed.get(group, {}).get(place)
    bounds = progress.bounds.get(place)
    before = at.offset if at else None
    after = None
    error: str | None = None
    if bounds is None:
        unknown = progress.errors.get(place)
        error = str(unknown) if unknown else "there is no such partition any more"
    elif target is None:
        error = "nothing was committed that could be shifted"
    else:
        after = min(max(target, bounds.earliest), bounds.latest)
    return OffsetChange(
        topic=place.topic,
        partition=place.partition,
        before=before,
        after=after,
        earliest=bounds.earliest if bounds else None,
        latest=bounds.latest if bounds else None,
        change=after - before if after is not None and before is not None else None,
        lag_after=behind(bounds, after) if bounds and after is not None else None,
        clamped=after is not None and after != target,
        error=error,
    )


async def forget(request: Request) -> Response:
    """Delete the offsets of one topic."""
    services = services_of(request)
    topic = words(request, "topic")
    if not topic:
        raise refused("topic is missing: whose offsets shall be forgotten?")
    described = await existing_group(services, path_name(request, "group"))
    progress = await progress_of(services.cluster, [described.group])
    indexes = sorted(
        place.partition for place in progress.committed.get(described.group, {}) if place.topic == topic
    )
    if indexes:
        partitions = [offset_delete.OffsetDeleteRequestPartition(partition_index=index) for index in indexes]
        asked = offset_delete.OffsetDeleteRequest(
            group_id=described.group,
            topics=[offset_delete.OffsetDeleteRequestTopic(name=topic, partitions=partitions)],
        )
        answer = await services.cluster.ask_coordinator(
            described.group, asked, offset_delete.OffsetDeleteResponse
        )
        codes = [answer.error_code, *(each.error_code for one in answer.topics for each in one.partitions)]
        failed: KafkaError | None = next(
            (refusal(code, f"offsets of {topic} in group {described.group}") for code in codes if code), None
        )
        if failed is not None:
            raise failed
    return json_response(OffsetsDeleted(described.group, topic, len(indexes)))


_PATH = "/api/groups/{group}/offsets"

ROUTES = [
    Endpoint(
        "POST",
        _PATH,
        reset,
        "Set a group's offsets, or show what that would do (dry_run, the default).",
        "console",
        parameters=(GROUP,),
        bodies={JSON: Reset},
        answers={200: Answer("Before and after, partition by partition.", ResetAnswer)},
        errors=(403, 404, 409, 413, 422, 503),
        description="Refused with 409 while the group has members; a dry run says so in `reason`. To do exactly "
        "what a dry run has shown, send its `after` as the offset of each partition, with `to: offset`.",
    ),
    Endpoint(
        "DELETE",
        _PATH,
        forget,
        "Forget a group's offsets of one topic.",
        "console",
        parameters=(GROUP, Parameter("topic", "The topic.", required=True)),
        answers={200: Answer("How many were forgotten.", OffsetsDeleted)},
        errors=(403, 404, 409, 422, 503),
    ),
]
