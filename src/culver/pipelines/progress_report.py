"""Publishes how a pipeline is doing to a compacted topic, where the console reads it; never in the pipeline's way.

A thread of its own talks to the broker. The pipeline only leaves its newest figures here, so a broker that is slow,
gone or refuses costs it nothing but, at the very end, a wait of a few seconds for the last word to get through.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from culver.core.names import OWN_TOPICS_PREFIX

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

PIPELINES_TOPIC = f"{OWN_TOPICS_PREFIX}pipelines"
RUNNING, ENDED, FAILED = "running", "ended", "failed"
# How often at most, and how often at least: whoever reads takes a longer silence for a death.
BETWEEN_REPORTS_S = 1.0
ALIVE_REPORT_S = 5.0
LAST_WORD_S = 3.0
_ERROR_CHARACTERS_MAX = 2000
# Only segments that are full are compacted, and whoever reads the reports reads them all: small ones, then.
_TOPIC_SETTINGS = {"cleanup.policy": "compact", "segment.bytes": "4194304"}


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One message in the topic: its key is the name, so the last one of each pipeline stays."""

    name: str
    kind: str = "query"
    state: str = RUNNING
    # Tells the runs of one pipeline apart, such as the one before a crash from the one after.
    run_id: str = ""
    topics: str = ""
    target: str = ""
    host: str = ""
    started_at_ms: int = 0
    at_ms: int = 0
    # Of this run.
    batches: int = 0
    rows: int = 0
    # Of the last micro-batch: its number, and how quickly rows came and were dealt with.
    batch: int | None = None
    batch_duration_ms: int | None = None
    input_rows_per_s: float | None = None
    processed_rows_per_s: float | None = None
    # Records that are there and not yet read.
    lag: int | None = None
    error: str | None = None


class Publisher(Protocol):
    """Where reports go."""

    def publish(self, key: bytes, value: bytes) -> None:
        """Hand over a report; raises nothing that a later try would not mend."""

    def close(self, within_s: float) -> None:
        """Wait so long at most for what was handed over."""


class ProgressReport:
    """What one run of a pipeline tells about itself, from `with` to the end of it.

    Leaving the block says ended, or failed with the error that it was left with.
    """

    def __init__(
        self,
        bootstrap: str,
        name: str,
        *,
        kind: str = "query",
        topics: str = "",
        target: str = "",
        publisher: Callable[[str], Publisher] | None = None,
        between_reports_s: float = BETWEEN_REPORTS_S,
        alive_report_s: float = ALIVE_REPORT_S,
    ) -> None:
        self._bootstrap = bootstrap
        self._report = Report(
            name=name,
            kind=kind,
            topics=topics,
            target=target,
            host=socket.gethostname(),
            run_id=uuid.uuid4().hex,
            started_at_ms=_now_ms(),
        )
        self._publisher = publisher or KafkaPublisher
        self._between_s = between_reports_s
        self._alive_s = alive_report_s
        self._changed = threading.Condition()
        self._has_news = True
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="culver-progress-report", daemon=True)
        self._last_batch = -1
        self._last_round = (time.monotonic(), 0)

    def __enter__(self) -> ProgressReport:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, KeyboardInterrupt):
            self.tell(state=ENDED)
        else:
            self.tell(state=FAILED, error=(str(error) or type(error).__name__)[:_ERROR_CHARACTERS_MAX])
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(LAST_WORD_S + 1)

    # --- what the pipeline says ---

    def tell(self, **figures: Any) -> None:
        """Take new figures; the newest are sent when it is time."""
        with self._changed:
            told = msgspec.structs.replace(self._report, **figures)
            if told != self._report:
                self._report = told
                self._has_news = True
                self._changed.notify()

    def look(self, query: StreamingQuery) -> tuple[int, int]:
        """Take the figures of a streaming query; how many micro-batches and rows this run has had by now."""
        batches, rows = self._report.batches, self._report.rows
        reports = query.recentProgress
        for each in reports:
            # Each micro-batch once; Spark reports those that had nothing to read as well, under the number before.
            if each["batchId"] > self._last_batch and each["numInputRows"]:
                self._last_batch = each["batchId"]
                batches += 1
                rows += each["numInputRows"]
        if reports:
            self.tell(batches=batches, rows=rows, **figures_of(reports[-1]))
        return batches, rows

    def look_at_round(self, done: int, total: int) -> None:
        """Take the figures of a pipeline that goes in rounds: so many rows are done of those that were found.

        Counting begins anew, with 0, when it has looked for more.
        """
        now_s, (then_s, before) = time.monotonic(), self._last_round
        self._last_round = (now_s, done)
        new = max(0, done - before)
        self.tell(
            batches=self._report.batches + (new > 0),
            rows=self._report.rows + new,
            processed_rows_per_s=new / (now_s - then_s) if now_s > then_s else None,
            batch_duration_ms=round((now_s - then_s) * 1000) if new else None,
            lag=total - done,
        )

    # --- the thread that sends it ---

    def _run(self) -> None:
        publisher: Publisher | None = None
        try:
            publisher = self._publisher(self._bootstrap)
            while self._send(publisher):
                pass
        except Exception:
            # A boundary: whatever is wrong with the report, the pipeline goes on.
            log.warning("progress is not reported to %s any more", PIPELINES_TOPIC, exc_info=True)
        finally:
            if publisher is not None:
                publisher.close(LAST_WORD_S)

    def _send(self, publisher: Publisher) -> bool:
        """Send the newest figures, when there are some or nothing was sent for long; False after the last."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_news or self._closing, self._alive_s)
            report, closing = msgspec.structs.replace(self._report, at_ms=_now_ms()), self._closing
            self._has_news = False
        publisher.publish(report.name.encode(), msgspec.json.encode(report))
        if closing:
            return False
        with self._changed:
            self._changed.wait_for(lambda: self._closing, self._between_s)
        return True


def figures_of(progress: Mapping[str, Any]) -> dict[str, Any]:
    """What one of Spark's reports says of the last micro-batch."""
    return {
        "batch": progress["batchId"],
        "batch_duration_ms": progress.get("durationMs", {}).get("triggerExecution"),
        "input_rows_per_s": _number(progress.get("inputRowsPerSecond")),
        "processed_rows_per_s": _number(progress.get("processedRowsPerSecond")),
        "lag": _lag(progress.get("sources", ())),
    }


