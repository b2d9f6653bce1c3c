"""/api/topics/{topic}/records: look at records, one or many, and write one."""

from __future__ import annotations

import base64
import binascii
import time
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.errors import KafkaError
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.console.bodies import body_of
from culver.gateway.console.browsing import BACKWARD, FORWARD, Bounds, Browsing, Found, Positions, Work
from culver.gateway.console.parameters import (
    PAGE_DEFAULT,
    PAGE_MAX,
    PARTITIONS,
    TOPIC,
    choice,
    choice_parameter,
    number,
    numbers,
    path_number,
    refused,
    words,
)
from culver.gateway.console.places import (
    bounds_of,
    chosen_partitions,
    default_direction,
    not_too_many,
    positions_at,
    topic_of,
)
from culver.gateway.console.record_filter import LENGTH_MAX, Filter, FilterError, parse_filter
from culver.gateway.console.record_view import SHOWN_BYTES_MAX, RecordView, view_of
from culver.gateway.errors import HttpError, Problem
from culver.gateway.private_topics import refuse_private
from culver.gateway.producing import NO_PARTITION, Outgoing
from culver.gateway.reading.record import Record
from culver.gateway.routing import JSON, Answer, Endpoint, Parameter, json_response
from culver.gateway.services import Services, services_of

_RECORD_MAX_BYTES = 16 * 1024 * 1024
_CURSOR_LENGTH_MAX = 10_000
_ANSWER_BYTES = 8 * 1024 * 1024


def _no_value() -> msgspec.Raw:
    """null. Made by a function, because a default of this type cannot be told in the OpenAPI document."""
    return msgspec.Raw(b"null")


COMMITTED, UNCOMMITTED = "committed", "uncommitted"


class PartitionPlace(msgspec.Struct, frozen=True):
    """A partition that was looked at, and how far."""

    partition: int
    earliest: int
    latest: int
    position: int


class PartitionError(msgspec.Struct, frozen=True):
    """A partition that could not be looked at."""

    partition: int
    message: str


class RecordsAnswer(msgspec.Struct, frozen=True):
    """Records in the order of the walk, and how to go on."""

    topic: str
    direction: str
    records: list[RecordView]
    scanned: int
    scanned_bytes: int
    took_ms: int
    complete: bool
    stopped: str
    cursor: str | None
    partitions: list[PartitionPlace]
    errors: list[PartitionError]


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


# --- many ---


def filter_of(request: Request) -> Filter | None:
    """What `filter=` says, if something."""
    text = words(request, "filter", LENGTH_MAX).strip()
    try:
        return parse_filter(text) if text else None
    except FilterError as error:
        raise refused(str(error)) from None


def is_committed(request: Request) -> bool:
    return choice(request, "isolation", (COMMITTED, UNCOMMITTED), COMMITTED) == COMMITTED


async def walk_of(
    services: Services, request: Request, committed: bool, default_from: str = "latest"
) -> tuple[Positions, dict[int, Bounds], dict[int, KafkaError]]:
    """Where the request begins, in which partitions, and which of them cannot be looked at."""
    name = request.path_params["topic"]
    refuse_private(name)
    _, topic = await topic_of(services.cluster, name)
    cursor = words(request, "cursor", _CURSOR_LENGTH_MAX)
    begin = words(request, "from") or default_from
    direction = choice(request, "direction", (FORWARD, BACKWARD), default_direction(begin))
    wanted = numbers(request, "partition")
    given = None
    if cursor:
        try:
            given = Positions.parse(cursor)
        except ValueError as error:
            raise refused(str(error)) from None
        direction, wanted = given.direction, sorted(given.offsets)
    places = [TopicPartition(name, index) for index in chosen_partitions(topic, wanted)]
    found, errors = await bounds_of(services.cluster, places, committed=committed)
    bounds = not_too_many({place.partition: each for place, each in found.items()})
    if given is not None:
        positions = Positions(direction, {index: given.offsets[index] for index in bounds})
    else:
        positions = await positions_at(services.cluster, name, bounds, begin, direction)
    return positions, bounds, {place.partition: error for place, error in errors.items()}


