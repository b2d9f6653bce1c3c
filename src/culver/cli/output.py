"""Print results: tables for people, JSON for programs, a progress bar when somebody is watching."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

# A table that is not read on a terminal is not wrapped: grep and awk want a row to be a line.
_WIDTH_WHEN_NOT_A_TERMINAL = 10_000


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: Any) -> None:
    """One JSON document on one line of stdout."""
    print(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def print_table(columns: Sequence[str], rows: Sequence[Mapping[str, Any]], title: str = "") -> None:
    """A table on stdout, one row per mapping; the columns are its keys. Numbers stand to the right."""
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, pad_edge=False, title=title or None, title_justify="left", header_style="bold")
    for column in columns:
        numeric = bool(rows) and all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(
            column.replace("_", " ").upper(), justify="right" if numeric else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(_cell(row.get(column)) for column in columns))
    terminal = sys.stdout.isatty()
    console = Console(
        highlight=False,
        markup=False,
        width=None if terminal else _WIDTH_WHEN_NOT_A_TERMINAL,
        soft_wrap=not terminal,
    )
    console.print(table)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return ",".join(str(item) for item in value)
    return str(value)


def note(text: str) -> None:
    """A remark for people on stderr, out of the way of results."""
    print(text, file=sys.stderr)


@contextlib.contextmanager
def progress(description: str, total: int, *, unit_bytes: bool = False) -> Iterator[Callable[[int], None]]:
    """A progress bar on stderr when that is a terminal; gives the function to call with each step done."""
    if not sys.stderr.isatty() or os.environ.get("TERM") == "dumb":
        yield lambda _: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
    )

    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn() if unit_bytes else MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as bar:
        task = bar.add_task(description, total=total)
        yield lambda step: bar.advance(task, step)


def duration(seconds: float | None) -> str | None:
    """A length of time in its two largest units: 3d 4h, 12m 5s, 0.3s."""
    if seconds is None:
        return None
    if seconds < 60:
        return f"{seconds:.1f}s"
    whole = int(seconds)
    for unit, size, smaller_unit, smaller_size in (
        ("d", 86400, "h", 3600),
        ("h", 3600, "m", 60),
        ("m", 60, "s", 1),
    ):
        if whole >= size:
            return f"{whole // size}{unit} {whole % size // smaller_size}{smaller_unit}"
    raise AssertionError("60 seconds are at least a minute")


def size(count_bytes: int | None) -> str | None:
    """A number of bytes for people: 512 B, 3.2 KiB, 193 MiB."""
    if count_bytes is None:
        return None
    amount = float(count_bytes)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if amount < 1024 or unit == "TiB":
            return f"{amount:.0f} {unit}" if amount >= 100 or unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    raise AssertionError("the last unit takes everything")


def counted(number: int, noun: str) -> str:
    """1 partition, 2 partitions."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
