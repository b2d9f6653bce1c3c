"""The logs pipeline: topics -> parsed events -> a searchable log store, each line exactly once.

Tasks write the files of a micro-batch under names of their own, and the driver commits them all at once under the
number of the micro-batch. If the job is killed before that, nobody has seen the files and Spark runs the micro-batch
again; if it is killed after, the store knows the number and the micro-batch is passed over.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from culver.pipelines.arrow_mapping import map_in_arrow
from culver.pipelines.log_store.store import LogStore
from culver.pipelines.log_store.times import moment_us
from culver.pipelines.log_tasks import COLUMNS, RESULT_SCHEMA, Parsing, entries_of, write_task
from culver.pipelines.progress_report import ProgressReport
from culver.pipelines.spark_session import session
from culver.pipelines.streaming import Stop, run_query, with_trigger
from culver.pipelines.topic_stream import topic_stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CHECKPOINT_DIRECTORY = "checkpoint"
_START_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class LogsProgress:
    """How far the pipeline has come since it was started."""

    batches: int = 0
    lines: int = 0
    # Lines that look like a format and are not, or are not of the one that was named; they are stored as text.
    unparsed: int = 0
    # Micro-batches that were in the store already when they came: what a crash has left to be done again.
    replayed: int = 0
    seconds: float = 0.0
    # In the store as a whole.
    stored_lines: int = 0
    stored_files: int = 0
    expired_lines: int = 0


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What is done between micro-batches: merge small files, let old events go, clear what crashes left."""

    # Files of an hour are merged when there are so many of them; None: never.
    compact_files: int | None = 12
    # How long events are kept, such as 30d; None: for ever.
    keep: str | None = None
    expire_every_s: float = 60.0
    # Looks at every file there is, so not too often.
    clear_every_s: float = 3600.0


def run(
    bootstrap: str,
    topics: str,
    store: str,
    *,
    format: str = "auto",
    default_service: str | None = None,
    once: bool = False,
    interval_s: float = 2.0,
    records_per_batch_max: int = 1_000_000,
    starting: str = "earliest",
    checkpoint: str | None = None,
    group: str | None = "culver-logs",
    compact_files: int | None = 12,
    keep: str | None = None,
    master: str | None = None,
    spark: SparkSession | None = None,
    stop: Stop | None = None,
    on_progress: Callable[[LogsProgress], None] | None = None,
) -> LogsProgress:
    """Take the lines of topics into a log store until told to stop, or with `once` until none is left.

    `bootstrap`: brokers, HOST:PORT with commas. `topics`: names with commas, or a regular expression beginning with ^.
    `store`: the directory of the store, the same one on every machine of a Spark cluster (a shared disk).
    `format`: auto, json, logfmt, syslog, access or plain. `default_service`: for lines that name no service.
    `interval_s`: how often to look for new lines. `records_per_batch_max`: of a micro-batch, as a spike is taken in
    bites. `starting`: earliest or latest, for the first run. `checkpoint`: where Spark remembers how far it is, by
    default in the store; it belongs to the store, and neither is of use without the other.
    `group`: the consumer group that progress is shown under (`culver group describe`).
    `compact_files`: merge the files of an hour when there are so many; 0 for never. `keep`: how long, such as 30d.
    `master`: of Spark, see `spark_session.session`. `stop`: call it to end. `on_progress`: called after each batch.

    Exactly once: however it ends, started again it goes on so that each line is in the store once. Raises
    PipelineFailed with the reason when the query fails.
    """
    moment_us(keep, 0)  # better refused now than after the first batch
    spark = spark or session("culver-logs", master=master)
    target = LogStore(store)
    checkpoint = checkpoint or os.path.join(target.path, CHECKPOINT_DIRECTORY)
    records = topic_stream(
        spark,
        bootstrap,
        topics,
        starting=starting,
        records_per_batch_max=records_per_batch_max,
        group=group,
        include_headers=True,
    ).select(*COLUMNS)
    batches = _Batches(
        target,
        Parsing(format, default_service),
        Upkeep(compact_files or None, keep),
        on_progress or (lambda _: None),
    )
    writer = records.writeStream.foreachBatch(batches).option("checkpointLocation", checkpoint)
    query = with_trigger(writer.queryName("culver-logs"), once, interval_s).start()
    with ProgressReport(
        bootstrap,
        f"culver-logs-{os.path.basename(target.path)}",
        kind="logs",
        topics=topics,
        target=target.path,
    ) as report:
        batches.begin(query.id)
        run_query(query, stop, report.look)
    return batches.progress


@dataclass
class _Batches:
    """Takes the micro-batches of the query, one after the other, in a thread of Spark's."""

    store: LogStore
    parsing: Parsing
    upkeep: Upkeep
    on_progress: Callable[[LogsProgress], None]
    progress: LogsProgress = LogsProgress()
    _query_id: str = ""
    _begun: threading.Event = field(default_factory=threading.Event)
    _began_s: float = field(default_factory=time.monotonic)
    _done_s: dict[str, float] = field(default_factory=dict)

    def begin(self, query_id: str) -> None:
        """The id that the checkpoint holds, the same in each run; known only once the query has been started."""
        self._query_id = query_id
        # Whoever else writes under this id, a run that has been given up, is refused from here on.
        self.store.claim(query_id)
        self._begun.set()

    def __call__(self, records: DataFrame, batch_id: int) -> None:
        if not self._begun.wait(_START_SECONDS):
            raise RuntimeError("the query was started, but not by this pipeline")
        if batch_id <= self.store.progress(self._query_id).batch_id:
            self.progress = replace(self.progress, replayed=self.progress.replayed + 1)
            return
        results = map_in_arrow(records, write_task(self.store.path, self.parsing), RESULT_SCHEMA).collect()
        done = self.store.commit(self._query_id, batch_id, entries_of([result["file"] for result in results]))
        self._keep_in_order()
        state = self.store.state()
        self.progress = replace(
            self.progress,
            batches=self.progress.batches + 1,
            lines=self.progress.lines + done.rows,
            unparsed=self.progress.unparsed + sum(result["unparsed"] for result in results),
            seconds=time.monotonic() - self._began_s,
            stored_lines=state.rows,
            stored_files=len(state.files),
        )
        self.on_progress(self.progress)

    def _keep_in_order(self) -> None:
        if self.upkeep.compact_files is not None:
            self.store.compact(files_min=self.upkeep.compact_files)
        if self.upkeep.keep is not None and self._due("expire", self.upkeep.expire_every_s):
            expired = self.store.expire(self.upkeep.keep)
            self.progress = replace(self.progress, expired_lines=self.progress.expired_lines + expired.rows)
        if self._due("clear", self.upkeep.clear_every_s):
            self.store.collect_orphans()

    def _due(self, what: str, every_s: float) -> bool:
        now_s = time.monotonic()
        if now_s - self._done_s.get(what, float("-inf")) < every_s:
            return False
        self._done_s[what] = now_s
        return True