async def records(request: Request) -> Response:
    services = services_of(request)
    begun_s = time.monotonic()
    limit = number(request, "limit", PAGE_DEFAULT, least=1, most=PAGE_MAX)
    wanted, committed = filter_of(request), is_committed(request)
    positions, bounds, errors = await walk_of(services, request, committed)
    browsing = Browsing(
        services.readers,
        request.path_params["topic"],
        bounds,
        positions,
        limit=limit,
        committed=committed,
        wanted=wanted,
    )
    async with services.console.walks:
        found = await browsing.find(Work.begin())
    failed: dict[int, Exception] = {**errors, **found.errors}
    return json_response(
        _answer(
            request.path_params["topic"], found, bounds, failed, round((time.monotonic() - begun_s) * 1000)
        )
    )


def _answer(
    topic: str, found: Found, bounds: dict[int, Bounds], errors: dict[int, Exception], took_ms: int
) -> RecordsAnswer:
    direction = found.positions.direction
    is_complete = found.stopped == "end"
    # The more records, the less of each: an answer has its bounds as well.
    shown_bytes = min(SHOWN_BYTES_MAX, _ANSWER_BYTES // max(1, len(found.records)))
    return RecordsAnswer(
        topic=topic,
        direction=direction,
        records=[view_of(record, shown_bytes) for record in found.records],
        scanned=found.work.records,
        scanned_bytes=found.work.bytes,
        took_ms=took_ms,
        complete=is_complete,
        stopped=found.stopped,
        # At the end there may be more in a moment; before the beginning there never is.
        cursor=None if is_complete and direction == BACKWARD else str(found.positions),
        partitions=[
            PartitionPlace(index, bounds[index].earliest, bounds[index].latest, position)
            for index, position in sorted(found.positions.offsets.items())
        ],
        errors=[PartitionError(index, str(error)) for index, error in sorted(errors.items())],
    )


# --- one ---


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


def safe_name(topic: str) -> str:
    """A topic's name as a part of a file's name. Culver's topics have only such letters; others' may not."""
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in topic
    )


def download_headers(name: str) -> dict[str, str]:
    """A browser keeps this as a file, and never takes it for a page of this server."""
    return {
        "content-disposition": f'attachment; filename="{name}"',
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
        "cache-control": "no-store",
    }


# --- writing ---


def _content(given: msgspec.Raw, encoding: str, what: str) -> bytes | None:
    value = msgspec.json.decode(given)
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
FILTER = Parameter(
    "filter",
    'Terms that all must hold: words, "quoted words", -not, key:… value:… header:… header.NAME:… partition:N, and '
    "of values that are JSON .field=… != > >= < <= ~.",
)
ISOLATION = choice_parameter(
    "isolation",
    "Whether records of open and aborted transactions are seen.",
    (COMMITTED, UNCOMMITTED),
    COMMITTED,
)
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
        "GET",
        _PATH,
        records,
        "Records of a topic, its partitions merged by time.",
        "console",
        parameters=(
            TOPIC,
            PARTITIONS,
            Parameter(
                "from", "Where to begin: earliest, latest, offset:N or time:T (ISO 8601, ms, or an age)."
            ),
            choice_parameter(
                "direction",
                "By default backward from latest, forward from anywhere else.",
                (FORWARD, BACKWARD),
            ),
            Parameter(
                "limit",
                "How many.",
                {"type": "integer", "minimum": 1, "maximum": PAGE_MAX, "default": PAGE_DEFAULT},
            ),
            FILTER,
            Parameter("cursor", "Go on where an earlier answer stopped."),
            ISOLATION,
        ),
        answers={200: Answer("Records, and how to go on.", RecordsAnswer)},
        errors=(404, 422, 503),
        description="The work of one request is bounded. A filter that finds little stops early: `stopped` is "
        "`work`, `scanned` says how much was looked at, and `cursor` goes on.",
    ),
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
        errors=(404, 422, 503),
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
            errors=(404, 422, 503),
        )
        for what, part in _PARTS.items()
    ),
]
