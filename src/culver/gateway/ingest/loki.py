"""Loki push: POST /loki/api/v1/push, as JSON or as protobuf compressed with snappy."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from culver.errors import ErrorCode, KafkaError
from culver.gateway.admission import Admission
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
from culver.gateway.ingest.events import BadEntry, Entry, Layer, Refused, event_value
from culver.gateway.ingest.protobuf import Field, Malformed, declare, read, text
from culver.gateway.routing import JSON, Answer, Endpoint
from culver.gateway.services import services_of
from culver.protocol.compression import Codec, decompress

PROTOBUF = "application/x-protobuf"
_NANOS = 1_000_000_000

# Labels that say what an event's columns say, the most telling first.
_LEVEL_LABELS = ("level", "detected_level", "severity")
_SERVICE_LABELS = ("service_name", "service", "app", "application", "job", "container")
_HOST_LABELS = ("host", "hostname", "instance", "node_name", "node")

# logproto.PushRequest
_SHAPES = declare(
    "culver.loki",
    {
        "PushRequest": {"streams": Field(1, "Stream", repeated=True)},
        "Stream": {"labels": Field(1, "bytes"), "entries": Field(2, "bytes", repeated=True)},
        "Entry": {
            "timestamp": Field(1, "Timestamp"),
            "line": Field(2, "bytes"),
            "metadata": Field(3, "Pair", repeated=True),
        },
        "Pair": {"name": Field(1, "bytes"), "value": Field(2, "bytes")},
        "Timestamp": {"seconds": Field(1, "int64"), "nanos": Field(2, "int32")},
    },
)


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a stream, with the metadata that belongs to it alone."""

    time_ns: int
    text: str
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Stream:
    """Lines with the same labels, each a line or the reason why it is none."""

    labels: dict[str, str] | BadEntry
    lines: Iterable[Line | BadEntry]


def entries(streams: Iterable[Stream]) -> Iterator[Entry | Refused]:
    """One entry for each line. The key is the stream, because Loki keeps the order of a stream and of nothing else."""
    for stream in streams:
        labels = stream.labels
        if isinstance(labels, BadEntry):
            for _ in stream.lines:
                yield Refused(str(labels))
            continue
        key = stream_key(labels)
        columns = _columns(labels)
        for line in stream.lines:
            if isinstance(line, BadEntry):
                yield Refused(str(line))
                continue
            try:
                yield Entry(key, _value(labels, columns, line))
            except BadEntry as error:
                yield Refused(str(error))


def _columns(labels: Mapping[str, str]) -> tuple[str | None, ...]:
    """The level, service and host that labels name."""
    return tuple(
        next((labels[name] for name in names if labels.get(name)), None)
        for names in (_LEVEL_LABELS, _SERVICE_LABELS, _HOST_LABELS)
    )


def _value(labels: Mapping[str, str], columns: tuple[str | None, ...], line: Line) -> bytes:
    level, service, host = columns
    layers: tuple[Layer, ...] = (("labels", labels),)
    if line.metadata:
        own_level, own_service, own_host = _columns(line.metadata)
        level, service, host = level or own_level, service or own_service, host or own_host
        layers = (("metadata", line.metadata), *layers)
    return event_value(
        line.text, time_ns=line.time_ns, level=level, service=service, host=host, layers=layers
    )


def stream_key(labels: Mapping[str, str]) -> bytes:
    """The labels as Loki writes them, in order, so that the same stream has the same key however it was sent."""
    pairs = (f"{name}={msgspec.json.encode(value).decode()}" for name, value in sorted(labels.items()))
    return f"{{{', '.join(pairs)}}}".encode()


# --- protobuf ---

_LABEL = re.compile(r'\s*([A-Za-z_][\w.:]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)', re.DOTALL)


def read_protobuf(body: bytes) -> Iterator[Stream]:
    """What a PushRequest holds, once it is decompressed. Raises Malformed."""
    for stream in read(_SHAPES["PushRequest"], body).streams:
        yield Stream(parse_labels(text(stream.labels)), map(_line, stream.entries))


def parse_labels(labels: str) -> dict[str, str] | BadEntry:
    """{app="shop", pod="shop-7"} as a mapping."""
    inside = labels.strip()
    if not inside.startswith("{") or not inside.endswith("}"):
        return BadEntry(f"labels are not in braces: {labels[:100]!r}")
    inside = inside[1:-1].strip()
    found: dict[str, str] = {}
    position = 0
    while position < len(inside):
        match = _LABEL.match(inside, position)
        if match is None:
            return BadEntry(f"labels cannot be read from {inside[position : position + 100]!r} on")
        found[match[1]] = _unquoted(match[2])
        position = match.end()
    return found


def _unquoted(quoted: str) -> str:
    if "\\" not in quoted:
        return quoted
    try:
        return str(msgspec.json.decode(f'"{quoted}"'))
    except msgspec.MsgspecError:  # escapes that only Go knows; they say the same left as they are
        return quoted


