"""What a parser makes of one line, before the lines of a batch become columns."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

_ENCODER = msgspec.json.Encoder()


class Row(NamedTuple):
    """The parts of one line. `time` is text yet to be read, microseconds since 1970, or None."""

    time: str | int | None
    level: str | None
    service: str | None
    host: str | None
    message: str
    fields: str | None
    format: str


class Unparsable(Exception):
    """The line is not of the format that it seemed to be."""


def fields_json(fields: dict[str, Any]) -> str | None:
    """A JSON object of what has no column of its own; None when there is nothing."""
    if not fields:
        return None
    try:
        return _ENCODER.encode(fields).decode()
    except (msgspec.MsgspecError, OverflowError, RecursionError, UnicodeError) as error:
        raise Unparsable(str(error)) from error


def text_of(value: object) -> str | None:
    """A value as text: strings as they are, nothing for null and emptiness, JSON for the rest."""
    if isinstance(value, str):
        return value or None
    if value is None:
        return None
    try:
        return _ENCODER.encode(value).decode()
    except (msgspec.MsgspecError, OverflowError, RecursionError, UnicodeError) as error:
        raise Unparsable(str(error)) from error
