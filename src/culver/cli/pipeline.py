"""`culver pipeline`: run the ready-made pipelines on this machine's cores, or on a Spark cluster, with progress."""

from __future__ import annotations

import os
import sys

import click

from culver.cli.failure import ExitCode, Failure
from culver.cli.output import counted, note, print_json_line
from culver.cli.pipeline_run import ProgressLine, failures, spark_running, stoppable
from culver.cli.search import DEFAULT_STORE
from culver.cli.session import Command, Session, client_options


@click.group()
def pipeline() -> None:
    """Ready-made pipelines on Spark: logs, transform, archive, replay.

    They need pyspark and a Java runtime: pip install 'culver[spark]'.
    """


def _master_option(command: Command) -> Command:
    return click.option(
        "--master", metavar="URL", help="Where Spark runs: local[4], spark://HOST:7077.  [default: local[*]]"
    )(command)


def _once_option(command: Command) -> Command:
    return click.option("--once", is_flag=True, help="Read what there is, then end.")(command)


@pipeline.command()
@click.argument("topics", required=False)
@click.option(
    "--store",
    metavar="DIR",
    default=DEFAULT_STORE,
    envvar="CULVER_LOG_STORE",
    show_default=True,
    help="The directory of the store; also $CULVER_LOG_STORE.",
)
@click.option(
    "--format",
    "line_format",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "json", "logfmt", "syslog", "access", "plain"]),
    help="What lines look like; auto finds out line by line.",
)
@click.option("--service", metavar="NAME", help="The service of lines that name none.")
@click.option("--keep", metavar="AGE", help="Let events go when they are older: 30d.  [default: never]")
@click.option(
    "--from",
    "starting",
    type=click.Choice(["earliest", "latest"]),
    default="earliest",
    show_default=True,
    help="Where the first run begins.",
)
@click.option("--interval", type=click.FloatRange(min=0), default=2.0, show_default=True, metavar="SECONDS")
@click.option(
    "--batch-records",
    type=click.IntRange(min=1),
    default=1_000_000,
    show_default=True,
    help="At most at once.",
)
@click.option("--repair", is_flag=True, help="Mend damaged files of the store instead, as far as that goes.")
@_once_option
@_master_option
@client_options
@click.pass_obj
def logs(
    session: Session,
    topics: str | None,
    store: str,
    line_format: str,
    service: str | None,
    keep: str | None,
    starting: str,
    interval: float,
    batch_records: int,
    repair: bool,
    once: bool,
    master: str | None,
) -> None:
    """Take the lines of TOPICS into a store that `culver search` looks into, each exactly once.

    TOPICS are names with commas between them, or a regular expression that begins with ^. However it is ended, started
    again it goes on where it was; Ctrl-C ends it.
    """
    if repair:
        _repair(store)
        return
    if topics is None:
        raise click.UsageError("name the topics to read, or --repair")
    with spark_running("culver-logs", master) as spark, stoppable() as stop:
        from culver.pipelines import logs as pipeline_logs

        line = ProgressLine(
            lambda done: (
                f"{done.lines:,} lines ({done.unparsed:,} unparsed), "
                f"{done.lines / max(done.seconds, 0.001):,.0f}/s; the store holds {done.stored_lines:,} lines "
                f"in {counted(done.stored_files, 'file')}"
            )
        )
        done = pipeline_logs.run(
            session.bootstrap,
            topics,
            store,
            format=line_format,
            default_service=service,
            once=once,
            interval_s=interval,
            records_per_batch_max=batch_records,
            starting=starting,
            keep=keep,
            spark=spark,
            stop=stop,
            on_progress=line,
        )
    line.end(done)
    if session.json:
        print_json_line(
            {"lines": done.lines, "unparsed": done.unparsed, "batches": done.batches, "store": store}
        )


def _repair(store: str) -> None:
    with failures():
        from culver.pipelines.log_store.store import LogStore

        result = LogStore(store, create=False).repair()
    for problem in result.problems:
        note(problem.message)
    note(
        f"{counted(len(result.problems), 'damaged file')}: {result.indexes_rebuilt} indexes built again, "
        f"{result.rows_saved:,} lines saved, {result.rows_lost:,} lost"
    )
    for path in result.put_aside:
        note(f"  put aside: {path}")
    if result.rows_lost:
        raise Failure(f"{result.rows_lost:,} lines could not be saved", code=ExitCode.CORRUPT)


