"""Carry out a plan of reassignments: throttled if asked for, watched until all is copied, leaders put in place."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from culver.cli.failure import ExitCode, Failure
from culver.cli.output import counted, duration, note
from culver.cli.wire import Stored, Wire
from culver.core import reassignment
from culver.core.image import BrokerInfo, ClusterImage, PartitionImage
from culver.core.placement import PartitionKey
from culver.errors import ErrorCode, KafkaError
from culver.wire_client import Unreachable

_POLL_SECONDS = 0.3
# A cluster that elects a new leader, or a broker that restarts, may not answer for a while.
_PATIENCE_SECONDS = 60.0
_REFUSALS_SHOWN_MAX = 10

Plan: TypeAlias = Mapping[PartitionKey, tuple[int, ...]]
# Bytes copied, bytes in all, partitions done.
Report: TypeAlias = Callable[[int, int, int], None]


def partition_of(image: ClusterImage, key: PartitionKey) -> PartitionImage:
    """The partition; ends the command when there is none."""
    topic = image.topic(key[0])
    if topic is None:
        raise Failure(
            f"topic {key[0]} does not exist",
            "`culver topic list` shows the topics there are",
            code=ExitCode.NOT_FOUND,
        )
    partition = topic.partition(key[1])
    if partition is None:
        raise Failure(
            f"topic {key[0]} has no partition {key[1]}, only 0 to {len(topic.partitions) - 1}",
            code=ExitCode.NOT_FOUND,
        )
    return partition


def added(image: ClusterImage, plan: Plan) -> dict[PartitionKey, tuple[int, ...]]:
    """The replicas of each partition that the plan has copied to where they are not yet."""
    return {
        key: tuple(
            broker for broker in target if broker not in reassignment.original(partition_of(image, key))
        )
        for key, target in plan.items()
    }


def plan_rows(image: ClusterImage, plan: Plan, stored: Stored) -> list[dict[str, Any]]:
    """The plan as a table, with the bytes that it copies."""
    new = added(image, plan)
    return [
        {
            "topic": key[0],
            "partition": key[1],
            "replicas": list(reassignment.original(partition_of(image, key))),
            "new_replicas": list(target),
            "bytes_copied": _size(partition_of(image, key), key, stored) * len(new[key]),
        }
        for key, target in sorted(plan.items())
    ]


def carry_out(
    wire: Wire, image: ClusterImage, plan: Plan, *, throttle_bytes: int | None, wait: bool, why: str
) -> None:
    """Begin the moves and, unless told otherwise, wait until the last is done. Ctrl-C stops the waiting only."""
    if not plan:
        return
    new = added(image, plan)
    receivers = {broker for brokers in new.values() for broker in brokers}
    with _throttled(wire, image, receivers, throttle_bytes):
        refused = wire.reassign(plan)
        under_way = {key: new[key] for key in plan if key not in refused}
        if wait:
            begun_s = time.monotonic()
            try:
                _watch(wire, image, under_way, why)
            except KeyboardInterrupt:
                note(
                    "not waiting any more; the moves go on: `culver cluster status` shows them, "
                    "`culver cluster reassign --cancel` calls them off"
                )
                raise
            if under_way:
                _prefer_leaders(wire, under_way)
                took = duration(time.monotonic() - begun_s)
                note(f"{why}: {counted(len(under_way), 'partition')} moved in {took}")
        elif under_way:
            note(
                f"{why}: {counted(len(under_way), 'partition')} under way; `culver cluster status` shows how it goes"
            )
    if refused:
        raise _refusal(refused)


def _refusal(refused: Mapping[PartitionKey, KafkaError]) -> Failure:
    shown = [error.message for _, error in sorted(refused.items())][:_REFUSALS_SHOWN_MAX]
    if len(refused) > len(shown):
        shown.append(f"and {len(refused) - len(shown)} more")
    missing = all(error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION for error in refused.values())
    return Failure("refused: " + "; ".join(shown), code=ExitCode.NOT_FOUND if missing else ExitCode.FAILED)


def _prefer_leaders(wire: Wire, moved: Mapping[PartitionKey, object]) -> None:
    """The first of the new replicas leads. One that cannot yet will be put in place by the controller."""
    wire.elect_leaders(list(moved))


@contextlib.contextmanager
def _throttled(
    wire: Wire, image: ClusterImage, receivers: set[int], rate_bytes: int | None
) -> Iterator[None]:
    """Limit how fast these brokers copy; the limit is taken off afterwards, whatever happens."""
    if rate_bytes is None or not receivers:
        yield
        return
    brokers = [broker for id, broker in sorted(image.brokers.items()) if id in receivers]
    try:
        wire.set_throttle(brokers, rate_bytes)
        yield
    finally:
        unthrottle(wire, brokers)


def unthrottle(wire: Wire, brokers: Iterable[BrokerInfo]) -> None:
    """Take the limit off."""
    for broker in wire.set_throttle(brokers, None):
        note(
            f"broker {broker} did not answer and goes on copying slowly; "
            "`culver cluster unthrottle` ends that when it is back"
        )


# --- watching ---


def _watch(
    wire: Wire, image: ClusterImage, under_way: Mapping[PartitionKey, tuple[int, ...]], why: str
) -> None:
    """Until none of the partitions is under reassignment any more."""
    silent_since_s: float | None = None
    warned: set[int] = set()
    with _progress(why, len(under_way)) as report:
        while True:
            try:
                remaining = wire.moves().keys() & under_way.keys()
                if not remaining:
                    return
                image = wire.image()
                stored = wire.stored(image.brokers.values())
                silent_since_s = None
            except (Unreachable, KafkaError) as error:
                silent_since_s = silent_since_s or time.monotonic()
                if time.monotonic() - silent_since_s > _PATIENCE_SECONDS:
                    raise
                if isinstance(error, KafkaError) and not error.retriable:
                    raise
            else:
                _warn_of_the_dead(image, {key: under_way[key] for key in remaining}, warned)
                report(*_progress_of(image, under_way, remaining, stored))
            time.sleep(_POLL_SECONDS)


def _progress_of(
    image: ClusterImage,
    under_way: Mapping[PartitionKey, tuple[int, ...]],
    remaining: set[PartitionKey],
    stored: Stored,
) -> tuple[int, int, int]:
    copied_bytes = total_bytes = 0
    for key, brokers in under_way.items():
        partition = image.partition(*key)
        if partition is None:  # its topic has been deleted
            continue
        size_bytes = _size(partition, key, stored)
        for broker in brokers:
            there = stored.get(broker, {}).get(key)
            total_bytes += size_bytes
            if key not in remaining:
                copied_bytes += size_bytes
            elif there is not None:
                copied_bytes += min(there.size_bytes, size_bytes)
    return copied_bytes, total_bytes, len(under_way) - len(remaining)


def _warn_of_the_dead(
    image: ClusterImage, remaining: Mapping[PartitionKey, tuple[int, ...]], warned: set[int]
) -> None:
    dead = {broker for brokers in remaining.values() for broker in brokers} - set(image.brokers)
    for broker in sorted(dead - warned):
        note(f"broker {broker} is down: what is to be copied to it waits until it is back")
    # One that comes back and dies again is told of again.
    warned.clear()
    warned.update(dead)


def _size(partition: PartitionImage, key: PartitionKey, stored: Stored) -> int:
    there = stored.get(partition.leader, {}).get(key)
    return there.size_bytes if there is not None else 0


@contextlib.contextmanager
def _progress(description: str, partitions: int) -> Iterator[Report]:
    """A bar in bytes on stderr when that is a terminal."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _copied, _total, _done: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(f"{description} 0/{partitions}", total=None)

        def report(copied_bytes: int, total_bytes: int, done: int) -> None:
            text = f"{description} {done}/{partitions}"
            bar.update(task, completed=copied_bytes, total=max(1, total_bytes), description=text)

        yield report
