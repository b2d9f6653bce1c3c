"""The replay pipeline: publishes a range of an archived topic to a topic again, in the order of each partition."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from culver.pipelines.archive_manifest import ArchiveError, ArchiveManifest, local_path
from culver.pipelines.arrow_mapping import map_in_arrow
from culver.pipelines.log_store.times import Moment, moment_us
from culver.pipelines.replay_tasks import RECORDS_PER_TRANSACTION, RESULT_SCHEMA, Stretch, replay_task
from culver.pipelines.spark_session import session
from culver.pipelines.streaming import plain_errors
from culver.spark.fetching import BlockingCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LAST_OFFSET = 2**63 - 1
_FIRST_TIME_MS, _LAST_TIME_MS = -(2**53), 2**53


@dataclass(frozen=True, slots=True)
class ReplayResult:
    """What was published by this run: less than the range when an earlier one with the same id had begun it."""

    replay_id: str
    records: int
    partitions: dict[int, int]


def run(
    bootstrap: str,
    topic: str,
    directory: str,
    *,
    target: str | None = None,
    partitions: str | None = None,
    start: int | Mapping[int, int] = 0,
    end: int | Mapping[int, int] | None = None,
    since: Moment = None,
    until: Moment = None,
    replay_id: str | None = None,
    keep_timestamps: bool = True,
    records_per_transaction: int = RECORDS_PER_TRANSACTION,
    master: str | None = None,
    spark: SparkSession | None = None,
    on_plan: Callable[[int], None] | None = None,
) -> ReplayResult:
    """Publish archived records of `topic` to `target`, by default a topic of the same name.

    `directory`: where `archive` has put them. `partitions`: which, with commas, by default all. `start` and `end`:
    offsets, start <= offset < end, one for all partitions or a mapping. `since` and `until`: times of records, as for
    search: since <= timestamp < until. A record goes to the partition that it came from, so the target needs as many.
    `replay_id`: runs with the same id go on where the one before stopped, and publish nothing twice; by default a new
    one each time. `keep_timestamps`: records keep their time, by which retention counts; otherwise they get today's.
    `on_plan` is told beforehand how many records there are at most.

    Records are published in transactions: who reads committed sees each once. Raises ArchiveError,
    KafkaError, or PipelineFailed with the reason of a task that failed.
    """
    manifest = ArchiveManifest(directory, topic)
    manifest.refresh()
    target = target or topic
    replay_id = replay_id or uuid.uuid4().hex
    wanted = _partitions(partitions, manifest)
    _check_target(bootstrap, target, wanted)
    stretches, count = [], 0
    for partition in wanted:
        first, last = _bound(start, partition, 0), _bound(end, partition, _LAST_OFFSET)
        since_ms = moment_us(since, _FIRST_TIME_MS * 1000) // 1000
        until_ms = moment_us(until, _LAST_TIME_MS * 1000) // 1000
        files = [
            file
            for segment in manifest.segments()[partition]
            for file in segment.files
            if file.last_offset >= first
            and file.first_offset < last
            and file.timestamp_ms_max >= since_ms
            and file.timestamp_ms_min < until_ms
        ]
        count += sum(file.records for file in files)
        stretches.append(
            Stretch(
                replay_id=replay_id,
                bootstrap=bootstrap,
                target=target,
                partition=partition,
                start=first,
                end=last,
                since_ms=since_ms,
                until_ms=until_ms,
                keep_timestamps=keep_timestamps,
                files=[local_path(manifest.path, file.path) for file in files],
            )
        )
    if on_plan is not None:
        on_plan(count)
    stretches = [stretch for stretch in stretches if stretch.files]
    if not stretches:
        return ReplayResult(replay_id, 0, {})
    spark = spark or session("culver-replay", master=master)
    rows = [(msgspec.json.encode(stretch).decode(),) for stretch in stretches]
    # A partition is published by one task from its first record to its last, or its order would be lost.
    plan = spark.sparkContext.parallelize(rows, len(rows))
    frame = spark.createDataFrame(plan, "stretch STRING")
    with plain_errors():
        results = map_in_arrow(frame, replay_task(records_per_transaction), RESULT_SCHEMA).collect()
    published = {row["partition"]: row["records"] for row in results}
    return ReplayResult(replay_id, sum(published.values()), published)


def _bound(bound: int | Mapping[int, int] | None, partition: int, default: int) -> int:
    if bound is None:
        return default
    return bound if isinstance(bound, int) else bound.get(partition, default)


def _partitions(text: str | None, manifest: ArchiveManifest) -> list[int]:
    there = list(manifest.segments())
    if text is None:
        return there
    try:
        wanted = sorted({int(word) for word in text.split(",")})
    except ValueError:
        raise ValueError(f"{text!r} are no partitions: expected numbers with commas between them") from None
    if missing := [partition for partition in wanted if partition not in there]:
        raise ArchiveError(f"the archive of {manifest.topic} has no partition {missing[0]}")
    return wanted


def _check_target(bootstrap: str, target: str, wanted: list[int]) -> None:
    with BlockingCluster(bootstrap) as cluster:
        there = cluster.metadata([target])[target]
    if missing := [partition for partition in wanted if partition not in there]:
        raise ArchiveError(
            f"topic {target} has {len(there)} partitions, but the archive holds partition {missing[0]}: "
            f"`culver topic alter {target} --partitions {max(wanted) + 1}`, or choose with `partitions`"
        )
