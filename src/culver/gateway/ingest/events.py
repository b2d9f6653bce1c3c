"""What a log entry of any protocol becomes: a record with a JSON value that `culver pipeline logs` understands.

    {"ts": "2026-11-15T16:00:00.000000000Z", "level": "WARN", "service": "checkout", "host": "web-1",
     "message": "card refused", "trace_id": "5b8e...", "http.status_code": 402}

Names with dots stay flat, so that `culver search --where "fields.http.status_code >= 400"` finds them. Nothing that a
shipper sent is dropped because two things have the same name: the weaker one is kept as `attributes.NAME` or the like.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder()
_NANOS = 1_000_000_000
_TIME_MAX_NS = 1 << 64  # as much as protocols can say: the year 2554


class Entry(NamedTuple):
    """One log entry, ready to be a record. The key is its source, so that each source keeps its order."""

    key: bytes | None
    value: bytes


class Refused(NamedTuple):
    """One log entry that cannot become a record, and why."""

    reason: str


class BadEntry(Exception):
    """Why an entry is refused."""


Layer = tuple[str, Mapping[str, Any]]


def event_value(
    body: object,
    *,
    time_ns: int | None = None,
    level: str | None = None,
    service: str | None = None,
    host: str | None = None,
    layers: Iterable[Layer] = (),
) -> bytes:
    """The JSON of one event. Raises BadEntry.

    `body` is the text, or an object with fields of its own; a text that is a JSON object counts as one. Its fields come
    first, because the program itself wrote them. Then come the time, level, service and host that the protocol names,
    then the `layers` of further fields, the stronger ones first.
    """
    event: dict[str, Any] = {}
    fields = body if isinstance(body, Mapping) else _object_in(body)
    if fields is not None:
        event.update(fields)
    elif body is not None:
        event["message"] = body
    columns = (("ts", iso_time(time_ns)), ("level", level), ("service", service), ("host", host))
    for name, value in columns:
        if value:
            event.setdefault(name, value)
    for layer, values in layers:
        for name, value in values.items():
            if name not in event:
                event[name] = value
            elif event[name] != value:
                event.setdefault(f"{layer}.{name}", value)
    try:
        return _ENCODER.encode(event)
    except (msgspec.MsgspecError, OverflowError, RecursionError, UnicodeError, TypeError) as error:
        raise BadEntry(f"it cannot be written as JSON: {error}") from error


def _object_in(body: object) -> dict[str, Any] | None:
    """The fields of a line that is a JSON object."""
    if not isinstance(body, str) or not body.startswith("{"):
        return None
    try:
        found = _DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def iso_time(time_ns: int | None) -> str | None:
    """A time in nanoseconds since 1970 as text; None when none is known."""
    if time_ns is None or not 0 < time_ns < _TIME_MAX_NS:
        return None
    seconds, nanos = divmod(time_ns, _NANOS)
    return f"{_iso_second(seconds)}.{nanos:09d}Z"


@lru_cache(maxsize=1024)
def _iso_second(seconds: int) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}"


def source_key(*parts: object) -> bytes | None:
    """The key of all entries of a source: what is known of it, such as service and host. None when nothing is."""
    known = [part for part in parts if isinstance(part, str) and part]
    return "/".join(known).encode("utf-8", "backslashreplace") if known else None
