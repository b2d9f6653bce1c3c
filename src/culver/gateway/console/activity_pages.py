"""/api/events, /api/throughput and /api/pipelines: what happens in the cluster, now and lately."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.errors import KafkaError
from culver.gateway.console.live import (
    EVENT_STREAM,
    KEEP_ALIVE,
    KEEP_ALIVE_S,
    LiveResponse,
    check_room,
    sent_event,
)
from culver.gateway.console.parameters import number, number_parameter, whole_number
from culver.gateway.console.pipeline_reports import SILENT_AFTER_MS, PipelineItem
from culver.gateway.console.topic_rates import INTERVAL_S as RATES_INTERVAL_S
from culver.gateway.metrics.broker_reports import INTERVAL_S
from culver.gateway.metrics.events import Event
from culver.gateway.routing import Answer, Endpoint, Parameter, json_response
from culver.gateway.services import Services, services_of
from culver.pipelines.progress_report import PIPELINES_TOPIC
from culver.wire_client import Unreachable

_EVENTS_DEFAULT, _EVENTS_MAX = 200, 1000
_SECONDS_DEFAULT, _SECONDS_MAX = 300, 900
_BUSIEST = 10


class EventItem(msgspec.Struct, frozen=True):
    """One event. Ids only grow, also from one gateway to the next that is started in its place."""

    id: int
    at_ms: int
    kind: str
    text: str
    topic: str | None
    partition: int | None
    broker: int | None


class EventsAnswer(msgspec.Struct, frozen=True):
    """Events, oldest first, and the id to go on after."""

    items: list[EventItem]
    last_id: int


class ThroughputPoint(msgspec.Struct, frozen=True):
    """What went through in a second. Bytes are None in front of brokers that do not tell."""

    at_ms: int
    messages_per_s: float
    bytes_in_per_s: float | None
    bytes_out_per_s: float | None


class ThroughputAnswer(msgspec.Struct, frozen=True):
    """The last seconds, oldest first, and the busiest topics at the moment with their messages per second."""

    interval_ms: int
    items: list[ThroughputPoint]
    topics: dict[str, float]


class PipelinesAnswer(msgspec.Struct, frozen=True):
    """All pipelines, by name."""

    items: list[PipelineItem]
    topic: str
    silent_after_ms: int


class PipelineForgotten(msgspec.Struct, frozen=True):
    """A pipeline that is shown no more."""

    name: str
    forgotten: bool


# --- events ---


def _item(event: Event) -> EventItem:
    return EventItem(
        event.number, event.at_ms, event.kind, event.text, event.topic, event.partition, event.broker
    )


async def events(request: Request) -> Response:
    services = services_of(request)
    after = number(request, "after", 0)
    limit = number(request, "limit", _EVENTS_DEFAULT, least=1, most=_EVENTS_MAX)
    items = [_item(event) for event in services.events.recent(after, limit)]
    return json_response(EventsAnswer(items, services.events.last_number))


async def live_events(request: Request) -> Response:
    services = services_of(request)
    check_room(services.console)
    last = request.headers.get("last-event-id", "")
    after = whole_number(last, "Last-Event-ID") if last else number(request, "after", 0)
    return LiveResponse(services, _live(services, after), EVENT_STREAM)


async def _live(services: Services, after: int) -> AsyncGenerator[bytes, None]:
    yield KEEP_ALIVE  # the browser learns that it is connected
    while True:
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                await services.events.wait(after)
        except TimeoutError:
            yield KEEP_ALIVE
            continue
        items = [_item(event) for event in services.events.recent(after, _EVENTS_MAX)]
        after = services.events.last_number
        if items:
            yield b"".join(sent_event("event", item, item.id) for item in items)


# --- throughput ---


async def throughput(request: Request) -> Response:
    services = services_of(request)
    seconds = number(request, "seconds", _SECONDS_DEFAULT, least=1, most=_SECONDS_MAX)
    try:
        topics = await services.console.rates.busiest(_BUSIEST)
    except (KafkaError, Unreachable):
        topics = {}  # what is known of the past is worth showing all the same
    told = services.throughput.series()
    if told:
        interval_s = INTERVAL_S
        points = [ThroughputPoint(*point) for point in told]
    else:
        interval_s = RATES_INTERVAL_S
        points = [ThroughputPoint(*point, None, None) for point in services.console.rates.series()]
    since_ms = points[-1].at_ms - seconds * 1000 if points else 0
    shown = [point for point in points if point.at_ms > since_ms]
    return json_response(ThroughputAnswer(round(interval_s * 1000), shown, topics))


# --- pipelines ---


async def pipelines(request: Request) -> Response:
    items = await services_of(request).console.pipelines.items()
    return json_response(PipelinesAnswer(items, PIPELINES_TOPIC, SILENT_AFTER_MS))


async def forget_pipeline(request: Request) -> Response:
    name = request.path_params["name"]
    await services_of(request).console.pipelines.forget(name)
    return json_response(PipelineForgotten(name, True))


_AFTER = number_parameter("after", "Only events with a larger id.")

ROUTES = [
    Endpoint(
        "GET",
        "/api/events",
        events,
        "What happened in the cluster lately: elections, ISR changes, brokers and topics that come and go.",
        "console",
        parameters=(
            _AFTER,
            number_parameter(
                "limit", "How many at most, the newest.", _EVENTS_DEFAULT, least=1, most=_EVENTS_MAX
            ),
        ),
        answers={200: Answer("The events.", EventsAnswer)},
        errors=(422,),
        description="Brokers of other makes do not tell: in front of them there are none.",
    ),
    Endpoint(
        "GET",
        "/api/events/live",
        live_events,
        "Events as they happen, as server-sent events.",
        "console",
        parameters=(_AFTER, Parameter("Last-Event-ID", "The last that was received.", where="header")),
        answers={200: Answer("Events of the kind `event`.", EventItem, (EVENT_STREAM,))},
        errors=(422, 429),
    ),
    Endpoint(
        "GET",
        "/api/throughput",
        throughput,
        "How much goes through the cluster, second by second, and the busiest topics.",
        "console",
        parameters=(
            number_parameter("seconds", "How far back.", _SECONDS_DEFAULT, least=1, most=_SECONDS_MAX),
        ),
        answers={200: Answer("The last seconds.", ThroughputAnswer)},
        errors=(422,),
        description="In front of brokers of other makes messages are counted, every two seconds while somebody "
        "looks; bytes are not known.",
    ),
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
