"""POST /topics/{topic}: records written as Kafka's REST proxy does it (version 2), and plain bodies.

The answer comes when every record is acknowledged as asked, or has failed. For the two media types of the REST proxy
the status is 200 though records may have failed, each with its own error_code, as its clients expect; it is another
one only if all failed for a reason that concerns the whole request. For plain bodies, whose senders look at the status
and no further, it is 200 only if all records are written; otherwise it is that of the first error, and the body tells
what became of each record.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.core.names import validate_topic_name
from culver.errors import KafkaError
from culver.gateway.errors import HttpError, Problem
from culver.gateway.gathering import gathered
from culver.gateway.private_topics import refuse_private
from culver.gateway.problems import http_error, problem_of
from culver.gateway.producing import ACKS, NO_OFFSET, Outgoing, Sent, UnknownPartition
from culver.gateway.rest.record_bodies import (
    BINARY_V2,
    BYTES,
    JSON,
    JSON_LINES,
    JSON_V2,
    READERS,
    TEXT,
    BinaryRecords,
    Defaults,
    PartitionNumber,
    read_records,
    unsupported,
)
from culver.gateway.routing import Answer, Endpoint, Parameter, Schema, json_response
from culver.gateway.services import services_of

V2 = "application/vnd.kafka.v2+json"

_REST_PROXY_TYPES = frozenset({JSON_V2, BINARY_V2})
# Reasons that concern a whole request of the REST proxy, if they concern all its records.
_WHOLE_REQUEST = frozenset(
    {
        Problem.TOPIC_NOT_FOUND,
        Problem.PARTITION_NOT_FOUND,
        Problem.NOT_ALLOWED_BY_CLUSTER,
        Problem.INVALID_VALUE,
    }
)
_PARTITION_MAX = 2**31 - 1
_TRUE = frozenset({"", "true", "1"})
_FALSE = frozenset({"false", "0"})


class WrittenRecord(msgspec.Struct, frozen=True, gc=False):
    """What became of one record. Without acknowledgement (acks 0) nobody knows its offset."""

    partition: int | None
    offset: int | None
    error_code: int | None = None
    error: str | None = None


class Produced(msgspec.Struct, frozen=True):
    """The answer: records in the order of the request. There are no schemas, so their ids are null."""

    offsets: list[WrittenRecord]
    key_schema_id: None = None
    value_schema_id: None = None


class ProducedInPart(msgspec.Struct, frozen=True):
    """The answer to a plain body of which a record failed: the first error, and what became of each record."""

    error_code: int
    message: str
    offsets: list[WrittenRecord]


async def produce_to_topic(request: Request) -> Response:
    return await _produce(request, None)


async def produce_to_partition(request: Request) -> Response:
    text = request.path_params["partition"]
    return await _produce(request, _partition(text))


async def _produce(request: Request, partition: int | None) -> Response:
    services = services_of(request)
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in READERS:
        raise unsupported(media_type)
    defaults, acks = _wishes(request, partition)
    async with services.admission.body(request) as body:
        records = await read_records(media_type, body, defaults)
        results = await services.producing.send(records, acks=acks)
    return await _answer(records, results, rest_proxy=media_type in _REST_PROXY_TYPES)


def _wishes(request: Request, partition: int | None) -> tuple[Defaults, str]:
    """What path and query ask for: topic, key, partition, and the acknowledgement."""
    topic = request.path_params["topic"]
    validate_topic_name(topic)
    refuse_private(topic)
    if not request.scope["query_string"]:
        return Defaults(topic) if partition is None else Defaults(topic, partition=partition), "all"
    query = request.query_params
    acks = query.get("acks", "all")
    if acks not in ACKS:
        raise HttpError(Problem.INVALID_VALUE, f"acks is {acks!r}; it must be one of {', '.join(ACKS)}")
    asked = query.get("partition")
    if asked is not None:
        if partition is not None:
            raise HttpError(Problem.INVALID_VALUE, "the path names a partition already")
        partition = _partition(asked)
    key = query.get("key")
    defaults = Defaults(
        topic, None if key is None else key.encode(), array_of_records=_flag(query.get("records", "false"))
    )
    return defaults if partition is None else msgspec.structs.replace(defaults, partition=partition), acks


def _flag(text: str) -> bool:
    if text not in _TRUE and text not in _FALSE:
        raise HttpError(Problem.INVALID_VALUE, f"records is {text!r}; it must be true or false")
    return text in _TRUE


def _partition(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise HttpError(Problem.INVALID_VALUE, f"partition {text[:20]!r} is not a number")
    if len(text) > 10 or int(text) > _PARTITION_MAX:
        raise HttpError(Problem.PARTITION_NOT_FOUND)
    return int(text)


# --- answers ---


async def _answer(records: Sequence[Outgoing], results: Sequence[Sent], *, rest_proxy: bool) -> Response:
    """What became of the records, told as the clients of this media type expect it; see above."""
    errors = [
        _told(record, sent.error)
        for record, sent in zip(records, results, strict=True)
        if sent.error is not None
    ]
    if rest_proxy and len(errors) == len(results) and errors[0].problem in _WHOLE_REQUEST:
        raise errors[0]
    offsets = await gathered(_written(sent, rest_proxy) for sent in results)
    if rest_proxy:
        return json_response(Produced(offsets), media_type=V2)
    if not errors:
        return json_response(Produced(offsets))
    first = errors[0]
    answer = ProducedInPart(int(first.problem), first.message, offsets)
    return json_response(answer, status=first.status, headers=first.headers)


def _told(record: Outgoing, error: KafkaError) -> HttpError:
    """The error for an HTTP client."""
    if isinstance(error, UnknownPartition):
        message = f"topic {record.topic} has no partition {record.partition}"
        return HttpError(Problem.PARTITION_NOT_FOUND, message)
    return http_error(error)


def _written(sent: Sent, rest_proxy: bool) -> WrittenRecord:
    if sent.error is None:
        return WrittenRecord(sent.partition, None if sent.offset == NO_OFFSET else sent.offset)
    return WrittenRecord(None, None, int(_problem(sent.error, rest_proxy)), str(sent.error))


def _problem(error: KafkaError, rest_proxy: bool) -> Problem:
    """The number beside one record. The REST proxy has two: whether or not the same may succeed later."""
    if rest_proxy:
        return Problem.CLUSTER_FAILED_FOR_NOW if error.retriable else Problem.CLUSTER_FAILED
    return Problem.PARTITION_NOT_FOUND if isinstance(error, UnknownPartition) else problem_of(error)


# --- what the OpenAPI document says ---

# The value is any JSON, which no Python type says as well.
_JSON_RECORDS_SCHEMA = {
    "type": "object",
    "required": ["records"],
    "properties": {
        "records": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["value"],
                "properties": {
                    "value": {"description": "Any JSON; null for a record without a value."},
                    "key": {"description": "Any JSON; null for a record without a key."},
                    "partition": {"type": ["integer", "null"], "minimum": 0, "maximum": _PARTITION_MAX},
                    "timestamp": {
                        "type": ["integer", "null"],
                        "minimum": 0,
                        "description": "Milliseconds since 1970.",
                    },
                    "headers": {
                        "type": "array",
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {
                                "name": {"type": "string"},
                                "value": {"type": ["string", "null"]},
                            },
                        },
                    },
                },
            },
        }
    },
}
_BODIES: dict[str, Schema] = {
    JSON_V2: _JSON_RECORDS_SCHEMA,
    BINARY_V2: BinaryRecords,
    JSON: {"description": "One record; with ?records an array of them."},
    JSON_LINES: {"type": "string", "description": "One JSON value in each line, one record each."},
    TEXT: {"type": "string", "description": "One record for each line."},
    BYTES: {"type": "string", "format": "binary", "description": "One record."},
}
_QUERY = (
    Parameter("key", "The key of all records that have none of their own."),
    Parameter(
        "acks",
        "Who must have a record before it counts as written: all in-sync replicas, the leader, or nobody.",
        {"type": "string", "enum": list(ACKS), "default": "all"},
    ),
    Parameter(
        "records",
        "For application/json: the body is an array, and each element is a record.",
        {"type": "boolean", "default": False},
    ),
)
_ANSWERS = {
    200: Answer(
        "What became of each record. For the REST proxy's media types, records may have failed.",
        Produced,
        (JSON, V2),
    ),
}
_ERRORS = (400, 404, 408, 413, 415, 422, 429, 500, 503, 504)
_TOPIC = Parameter(
    "topic",
    "The topic. It is created if the cluster creates topics by itself.",
    {"type": "string", "pattern": "^[a-zA-Z0-9._-]+$", "maxLength": 249},
    "path",
    required=True,
)

ROUTES = [
    Endpoint(
        "POST",
        "/topics/{topic}",
        produce_to_topic,
        "Write records to a topic.",
        "produce",
        parameters=(
            _TOPIC,
            *_QUERY,
            Parameter("partition", "The partition of all records that name none.", PartitionNumber),
        ),
        bodies=_BODIES,
        answers=_ANSWERS,
        errors=_ERRORS,
    ),
    Endpoint(
        "POST",
        "/topics/{topic}/partitions/{partition}",
        produce_to_partition,
        "Write records to one partition of a topic.",
        "produce",
        parameters=(
            _TOPIC,
            Parameter("partition", "The partition.", PartitionNumber, "path", required=True),
            *_QUERY,
        ),
        bodies=_BODIES,
        answers=_ANSWERS,
        errors=_ERRORS,
    ),
]
