"""The archive pipeline: a topic's history to Parquet, with a manifest of offsets, before retention removes it.

It goes in rounds. Tasks write the files of a round, one partition each; then the manifest takes them up in one step.
A round that was cut short leaves files that nobody knows of, and is done again by the next run.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from culver.pipelines.archive_manifest import MANIFEST_DIRECTORY, ArchivedFile, ArchiveManifest, Gap, Segment
from culver.pipelines.archive_tasks import RESULT_SCHEMA, archive_task
from culver.pipelines.arrow_mapping import map_in_arrow
from culver.pipelines.progress_report import ProgressReport
from culver.pipelines.spark_session import session
from culver.pipelines.streaming import Stop, plain_errors
from culver.spark.fetching import EARLIEST, LATEST, BlockingCluster
from culver.spark.options import BOOTSTRAP

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Longer than a round takes: its files are written some time before the manifest knows them.
_ORPHAN_AGE_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ArchiveProgress:
    """How far this run has come, and what the archive holds. Offsets that hold no record count as done, too."""

    done_offsets: int = 0
    total_offsets: int = 0
    archived_records: int = 0
    archived_files: int = 0
    gaps: list[Gap] = field(default_factory=list)


def run(
    bootstrap: str,
    topic: str,
    directory: str,
    *,
    every_s: float | None = None,
    records_per_round_max: int = 5_000_000,
    master: str | None = None,
    spark: SparkSession | None = None,
    stop: Stop | None = None,
    on_progress: Callable[[ArchiveProgress], None] | None = None,
) -> ArchiveProgress:
    """Archive what a topic holds and the archive does not, up to the last committed record; then end.

    `directory`: of archives, one directory for each topic below it, the same on every machine of a Spark cluster.
    `every_s`: do not end, but look again after so many seconds. `records_per_round_max`: after so many offsets the
    manifest is written, and a run that is cut short begins there.

    Records that retention has removed before they were archived leave a gap; gaps are in the result and can be asked
    of the manifest. Raises ArchiveError when the manifest cannot be used or somebody else archives the same topic,
    KafkaError when there is no such topic, PipelineFailed with the reason of a task that failed.
    """
    spark = spark or session("culver-archive", master=master)
    manifest = ArchiveManifest(directory, topic)
    manifest.create()
    manifest.refresh()
    clear(manifest)
    stop = stop or Stop()
    with ProgressReport(
        bootstrap, f"culver-archive-{topic}", kind="archive", topics=topic, target=manifest.path
    ) as published:

        def report(progress: ArchiveProgress) -> None:
            published.look_at_round(progress.done_offsets, progress.total_offsets)
            if on_progress is not None:
                on_progress(progress)

        while True:
            progress = _catch_up(spark, bootstrap, manifest, records_per_round_max, stop, report)
            if every_s is None or stop.wait(every_s):
                return progress


def _catch_up(
    spark: SparkSession,
    bootstrap: str,
    manifest: ArchiveManifest,
    round_max: int,
    stop: Stop,
    report: Callable[[ArchiveProgress], None],
) -> ArchiveProgress:
    """Archive up to where the topic ends now."""
    starts, ends = _bounds(bootstrap, manifest)
    total = sum(ends[partition] - starts[partition] for partition in ends)
    left = total
    while True:
        progress = ArchiveProgress(
            total - left, total, manifest.records, sum(1 for _ in manifest.files()), manifest.gaps()
        )
        report(progress)
        if not left or stop.wanted:
            return progress
        share = max(1, round_max // sum(1 for partition in ends if starts[partition] < ends[partition]))
        until = {partition: min(ends[partition], starts[partition] + share) for partition in ends}
        segments = _write(spark, bootstrap, manifest, starts, until)
        manifest.commit(len(ends), segments, int(time.time() * 1000))
        starts = until
        left = sum(ends[partition] - starts[partition] for partition in ends)


def _bounds(bootstrap: str, manifest: ArchiveManifest) -> tuple[dict[int, int], dict[int, int]]:
    """By partition: the first offset that is there and not archived, and the one after the last committed."""
    topic, archived = manifest.topic, manifest.ends()
    with BlockingCluster(bootstrap) as cluster:
        places = [(topic, partition) for partition in cluster.metadata([topic])[topic]]
        first = cluster.list_offsets(dict.fromkeys(places, EARLIEST))
        last = cluster.list_offsets(dict.fromkeys(places, LATEST), read_committed=True)
    starts = {place[1]: max(first[place], archived.get(place[1], 0)) for place in places}
    return starts, {place[1]: max(last[place], starts[place[1]]) for place in places}


def _write(
    spark: SparkSession,
    bootstrap: str,
    manifest: ArchiveManifest,
    starts: dict[int, int],
    ends: dict[int, int],
) -> list[Segment]:
    wanted = sorted(partition for partition in ends if starts[partition] < ends[partition])
    topic = manifest.topic
    records = (
        spark.read.format("culver")
        .option(BOOTSTRAP, bootstrap)
        .option("assign", json.dumps({topic: wanted}))
        .option("startingOffsets", json.dumps({topic: {str(number): starts[number] for number in wanted}}))
        .option("endingOffsets", json.dumps({topic: {str(number): ends[number] for number in wanted}}))
        .option("includeHeaders", "true")
        .option("kafka.isolation.level", "read_committed")
        .load()
    )
    with plain_errors():
        rows = map_in_arrow(records, archive_task(manifest.path), RESULT_SCHEMA).collect()
    files: dict[int, list[ArchivedFile]] = {}
    for row in rows:
        files.setdefault(row["partition"], []).append(msgspec.json.decode(row["file"], type=ArchivedFile))
    return [
        Segment(
            partition=partition,
            start=starts[partition],
            end=ends[partition],
            files=sorted(files.get(partition, []), key=lambda file: file.first_offset),
        )
        for partition in wanted
    ]


def clear(manifest: ArchiveManifest, older_than_s: float = _ORPHAN_AGE_SECONDS) -> int:
    """Delete files of rounds that were cut short; how many there were."""
    known = set(manifest.parquet_files())
    latest_s = time.time() - older_than_s
    removed = 0
    for directory, _, names in os.walk(manifest.path):
        if os.path.basename(directory) == MANIFEST_DIRECTORY:
            continue
        for path in (os.path.join(directory, name) for name in names):
            if path not in known and os.path.getmtime(path) <= latest_s:
                os.unlink(path)
                removed += 1
    return removed
