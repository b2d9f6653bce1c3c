"""/metrics for Prometheus, /healthz and /readyz for whoever keeps the gateway running."""

from __future__ import annotations

import asyncio

import msgspec
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.requests import Request
from starlette.responses import Response

from culver.errors import KafkaError
from culver.gateway.routing import Answer, Endpoint, json_response
from culver.gateway.services import services_of
from culver.wire_client import Unreachable

_TAG = "server"
_READY_MAX_S = 3.0
_VIEW_MAX_AGE_MS = 5_000


class Health(msgspec.Struct, frozen=True):
    """The process answers."""

    status: str


class Readiness(msgspec.Struct, frozen=True):
    """Whether requests can be served; if not, why."""

    ready: bool
    brokers: int
    reasons: list[str]


async def metrics(request: Request) -> Response:
    text = await services_of(request).metrics.text()
    return Response(text, headers={"content-type": CONTENT_TYPE_PLAIN_0_0_4, "cache-control": "no-store"})


async def healthz(_: Request) -> Response:
    return json_response(Health("ok"))


async def readyz(request: Request) -> Response:
    services = services_of(request)
    reasons = ["the gateway is stopping"] if services.stopping.is_set() else []
    brokers = 0
    try:
        async with asyncio.timeout(_READY_MAX_S):
            brokers = len((await services.cluster.view(max_age_ms=_VIEW_MAX_AGE_MS)).brokers)
    except (Unreachable, KafkaError) as error:
        reasons.append(f"the cluster cannot be reached: {error}")
    except TimeoutError:
        reasons.append(f"the cluster has not answered within {_READY_MAX_S:g} seconds")
    return json_response(Readiness(not reasons, brokers, reasons), status=503 if reasons else 200)


ROUTES = [
    Endpoint(
        "GET",
        "/metrics",
        metrics,
        "Metrics of the cluster, its brokers, groups and this gateway, for Prometheus.",
        _TAG,
        answers={200: Answer("In Prometheus' text format.", {"type": "string"}, ("text/plain",))},
    ),
    Endpoint(
        "GET",
        "/healthz",
        healthz,
        "Whether the gateway lives.",
        _TAG,
        answers={200: Answer("It does.", Health)},
    ),
    Endpoint(
        "GET",
        "/readyz",
        readyz,
        "Whether the gateway can serve: the cluster is within reach.",
        _TAG,
        answers={
            200: Answer("It can.", Readiness),
            503: Answer("It cannot; the reasons say why.", Readiness),
        },
    ),
]
