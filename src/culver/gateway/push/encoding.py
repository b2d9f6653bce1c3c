"""Records as JSON, written once for all subscribers who get them.

A record that a thousand subscribers wait for is one object, which the shared reading hands to all of them, and so its
JSON is one too: what each subscriber adds is a few bytes around it. The most recent ones are kept, up to a bound.
"""

from __future__ import annotations

from base64 import b64encode
from collections import OrderedDict

import msgspec

from culver.gateway.reading.record import Record

TEXT = "text"
JSON = "json"
BASE64 = "base64"

_encode = msgspec.json.Encoder().encode


class HeaderJson(msgspec.Struct):
    """A header of a record. Names may come more than once."""

    name: str
    value: str | None
    format: str = TEXT


class RecordJson(msgspec.Struct):
    """A record as receivers see it. The formats say how to read key and value: json (values only), text or base64."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: str | None
    key_format: str
    value: msgspec.Raw | str | None
    value_format: str
    headers: list[HeaderJson]


class Encoded:
    """The JSON of one record, and the pieces of it that both kinds of connection send."""

    __slots__ = ("fields", "frame", "record")

    def __init__(self, record: Record) -> None:
        self.record = record
        # Without the brace before it, so that fields can be put in front.
        self.fields = record_json(record)[1:]
        # The whole message of a WebSocket, made when the first one asks for it.
        self.frame: str | None = None

    @property
    def size_bytes(self) -> int:
        return len(self.fields)


def record_json(record: Record) -> bytes:
    """The JSON of a record, on one line."""
    key, key_format = _text(record.key)
    value, value_format = _value(record.value)
    headers = [HeaderJson(name, *_text(header)) for name, header in record.headers]
    return _encode(
        RecordJson(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp_ms,
            key,
            key_format,
            value,
            value_format,
            headers,
        )
    )


def _text(content: bytes | None) -> tuple[str | None, str]:
    if content is None:
        return None, TEXT
    try:
        return content.decode(), TEXT
    except UnicodeDecodeError:
        return b64encode(content).decode(), BASE64


def _value(content: bytes | None) -> tuple[msgspec.Raw | str | None, str]:
    text, text_format = _text(content)
    if content is None or text_format is BASE64:
        return text, text_format
    try:
        # Only its spaces go: numbers keep every digit, and a line stays a line.
        return msgspec.Raw(msgspec.json.format(content, indent=-1)), JSON
    except (msgspec.DecodeError, RecursionError):
        return text, TEXT


class Encodings:
    """The JSON of the most recent records."""

    def __init__(self, kept_max_bytes: int = 8 * 1024 * 1024) -> None:
        self._kept_max_bytes = kept_max_bytes
        self._kept_bytes = 0
        self._kept: OrderedDict[int, Encoded] = OrderedDict()

    def of(self, record: Record) -> Encoded:
        """The JSON of a record; the same object for the same record while it is kept."""
        # An identity names one object only as long as that object lives: what is kept holds on to its record.
        found = self._kept.get(id(record))
        if found is not None:
            return found
        encoded = Encoded(record)
        self._kept[id(record)] = encoded
        self._kept_bytes += encoded.size_bytes
        while self._kept_bytes > self._kept_max_bytes and len(self._kept) > 1:
            self._kept_bytes -= self._kept.popitem(last=False)[1].size_bytes
        return encoded
