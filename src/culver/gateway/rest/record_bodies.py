"""Records out of the bodies of produce requests: one reader for each media type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Annotated

import msgspec

from culver.gateway.errors import HttpError, Problem
from culver.gateway.gathering import RECORDS_MAX, gathered, too_many
from culver.gateway.producing import NO_PARTITION, Outgoing

JSON_V2 = "application/vnd.kafka.json.v2+json"
BINARY_V2 = "application/vnd.kafka.binary.v2+json"
JSON = "application/json"
JSON_LINES = "application/x-ndjson"
TEXT = "text/plain"
BYTES = "application/octet-stream"

_NULL = b"null"


class Defaults(msgspec.Struct, frozen=True):
    """What the address of a request says about its records, where they do not say it themselves."""

    topic: str
    key: bytes | None = None
    partition: int = NO_PARTITION
    # Whether each element of a JSON array is a record.
    array_of_records: bool = False


PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
TimestampMs = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class JsonHeader(msgspec.Struct, frozen=True):
    """A header of a record in a JSON body: its value is text."""

    name: str
    value: str | None = None


class BinaryHeader(msgspec.Struct, frozen=True):
    """A header of a record in a binary body: its value is base64."""

    name: str
    value: bytes | None = None


class JsonRecord(msgspec.Struct, frozen=True):
    """A record whose key and value are any JSON; they are stored as they are written. null: none at all."""

    value: msgspec.Raw
    key: msgspec.Raw = msgspec.Raw(_NULL)
    partition: PartitionNumber | None = None
    timestamp: TimestampMs | None = None
    headers: tuple[JsonHeader, ...] = ()


class BinaryRecord(msgspec.Struct, frozen=True):
    """A record whose key and value are bytes in base64. null: none at all."""

    value: bytes | None
    key: bytes | None = None
    partition: PartitionNumber | None = None
    timestamp: TimestampMs | None = None
    headers: tuple[BinaryHeader, ...] = ()


class JsonRecords(msgspec.Struct, frozen=True):
    """The body of application/vnd.kafka.json.v2+json. Names that are not known are ignored."""

    records: list[JsonRecord]


class BinaryRecords(msgspec.Struct, frozen=True):
    """The body of application/vnd.kafka.binary.v2+json."""

    records: list[BinaryRecord]


_decode_json_records = msgspec.json.Decoder(JsonRecords).decode
_decode_binary_records = msgspec.json.Decoder(BinaryRecords).decode
_decode_value = msgspec.json.Decoder(msgspec.Raw).decode
_decode_array = msgspec.json.Decoder(list[msgspec.Raw]).decode


async def read_records(media_type: str, body: bytes, defaults: Defaults) -> list[Outgoing]:
    """The records of a body. HttpError: 413 too many, 415 for another media type, 422 what cannot be read."""
    reader = READERS.get(media_type)
    if reader is None:
        raise unsupported(media_type)
    try:
        records = await gathered(reader(body, defaults))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise HttpError(Problem.INVALID_JSON, f"the body cannot be read: {error}") from None
    if not records:
        raise HttpError(Problem.INVALID_RECORD, "the body holds no records")
    return records


def unsupported(media_type: str) -> HttpError:
    said = f"Content-Type {media_type!r} is not served here" if media_type else "there is no Content-Type"
    return HttpError(Problem.UNSUPPORTED_MEDIA_TYPE, f"{said}; use one of {', '.join(READERS)}")


def _lines(body: bytes) -> list[bytes]:
    """The lines of a body; the end of the last line begins no further one."""
    if body.count(b"\n") > RECORDS_MAX:  # before they are taken apart
        raise too_many()
    lines = body.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _read_json_records(body: bytes, defaults: Defaults) -> Iterator[Outgoing]:
    for record in _decode_json_records(body).records:
        yield Outgoing(
            defaults.topic,
            _json_bytes(record.value),
            defaults.key if record.key == _NULL else _json_bytes(record.key),
            tuple(
                (header.name, None if header.value is None else header.value.encode())
                for header in record.headers
            ),
            defaults.partition if record.partition is None else record.partition,
            record.timestamp,
        )


def _read_binary_records(body: bytes, defaults: Defaults) -> Iterator[Outgoing]:
    for record in _decode_binary_records(body).records:
        yield Outgoing(
            defaults.topic,
            record.value,
            defaults.key if record.key is None else record.key,
            tuple((header.name, header.value) for header in record.headers),
            defaults.partition if record.partition is None else record.partition,
            record.timestamp,
        )


def _read_json(body: bytes, defaults: Defaults) -> Iterator[Outgoing]:
    """One record; or with ?records one for each element of an array."""
    values = _decode_array(body) if defaults.array_of_records else [_decode_value(body)]
    for value in values:
        yield Outgoing(defaults.topic, _json_bytes(value), defaults.key, (), defaults.partition)


def _read_json_lines(body: bytes, defaults: Defaults) -> Iterator[Outgoing]:
    """A record for each line; lines without anything in them are passed over."""
    for line in _lines(body):
        if not line.isspace() and line:
            yield Outgoing(
                defaults.topic, _json_bytes(_decode_value(line)), defaults.key, (), defaults.partition
            )


def _read_text(body: bytes, defaults: Defaults) -> Iterator[Outgoing]:
    """A record for each line, empty ones too."""
    for line in _lines(body):
        yield Outgoing(defaults.topic, line.removesuffix(b"\r"), defaults.key, (), defaults.partition)


def _read_bytes(body: bytes, defaults: Defaults) -> Iterator[Outgoing]:
    yield Outgoing(defaults.topic, body, defaults.key, (), defaults.partition)


def _json_bytes(raw: msgspec.Raw) -> bytes | None:
    """JSON as it was written; a copy, so that the rest of the body can go. None for null."""
    written = bytes(raw)
    if written == _NULL:
        return None
    if not written.isascii():
        written.decode()  # JSON is UTF-8, and the reader looks no deeper than to the end of each text
    return written


# Records come one by one, so that a large body need not hold up everybody else.
READERS: Mapping[str, Callable[[bytes, Defaults], Iterator[Outgoing]]] = {
    JSON_V2: _read_json_records,
    BINARY_V2: _read_binary_records,
    JSON: _read_json,
    JSON_LINES: _read_json_lines,
    TEXT: _read_text,
    BYTES: _read_bytes,
}
