"""Turns what a request says of partitions and of where to begin into offsets."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster, OffsetAt
from culver.gateway.cluster.view import ClusterView, TopicPartition, TopicView
from culver.gateway.console.browsing import BACKWARD, PARTITIONS_MAX, Bounds, Positions
from culver.gateway.console.parameters import moment_ms, refused, whole_number
from culver.gateway.errors import HttpError, Problem

EARLIEST, LATEST = -2, -1
# A page that says which partition has no leader now is better than one that waits for the next leader.
PATIENCE_MS = 300.0
SYNTAX = "earliest, latest, offset:N or time:T"


async def view_with(cluster: Cluster, topics: Iterable[str]) -> ClusterView:
    """The cluster as it was a moment ago, or as it is now if one of the topics was not there a moment ago."""
    view = await cluster.view()
    if all(name in view.topics for name in topics):
        return view
    cluster.forget_view(view)
    return await cluster.view()


async def topic_of(cluster: Cluster, name: str) -> tuple[ClusterView, TopicView]:
    """The topic as it is now; 404 when there is none."""
    view = await view_with(cluster, [name])
    topic = view.topics.get(name)
    if topic is None:
        raise HttpError(Problem.TOPIC_NOT_FOUND, f"there is no topic {name}")
    return view, topic


def is_internal(topic: TopicView) -> bool:
    """Whether a topic is somebody's bookkeeping: the brokers', Culver's own, or a framework's."""
    return topic.internal or topic.name.startswith("__")


def chosen_partitions(topic: TopicView, wanted: Sequence[int] | None) -> list[int]:
    """Those that were asked for, or all."""
    there = {partition.index for partition in topic.partitions}
    for index in wanted or ():
        if index not in there:
            raise HttpError(Problem.PARTITION_NOT_FOUND, f"topic {topic.name} has no partition {index}")
    return sorted(there) if wanted is None else list(wanted)


async def bounds_of(
    cluster: Cluster, places: Sequence[TopicPartition], *, committed: bool
) -> tuple[dict[TopicPartition, Bounds], dict[TopicPartition, KafkaError]]:
    """Where partitions begin and end, and what stands in the way of knowing it."""
    first, last = await asyncio.gather(
        cluster.list_offsets(dict.fromkeys(places, EARLIEST), retry_ms=PATIENCE_MS),
        cluster.list_offsets(dict.fromkeys(places, LATEST), retry_ms=PATIENCE_MS, committed=committed),
    )
    bounds: dict[TopicPartition, Bounds] = {}
    errors: dict[TopicPartition, KafkaError] = {}
    for place in places:
        begin, end = first[place], last[place]
        if isinstance(begin, OffsetAt) and isinstance(end, OffsetAt):
            bounds[place] = Bounds(begin.offset, max(begin.offset, end.offset))
        else:
            errors[place] = begin if isinstance(begin, KafkaError) else end  # type: ignore[assignment]
    return bounds, errors


def not_too_many(bounds: Mapping[int, Bounds]) -> dict[int, Bounds]:
    """Without the partitions that have nothing, if there are too many to merge; refused if there still are."""
    if len(bounds) <= PARTITIONS_MAX:
        return dict(bounds)
    filled = {index: each for index, each in bounds.items() if each.earliest < each.latest}
    if len(filled) > PARTITIONS_MAX:
        raise refused(
            f"{len(filled)} partitions hold records, and {PARTITIONS_MAX} can be looked at together: "
            "choose some, such as partition=0,1,2"
        )
    return filled


async def positions_at(
    cluster: Cluster, topic: str, bounds: Mapping[int, Bounds], text: str, direction: str
) -> Positions:
    """The offsets that `from=` stands for, in each of these partitions."""
    kind, colon, rest = text.partition(":")
    if text == "earliest":
        offsets = {index: each.earliest for index, each in bounds.items()}
    elif text == "latest":
        offsets = {index: each.latest for index, each in bounds.items()}
    elif kind == "offset" and colon:
        wanted = whole_number(rest, "offset")
        offsets = {index: min(max(wanted, each.earliest), each.latest) for index, each in bounds.items()}
    elif kind == "time" and colon:
        offsets = await offsets_at_time(cluster, topic, bounds, moment_ms(rest))
    else:
        raise refused(f"{text[:40]!r} is no place to begin: expected {SYNTAX}")
    return Positions(direction, offsets)


async def offsets_at_time(
    cluster: Cluster, topic: str, bounds: Mapping[int, Bounds], at_ms: int
) -> dict[int, int]:
    """The first offset at or after a time, in each partition; its end when everything is older."""
    asked = {TopicPartition(topic, index): max(0, at_ms) for index in bounds}
    found = await cluster.list_offsets(asked, retry_ms=PATIENCE_MS)
    offsets = {}
    for (_, index), at in found.items():
        if isinstance(at, KafkaError):
            raise at
        offsets[index] = bounds[index].latest if at.offset < 0 else min(at.offset, bounds[index].latest)
    return offsets


def default_direction(begin: str) -> str:
    """Newest first from the end, and onwards from anywhere else."""
    return BACKWARD if begin == "latest" else "forward"
