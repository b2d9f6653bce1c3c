"""The transform pipeline: a topic -> Spark SQL or a Python function -> a topic, each record exactly once.

What is written goes out in transactions that carry the number of the micro-batch (see `culver.spark.sink`), so a
micro-batch that is run again after a crash is not written again. Readers of the target read committed.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from culver.pipelines.arrow_mapping import map_in_arrow
from culver.pipelines.log_tasks import Parsing, parse_task
from culver.pipelines.progress_report import ProgressReport
from culver.pipelines.spark_session import session
from culver.pipelines.streaming import Stop, run_query, with_trigger
from culver.pipelines.topic_stream import topic_stream
from culver.spark.options import BOOTSTRAP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

RECORDS, EVENTS = "records", "events"
# The columns of events in Spark: those of culver.pipelines.parsing.events.EVENT_SCHEMA.
EVENTS_SCHEMA = (
    "ts TIMESTAMP, level STRING, service STRING, host STRING, message STRING, format STRING, fields STRING, "
    "raw STRING, topic STRING, partition INT, offset LONG"
)
# The example of the documentation: a record for each minute in which a service has logged errors, once the minute
# is so long past that no more of it is expected.
ERRORS_PER_SERVICE_PER_MINUTE = """
    SELECT service AS key,
           to_json(struct(service, date_format(window.start, "yyyy-MM-dd'T'HH:mm:ss'Z'") AS minute, errors)) AS value
    FROM (SELECT window(ts, '1 minute') AS window, service, count(*) AS errors
          FROM events WHERE level IN ('ERROR', 'FATAL') GROUP BY window(ts, '1 minute'), service)
"""


@dataclass(frozen=True, slots=True)
class TransformProgress:
    """How far the pipeline has come since it was started."""

    batches: int = 0
    records: int = 0


def run(
    bootstrap: str,
    source: str,
    target: str,
    checkpoint: str,
    *,
    sql: str | None = None,
    function: str | Callable[[DataFrame], DataFrame] | None = None,
    watermark: str | None = None,
    format: str = "auto",
    output_mode: str = "append",
    once: bool = False,
    interval_s: float = 1.0,
    records_per_batch_max: int = 1_000_000,
    starting: str = "earliest",
    group: str | None = None,
    target_bootstrap: str | None = None,
    master: str | None = None,
    spark: SparkSession | None = None,
    stop: Stop | None = None,
    on_progress: Callable[[TransformProgress], None] | None = None,
) -> TransformProgress:
    """Write what SQL or a function makes of a topic's records to another, until told to stop or, with `once`, done.

    `source`: topics with commas, or a regular expression beginning with ^. `target`: a topic. `checkpoint`: a directory
    of this pipeline alone, on a disk (or HDFS, S3) that all machines of the Spark cluster see; it belongs to the query,
    so another query needs another one.

    `sql` selects from one of two views: `records`, the source's columns (key and value binary, topic, partition,
    offset, timestamp, headers), or `events`, the same records parsed as log lines (ts, level, service, host, message,
    format, fields, raw, topic, partition, offset). `function`, or "module:name" of one, is given the records as a
    DataFrame instead. Either results in columns of records: value, and if wanted key, partition, headers.

    `watermark`, such as "2 minutes", says how late an event may come (ts of events, timestamp of records): aggregates
    over windows are written when none is expected any more. `format`: of lines, for `events`. `output_mode`: append,
    or update to write aggregates each time they change.
    The rest is as for the logs pipeline. Raises PipelineFailed with the reason when the query fails.
    """
    if (sql is None) == (function is None):
        raise ValueError("give either sql or a function")
    spark = spark or session("culver-transform", master=master)
    records = topic_stream(
        spark,
        bootstrap,
        source,
        starting=starting,
        records_per_batch_max=records_per_batch_max,
        group=group,
        include_headers=True,
    )
    if sql is not None:
        result = _selected(spark, records, sql, watermark, Parsing(format))
    else:
        if watermark:
            records = records.withWatermark("timestamp", watermark)
        assert function is not None
        result = (named_function(function) if isinstance(function, str) else function)(records)
    writer = (
        result.writeStream.format("culver")
        .option(BOOTSTRAP, target_bootstrap or bootstrap)
        .option("topic", target)
        .option("checkpointLocation", checkpoint)
        .outputMode(output_mode)
    )
    name = f"culver-transform-{target}"
    query = with_trigger(writer.queryName(name), once, interval_s).start()
    with ProgressReport(bootstrap, name, kind="transform", topics=source, target=target) as report:
        watch = _Watch(on_progress or (lambda _: None), report)
        run_query(query, stop, watch)
    return watch.progress


def _selected(
    spark: SparkSession, records: DataFrame, sql: str, watermark: str | None, parsing: Parsing
) -> DataFrame:
    events = map_in_arrow(records.drop("key", "timestampType"), parse_task(parsing), EVENTS_SCHEMA)
    for name, frame, time_column in ((RECORDS, records, "timestamp"), (EVENTS, events, "ts")):
        if watermark:
            frame = frame.withWatermark(time_column, watermark)
        frame.createOrReplaceTempView(name)
    return spark.sql(sql)


def named_function(name: str) -> Callable[[DataFrame], DataFrame]:
    """The function that "module:name" stands for. Raises ValueError when there is none."""
    module_name, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{name!r} names no function: expected module:function, in a module that can be imported ({error})"
        ) from None
    if not callable(found):
        raise ValueError(f"{name!r} is no function")
    return found  # type: ignore[no-any-return]


class _Watch:
    """Counts what the query reports; each report once."""

    def __init__(self, on_progress: Callable[[TransformProgress], None], report: ProgressReport) -> None:
        self.progress = TransformProgress()
        self._on_progress = on_progress
        self._report = report

    def __call__(self, query: StreamingQuery) -> None:
        batches, records = self._report.look(query)
        if batches != self.progress.batches:
            self.progress = TransformProgress(batches, records)
            self._on_progress(self.progress)
