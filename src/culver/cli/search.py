"""`culver search`: find log lines in the store that `culver pipeline logs` writes."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from culver.cli.failure import ExitCode, Failure
from culver.cli.output import counted, note, print_json_line, print_table
from culver.cli.position import parse_time_ms
from culver.cli.session import Session, output_option

if TYPE_CHECKING:
    from culver.pipelines.log_store.searching import SearchResult

DEFAULT_STORE = "culver-logs"
_COLUMNS = ("time", "level", "service", "host", "message")


@click.command()
@click.argument("text", default="")
@click.option("--since", metavar="TIME", help="Not older: 2h, 3d, 2026-11-15T08:00, today.")
@click.option("--until", metavar="TIME", help="Older than this time.")
@click.option("--where", default="", metavar="CONDITION", help="\"level='ERROR' and service='api'\".")
@click.option(
    "-n",
    "--limit",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="At most so many, the newest.",
)
@click.option(
    "--store",
    metavar="DIR",
    default=DEFAULT_STORE,
    envvar="CULVER_LOG_STORE",
    show_default=True,
    help="The directory of the store; also $CULVER_LOG_STORE.",
)
@output_option
@click.pass_obj
def search(
    session: Session, text: str, since: str | None, until: str | None, where: str, limit: int, store: str
) -> None:
    """Find log lines, newest first, while the pipeline writes.

    TEXT is words that all occur, "phrases", prefix*, OR, NOT and parentheses; nothing at all finds every line.
    Columns for --where: ts, level, service, host, message, format, raw, topic, partition, offset, and fields.NAME
    for what else a line said; with = != < <= > >= IN, LIKE, BETWEEN, IS NULL, AND, OR, NOT.
    With -o json one object per line.
    """
    since_us, until_us = _moment(since, "--since"), _moment(until, "--until")
    result, taken_ms = _find(store, text, since_us, until_us, where, limit)
    rows = result.events.to_pylist()
    if session.json:
        for row in rows:
            print_json_line(_as_json(row))
    else:
        print_table(_COLUMNS, [_as_row(row) for row in rows])
        note(
            f"{counted(len(rows), 'line')} of {result.rows:,} in {taken_ms:.0f} ms; "
            f"looked into {result.files_searched} of {counted(result.files, 'file')}"
            + ("; there may be more: --limit" if len(rows) == limit else "")
        )
    for problem in result.problems:
        note(f"culver: {problem.message}\n  {problem.remedy}")
    if result.problems:
        raise Failure(
            f"{counted(len(result.problems), 'file')} could not be searched, so lines may be missing above",
            code=ExitCode.CORRUPT,
        )


def _find(
    store: str, text: str, since: int | None, until: int | None, where: str, limit: int
) -> tuple[SearchResult, float]:
    try:
        from culver.pipelines.log_store.errors import LogStoreError, QueryError, StoreNotFound
        from culver.pipelines.log_store.store import LogStore
    except ModuleNotFoundError as missing:
        raise Failure(
            f"culver search needs {missing.name}, which is not installed", "pip install 'culver[spark]'"
        ) from None
    begun = time.perf_counter()
    try:
        result = LogStore(store, create=False).find(text, since, until, where, limit)
        return result, (time.perf_counter() - begun) * 1000
    except QueryError as error:
        raise Failure(error.message, error.remedy, code=ExitCode.USAGE) from None
    except StoreNotFound as error:
        raise Failure(error.message, f"{error.remedy}: --store DIR", code=ExitCode.NOT_FOUND) from None
    except LogStoreError as error:
        raise Failure(error.message, error.remedy, code=ExitCode.CORRUPT) from None


def _moment(text: str | None, option: str) -> int | None:
    if text is None:
        return None
    try:
        return parse_time_ms(text) * 1000
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def _as_row(event: dict[str, Any]) -> dict[str, Any]:
    moment = event["ts"].astimezone().isoformat(sep=" ", timespec="milliseconds")
    message = " ".join(event["message"].split())
    return {"time": moment, **{name: event[name] for name in _COLUMNS[1:-1]}, "message": message}


def _as_json(event: dict[str, Any]) -> dict[str, Any]:
    import msgspec

    fields = event["fields"]
    return {
        **event,
        "ts": event["ts"].isoformat().replace("+00:00", "Z"),
        "fields": msgspec.json.decode(fields) if fields else {},
    }
