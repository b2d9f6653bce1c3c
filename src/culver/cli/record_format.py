"""Print a consumed record: a format string like kcat's, compiled once into one function."""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from confluent_kafka import Message

Formatter: TypeAlias = Callable[["Message"], bytes]

SYNTAX = r"""
  %t topic            %k key              %s value
  %p partition        %K key length       %S value length
  %o offset           %h headers          %R value length, 4 bytes big-endian
  %T timestamp, ms    %d timestamp, ISO   %% a percent sign
  \n \r \t \0 \\ \xNN

A null key or value prints as nothing; its length is -1.
"""

_ESCAPES = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}


def timestamp_ms(record: Message) -> int:
    """The record's timestamp, -1 when it has none."""
    return record.timestamp()[1] if record.timestamp()[0] != 0 else -1


def iso_time(milliseconds: int) -> str:
    """A timestamp as UTC in ISO 8601, to the millisecond; empty when there is none."""
    if milliseconds < 0:
        return ""
    try:
        moment = datetime.fromtimestamp(milliseconds / 1000, UTC)
    except (OverflowError, ValueError):  # a producer may send any 64-bit number
        return str(milliseconds)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _length(data: bytes | None) -> int:
    return -1 if data is None else len(data)


def _headers(record: Message) -> bytes:
    return b",".join(
        name.encode() + b"=" + (b"NULL" if value is None else _as_bytes(value))
        for name, value in header_pairs(record)
    )


def header_pairs(record: Message) -> list[tuple[str, bytes | None]]:
    """The record's headers in order."""
    headers = record.headers() or []
    pairs = headers.items() if isinstance(headers, dict) else headers
    return [(name, None if value is None else _as_bytes(value)) for name, value in pairs]


def _as_bytes(value: str | bytes) -> bytes:
    return value.encode() if isinstance(value, str) else value


_FIELDS: dict[str, Formatter] = {
    "t": lambda record: (record.topic() or "").encode(),
    "p": lambda record: b"%d" % (record.partition() or 0),
    "o": lambda record: b"%d" % (record.offset() or 0),
    "k": lambda record: record.key() or b"",
    "K": lambda record: b"%d" % _length(record.key()),
    "s": lambda record: record.value() or b"",
    "S": lambda record: b"%d" % _length(record.value()),
    "R": lambda record: struct.pack(">i", _length(record.value())),
    "T": lambda record: b"%d" % timestamp_ms(record),
    "d": lambda record: iso_time(timestamp_ms(record)).encode(),
    "h": _headers,
}


def compile_format(text: str) -> Formatter:
    """A function from a record to its bytes; ValueError names what in the format cannot be understood."""
    parts = _parse(text)
    if parts == [_FIELDS["s"], b"\n"]:  # the default, and the hot path of a large read
        return lambda record: (record.value() or b"") + b"\n"
    return lambda record: b"".join(part if isinstance(part, bytes) else part(record) for part in parts)


def _parse(text: str) -> list[bytes | Formatter]:
    parts: list[bytes | Formatter] = []
    literal = b""
    position = 0
    while position < len(text):
        character = text[position]
        following = text[position + 1 : position + 2]
        position += 2
        if character == "%" and following in _FIELDS:
            if literal:
                parts.append(literal)
                literal = b""
            parts.append(_FIELDS[following])
        elif character == "%" and following == "%":
            literal += b"%"
        elif character == "\\" and following in _ESCAPES:
            literal += _ESCAPES[following]
        elif character == "\\" and following == "x":
            try:
                literal += bytes.fromhex(text[position : position + 2])
            except ValueError:
                raise ValueError(r"\x is followed by two hexadecimal digits") from None
            position += 2
        elif character in "%\\":
            raise ValueError(f"{character + following!r} means nothing in a format; known are: {SYNTAX}")
        else:
            literal += character.encode()
            position -= 1
    if literal:
        parts.append(literal)
    return parts


def unescape(text: str) -> bytes:
    """The escapes of a format alone, for delimiters given on the command line."""
    parts = _parse(text.replace("%", "%%"))
    return b"".join(part for part in parts if isinstance(part, bytes))
