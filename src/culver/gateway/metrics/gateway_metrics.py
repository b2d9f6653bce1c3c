"""What the gateway counts of itself: its requests by route and status, its push subscribers, its webhooks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from starlette.types import ASGIApp, Message, Receive, Scope, Send

# Requests that no route takes have no name of their own: anybody could make up any number of paths. Nor have the files
# of the console.
_NO_ROUTE = "none"
_PAGES = "pages"
_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
_BOUNDS_S = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)

# What is read of other parts when the metrics are: a gauge's name and help, and where its value comes from.
Gauges = Mapping[str, tuple[str, Callable[[], float]]]
# Of each webhook by name: records delivered, calls that failed, dead letters.
WebhookCounts = Callable[[], Mapping[str, tuple[int, int, int]]]


class GatewayMetrics:
    """A registry of prometheus_client's own, that nothing else writes to."""

    def __init__(self, gauges: Gauges, webhooks: WebhookCounts) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "culver_http_requests",
            "Requests that have been answered.",
            ("route", "method", "status"),
            registry=self._registry,
        )
        self._durations = Histogram(
            "culver_http_request_duration_seconds",
            "From the beginning of a request to the beginning of its answer.",
            ("route", "method"),
            buckets=_BOUNDS_S,
            registry=self._registry,
        )
        self._registry.register(_Parts(gauges, webhooks))
        ProcessCollector(registry=self._registry)
        # The children of metrics by their labels: looking them up is most of what counting costs.
        self._children: dict[tuple[str, str, int], tuple[Any, Any]] = {}

    def text(self) -> str:
        return generate_latest(self._registry).decode()

    def count(self, route: str, method: str, status: int, took_s: float) -> None:
        children = self._children.get((route, method, status))
        if children is None:
            children = self._children[route, method, status] = (
                self._requests.labels(route, method, str(status)),
                self._durations.labels(route, method),
            )
        children[0].inc()
        children[1].observe(took_s)


class _Parts(Collector):
    """Reads what other parts of the gateway know when it is asked."""

    def __init__(self, gauges: Gauges, webhooks: WebhookCounts) -> None:
        self._gauges = gauges
        self._webhooks = webhooks

    def collect(self) -> Iterator[Metric]:
        for name, (text, value) in self._gauges.items():
            yield GaugeMetricFamily(name, text, value())
        delivered = CounterMetricFamily(
            "culver_webhook_records_delivered", "Records that the receiver took.", labels=["webhook"]
        )
        failed = CounterMetricFamily(
            "culver_webhook_calls_failed", "Calls that the receiver did not take.", labels=["webhook"]
        )
        dead = CounterMetricFamily(
            "culver_webhook_dead_letters", "Records that were given up.", labels=["webhook"]
        )
        for name, counts in self._webhooks().items():
            for family, count in zip((delivered, failed, dead), counts, strict=True):
                family.add_metric([name], count)
        yield from (delivered, failed, dead)


class RequestCounting:
    """ASGI middleware: counts every HTTP request by the path that its endpoint declares, never by what was asked for.

    Streams are counted when they begin.
    """

    def __init__(self, app: ASGIApp, *, metrics: GatewayMetrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                endpoint = scope.get("endpoint")
                route = _NO_ROUTE if endpoint is None else getattr(endpoint, "path", _PAGES)
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self._metrics.count(route, method, message["status"], time.perf_counter() - began_s)
            await send(message)

        await self._app(scope, receive, counted)
