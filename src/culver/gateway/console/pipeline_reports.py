"""What pipelines say of themselves, read from the topic that they report to.

Reading begins when somebody asks for the first time; from then on the newest reports, and a stretch of the past for a
plot, are in memory.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

import msgspec

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.console.places import EARLIEST, LATEST
from culver.gateway.errors import HttpError, Problem
from culver.gateway.producing import Outgoing, Producing
from culver.gateway.reading.partition_reader import Readers
from culver.gateway.reading.record import Record
from culver.logging import get_logger
from culver.pipelines.progress_report import PIPELINES_TOPIC, RUNNING, Report
from culver.wire_client import Unreachable

_log = get_logger("culver.gateway.console")

# Pipelines report every few seconds: one that says nothing for so long was killed, or cannot reach the cluster.
SILENT_AFTER_MS = 30_000
SILENT = "silent"
HISTORY_MAX = 300
_PIPELINES_MAX = 1000
_CATCH_UP_SECONDS_MAX = 5.0
_READ_RECORDS = 1000
_READ_BYTES = 1024 * 1024


class HistoryPoint(msgspec.Struct, frozen=True):
    """One report, as far as it can be drawn."""

    at_ms: int
    input_rows_per_s: float | None
    processed_rows_per_s: float | None
    lag: int | None
    batch_duration_ms: int | None
    rows: int


class PipelineItem(msgspec.Struct, frozen=True):
    """One pipeline: running, ended, failed, or silent when it should be running and does not report."""

    name: str
    kind: str
    state: str
    topics: str | None
    target: str | None
    host: str
    run_id: str
    batches: int
    rows: int
    batch: int | None
    input_rows_per_s: float | None
    processed_rows_per_s: float | None
    batch_duration_ms: int | None
    lag: int | None
    started_at_ms: int
    at_ms: int
    error: str | None
    history: list[HistoryPoint]


@dataclass(slots=True)
class _Pipeline:
    """The last report of a pipeline, when it was heard, and those before it."""

    report: Report
    heard_ms: int
    history: deque[HistoryPoint] = field(default_factory=lambda: deque(maxlen=HISTORY_MAX))

    def item(self, now_ms: int) -> PipelineItem:
        report = self.report
        is_silent = report.state == RUNNING and now_ms - self.heard_ms > SILENT_AFTER_MS
        return PipelineItem(
            name=report.name,
            kind=report.kind,
            state=SILENT if is_silent else report.state,
            topics=report.topics or None,
            target=report.target or None,
            host=report.host,
            run_id=report.run_id,
            batches=report.batches,
            rows=report.rows,
            batch=report.batch,
            input_rows_per_s=report.input_rows_per_s,
            processed_rows_per_s=report.processed_rows_per_s,
            batch_duration_ms=report.batch_duration_ms,
            lag=report.lag,
            started_at_ms=report.started_at_ms,
            at_ms=report.at_ms,
            error=report.error,
            history=list(self.history),
        )


class PipelineReports:
    """Reads the reports, from the first request for them until the gateway closes."""

    def __init__(self, cluster: Cluster, readers: Readers, producing: Producing) -> None:
        self._cluster = cluster
        self._readers = readers
        self._producing = producing
        self._pipelines: dict[str, _Pipeline] = {}
        self._reading: dict[int, asyncio.Task[None]] = {}
        self._caught_up: dict[int, asyncio.Event] = {}

    async def close(self) -> None:
        for task in self._reading.values():
            task.cancel()
        await asyncio.gather(*self._reading.values(), return_exceptions=True)

    async def items(self) -> list[PipelineItem]:
        """All pipelines that have reported, by name."""
        await self._keep_reading()
        now_ms = _now_ms()
        return [self._pipelines[name].item(now_ms) for name in sorted(self._pipelines)]

    async def forget(self, name: str) -> None:
        """Delete the last report of a pipeline. HttpError when it is running, or there is none."""
        await self._keep_reading()
        found = self._pipelines.get(name)
        if found is None:
            raise HttpError(Problem.NOT_FOUND, f"no pipeline {name} has reported")
        if found.item(_now_ms()).state == RUNNING:
            raise HttpError(Problem.PIPELINE_RUNNING, f"pipeline {name} is running, and would report again")
        (sent,) = await self._producing.send([Outgoing(PIPELINES_TOPIC, None, name.encode())])
        if sent.error is not None:
            raise sent.error
        self._pipelines.pop(name, None)

    async def _keep_reading(self) -> None:
        """See to it that every partition is read, and wait a moment until what is there has been."""
        view = await self._cluster.view()
        topic = view.topics.get(PIPELINES_TOPIC)
        if topic is None:
            self._pipelines.clear()
            return
        for partition in topic.partitions:
            task = self._reading.get(partition.index)
            if task is None or task.done():
                self._caught_up[partition.index] = asyncio.Event()
                self._reading[partition.index] = asyncio.create_task(self._read(partition.index))
        try:
            async with asyncio.timeout(_CATCH_UP_SECONDS_MAX):
                for event in list(self._caught_up.values()):
                    await event.wait()
        except TimeoutError:
            _log.warning("reports of pipelines are not read yet", topic=PIPELINES_TOPIC)

    async def _read(self, partition: int) -> None:
        place = TopicPartition(PIPELINES_TOPIC, partition)
        try:
            end = await self._offset(place, LATEST)
            await self._catch_up(place, end)
            self._caught_up[partition].set()
            cursor = self._readers.open(PIPELINES_TOPIC, partition, end)
            try:
                while True:
                    for record in await cursor.read(records_max=_READ_RECORDS, bytes_max=_READ_BYTES):
                        self._take(record, is_live=True)
            finally:
                cursor.close()
        except (KafkaError, Unreachable) as error:
            # The next request begins anew: the topic may have been deleted and made again.
            if isinstance(error, KafkaError) and error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self._pipelines.clear()
            _log.warning("reports of pipelines cannot be read", partition=partition, error=str(error))
        finally:
            self._caught_up[partition].set()

    async def _catch_up(self, place: TopicPartition, end: int) -> None:
        position = await self._offset(place, EARLIEST)
        while position < end:
            records = await self._readers.read_range(
                *place, position, records_max=_READ_RECORDS, bytes_max=_READ_BYTES, committed=True
            )
            for record in records:
                self._take(record, is_live=False)
            position = records[-1].offset + 1 if records else end

    async def _offset(self, place: TopicPartition, which: int) -> int:
        found = (await self._cluster.list_offsets({place: which}, committed=True))[place]
        if isinstance(found, KafkaError):
            raise found
        return found.offset

    def _take(self, record: Record, *, is_live: bool) -> None:
        name = (record.key or b"").decode(errors="replace")
        if record.value is None:
            self._pipelines.pop(name, None)
            return
        try:
            report = msgspec.json.decode(record.value, type=Report)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            _log.warning("a report of a pipeline cannot be read", offset=record.offset, error=str(error))
            return
        heard_ms = max(report.at_ms, _now_ms()) if is_live else report.at_ms
        pipeline = self._pipelines.get(report.name)
        if pipeline is None:
            if len(self._pipelines) >= _PIPELINES_MAX:
                return
            pipeline = self._pipelines[report.name] = _Pipeline(report, heard_ms)
        pipeline.report, pipeline.heard_ms = report, heard_ms
        pipeline.history.append(msgspec.convert(report, HistoryPoint, from_attributes=True))


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
