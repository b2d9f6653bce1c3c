"""The OpenAPI 3.1 document, made of the declared endpoints; GET /openapi.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

import culver
from culver.gateway.problems import ErrorAnswer
from culver.gateway.routing import JSON, Answer, Endpoint, Parameter, Schema, json_response

_DESCRIPTION = """\
HTTP in front of a cluster that speaks the Kafka protocol. Producing and consuming follow the conventions of Kafka's
REST proxy, version 2. Every error has the same body: a number that begins with the status, and a sentence."""

_STATUS_TEXTS = {
    400: "The request cannot be understood.",
    403: "The request comes from a place that may not make it, or the cluster does not allow it.",
    404: "There is no such thing.",
    406: "None of the accepted media types can be given.",
    408: "The body took too long to arrive.",
    409: "The request does not fit the state of things.",
    413: "The body, or a record in it, is too large.",
    415: "The media type or the Content-Encoding is not served here.",
    422: "The body or a parameter cannot be used; the message says why.",
    429: "Too much is under way; Retry-After says when to try again.",
    500: "The gateway or the cluster failed.",
    501: "The cluster does not serve the requests that this needs.",
    503: "The cluster cannot be reached.",
    504: "The cluster did not answer in time.",
}
_PATH_PARAMETER = re.compile(r"\{(\w+)(:\w+)?\}")
_REFERENCE = "#/components/schemas/{name}"


def endpoint(others: Sequence[Endpoint]) -> Endpoint:
    """GET /openapi.json, which describes the others and itself."""
    made: list[dict[str, Any]] = []

    async def document_of_all(_: Request) -> Response:
        if not made:
            made.append(document([*others, itself]))
        return json_response(made[0])

    itself = Endpoint(
        "GET",
        "/openapi.json",
        document_of_all,
        "This document.",
        "server",
        answers={200: Answer("The OpenAPI document of this server.", {"type": "object"})},
    )
    return itself


def document(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The whole document."""
    types = list(dict.fromkeys(_types(endpoints)))
    schemas, components = msgspec.json.schema_components(types, ref_template=_REFERENCE)
    by_type = dict(zip(types, schemas, strict=True))

    def schema_of(schema: Schema) -> Mapping[str, Any]:
        return schema if isinstance(schema, Mapping) else by_type[schema]

    paths: dict[str, dict[str, Any]] = {}
    for each in endpoints:
        path = _PATH_PARAMETER.sub(r"{\1}", each.path)
        paths.setdefault(path, {})[each.method.lower()] = _operation(each, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Culver", "version": culver.__version__, "description": _DESCRIPTION},
        "paths": paths,
        "components": {"schemas": components},
    }


def _types(endpoints: Iterable[Endpoint]) -> Iterable[type]:
    yield ErrorAnswer
    for each in endpoints:
        for schema in (
            *(parameter.schema for parameter in each.parameters),
            *each.bodies.values(),
            *(answer.schema for answer in each.answers.values()),
        ):
            if schema is not None and not isinstance(schema, Mapping):
                yield schema


def _name_of(each: Endpoint) -> str:
    """get_topics_topic for GET /topics/{topic}: what generators of clients call their functions."""
    path = _PATH_PARAMETER.sub(r"\1", each.path)
    return re.sub(r"\W+", "_", f"{each.method.lower()}{path}")


def _operation(each: Endpoint, schema_of: Callable[[Schema], Mapping[str, Any]]) -> dict[str, Any]:
    described = {parameter.name for parameter in each.parameters if parameter.where == "path"}
    parameters = [
        Parameter(name, f"The {name}.", where="path", required=True)
        for name, _ in _PATH_PARAMETER.findall(each.path)
        if name not in described
    ]
    operation: dict[str, Any] = {
        "operationId": _name_of(each),
        "summary": each.summary,
        "tags": [each.tag],
        "parameters": [
            {
                "name": parameter.name,
                "in": parameter.where,
                "description": parameter.doc,
                "required": parameter.required or parameter.where == "path",
                "schema": schema_of(parameter.schema),
            }
            for parameter in (*parameters, *each.parameters)
        ],
        "responses": _responses(each, schema_of),
    }
    if each.description:
        operation["description"] = each.description
    if each.bodies:
        content = {media_type: {"schema": schema_of(schema)} for media_type, schema in each.bodies.items()}
        operation["requestBody"] = {"required": True, "content": content}
    return operation


def _responses(each: Endpoint, schema_of: Callable[[Schema], Mapping[str, Any]]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, answer in each.answers.items():
        response: dict[str, Any] = {"description": answer.doc}
        if answer.schema is not None:
            schema = schema_of(answer.schema)
            response["content"] = {media_type: {"schema": schema} for media_type in answer.media_types}
        responses[str(status)] = response
    error = {JSON: {"schema": schema_of(ErrorAnswer)}}
    for status in each.errors:
        responses.setdefault(str(status), {"description": _STATUS_TEXTS[status], "content": error})
    responses["default"] = {"description": "Any other error.", "content": error}
    return responses
