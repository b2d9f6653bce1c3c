"""Elasticsearch bulk: documents that shippers index become records of the topic with the index's name."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.core.names import is_valid_topic_name
from culver.errors import ErrorCode, KafkaError
from culver.gateway.errors import HttpError, Problem
from culver.gateway.gathering import gathered
from culver.gateway.ingest.delivery import (
    TOPIC_PARAMETERS,
    errors_as,
    named_topic,
    refusals,
    topic_of,
)
from culver.gateway.ingest.events import source_key
from culver.gateway.ingest.lines import NDJSON, every_line
from culver.gateway.private_topics import why_private
from culver.gateway.problems import http_error
from culver.gateway.producing import Outgoing, Sent
from culver.gateway.routing import JSON, Answer, Endpoint, json_response
from culver.gateway.services import services_of

# Elastic's own shippers refuse to talk to a server that does not say this.
PRODUCT = {"x-elastic-product": "Elasticsearch"}
ID_HEADER = "elasticsearch.id"

_ACTIONS = ("index", "create", "update", "delete")
_WITH_SOURCE = ("index", "create", "update")
_DECODER = msgspec.json.Decoder()
_TOO_LARGE = (ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.RECORD_LIST_TOO_LARGE)


class BadBulk(Exception):
    """The body is no sequence of actions and documents."""


@dataclass(frozen=True, slots=True)
class ItemError:
    """Why one item failed, in the words of Elasticsearch."""

    status: int
    type: str
    reason: str


@dataclass(frozen=True, slots=True)
class Item:
    """One action: the record that it becomes, or why there is none."""

    action: str
    index: str
    id: str | None
    record: Outgoing | ItemError


def read_bulk(body: bytes, index: str | None, topic: str | None, default_topic: str) -> Iterator[Item]:
    """The items of a bulk body. Raises BadBulk where it is not even known which line is which.

    `index` is the one of the address, `topic` the one that the request asks for whatever the indices are. Documents
    that name no index at all go to `default_topic`.
    """
    lines = enumerate(every_line(body), 1)
    for number, line in lines:
        if not line.strip():
            continue
        action, about = _action(number, line)
        source = b""
        if action in _WITH_SOURCE:
            number, source = next(lines, (number, b""))
            if not source.strip():
                raise BadBulk(f"the document of the action [{action}] is missing on line [{number}]")
        name = _text(about.get("_index")) or index or default_topic
        document_id = _text(about.get("_id"))
        yield Item(action, name, document_id, _record(action, topic or name, document_id, source.strip()))


def _action(number: int, line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        parsed = _DECODER.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise BadBulk(f"Malformed action/metadata line [{number}]: {error}") from error
    if not isinstance(parsed, dict) or len(parsed) != 1:
        raise BadBulk(f"Malformed action/metadata line [{number}], expected an object with one action")
    action, about = next(iter(parsed.items()))
    if action not in _ACTIONS or not isinstance(about, dict):
        expected = ", ".join(_ACTIONS)
        raise BadBulk(
            f"Malformed action/metadata line [{number}], expected one of [{expected}], found [{action}]"
        )
    return action, about


def _record(action: str, topic: str, document_id: str | None, source: bytes) -> Outgoing | ItemError:
    if action in ("update", "delete"):
        reason = f"[{action}] cannot be done: documents become records of a log, which is only added to"
        return ItemError(400, "illegal_argument_exception", reason)
    if not is_valid_topic_name(topic):
        reason = f"[{topic[:250]}] cannot be the name of a topic: use letters, digits, '.', '_' and '-'"
        return ItemError(400, "invalid_index_name_exception", reason)
    private = why_private(topic)
    if private is not None:
        return ItemError(403, "security_exception", private)
    try:
        document = _DECODER.decode(source)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        return ItemError(400, "document_parsing_exception", f"the document is not JSON: {error}")
    if not isinstance(document, dict):
        return ItemError(400, "document_parsing_exception", "the document is not a JSON object")
    headers = () if document_id is None else ((ID_HEADER, document_id.encode()),)
    return Outgoing(topic, source, document_key(document), headers)


def document_key(document: dict[str, Any]) -> bytes | None:
    """What a document comes from, as shippers say it: service, host and file, or the container."""
    service = _named(document, "service") or _at(document, "container", "id")
    host = _named(document, "host") or _named(document, "agent")
    return source_key(service, host, _at(document, "log", "file", "path"))


def _named(document: dict[str, Any], name: str) -> str | None:
    value = document.get(name)
    if isinstance(value, str):
        return value
    return _at(document, name, "name") or _at(document, name, "hostname")


def _at(document: dict[str, Any], *path: str) -> str | None:
    """The text at a path: nested, as the Elastic Common Schema has it, or as one name with dots."""
    flat = document.get(".".join(path))
    if isinstance(flat, str):
        return flat
    value: Any = document
    for name in path:
        if not isinstance(value, dict):
            return None
        value = value.get(name)
    return value if isinstance(value, str) else None


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, str | int) and value != "" else None


# --- answers ---


def _error_object(error: ItemError) -> dict[str, Any]:
    return {"type": error.type, "reason": error.reason}


def item_error(error: KafkaError) -> ItemError:
    """Shippers send an item again after 429 and 5xx, and give it up after any other error."""
    if error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED:
        return ItemError(429, "es_rejected_execution_exception", str(error))
    if error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
        return ItemError(503, "index_not_found_exception", str(error))
    if error.retriable:
        return ItemError(503, "unavailable_shards_exception", str(error))
    if error.code in _TOO_LARGE:
        return ItemError(413, "document_parsing_exception", str(error))
    return ItemError(http_error(error).status, "illegal_argument_exception", str(error))


def _result(item: Item, sent: Sent | None) -> dict[str, Any]:
    error = item.record if isinstance(item.record, ItemError) else None
    if sent is not None and sent.error is not None:
        error = item_error(sent.error)
    answer: dict[str, Any] = {"_index": item.index, "_id": item.id}
    if error is not None:
        return {item.action: answer | {"status": error.status, "error": _error_object(error)}}
    assert sent is not None
    if item.id is None:
        answer["_id"] = f"{sent.partition}-{sent.offset}"
    answer |= {
        "_version": 1,
        "result": "created",
        "_shards": {"total": 1, "successful": 1, "failed": 0},
        "_seq_no": sent.offset,
        "_primary_term": 1,
        "status": 201,
    }
    return {item.action: answer}


_ERROR_TYPES = {
    400: "parse_exception",
    413: "content_too_long_exception",
    429: "es_rejected_execution_exception",
    503: "cluster_block_exception",
}


def refusal(_: Request, error: HttpError) -> Response:
    """An error of a whole request, as Elasticsearch tells it."""
    kind = _ERROR_TYPES.get(error.status, "illegal_argument_exception")
    described = {"type": kind, "reason": error.message}
    body = {"error": {"root_cause": [described], **described}, "status": error.status}
    return json_response(body, status=error.status, headers={**error.headers, **PRODUCT})


@errors_as(refusal)
async def bulk(request: Request) -> Response:
    began = time.perf_counter()
    services = services_of(request)
    topic = topic_of(request) if named_topic(request) else None
    index = request.path_params.get("index")
    async with services.admission.body(request) as body:
        try:
            items = await gathered(read_bulk(body, index, topic, services.settings.ingest_topic))
        except BadBulk as error:
            raise HttpError(Problem.BAD_REQUEST, str(error)) from error
        if not items:
            raise HttpError(Problem.BAD_REQUEST, "request body is required: no actions were found in it")
        records = [item.record for item in items if isinstance(item.record, Outgoing)]
        sent = iter(await services.producing.send(records, acks="all"))
    results = await gathered(
        _result(item, next(sent) if isinstance(item.record, Outgoing) else None) for item in items
    )
    answer = {
        "took": int((time.perf_counter() - began) * 1000),
        "errors": any("error" in about for result in results for about in result.values()),
        "items": results,
    }
    return json_response(answer, headers=PRODUCT)


ERROR_SCHEMA = {
    "type": "object",
    "required": ["error", "status"],
    "properties": {"error": {"type": "object"}, "status": {"type": "integer"}},
}


def _endpoint(method: str, path: str) -> Endpoint:
    return Endpoint(
        method,
        path,
        bulk,
        "Take in documents that come as they go to Elasticsearch.",
        "ingest",
        parameters=TOPIC_PARAMETERS,
        bodies={
            NDJSON: {"type": "string", "description": "Lines in pairs: an action, and its document."},
            JSON: {"type": "string", "description": "The same; some shippers call it so."},
        },
        answers=refusals(ERROR_SCHEMA)
        | {
            200: Answer(
                "A result for each action, in order. Those with status 201 are durable.",
                {
                    "type": "object",
                    "properties": {
                        "took": {"type": "integer"},
                        "errors": {"type": "boolean"},
                        "items": {"type": "array", "items": {"type": "object"}},
                    },
                },
            )
        },
        description="`index` and `create` write a record; `update` and `delete` are refused, item by item.",
    )


_PATHS = ("/_bulk", "/elastic/_bulk", "/elastic/{index}/_bulk", "/{index}/_bulk")
# Elastic's own clients use PUT, most others POST.
ROUTES = [_endpoint(method, path) for path in _PATHS for method in ("POST", "PUT")]
