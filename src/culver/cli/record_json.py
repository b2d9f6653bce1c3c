"""Records as JSON lines. What `culver consume --json` prints, `culver produce --json` takes.

    {"topic": "orders", "partition": 0, "offset": 7, "timestamp": 1763190000000,
     "key": "42", "value": "paid", "headers": [["trace", "a1"]]}

Bytes that are not UTF-8 stand in `key_base64` and `value_base64` instead, and a header's value becomes
`["name", "AAE=", "base64"]`. When producing, a value that is no string and not null (an object, a number)
is sent as its JSON text.
"""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Message

from culver.cli.record_format import header_pairs, timestamp_ms


@dataclass(frozen=True, slots=True)
class Outgoing:
    """One record to produce. What is None is left to the producer's options; key and value may be null."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int | None = None
    timestamp_ms: int | None = None


def encode(record: Message) -> bytes:
    """One line of JSON for a consumed record."""
    fields: dict[str, Any] = {
        "topic": record.topic(),
        "partition": record.partition(),
        "offset": record.offset(),
        "timestamp": timestamp_ms(record),
        **_encoded("key", record.key()),
        **_encoded("value", record.value()),
    }
    if headers := header_pairs(record):
        fields["headers"] = [
            [name, *_encoded("", value).values(), *_base64_mark(value)] for name, value in headers
        ]
    return json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _encoded(name: str, data: bytes | None) -> dict[str, str | None]:
    if data is None:
        return {name: None}
    text = _text(data)
    return {f"{name}_base64": base64.b64encode(data).decode()} if text is None else {name: text}


def _base64_mark(data: bytes | None) -> list[str]:
    return ["base64"] if data is not None and _text(data) is None else []


def decode(line: bytes) -> Outgoing:
    """A record from one line of JSON; ValueError says what is wrong with it."""
    fields = json.loads(line)
    if not isinstance(fields, dict):
        raise ValueError("expected an object with a value, and perhaps key, headers, partition, timestamp")
    if "value" not in fields and "value_base64" not in fields:
        raise ValueError("there is no `value` (null is allowed, but must be said)")
    return Outgoing(
        value=_decoded(fields, "value"),
        key=_decoded(fields, "key"),
        headers=_decoded_headers(fields.get("headers")),
        partition=_whole_number(fields, "partition"),
        timestamp_ms=_whole_number(fields, "timestamp"),
    )


def _decoded(fields: dict[str, Any], name: str) -> bytes | None:
    if (encoded := fields.get(f"{name}_base64")) is not None:
        return _from_base64(encoded, f"{name}_base64")
    value = fields.get(name)
    if value is None:
        return None
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.encode()


def _from_base64(text: Any, where: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ValueError(f"{where} is not base64: {error}") from None


def _whole_number(fields: dict[str, Any], name: str) -> int | None:
    value = fields.get(name)
    if value is None or value == -1:
        return None
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"`{name}` must be a whole number, not {value!r}")
    return value


def _decoded_headers(headers: Any) -> tuple[tuple[str, bytes | None], ...]:
    """Pairs (or triples marked base64) in a list, or an object of names and values."""
    if headers is None:
        return ()
    pairs = list(headers.items()) if isinstance(headers, dict) else headers
    if not isinstance(pairs, list):
        raise ValueError("`headers` must be an object or a list of [name, value] pairs")
    return tuple(_decoded_header(pair) for pair in pairs)


def _decoded_header(pair: Any) -> tuple[str, bytes | None]:
    match pair:
        case (str() as name, None):
            return name, None
        case (str() as name, str() as text):
            return name, text.encode()
        case (str() as name, str() as text, "base64"):
            return name, _from_base64(text, f"header {name}")
    raise ValueError(f'{pair!r} is no header: expected [name, value] or [name, value, "base64"]')
