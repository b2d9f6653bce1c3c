"""/api/events, /api/throughput and /api/pipelines: what happens in the cluster, now and lately."""

from __future__ import annotations

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.gateway.console.pipeline_reports import SILENT_AFTER_MS, PipelineItem
from culver.gateway.routing import Answer, Endpoint, Parameter, json_response
from culver.gateway.services import services_of
from culver.pipelines.progress_report import PIPELINES_TOPIC


class PipelinesAnswer(msgspec.Struct, frozen=True):
    """All pipelines, by name."""

    items: list[PipelineItem]
    topic: str
    silent_after_ms: int


class PipelineForgotten(msgspec.Struct, frozen=True):
    """A pipeline that is shown no more."""

    name: str
    forgotten: bool


async def pipelines(request: Request) -> Response:
    items = await services_of(request).console.pipelines.items()
    return json_response(PipelinesAnswer(items, PIPELINES_TOPIC, SILENT_AFTER_MS))


async def forget_pipeline(request: Request) -> Response:
    name = request.path_params["name"]
    await services_of(request).console.pipelines.forget(name)
    return json_response(PipelineForgotten(name, True))


ROUTES = [
    Endpoint(
        "GET",
        "/api/pipelines",
        pipelines,
        "The pipelines: how far they are, how quickly they go, and their recent past.",
        "console",
        answers={200: Answer("The pipelines.", PipelinesAnswer)},
        errors=(503,),
    ),
    Endpoint(
        "DELETE",
        "/api/pipelines/{name}",
        forget_pipeline,
        "Show a pipeline no more that has ended.",
        "console",
        parameters=(Parameter("name", "The name of a pipeline.", where="path", required=True),),
        answers={200: Answer("Forgotten.", PipelineForgotten)},
        errors=(403, 404, 409, 429, 503),
    ),
]