@pipeline.command()
@click.argument("source")
@click.argument("target")
@click.option(
    "--sql", metavar="QUERY", help="A SELECT from `records` or `events`; @FILE reads it from a file."
)
@click.option("--function", metavar="MODULE:NAME", help="A function from a DataFrame to a DataFrame instead.")
@click.option(
    "--checkpoint", metavar="DIR", required=True, help="Where Spark remembers how far this query is."
)
@click.option("--watermark", metavar="AGE", help="How late events may come: '2 minutes'.")
@click.option(
    "--output-mode",
    type=click.Choice(["append", "update"]),
    default="append",
    show_default=True,
    help="Spark's.",
)
@click.option("--interval", type=click.FloatRange(min=0), default=1.0, show_default=True, metavar="SECONDS")
@_once_option
@_master_option
@client_options
@click.pass_obj
def transform(
    session: Session,
    source: str,
    target: str,
    sql: str | None,
    function: str | None,
    checkpoint: str,
    watermark: str | None,
    output_mode: str,
    interval: float,
    once: bool,
    master: str | None,
) -> None:
    """Write what a query makes of the records of SOURCE to TARGET, each exactly once.

    \b
    culver pipeline transform logs errors --checkpoint /var/lib/culver/errors \\
        --sql "SELECT service AS key, raw AS value FROM events WHERE level = 'ERROR'"

    `records` has the columns key, value, topic, partition, offset, timestamp, headers; `events` those of parsed log
    lines: ts, level, service, host, message, format, fields, raw. The query names what it makes value, and if it
    likes key, partition and headers.
    """
    if (sql is None) == (function is None):
        raise click.UsageError("give either --sql or --function")
    if sql is not None and sql.startswith("@"):
        try:
            with open(sql[1:], encoding="utf-8") as file:
                sql = file.read()
        except OSError as error:
            raise Failure(f"{sql[1:]}: {error.strerror}", code=ExitCode.NOT_FOUND) from None
    if function is not None:
        sys.path.insert(0, os.getcwd())  # where people keep the module that they name
    with spark_running("culver-transform", master) as spark, stoppable() as stop:
        from culver.pipelines import transform as pipeline_transform

        line = ProgressLine(lambda done: f"{done.records:,} records read; micro-batches: {done.batches}")
        done = pipeline_transform.run(
            session.bootstrap,
            source,
            target,
            checkpoint,
            sql=sql,
            function=function,
            watermark=watermark,
            output_mode=output_mode,
            once=once,
            interval_s=interval,
            spark=spark,
            stop=stop,
            on_progress=line,
        )
    line.end(done)


@pipeline.command()
@click.argument("topic")
@click.option("--to", "directory", metavar="DIR", required=True, help="The directory of archives.")
@click.option("--every", metavar="SECONDS", type=click.FloatRange(min=1), help="Do not end; look again.")
@_master_option
@client_options
@click.pass_obj
def archive(session: Session, topic: str, directory: str, every: float | None, master: str | None) -> None:
    """Copy what TOPIC holds, and the archive does not, to Parquet files, with a manifest of offsets.

    Run it more often than retention removes records. Cut short, it goes on where the manifest ends.
    """
    with spark_running("culver-archive", master) as spark, stoppable() as stop:
        from culver.pipelines import archive as pipeline_archive

        line = ProgressLine(
            lambda done: (
                f"{done.done_offsets:,} of {done.total_offsets:,} offsets; the archive holds "
                f"{done.archived_records:,} records in {counted(done.archived_files, 'file')}"
            )
        )
        done = pipeline_archive.run(
            session.bootstrap, topic, directory, every_s=every, spark=spark, stop=stop, on_progress=line
        )
    line.end(done)
    for gap in done.gaps:
        note(
            f"partition {gap.partition}: offsets {gap.start} to {gap.end - 1} were removed before they were archived"
        )


@pipeline.command()
@click.argument("topic")
@click.option("--from", "directory", metavar="DIR", required=True, help="The directory of archives.")
@click.option("--to", "target", metavar="TOPIC", help="Where to.  [default: the same name]")
@click.option("--partitions", metavar="N,...", help="Only these.")
@click.option("--start", type=click.IntRange(min=0), default=0, metavar="OFFSET", help="The first offset.")
@click.option("--end", type=click.IntRange(min=0), metavar="OFFSET", help="The offset after the last.")
@click.option("--since", metavar="TIME", help="Not older: 2h, 3d, 2026-11-15T08:00Z.")
@click.option("--until", metavar="TIME", help="Older than this time.")
@click.option("--id", "replay_id", metavar="NAME", help="Go on with the replay of this name; nothing twice.")
@click.option("--new-timestamps", is_flag=True, help="Records get the time of the replay.")
@_master_option
@client_options
@click.pass_obj
def replay(
    session: Session,
    topic: str,
    directory: str,
    target: str | None,
    partitions: str | None,
    start: int,
    end: int | None,
    since: str | None,
    until: str | None,
    replay_id: str | None,
    new_timestamps: bool,
    master: str | None,
) -> None:
    """Publish archived records of TOPIC again, in the order of each partition.

    Records keep their times unless --new-timestamps: a topic with a short retention would drop them at once.
    """
    with spark_running("culver-replay", master) as spark:
        from culver.pipelines import replay as pipeline_replay

        done = pipeline_replay.run(
            session.bootstrap,
            topic,
            directory,
            target=target,
            partitions=partitions,
            start=start,
            end=end,
            since=since,
            until=until,
            replay_id=replay_id,
            keep_timestamps=not new_timestamps,
            spark=spark,
            on_plan=lambda count: note(f"publishing up to {count:,} records"),
        )
    note(
        f"{done.records:,} records published to {counted(len(done.partitions), 'partition')}; "
        f"--id {done.replay_id} would go on with it"
    )
