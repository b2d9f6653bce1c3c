"""Records as the console shows them: decoded where they can be, and cut where they are long."""

from __future__ import annotations

import base64
import re
from typing import Any

import msgspec

from culver.gateway.reading.record import Record

# What is sent of a key or value in lists; the record's own address has the whole of it.
SHOWN_BYTES_MAX = 64 * 1024
# How many headers are sent in lists, and of one record: told apart, a small header is many times what it was.
_HEADERS_LISTED_MAX, _HEADERS_MAX = 100, 10_000
# Beyond these a browser would show another number than the one that was sent: the text has the right one.
_EXACT_IN_BROWSERS = 2**53
# A parsed value is many times as large as its text, and is looked through before it is sent.
_JSON_BYTES_MAX = 1024 * 1024
# Deep enough for what people write; a parser of another language may go no deeper.
_DEPTH_MAX = 100
# Bytes that no text has: what has one is some binary format, though all its bytes may be valid UTF-8.
_BINARY = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
_TIMESTAMP_TYPES = {0: "create", 1: "append"}


class Data(msgspec.Struct, frozen=True, omit_defaults=True):
    """A key, a value or a header's value. `encoding` says which of the other fields hold it."""

    encoding: str
    bytes: int
    text: str | None = None
    json: Any = None
    base64: str | None = None
    truncated: bool = False


class HeaderView(msgspec.Struct, frozen=True):
    """One header. Names may repeat, so headers are a list."""

    name: str
    value: Data | None


class RecordView(msgspec.Struct, frozen=True):
    """One record, decoded."""

    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: str
    key: Data | None
    value: Data | None
    headers: list[HeaderView]
    size_bytes: int
    # How many headers are left out.
    headers_more: int


def view_of(record: Record, shown_bytes_max: int | None = SHOWN_BYTES_MAX) -> RecordView:
    """The record, its key, value and headers cut to so many bytes each; None: as a whole."""
    headers = record.headers[: _HEADERS_MAX if shown_bytes_max is None else _HEADERS_LISTED_MAX]
    return RecordView(
        partition=record.partition,
        offset=record.offset,
        timestamp_ms=record.timestamp_ms,
        timestamp_type=_TIMESTAMP_TYPES.get(record.timestamp_type, "none"),
        key=data_of(record.key, shown_bytes_max),
        value=data_of(record.value, shown_bytes_max),
        headers=[HeaderView(name, data_of(value, shown_bytes_max)) for name, value in headers],
        size_bytes=record.size_bytes,
        headers_more=len(record.headers) - len(headers),
    )


def data_of(content: bytes | None, shown_bytes_max: int | None = SHOWN_BYTES_MAX) -> Data | None:
    """Content as JSON if it is an object or array, else as text if it is some, else in base64."""
    if content is None:
        return None
    shown = content if shown_bytes_max is None else content[:shown_bytes_max]
    is_cut = len(shown) < len(content)
    text = _text_of(shown, is_cut)
    if text is None:
        encoded = base64.b64encode(shown).decode()
        return Data("base64", len(content), base64=encoded, truncated=is_cut)
    if not is_cut and len(shown) <= _JSON_BYTES_MAX and text.lstrip()[:1] in ("{", "["):
        parsed = _json_of(shown)
        if parsed is not None:
            return Data("json", len(content), text=text, json=parsed)
    return Data("text", len(content), text=text, truncated=is_cut)


def _text_of(content: bytes, is_cut: bool) -> str | None:
    if _BINARY.search(content):
        return None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        # Only the character that the cut went through may be broken.
        if is_cut and error.start >= len(content) - 3 and error.reason == "unexpected end of data":
            return content[: error.start].decode()
        return None


def _json_of(content: bytes) -> Any:
    """The value, or None when it is not JSON, or not JSON that a browser would show as it is."""
    try:
        parsed = msgspec.json.decode(content)
    except (msgspec.DecodeError, RecursionError):
        return None
    return parsed if _is_plain(parsed, _DEPTH_MAX) else None


def _is_plain(value: Any, depth: int) -> bool:
    if depth == 0:
        return False
    if isinstance(value, dict):
        return all(_is_plain(each, depth - 1) for each in value.values())
    if isinstance(value, list):
        return all(_is_plain(each, depth - 1) for each in value)
    return not isinstance(value, int | float) or -_EXACT_IN_BROWSERS <= value <= _EXACT_IN_BROWSERS