def _number(value: Any) -> float | None:
    # Spark divides by the time that a batch took: without one it has no number, and JSON has no name for that.
    return float(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _lag(sources: Iterable[Mapping[str, Any]]) -> int | None:
    """Records between what the last micro-batch has read and what there was when it began; None if nobody says."""
    lag: int | None = None
    for source in sources:
        read, there = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        if read is not None and there is not None:
            lag = (lag or 0) + sum(max(0, end - read.get(place, 0)) for place, end in there.items())
    return lag


def _offsets(value: Any) -> dict[tuple[str, str], int] | None:
    """{"topic": {"partition": offset}}, as text or as it is; None for offsets of another kind."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return None
    if not isinstance(value, dict) or not all(isinstance(each, dict) for each in value.values()):
        return None
    return {
        (topic, partition): int(offset)
        for topic, partitions in value.items()
        for partition, offset in partitions.items()
    }


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class KafkaPublisher:
    """Writes reports to the topic, which is made when it is not there; what cannot be written is dropped."""

    def __init__(self, bootstrap: str) -> None:
        from confluent_kafka import Producer

        self._admin: Any = None
        self._has_topic = False
        self._has_complained = False
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "client.id": "culver-pipeline",
            "error_cb": self._complain,
            "logger": log,
            "log_level": 0,
        }
        self._producer: Any = Producer(
            {
                **self._settings,
                "allow.auto.create.topics": False,  # made by the broker, it would not be compacted
                "max.in.flight.requests.per.connection": 1,  # a retry must not put an old report after a new one
                "message.timeout.ms": 10_000,
                "queue.buffering.max.messages": 100,
                "linger.ms": 0,
            }
        )

    def publish(self, key: bytes, value: bytes) -> None:
        self._producer.poll(0)
        if not self._has_topic and not self._create_topic():
            return
        with contextlib.suppress(BufferError):  # a hundred older ones wait for the broker already
            self._producer.produce(PIPELINES_TOPIC, key=key, value=value, on_delivery=self._delivered)
        self._producer.poll(0)

    def close(self, within_s: float) -> None:
        self._producer.flush(within_s)
        # They end, with their threads and connections, when nothing refers to them; they refer to this.
        self._producer = self._admin = None

    def _create_topic(self) -> bool:
        from confluent_kafka import KafkaError, KafkaException
        from confluent_kafka.admin import AdminClient
        from confluent_kafka.cimpl import NewTopic

        topic = NewTopic(PIPELINES_TOPIC, 1, -1, config=dict(_TOPIC_SETTINGS))
        try:
            if self._admin is None:
                self._admin = AdminClient(self._settings)
            created = self._admin.create_topics([topic], request_timeout=LAST_WORD_S)
            created[PIPELINES_TOPIC].result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                self._complain(error)
                return False
        self._has_topic = True
        return True

    def _delivered(self, error: Any, _: Any) -> None:
        if error is not None:
            self._has_topic = False  # it may have been deleted
            self._complain(error)

    def _complain(self, error: Exception) -> None:
        level = logging.DEBUG if self._has_complained else logging.WARNING
        self._has_complained = True
        log.log(level, "the pipeline's progress cannot be reported: %s", error)
