"""`culver consume`: read records from topics and print them."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

import click

from culver.cli import record_json
from culver.cli.clients import Cluster, Partition, as_topic_partitions
from culver.cli.output import note, progress
from culver.cli.position import SYNTAX, Kind, Position, PositionType
from culver.cli.reading import Limits, Reading
from culver.cli.record_format import SYNTAX as FORMAT_SYNTAX
from culver.cli.record_format import Formatter, compile_format
from culver.cli.session import Session, client_options

_PROGRESS_STEP_RECORDS = 1000


@click.command(
    epilog="\b\nA format is text with these in it:" + FORMAT_SYNTAX.replace("\n\n", "\n\n\b\n"),
)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@click.option("-f", "--format", "template", metavar="FORMAT", help=r"How to print a record.  [default: %s\n]")
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line; also -o json.")
@click.option(
    "--from",
    "start",
    type=PositionType(),
    metavar=SYNTAX,
    help="Where to start.  [default: beginning; end with --follow; with --group where it left off]",
)
@click.option("--until", type=PositionType(), metavar=SYNTAX, help="Where to stop.  [default: the end]")
@click.option("-F", "--follow", is_flag=True, help="At the end, wait for more.")
@click.option("-n", "--count", type=click.IntRange(min=1), metavar="N", help="Stop after N records.")
@click.option("-p", "--partition", "partitions", type=int, multiple=True, help="Only this one; repeatable.")
@click.option("-g", "--group", metavar="GROUP", help="Read as a member of this group and commit offsets.")
@click.option("--read-uncommitted", is_flag=True, help="Show records of open and aborted transactions too.")
@client_options
@click.pass_obj
def consume(
    session: Session,
    topics: tuple[str, ...],
    template: str | None,
    as_json: bool,
    start: Position | None,
    until: Position | None,
    follow: bool,
    count: int | None,
    partitions: tuple[int, ...],
    group: str | None,
    read_uncommitted: bool,
) -> None:
    """Read records from topics; stop at their end unless --follow.

    \b
    culver consume orders --from -10                      the last ten of each partition
    culver consume orders --from '@2h ago' --until @now   a stretch of time
    culver consume orders -f '%p:%o %k = %s\\n'            where, key and value
    culver consume orders --group billing --follow        as a consumer of a group
    """
    formatter = _formatter(template, as_json or session.json)
    cluster = Cluster(session)
    chosen = cluster.partitions(topics, partitions)
    if start is None:
        start = Position(Kind.END if follow and not group else Kind.BEGINNING)
    if group and not partitions and start.kind not in (Kind.BEGINNING, Kind.END):
        raise click.UsageError(
            f"with --group, --from is beginning or end, for partitions that {group} has not committed; "
            f"`culver group seek {group}` moves a group"
        )
    consumer = cluster.consumer(
        group_id=group or "culver-cli",
        enable_partition_eof=True,
        enable_auto_offset_store=False,
        auto_offset_reset="latest" if start.kind is Kind.END else "earliest",
        isolation_level="read_uncommitted" if read_uncommitted else "read_committed",
    )
    reading = Reading(
        cluster, consumer, Limits(follow, until, count), sys.stdout.buffer.flush, commits=group is not None
    )
    try:
        if group and not partitions:
            reading.subscribe(list(topics))
        else:
            starts = cluster.locate(start, chosen)
            reading.assign(starts | (_committed(reading, chosen) if group else {}))
        _print(reading, formatter)
    finally:
        consumer.close()
    if group and not partitions and not reading.spans:
        note(f"the other members of group {group} hold all partitions: nothing was left to read")


def _formatter(template: str | None, as_json: bool) -> Formatter:
    if as_json:
        if template is not None:
            raise click.UsageError("--format and JSON exclude each other")
        return record_json.encode
    try:
        return compile_format("%s\\n" if template is None else template)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="'--format'") from None


def _committed(reading: Reading, partitions: list[Partition]) -> dict[Partition, int]:
    answer = reading.consumer.committed(
        as_topic_partitions(dict.fromkeys(partitions, 0)), timeout=reading.cluster.timeout_s
    )
    return {(each.topic, each.partition): each.offset for each in answer if each.offset >= 0}


def _print(reading: Reading, formatter: Formatter) -> None:
    out = sys.stdout.buffer
    with _bar(reading) as advance:
        since_step = 0
        for record in reading.records():
            out.write(formatter(record))
            since_step += 1
            if since_step == _PROGRESS_STEP_RECORDS:
                advance(since_step)
                since_step = 0


@contextlib.contextmanager
def _bar(reading: Reading) -> Iterator[Callable[[int], None]]:
    """A progress bar when the records go to a file or a pipe and their number is known."""
    lengths = [max(0, span.stop - span.start) for span in reading.spans.values() if span.stop is not None]
    if sys.stdout.isatty() or reading.limits.follow or not lengths:
        yield lambda _: None
        return
    total = min(sum(lengths), reading.limits.count or sum(lengths))
    with progress("reading", total) as advance:
        yield advance
