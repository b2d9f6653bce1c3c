"""What shippers ask an Elasticsearch server before they send to it: who it is, its licence, templates and policies.

Culver keeps no templates, policies or aliases, since a log needs none. It says that they are there, so that shippers do
not try to make them, and takes note of none that they send.
"""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from culver.gateway.ingest.delivery import errors_as
from culver.gateway.ingest.elasticsearch import ERROR_SCHEMA, PRODUCT, refusal
from culver.gateway.routing import Answer, Endpoint, Handler, json_response
from culver.gateway.services import services_of

# Of a version that shippers from 7 to 9 talk to. Nothing but the bulk API stands behind it.
VERSION = "8.19.0"
_UUID = "culver"


async def _cluster_id(request: Request) -> str:
    return (await services_of(request).cluster.view(max_age_ms=60_000)).cluster_id or _UUID


@errors_as(refusal)
async def root(request: Request) -> Response:
    return json_response(
        {
            "name": "culver",
            "cluster_name": "culver",
            "cluster_uuid": await _cluster_id(request),
            "version": {
                "number": VERSION,
                "build_flavor": "default",
                "build_type": "culver",
                "build_hash": "culver",
                "build_date": "2026-01-01T00:00:00.000Z",
                "build_snapshot": False,
                "lucene_version": "9.12.2",
                "minimum_wire_compatibility_version": "7.17.0",
                "minimum_index_compatibility_version": "7.0.0",
            },
            "tagline": "You Know, for Search",
        },
        headers=PRODUCT,
    )


_LICENSE = {
    "status": "active",
    "uid": _UUID,
    "type": "basic",
    "issue_date": "2026-01-01T00:00:00.000Z",
    "issue_date_in_millis": 1_767_225_600_000,
    "max_nodes": 1000,
    "issued_to": "culver",
    "issuer": "culver",
    "start_date_in_millis": -1,
}


def _always(answer: object) -> Handler:
    async def handler(_: Request) -> Response:
        return json_response(answer, headers=PRODUCT)

    return handler


async def policy(request: Request) -> Response:
    name = request.path_params["name"]
    return json_response({name: {"version": 1, "policy": {"phases": {}}}}, headers=PRODUCT)


async def data_stream(request: Request) -> Response:
    name = request.path_params["name"]
    return json_response({"data_streams": [{"name": name, "status": "GREEN"}]}, headers=PRODUCT)


async def template(request: Request) -> Response:
    name = request.path_params["name"]
    described = {"name": name, "index_template": {"index_patterns": [f"{name}*"], "composed_of": []}}
    return json_response({"index_templates": [described]}, headers=PRODUCT)


@errors_as(refusal)
async def health(request: Request) -> Response:
    view = await services_of(request).cluster.view()
    answer = {
        "cluster_name": "culver",
        "status": "green",
        "timed_out": False,
        "number_of_nodes": len(view.brokers),
        "number_of_data_nodes": len(view.brokers),
    }
    return json_response(answer, headers=PRODUCT)


@errors_as(refusal)
async def health_line(request: Request) -> Response:
    """What rsyslog asks, and people with curl."""
    nodes = len((await services_of(request).cluster.view()).brokers)
    return PlainTextResponse(f"culver green {nodes} {nodes}\n", headers=PRODUCT)


_FEATURES = {
    "ilm": {"available": False, "enabled": False},
    "security": {"available": False, "enabled": False},
}
_acknowledged = _always({"acknowledged": True})


def _probe(method: str, path: str, handler: Handler, summary: str) -> Endpoint:
    answers = {
        200: Answer("What shippers want to hear.", {"type": "object"}),
        503: Answer("The cluster cannot be reached.", ERROR_SCHEMA),
    }
    return Endpoint(method, f"/elastic{path}", handler, summary, "ingest", answers=answers)


def _kept_nowhere(path: str, handler: Handler, what: str) -> list[Endpoint]:
    return [
        _probe("GET", path, handler, f"Says that {what} is there."),
        _probe("PUT", path, _acknowledged, f"Accepts {what}, without any effect."),
    ]


ROUTES = [
    _probe("GET", "", root, "Says that an Elasticsearch is here, for shippers."),
    _probe("GET", "/", root, "Says that an Elasticsearch is here, for shippers."),
    _probe("GET", "/_license", _always({"license": _LICENSE}), "A basic licence, which shippers ask for."),
    _probe(
        "GET",
        "/_xpack",
        _always({"license": _LICENSE, "features": _FEATURES, "tagline": "You know, for X"}),
        "The features that shippers ask for: none.",
    ),
    _probe("GET", "/_cluster/health", health, "Whether the cluster can be reached."),
    Endpoint(
        "GET",
        "/elastic/_cat/health",
        health_line,
        "Whether the cluster can be reached, in one line.",
        "ingest",
        answers={
            200: Answer("It can.", {"type": "string"}, ("text/plain",)),
            503: Answer("It cannot.", ERROR_SCHEMA),
        },
    ),
    *_kept_nowhere("/_index_template/{name}", template, "an index template"),
    *_kept_nowhere("/_template/{name}", template, "an index template of the older kind"),
    *_kept_nowhere("/_component_template/{name}", template, "a component template"),
    *_kept_nowhere("/_ilm/policy/{name}", policy, "a policy"),
    *_kept_nowhere("/_data_stream/{name}", data_stream, "a data stream"),
]
