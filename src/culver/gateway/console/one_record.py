"""/api/topics/{topic}/records/{partition}/{offset}: one record in full, its bytes as a file, and writing one."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.console.bodies import body_of
from culver.gateway.console.live import download_headers, safe_name
from culver.gateway.console.parameters import TOPIC, path_number, refused
from culver.gateway.console.places import bounds_of, chosen_partitions, topic_of
from culver.gateway.console.record_view import RecordView, view_of
from culver.gateway.errors import HttpError, Problem
from culver.gateway.private_topics import refuse_private
from culver.gateway.producing import NO_PARTITION, Outgoing
from culver.gateway.reading.record import Record
from culver.gateway.routing import JSON, Answer, Endpoint, Parameter, json_response
from culver.gateway.services import services_of

_RECORD_MAX_BYTES = 16 * 1024 * 1024


def _no_value() -> msgspec.Raw:
    """null. Made by a function, because a default of this type cannot be told in the OpenAPI document."""
    return msgspec.Raw(b"null")


class RecordAnswer(msgspec.Struct, frozen=True):
    """One record in full."""

    topic: str
    record: RecordView


class HeaderToSend(msgspec.Struct, forbid_unknown_fields=True):
    """A header of a new record."""

    name: str
    value: msgspec.Raw = msgspec.field(default_factory=_no_value)
    encoding: Literal["text", "json", "base64"] = "text"


class RecordToSend(msgspec.Struct, forbid_unknown_fields=True):
    """A new record. A value of null is a tombstone."""

    key: msgspec.Raw = msgspec.field(default_factory=_no_value)
    value: msgspec.Raw = msgspec.field(default_factory=_no_value)
    key_encoding: Literal["text", "json", "base64"] = "text"
    value_encoding: Literal["text", "json", "base64"] = "text"
    headers: list[HeaderToSend] = []
    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)] | None = None
    timestamp_ms: Annotated[int, msgspec.Meta(ge=0, le=2**53)] | None = None
    acks: Literal["all", "1", "0"] = "all"


class RecordSent(msgspec.Struct, frozen=True):
    """Where the record is. The offset is -1 when nobody was asked to confirm it (acks 0)."""

    topic: str
    partition: int
    offset: int


# --- looking ---


async def _one(request: Request) -> Record:
    services = services_of(request)
    name = request.path_params["topic"]
    refuse_private(name)
    partition, offset = path_number(request, "partition", 2**31 - 1), path_number(request, "offset")
    _, topic = await topic_of(services.cluster, name)
    chosen_partitions(topic, [partition])
    place = TopicPartition(name, partition)
    bounds, errors = await bounds_of(services.cluster, [place], committed=False)
    if errors:
        raise errors[place]
    found: list[Record] = []
    if bounds[place].earliest <= offset < bounds[place].latest:
        # Of an open or aborted transaction too: whoever has its address wants to see it.
        found = await services.readers.read_range(
            name, partition, offset, records_max=1, bytes_max=_RECORD_MAX_BYTES, committed=False
        )
    if not found or found[0].offset != offset:
        raise HttpError(
            Problem.RECORD_NOT_FOUND,
            f"{place} has no record with offset {offset}: it has offsets from {bounds[place].earliest} to "
            f"{bounds[place].latest - 1}, without those that were compacted or are marks of transactions",
        )
    return found[0]


async def record(request: Request) -> Response:
    found = await _one(request)
    return json_response(RecordAnswer(found.topic, view_of(found, None)))


def _raw(part: Callable[[Record], bytes | None], what: str) -> Callable[[Request], Any]:
    async def download(request: Request) -> Response:
        found = await _one(request)
        content = part(found)
        if content is None:
            raise HttpError(Problem.RECORD_NOT_FOUND, f"the record has no {what}")
        name = f"{safe_name(found.topic)}-{found.partition}-{found.offset}.{what}"
        return Response(content, headers=download_headers(name), media_type="application/octet-stream")

    return download


# --- writing ---


def _content(given: msgspec.Raw, encoding: str, what: str) -> bytes | None:
    try:
        value = msgspec.json.decode(given)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise refused(f"the {what} is not valid JSON: {error}") from None
    if value is None:  # a tombstone, in whatever encoding
        return None
    if encoding == "json":
        # As it was written but for the spaces, so that numbers keep their digits.
        return msgspec.json.format(bytes(given), indent=-1)
    if not isinstance(value, str):
        raise refused(f"the {what} is not text: give json as its encoding to send it as JSON")
    if encoding == "text":
        return value.encode()
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise refused(f"the {what} is not valid base64") from None


async def produce(request: Request) -> Response:
    services = services_of(request)
    name = request.path_params["topic"]
    refuse_private(name)
    new = await body_of(request, RecordToSend, max_bytes=_RECORD_MAX_BYTES)
    _, topic = await topic_of(services.cluster, name)
    if any("\0" in header.name for header in new.headers):
        raise refused("the name of a header cannot have the character 0 in it: it would end there")
    if new.partition is not None:
        chosen_partitions(topic, [new.partition])
    outgoing = Outgoing(
        topic=name,
        value=_content(new.value, new.value_encoding, "value"),
        key=_content(new.key, new.key_encoding, "key"),
        headers=tuple(
            (header.name, _content(header.value, header.encoding, f"header {header.name}"))
            for header in new.headers
        ),
        partition=NO_PARTITION if new.partition is None else new.partition,
        timestamp_ms=new.timestamp_ms,
    )
    (sent,) = await services.producing.send([outgoing], acks=new.acks)
    if sent.error is not None:
        raise sent.error
    return json_response(RecordSent(name, sent.partition, sent.offset), status=201)


def _whole_number_schema(most: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": 0, "maximum": most}


_PATH = "/api/topics/{topic}/records"
_PLACE = (
    TOPIC,
    Parameter("partition", "A partition.", _whole_number_schema(2**31 - 1), "path", True),
    Parameter("offset", "An offset.", _whole_number_schema(2**63 - 1), "path", True),
)
_PARTS: dict[str, Callable[[Record], bytes | None]] = {
    "value": lambda found: found.value,
    "key": lambda found: found.key,
}
_BYTES = {200: Answer("The bytes.", {"type": "string", "format": "binary"}, ("application/octet-stream",))}

ROUTES = [
    Endpoint(
        "POST",
        _PATH,
        produce,
        "Write one record.",
        "console",
        parameters=(TOPIC,),
        bodies={JSON: RecordToSend},
        answers={201: Answer("Written.", RecordSent)},
        errors=(403, 404, 413, 422, 429, 503),
    ),
    Endpoint(
        "GET",
        _PATH + "/{partition}/{offset}",
        record,
        "One record in full.",
        "console",
        parameters=_PLACE,
        answers={200: Answer("The record.", RecordAnswer)},
        errors=(403, 404, 422, 503),
    ),
    *(
        Endpoint(
            "GET",
            f"{_PATH}/{{partition}}/{{offset}}/{what}",
            _raw(part, what),
            f"The bytes of a record's {what}, as a file.",
            "console",
            parameters=_PLACE,
            answers=_BYTES,
            errors=(403, 404, 422, 503),
        )
        for what, part in _PARTS.items()
    ),
]