def _line(encoded: bytes) -> Line | BadEntry:
    try:
        entry = read(_SHAPES["Entry"], encoded)
    except Malformed as error:
        return BadEntry(f"an entry cannot be read: {error}")
    return Line(
        entry.timestamp.seconds * _NANOS + entry.timestamp.nanos,
        text(entry.line),
        {text(pair.name): text(pair.value) for pair in entry.metadata},
    )


# --- JSON ---


class _JsonStream(msgspec.Struct):
    stream: dict[str, str]
    values: list[msgspec.Raw]


class _JsonPush(msgspec.Struct):
    streams: list[_JsonStream]


_VALUE_DECODER = msgspec.json.Decoder(list[Any])
_NO_METADATA: Mapping[str, str] = {}
_PUSH_DECODER = msgspec.json.Decoder(_JsonPush)


def read_json(body: bytes) -> Iterator[Stream]:
    """What {"streams": [{"stream": {labels}, "values": [[time, line, {metadata}], ...]}]} holds. Raises Malformed."""
    try:
        push = _PUSH_DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise Malformed(str(error)) from error
    for stream in push.streams:
        yield Stream(stream.stream, map(_json_line, stream.values))


def _json_line(encoded: msgspec.Raw) -> Line | BadEntry:
    try:
        time, line, *more = _VALUE_DECODER.decode(encoded)
        metadata = msgspec.convert(more[0], dict[str, str]) if more else _NO_METADATA
        if not isinstance(line, str) or isinstance(time, bool | float) or len(more) > 1:
            raise ValueError("it is not [time, line] or [time, line, metadata]")
        return Line(int(time), line, metadata)
    except (msgspec.MsgspecError, RecursionError, ValueError, TypeError) as error:
        return BadEntry(f"a value cannot be read: {error}")


# --- HTTP ---


def _refusal(_: Request, error: HttpError) -> Response:
    return PlainTextResponse(f"{error.message}\n", error.status, error.headers)


def _without_encoding(request: Request) -> Request:
    """Some shippers say `Content-Encoding: snappy`, most say nothing: protobuf comes compressed with it anyway."""
    if request.headers.get("content-encoding", "").lower() != "snappy":
        return request
    headers = [(name, value) for name, value in request.scope["headers"] if name != b"content-encoding"]
    return Request({**request.scope, "headers": headers}, request.receive)


@contextmanager
def _unpacked(admission: Admission, body: bytes, max_bytes: int) -> Iterator[bytes]:
    """The body without its snappy, which counts as memory in use as long as the block lasts."""
    try:
        unpacked = bytes(decompress(Codec.SNAPPY, body, max_bytes))
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            raise HttpError(Problem.TOO_LARGE, f"the body is larger than {max_bytes} bytes") from error
        raise Malformed(str(error)) from error
    admission.take(len(unpacked))
    try:
        yield unpacked
    finally:
        admission.give_back(len(unpacked))


@errors_as(_refusal)
async def push(request: Request) -> Response:
    kind = media_type(request)
    if kind not in (PROTOBUF, JSON):
        raise HttpError(Problem.UNSUPPORTED_MEDIA_TYPE, f"Loki push comes as {JSON} or {PROTOBUF}")
    services = services_of(request)
    topic = topic_of(request)
    try:
        if kind == JSON:
            async with services.admission.body(request) as body:
                outcome = await deliver(request, topic, entries(read_json(body)))
        else:
            async with services.admission.body(_without_encoding(request)) as packed:
                with _unpacked(services.admission, packed, services.settings.body_max_bytes) as body:
                    outcome = await deliver(request, topic, entries(read_protobuf(body)))
    except Malformed as error:
        raise HttpError(Problem.BAD_REQUEST, f"the body is no push request: {error}") from error
    if outcome.retriable is not None:
        raise try_later(outcome.retriable)
    if outcome.refused:
        # As Loki does it: what is good has been taken, and the error tells of the rest.
        raise HttpError(Problem.BAD_REQUEST, outcome.reason)
    return Response(status_code=204)


async def ready(_: Request) -> Response:
    return PlainTextResponse("ready\n")


ROUTES = [
    Endpoint(
        "POST",
        "/loki/api/v1/push",
        push,
        "Take in log lines that come as they go to Loki.",
        "ingest",
        parameters=TOPIC_PARAMETERS,
        bodies={
            JSON: {
                "type": "object",
                "required": ["streams"],
                "properties": {"streams": {"type": "array", "items": {"type": "object"}}},
            },
            PROTOBUF: {"type": "string", "format": "binary", "description": "A PushRequest, in snappy."},
        },
        answers=refusals({"type": "string"}, ("text/plain",)) | {204: Answer("All lines are durable.")},
        description="When single lines are refused, the others are taken, and the answer is 400 with the reasons.",
    ),
    Endpoint(
        "GET",
        "/loki/ready",
        ready,
        "Answers shippers that ask whether Loki is there.",
        "ingest",
        answers={200: Answer("It is.", {"type": "string"}, ("text/plain",))},
    ),
]
