"""Parse a batch of log lines, whatever their formats: every line becomes one event, in order, none is dropped."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from culver.pipelines.parsing.access_log import parse_access
from culver.pipelines.parsing.events import EVENT_SCHEMA, TIMESTAMP, level_name
from culver.pipelines.parsing.plain import parse_plain
from culver.pipelines.parsing.row import Row, Unparsable
from culver.pipelines.parsing.structured import parse_json, parse_logfmt
from culver.pipelines.parsing.syslog import parse_rfc3164, parse_rfc5424
from culver.pipelines.parsing.timestamps import LATEST_US, read_times

FORMATS = ("auto", "json", "logfmt", "syslog", "access", "plain")
# A line that was said to be of a format, or plainly began like one, and then was not.
UNPARSED = "unparsed"

_SYSLOG_5424 = re.compile(r"<\d{1,3}>\d{1,2} ", re.ASCII)
_SYSLOG_3164 = re.compile(r"<\d{1,3}>|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d ", re.ASCII)
_ACCESS = re.compile(r"\S+ \S+ \S+(?: \S+)? \[\d\d/[A-Z][a-z]{2}/\d{4}:", re.ASCII)
_LOGFMT = re.compile(r"[A-Za-z_@][\w.@/-]*=", re.ASCII)

Lines: TypeAlias = pa.Array | pa.ChunkedArray | Sequence[bytes | str | None]
_Parser = Callable[[str, int], Row | None]


def parse_lines(
    lines: Lines,
    timestamps: pa.Array | pa.ChunkedArray | None = None,
    *,
    format: str = "auto",
    default_service: str | None = None,
    origin: pa.Table | None = None,
) -> pa.Table:
    """Events in the order of the lines, with the columns of EVENT_SCHEMA.

    `timestamps` say when each line was recorded, which counts when it names no time of its own (now, if not given).
    `format` is one of FORMATS; `auto` finds out line by line. `default_service` is for lines that name none.
    `origin` may have columns topic, partition and offset. Bytes that are not UTF-8 are kept as \\xNN.

    Never raises because of what a line holds. The column `format` of the result tells what a line was taken for:
    json, logfmt, syslog5424, syslog3164, access, plain, or unparsed.
    """
    if format not in FORMATS:
        raise ValueError(f"{format!r} is no format of lines: there are {', '.join(FORMATS)}")
    texts = decode_lines(lines)
    recorded = _recorded_us(timestamps, len(texts))
    parse = _PARSERS[format]
    columns = _Columns(len(texts))
    plain: list[int] = []
    for number, (line, recorded_us) in enumerate(zip(texts, recorded, strict=True)):
        try:
            row = parse(line, recorded_us)
        except Unparsable:
            row = None
            columns.format[number] = UNPARSED
        if row is None:
            plain.append(number)
        else:
            columns.put(number, row)
    _fill_plain(columns, texts, plain)
    return _table(columns, texts, recorded, default_service, origin)


class _Columns:
    """A list for each column. Rows are taken apart at once: hundreds of thousands alive cost the collector dear."""

    def __init__(self, count: int) -> None:
        self.time: list[str | int | None] = [None] * count
        self.level: list[str | None] = [None] * count
        self.service: list[str | None] = [None] * count
        self.host: list[str | None] = [None] * count
        self.message: list[str] = [""] * count
        self.fields: list[str | None] = [None] * count
        self.format: list[str] = ["plain"] * count

    def put(self, at: int, row: Row) -> None:
        (
            self.time[at],
            self.level[at],
            self.service[at],
            self.host[at],
            self.message[at],
            self.fields[at],
            self.format[at],
        ) = row


def decode_lines(lines: Lines) -> list[str]:
    """Text of the lines without the ends of lines; nothing for null."""
    if isinstance(lines, pa.Array | pa.ChunkedArray):
        try:
            text = lines.cast(pa.string())
        except pa.ArrowInvalid:  # some line is not UTF-8: one by one then
            return [_decoded(line) for line in lines.to_pylist()]
        trimmed: list[str] = pc.utf8_rtrim(pc.fill_null(text, ""), "\r\n").to_pylist()
        return trimmed
    return [_decoded(line) for line in lines]


def _decoded(line: bytes | str | None) -> str:
    if line is None:
        return ""
    if not isinstance(line, str):
        line = bytes(line).decode("utf-8", "backslashreplace")
    elif not line.isascii():
        line = line.encode("utf-8", "backslashreplace").decode()  # a lone surrogate has no place in Arrow
    return line.rstrip("\r\n")


def _recorded_us(timestamps: pa.Array | pa.ChunkedArray | None, count: int) -> list[int]:
    now_us = time.time_ns() // 1000
    if timestamps is None:
        return [now_us] * count
    if pa.types.is_timestamp(timestamps.type):
        timestamps = timestamps.cast(pa.timestamp("us", timestamps.type.tz), safe=False)
    known = timestamps.cast(pa.int64()).to_pylist()
    return [now_us if moment is None or not 0 <= moment <= LATEST_US else moment for moment in known]


def _detected(line: str, recorded_us: int) -> Row | None:
    """The line by the first format it looks like; None for free text. Raises Unparsable."""
    line = line.lstrip()
    first = line[:1]
    if first == "{":
        return parse_json(line)
    try:
        if first == "<" and _SYSLOG_5424.match(line):
            return parse_rfc5424(line)
    except Unparsable:
        return parse_rfc3164(line, recorded_us)
    try:
        if (first == "<" or first.isupper()) and _SYSLOG_3164.match(line):
            return parse_rfc3164(line, recorded_us)
        if '] "' in line and _ACCESS.match(line):
            return parse_access(line)
        if _LOGFMT.match(line):
            return parse_logfmt(line)
    except Unparsable:
        return None  # text that happens to begin like that: <b>, Nov 15, a=b
    return None


def _syslog(line: str, recorded_us: int) -> Row:
    try:
        return parse_rfc5424(line)
    except Unparsable:
        return parse_rfc3164(line, recorded_us)


_PARSERS: dict[str, _Parser] = {
    "auto": _detected,
    "json": lambda line, _: parse_json(line),
    "logfmt": lambda line, _: parse_logfmt(line),
    "syslog": _syslog,
    "access": lambda line, _: parse_access(line),
    "plain": lambda line, _: None,
}


def _fill_plain(columns: _Columns, texts: list[str], numbers: list[int]) -> None:
    """Fill the rows of free text, where no parser has made one."""
    if not numbers:
        return
    parts = parse_plain(pa.array([texts[number] for number in numbers], pa.string()))
    for number, moment, level, message in zip(numbers, *parts, strict=True):
        columns.time[number] = moment
        columns.level[number] = level_name(level)
        columns.message[number] = message


def _table(
    columns: _Columns,
    texts: list[str],
    recorded: list[int],
    default_service: str | None,
    origin: pa.Table | None,
) -> pa.Table:
    made: dict[str, Any] = {
        "ts": read_times(columns.time, recorded).cast(TIMESTAMP),
        "level": columns.level,
        "service": columns.service,
        "host": columns.host,
        "message": columns.message,
        "format": columns.format,
        "fields": columns.fields,
        "raw": texts,
    }
    if default_service is not None:
        made["service"] = [service or default_service for service in columns.service]
    arrays = []
    for field in EVENT_SCHEMA:
        if field.name in made:
            column = made[field.name]
            arrays.append(column if isinstance(column, pa.Array) else pa.array(column, field.type))
        elif origin is not None and field.name in origin.column_names:
            arrays.append(origin[field.name].cast(field.type))
        else:
            arrays.append(pa.nulls(len(texts), field.type))
    return pa.table(arrays, schema=EVENT_SCHEMA)
