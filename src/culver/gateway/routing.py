"""How an endpoint is declared: method, path, handler, and what the OpenAPI document says about it.

    ROUTES = [Endpoint("GET", "/brokers", brokers, "The brokers.", "cluster", answers={200: Answer("...", Brokers)})]

A handler is `async def handler(request: Request) -> Response`. It raises HttpError, or lets KafkaError through;
`problems` makes answers of them. Several endpoints may have the same path with different methods.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import Receive, Scope, Send

from culver.gateway.errors import HttpError, Problem

Handler = Callable[[Request], Awaitable[Response]]
# A JSON Schema, or a type of which msgspec makes one.
Schema = Mapping[str, Any] | type

JSON = "application/json"

_encode_json = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Parameter:
    """A part of the path, the query or the headers that the endpoint reads."""

    name: str
    doc: str
    schema: Schema = field(default_factory=lambda: {"type": "string"})
    where: str = "query"  # path, query or header
    required: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """What comes back with one status. Without a schema there is no body worth describing."""

    doc: str
    schema: Schema | None = None
    media_types: tuple[str, ...] = (JSON,)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of one path."""

    method: str
    path: str
    handler: Handler
    summary: str
    tag: str
    # Parts of the path that are not described here are texts.
    parameters: tuple[Parameter, ...] = ()
    # The bodies it takes: media type to schema.
    bodies: Mapping[str, Schema] = field(default_factory=dict)
    answers: Mapping[int, Answer] = field(default_factory=lambda: {200: Answer("Done.")})
    # Statuses of errors to expect; all have the same body.
    errors: tuple[int, ...] = ()
    description: str = ""


def routes(endpoints: Iterable[Endpoint]) -> list[Route]:
    """Starlette's routes for the endpoints, in their order; one for each path, whatever its methods."""
    by_path: dict[str, dict[str, Handler]] = {}
    for endpoint in endpoints:
        handlers = by_path.setdefault(endpoint.path, {})
        assert endpoint.method not in handlers, f"{endpoint.method} {endpoint.path} is declared twice"
        handlers[endpoint.method] = endpoint.handler
    return [_Path(path, _Methods(path, handlers)) for path, handlers in by_path.items()]


class _Path(Route):
    """A path in which a name may have a slash, sent as %2F: groups and transactional ids have any names.

    Servers unescape a path before it gets here, which makes two parts of one. What was sent is matched instead, and
    its parts are unescaped one by one.
    """

    def matches(self, scope: Scope) -> tuple[Match, Scope]:
        sent = scope.get("raw_path") or b""
        if scope["type"] != "http" or b"%2f" not in sent.lower():
            return super().matches(scope)
        match, found = super().matches({**scope, "path": sent.decode("latin-1")})
        if match is not Match.NONE:
            found["path_params"] = {name: unquote(part) for name, part in found["path_params"].items()}
        return match, found


class _Methods:
    """The ASGI application of one path: calls the handler for the request's method. HEAD is GET without its body.

    As an application, not a function, it gets every method, and Starlette looks for raised errors once, not twice.
    """

    def __init__(self, path: str, handlers: dict[str, Handler]) -> None:
        self.path = path  # as it is declared: requests are counted by it
        self._handlers = handlers
        if "GET" in handlers:
            self._handlers = {**handlers, "HEAD": handlers["GET"]}
        self._allowed = ", ".join(sorted(self._handlers))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers.get(scope["method"])
        if handler is None:
            raise HttpError(Problem.METHOD_NOT_ALLOWED, headers={"allow": self._allowed})
        response = await handler(Request(scope, receive, send))
        await response(scope, receive, send)


def json_response(
    value: object, *, status: int = 200, headers: Mapping[str, str] | None = None, media_type: str = JSON
) -> Response:
    """An answer whose body is the value as JSON. Dataclasses and msgspec structs are encoded as objects."""
    return Response(_encode_json(value), status, headers, media_type)
