"""/api/topics/{topic}/export: records as a file, NDJSON or CSV, sent while they are read."""

from __future__ import annotations

import base64
import csv
import io
from collections.abc import AsyncGenerator, Callable, Iterable
from datetime import UTC, datetime

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.gateway.console.browsing import BACKWARD, FORWARD, Bounds, Browsing, Positions, Work
from culver.gateway.console.live import LiveResponse, check_room, download_headers, safe_name
from culver.gateway.console.parameters import (
    PARTITIONS,
    TOPIC,
    choice,
    choice_parameter,
    number,
    number_parameter,
    refused,
    words,
)
from culver.gateway.console.places import positions_at
from culver.gateway.console.record_filter import Filter
from culver.gateway.console.records import (
    FILTER,
    ISOLATION,
    filter_of,
    is_committed,
    walk_of,
)
from culver.gateway.push.encoding import record_json
from culver.gateway.reading.record import Record
from culver.gateway.routing import Answer, Endpoint, Parameter
from culver.gateway.services import Services, services_of

NDJSON, CSV = "ndjson", "csv"
_LIMIT_DEFAULT, _LIMIT_MAX = 10_000, 1_000_000
_PAGE = 500
_COLUMNS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_MEDIA_TYPES = {NDJSON: "application/x-ndjson", CSV: "text/csv; charset=utf-8"}
# A spreadsheet takes a cell that begins with one of these for a formula, and runs it.
_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n")


def as_ndjson(records: Iterable[Record]) -> bytes:
    """A line of JSON for each, in the form that push has."""
    return b"".join(record_json(record) + b"\n" for record in records)


def as_csv(records: Iterable[Record]) -> bytes:
    """A row for each."""
    return _rows(
        (
            cell(record.topic),
            record.partition,
            record.offset,
            timestamp_text(record.timestamp_ms),
            cell(content_text(record.key)),
            cell(content_text(record.value)),
            cell(_headers_text(record)),
        )
        for record in records
    )


def _rows(rows: Iterable[tuple[str | int, ...]]) -> bytes:
    text = io.StringIO()
    csv.writer(text).writerows(rows)
    return text.getvalue().encode()


def cell(text: str) -> str:
    """A text that a spreadsheet shows and does not run."""
    return "'" + text if text.startswith(_FORMULA_STARTS) else text


def content_text(content: bytes | None) -> str:
    """A key or value as text; what is no text in base64, and says so. Nothing at all is an empty cell."""
    if content is None:
        return ""
    try:
        return content.decode()
    except UnicodeDecodeError:
        return "base64:" + base64.b64encode(content).decode()


def timestamp_text(timestamp_ms: int) -> str:
    """ISO 8601 in UTC; the number itself where that has no name for it."""
    try:
        moment = datetime.fromtimestamp(timestamp_ms / 1000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _headers_text(record: Record) -> str:
    if not record.headers:
        return ""
    return msgspec.json.encode([(name, content_text(value)) for name, value in record.headers]).decode()


_WRITERS: dict[str, Callable[[Iterable[Record]], bytes]] = {NDJSON: as_ndjson, CSV: as_csv}


async def export(request: Request) -> Response:
    services = services_of(request)
    check_room(services.console)
    form = choice(request, "format", (NDJSON, CSV), NDJSON)
    limit = number(request, "limit", _LIMIT_DEFAULT, least=1, most=_LIMIT_MAX)
    wanted, committed = filter_of(request), is_committed(request)
    positions, bounds, errors = await walk_of(services, request, committed, default_from="earliest")
    if errors:
        raise next(iter(errors.values()))
    if positions.direction == BACKWARD:
        # Said by from=latest alone: nothing comes after the end.
        raise refused("an export goes forward: begin with earliest, offset:N or time:T")
    topic = request.path_params["topic"]
    until = words(request, "until")
    if until:
        ends = await positions_at(services.cluster, topic, bounds, until, FORWARD)
        bounds = {index: Bounds(each.earliest, ends.offsets[index]) for index, each in bounds.items()}
    parts = _parts(services, topic, form, bounds, positions, limit, committed, wanted)
    headers = download_headers(f"{safe_name(topic)}.{form}")
    return LiveResponse(services, parts, _MEDIA_TYPES[form], headers)


async def _parts(
    services: Services,
    topic: str,
    form: str,
    bounds: dict[int, Bounds],
    positions: Positions,
    limit: int,
    committed: bool,
    wanted: Filter | None,
) -> AsyncGenerator[bytes, None]:
    """The file, piece by piece. Its end was fixed before, so it has one however much is written meanwhile.

    An error cuts the connection: a file that looks whole and is not would be worse.
    """
    write = _WRITERS[form]
    left = limit
    yield _rows([_COLUMNS]) if form == CSV else b""
    browsing = Browsing(
        services.readers,
        topic,
        bounds,
        positions,
        limit=_PAGE,
        committed=committed,
        wanted=wanted,
        goes_on=True,
    )
    while left:
        async with services.console.exports:
            found = await browsing.find(Work.begin())
        for error in found.errors.values():
            raise error
        records = found.records[:left]
        if records:
            yield write(records)
        left -= len(records)
        if found.stopped == "end":
            return


ROUTES = [
    Endpoint(
        "GET",
        "/api/topics/{topic}/export",
        export,
        "Records of a topic as a file.",
        "console",
        parameters=(
            TOPIC,
            choice_parameter("format", "What it is written as.", (NDJSON, CSV), NDJSON),
            PARTITIONS,
            Parameter("from", "Where to begin; earliest by default."),
            Parameter("until", "Where to end: latest (as it is when the export begins), offset:N or time:T."),
            FILTER,
            number_parameter("limit", "How many records at most.", _LIMIT_DEFAULT, least=1, most=_LIMIT_MAX),
            ISOLATION,
        ),
        answers={200: Answer("The file.", {"type": "string"}, ("application/x-ndjson", "text/csv"))},
        errors=(403, 404, 422, 429, 503),
        description="Cells that a spreadsheet would take for a formula get a ' in front.",
    ),
]
