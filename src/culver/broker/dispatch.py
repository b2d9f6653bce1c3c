"""From the bytes of one request to the handler of its API and version, and back to bytes."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from culver.broker.connection import Connection
from culver.broker.exchange import Exchange
from culver.broker.handlers import api_versions, groups, transactions
from culver.broker.request_statistics import ApiStatistics, CountErrors, error_counter
from culver.errors import MalformedRequest
from culver.protocol.apis import API_VERSIONS_KEY, APIS, PRIVATE_APIS, Api
from culver.protocol.framing import frame_response, parse_request_header
from culver.protocol.schema import decoder, encoder

if TYPE_CHECKING:
    from culver.broker.node import Node

Handler: TypeAlias = Callable[["Node", Exchange, Any], Any]


class Route:
    """How requests of one API in one version are read, handled and answered."""

    __slots__ = ("api", "decode", "encode", "handler", "header_version", "statistics")

    def __init__(self, api: Api, version: int, handler: Handler, statistics: ApiStatistics) -> None:
        self.api = api
        self.handler = handler
        self.statistics = statistics
        self.decode = decoder(api.request, version)
        self.encode = encoder(api.response, version)
        self.header_version = api.response_header_version(version)

    def encode_response(self, correlation_id: int, response: Any) -> list[Any]:
        """The response's buffers, with its size and correlation id in front."""
        return frame_response(correlation_id, self.header_version, self.encode(response))


class ErrorCountingRoute(Route):
    """One whose responses are looked through for errors."""

    __slots__ = ("_count_errors",)

    def __init__(self, *what: Any, count_errors: CountErrors) -> None:
        super().__init__(*what)
        self._count_errors = count_errors

    def encode_response(self, correlation_id: int, response: Any) -> list[Any]:
        self._count_errors(response)
        return super().encode_response(correlation_id, response)


class Dispatcher:
    """The table of routes, filled as versions are first used."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.statistics: dict[str, ApiStatistics] = {}  # by the API's name
        self._routes: dict[tuple[int, int], Route] = {}

    def served_apis(self) -> list[Api]:
        """Those that clients are told of."""
        return list(APIS.values())

    def handle(self, connection: Connection, view: memoryview, start: int, stop: int) -> tuple[Exchange, Any]:
        """Run one request. Hot: every request of every client passes here."""
        frame = view[start:stop]
        key, version, correlation_id, client_id, position = parse_request_header(frame, 0)
        route = self._routes.get((key, version))
        if route is None:
            route, fallback = self._find(key, version)
            if fallback is not None:
                return Exchange(connection, route, 0, correlation_id, client_id), fallback
        # Bytes left over behind a request are ignored, as Kafka does: librdkafka 2.16 asks for all topics
        # (Metadata 13) with three bytes too many.
        request, _ = route.decode(frame, position)
        exchange = Exchange(connection, route, version, correlation_id, client_id)
        return exchange, route.handler(self._node, exchange, request)

    def _find(self, key: int, version: int) -> tuple[Route, Any]:
        api = APIS.get(key) or PRIVATE_APIS.get(key)
        if api is None:
            raise MalformedRequest(f"API {key} is not served")
        if not api.min_version <= version <= api.max_version or not api.decodable(version):
            if key == API_VERSIONS_KEY:
                # Whatever a newer client asks with, it understands an answer in format 0 (KIP-511).
                return self._route(api, 0, api_versions.handle), api_versions.unsupported(self._node)
            raise MalformedRequest(f"{api.name} version {version} is not served")
        route = self._routes[key, version] = self._route(api, version, _handler_of(api))
        return route, None

    def _route(self, api: Api, version: int, handler: Handler) -> Route:
        statistics = self.statistics.setdefault(api.name, ApiStatistics())
        count_errors = error_counter(api.response, statistics)
        if count_errors is None:
            return Route(api, version, handler, statistics)
        return ErrorCountingRoute(api, version, handler, statistics, count_errors=count_errors)


def _handler_of(api: Api) -> Handler:
    name = api.request.__module__.rpartition(".")[2]  # a handler's module is named as its messages' is
    if name in groups.APIS:
        return groups.handler(name)
    if name in transactions.APIS:
        return transactions.handler(name)
    handler: Handler = importlib.import_module(f"culver.broker.handlers.{name}").handle
    return handler
