"""The gateway put together: services, endpoints, WebSockets and what stands in front of them all."""

from __future__ import annotations

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.routing import BaseRoute, WebSocketRoute

from culver.gateway import openapi
from culver.gateway.admission import PlaceCheck
from culver.gateway.console import pages
from culver.gateway.console import routes as console
from culver.gateway.ingest import routes as ingest
from culver.gateway.metrics import routes as metrics
from culver.gateway.metrics.gateway_metrics import RequestCounting
from culver.gateway.problems import EXCEPTION_HANDLERS
from culver.gateway.push import routes as push
from culver.gateway.rest import consumers, metadata, produce
from culver.gateway.routing import Endpoint, routes
from culver.gateway.services import Services
from culver.gateway.webhooks import routes as webhooks

# One line for each part of the gateway. A path that could be taken for another's stands after it.
ENDPOINTS: list[Endpoint] = [
    *produce.ROUTES,
    *console.ROUTES,
    *push.ROUTES,
    *webhooks.ROUTES,
    *metrics.ROUTES,
    *metadata.ROUTES,
    *consumers.ROUTES,
    *ingest.ROUTES,
]
WEBSOCKETS: list[WebSocketRoute] = [
    *push.WEBSOCKETS,
]
# Routes that are no endpoints of the API: files of the console and the like.
PAGES: list[BaseRoute] = [
    *pages.PAGES,
]


def build(services: Services) -> Starlette:
    """The ASGI application. The services are started and closed by whoever runs it."""
    app = Starlette(
        routes=[*routes([*ENDPOINTS, openapi.endpoint(ENDPOINTS)]), *WEBSOCKETS, *PAGES],
        middleware=[
            Middleware(RequestCounting, metrics=services.metrics.gateway),
            Middleware(PlaceCheck, http=services.settings.http),
        ],
        exception_handlers=EXCEPTION_HANDLERS,
    )
    app.state.services = services
    return app
