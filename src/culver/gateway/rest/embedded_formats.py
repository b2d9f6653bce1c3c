"""The embedded formats of the REST proxy: how the keys and values of records are written in an answer's JSON."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any

import msgspec


class RecordHeader(msgspec.Struct):
    """A header; its value in base64."""

    key: str
    value: str | None


class ConsumedRecord(msgspec.Struct, omit_defaults=True):
    """A record as a read gives it. Headers are there when it has some."""

    topic: str
    key: msgspec.Raw
    value: msgspec.Raw
    partition: int
    offset: int
    headers: list[RecordHeader] = []


class NotInFormat(Exception):
    """A key or value that cannot be given in the instance's format."""


_NULL = msgspec.Raw(b"null")
_encode = msgspec.json.encode
_decode_json = msgspec.json.Decoder().decode


def _binary(data: bytes) -> bytes:
    return b'"' + base64.b64encode(data) + b'"'


def _text(data: bytes) -> bytes:
    try:
        return _encode(data.decode())
    except UnicodeDecodeError as error:
        raise NotInFormat(f"not UTF-8: {error}") from error


def _json(data: bytes) -> bytes:
    try:
        _decode_json(data)
        data.decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise NotInFormat(f"not JSON: {error}") from error
    return data


def _json_or_text(data: bytes) -> bytes:
    """Keys are seldom JSON where values are; a key that is not comes as text."""
    try:
        return _json(data)
    except NotInFormat:
        return _text(data)


Writer = Callable[[bytes], bytes]
# How keys and values become JSON.
FORMATS: Mapping[str, tuple[Writer, Writer]] = {
    "binary": (_binary, _binary),
    "json": (_json_or_text, _json),
    "text": (_text, _text),
}


def consumed_record(message: Any, format_name: str) -> ConsumedRecord:
    """A message of librdkafka in one of the FORMATS. Raises NotInFormat."""
    write_key, write_value = FORMATS[format_name]
    key, value = message.key(), message.value()
    return ConsumedRecord(
        message.topic(),
        _NULL if key is None else msgspec.Raw(write_key(key)),
        _NULL if value is None else msgspec.Raw(write_value(value)),
        message.partition(),
        message.offset(),
        [
            RecordHeader(name, None if data is None else base64.b64encode(data).decode())
            for name, data in _headers(message)
        ],
    )


def _headers(message: Any) -> list[tuple[str, bytes | None]]:
    """None where a name is no UTF-8: librdkafka's binding cannot give them, and the record is worth more than they."""
    try:
        return message.headers() or []
    except (SystemError, UnicodeError):
        return []
