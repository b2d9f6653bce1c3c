"""OTLP/HTTP logs: POST /v1/logs, in protobuf or JSON, answered in the encoding in which it was asked."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from google.protobuf import json_format
from starlette.requests import Request
from starlette.responses import Response

from culver.gateway.errors import HttpError, Problem
from culver.gateway.ingest.delivery import (
    TOPIC_PARAMETERS,
    deliver,
    errors_as,
    media_type,
    refusals,
    topic_of,
    try_later,
)
from culver.gateway.ingest.events import BadEntry, Entry, Refused, event_value, source_key
from culver.gateway.ingest.otlp_shapes import (
    LogRecord,
    Scope,
    export_answer,
    read_json,
    read_protobuf,
    status_answer,
)
from culver.gateway.ingest.protobuf import Malformed
from culver.gateway.routing import JSON, Answer, Endpoint
from culver.gateway.services import services_of

PROTOBUF = "application/x-protobuf"
_READERS = {PROTOBUF: read_protobuf, JSON: read_json}
# Severity numbers come in fours: 1 to 4 are TRACE, TRACE2, TRACE3 and TRACE4, and so on.
_LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")
# Where a service runs, the most telling first: what makes its lines one sequence.
_PLACES = ("service.instance.id", "host.name", "k8s.pod.name", "container.id", "host.id")


def entries(scopes: Iterable[Scope]) -> Iterator[Entry | Refused]:
    """One entry for each log record, in the order of the request."""
    for scope in scopes:
        resource = dict(scope.resource)
        service = _taken_text(resource, "service.name")
        host = _taken_text(resource, "host.name")
        place = next((str(scope.resource[name]) for name in _PLACES if scope.resource.get(name)), None)
        key = source_key(service, place)
        named = {"otel.scope.name": scope.name, "otel.scope.version": scope.version}
        layers = (
            ("scope", {name: value for name, value in named.items() if value} | scope.attributes),
            ("resource", resource),
        )
        for record in scope.records:
            if isinstance(record, BadEntry):
                yield Refused(str(record))
                continue
            try:
                yield Entry(key, _value(record, service, host, layers))
            except BadEntry as error:
                yield Refused(str(error))


def _value(
    record: LogRecord, service: str | None, host: str | None, layers: tuple[tuple[str, dict[str, Any]], ...]
) -> bytes:
    level = record.severity_text
    context: dict[str, Any] = {}
    if 1 <= record.severity_number <= 4 * len(_LEVELS):
        level = _LEVELS[(record.severity_number - 1) // 4]
        if record.severity_text and record.severity_text.upper() != level:
            context["severity_text"] = record.severity_text
    # An id of zeroes stands for none.
    context |= {
        name: value
        for name, value in (("trace_id", record.trace_id), ("span_id", record.span_id))
        if value.strip("0")
    }
    if record.flags:
        context["trace_flags"] = record.flags & 0xFF
    if record.event_name:
        context["event.name"] = record.event_name
    body = record.body
    if body is None and record.event_name:
        body = record.event_name
    return event_value(
        body,
        time_ns=record.time_ns or record.observed_time_ns,
        level=level,
        service=service,
        host=host,
        layers=(("record", context), ("attributes", record.attributes), *layers),
    )


def _taken_text(attributes: dict[str, Any], name: str) -> str | None:
    """An attribute that has a place of its own in an event, taken away from the others."""
    if isinstance(attributes.get(name), str):
        text: str = attributes.pop(name)
        return text
    return None


def _answer(request: Request, message: Any, status: int = 200, headers: Any = None) -> Response:
    if media_type(request) == PROTOBUF:
        return Response(message.SerializeToString(), status, headers, PROTOBUF)
    return Response(msgspec.json.encode(json_format.MessageToDict(message)), status, headers, JSON)


def _refusal(request: Request, error: HttpError) -> Response:
    return _answer(request, status_answer(error.message), error.status, error.headers)


@errors_as(_refusal)
async def export_logs(request: Request) -> Response:
    reader = _READERS.get(media_type(request))
    if reader is None:
        raise HttpError(Problem.UNSUPPORTED_MEDIA_TYPE, f"OTLP comes as {PROTOBUF} or {JSON}")
    topic = topic_of(request)
    async with services_of(request).admission.body(request) as body:
        try:
            outcome = await deliver(request, topic, entries(reader(body)))
        except (Malformed, BadEntry) as error:
            message = f"the body is no ExportLogsServiceRequest: {error}"
            raise HttpError(Problem.BAD_REQUEST, message) from error
    if outcome.retriable is not None:
        raise try_later(outcome.retriable)
    return _answer(request, export_answer(len(outcome.refused), outcome.reason))


ROUTES = [
    Endpoint(
        "POST",
        "/v1/logs",
        export_logs,
        "Take in logs that come as OTLP/HTTP.",
        "ingest",
        parameters=TOPIC_PARAMETERS,
        bodies={
            PROTOBUF: {"type": "string", "format": "binary", "description": "An ExportLogsServiceRequest."},
            JSON: {"type": "object", "description": "An ExportLogsServiceRequest in OTLP's JSON encoding."},
        },
        answers=refusals({"type": "object", "properties": {"message": {"type": "string"}}}, (JSON, PROTOBUF))
        | {
            200: Answer(
                "An ExportLogsServiceResponse: all that it does not name as rejected is durable.",
                {"type": "object", "properties": {"partialSuccess": {"type": "object"}}},
                (JSON, PROTOBUF),
            )
        },
    )
]
