"""/api/topics/{topic}/records: look at the records of a topic, page by page."""

from __future__ import annotations

import time

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.errors import KafkaError
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.console.browsing import BACKWARD, FORWARD, Bounds, Browsing, Found, Positions, Work
from culver.gateway.console.parameters import (
    PAGE_DEFAULT,
    PAGE_MAX,
    PARTITIONS,
    TOPIC,
    choice,
    choice_parameter,
    number,
    number_parameter,
    numbers,
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
from culver.gateway.private_topics import refuse_private
from culver.gateway.routing import Answer, Endpoint, Parameter, json_response
from culver.gateway.services import Services, services_of

_CURSOR_LENGTH_MAX = 10_000
_ANSWER_BYTES = 8 * 1024 * 1024
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
            number_parameter("limit", "How many.", PAGE_DEFAULT, least=1, most=PAGE_MAX),
            FILTER,
            Parameter("cursor", "Go on where an earlier answer stopped."),
            ISOLATION,
        ),
        answers={200: Answer("Records, and how to go on.", RecordsAnswer)},
        errors=(403, 404, 422, 503),
        description="The work of one request is bounded. A filter that finds little stops early: `stopped` is "
        "`work`, `scanned` says how much was looked at, and `cursor` goes on.",
    ),
]
