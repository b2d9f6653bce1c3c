"""Raw lines: POST /ingest/{topic} makes one record of each line, as it is."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.errors import ErrorCode
from culver.gateway.errors import HttpError, Problem
from culver.gateway.ingest.delivery import checked_topic, deliver, media_type, try_later
from culver.gateway.ingest.events import Entry
from culver.gateway.problems import http_error
from culver.gateway.routing import JSON, Answer, Endpoint, Parameter, json_response
from culver.gateway.services import services_of

TEXT = "text/plain"
NDJSON = "application/x-ndjson"
_LINES = frozenset(
    {
        "",
        TEXT,
        NDJSON,
        "application/jsonl",
        "application/json-lines",
        "application/octet-stream",
        "application/ndjson",
        # What curl says of --data-binary when it is told nothing.
        "application/x-www-form-urlencoded",
    }
)
_REFUSED_SHOWN_MAX = 100


class RefusedLine(msgspec.Struct):
    """A line that was not taken: its place among the lines that are not empty, from 0, and why."""

    line: int
    reason: str


class LinesTaken(msgspec.Struct):
    """All lines are records now."""

    records: int


class LinesRefused(msgspec.Struct):
    """Some lines were refused; `records` others were taken."""

    error_code: int
    message: str
    records: int
    refused: list[RefusedLine]


def every_line(body: bytes) -> Iterator[bytes]:
    """The lines without their ends, one after the other: a list of all would take many times the body's memory."""
    start = 0
    while start < len(body):
        end = body.find(b"\n", start)
        if end < 0:
            end = len(body)
        yield body[start:end].removesuffix(b"\r")
        start = end + 1


def entries(kind: str, body: bytes, key: bytes | None) -> Iterator[Entry]:
    """One entry for each line; the whole body is one when it is a JSON document. HttpError for what is none."""
    if kind != JSON:
        for line in every_line(body):
            if line:
                yield Entry(key, line)
    elif body.strip():
        try:
            msgspec.json.decode(body)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            message = f"the body is not JSON: {error}; several documents, one on each line, are {NDJSON}"
            raise HttpError(Problem.BAD_REQUEST, message) from error
        yield Entry(key, body)


async def take_lines(request: Request) -> Response:
    topic = checked_topic(request.path_params["topic"])
    kind = media_type(request)
    if kind not in _LINES and kind != JSON:
        raise HttpError(Problem.UNSUPPORTED_MEDIA_TYPE, f"lines come as {TEXT} or {NDJSON}, not as {kind}")
    key_text = request.query_params.get("key")
    key = None if key_text is None else key_text.encode("utf-8", "surrogateescape")
    async with services_of(request).admission.body(request) as body:
        outcome = await deliver(request, topic, entries(kind, body, key))
    if outcome.retriable is not None:
        # People send lines by hand: that there is no such topic is worth more to them than that there may be one.
        missing = outcome.retriable.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        raise http_error(outcome.retriable) if missing else try_later(outcome.retriable)
    if outcome.refused:
        shown = [RefusedLine(place, reason) for place, reason in outcome.refused[:_REFUSED_SHOWN_MAX]]
        problem = Problem.INVALID_RECORD
        answer = LinesRefused(int(problem), outcome.reason, outcome.accepted, shown)
        return json_response(answer, status=problem.status)
    return json_response(LinesTaken(outcome.accepted))


ROUTES = [
    Endpoint(
        "POST",
        "/ingest/{topic}",
        take_lines,
        "Make a record of each line.",
        "ingest",
        parameters=(
            Parameter("topic", "The topic.", where="path", required=True),
            Parameter("key", "The key of all these records: one source, whose lines keep their order."),
        ),
        bodies={
            TEXT: {"type": "string"},
            NDJSON: {"type": "string", "description": "A JSON document on each line, kept as it is."},
            JSON: {"description": "One document, which becomes one record."},
        },
        answers={200: Answer("All lines are durable.", LinesTaken)},
        errors=(400, 404, 413, 415, 422, 429, 503),
        description="When single lines are refused (422), the others are taken: the answer names the refused ones.",
    )
]
