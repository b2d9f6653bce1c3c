"""/api/topics: the list of topics, page by page, and making a new one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.gateway.cluster.topics import create_topic
from culver.gateway.cluster.view import TopicView
from culver.gateway.console.bodies import SettingName, SettingValue, body_of
from culver.gateway.console.cluster_pages import Health
from culver.gateway.console.parameters import (
    PAGING,
    choice,
    choice_parameter,
    flag,
    matching,
    paging,
    topic_id_text,
    words,
)
from culver.gateway.console.places import is_internal
from culver.gateway.console.topic_figures import TopicFigures
from culver.gateway.routing import JSON, Answer, Endpoint, Parameter, json_response
from culver.gateway.services import Services, services_of

UNDER_REPLICATED, OFFLINE = "under_replicated", "offline"
# What a list is sorted by: from what is in memory, and from figures that the cluster has to be asked for.
_BY_SHAPE: dict[str, Callable[[TopicView], Any]] = {
    "name": lambda topic: topic.name,
    "partitions": lambda topic: len(topic.partitions),
    UNDER_REPLICATED: lambda topic: Health.of(topic.partitions).under_replicated,
}
_BY_FIGURES: dict[str, Callable[[TopicFigures], float]] = {
    "messages": lambda figures: figures.messages or 0,
    "rate": lambda figures: figures.messages_per_s or 0.0,
    "size": lambda figures: figures.bytes or 0,
}
_SORTS = tuple(sign + name for name in (*_BY_SHAPE, *_BY_FIGURES) for sign in ("", "-"))


class TopicItem(msgspec.Struct, frozen=True):
    """One topic in a list. None: not known."""

    name: str
    topic_id: str | None
    internal: bool
    partitions: int
    replicas: int
    under_replicated: int
    offline: int
    messages: int | None
    bytes: int | None
    messages_per_s: float | None


class TopicTotals(msgspec.Struct, frozen=True):
    """Over all topics, whatever was asked for."""

    topics: int
    internal: int
    partitions: int
    under_replicated: int
    offline: int


class TopicsAnswer(msgspec.Struct, frozen=True):
    """A page of topics."""

    total: int
    offset: int
    limit: int
    items: list[TopicItem]
    totals: TopicTotals


class NewTopic(msgspec.Struct, forbid_unknown_fields=True):
    """A topic to be made; what is left out is as the cluster has it by default."""

    name: Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9._-]{1,249}$")]
    partitions: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | None = None
    replicas: Annotated[int, msgspec.Meta(ge=1, le=2**15 - 1)] | None = None
    config: dict[SettingName, SettingValue] = {}
    dry_run: bool = False


class TopicMade(msgspec.Struct, frozen=True):
    """What was made, or would have been. None: the cluster's default."""

    name: str
    partitions: int | None
    replicas: int | None
    dry_run: bool


def replication_factor(topic: TopicView) -> int:
    """How many replicas partitions have: the most that one has."""
    return max((len(partition.replicas) for partition in topic.partitions), default=0)


async def topics(request: Request) -> Response:
    services = services_of(request)
    sort = choice(request, "sort", _SORTS, "name")
    shown_internal = flag(request, "internal")
    health = choice(request, "health", ("", UNDER_REPLICATED, OFFLINE), "")
    offset, limit = paging(request)
    view = await services.cluster.view()
    names = matching(view.topics, words(request, "q"))
    found = [
        topic
        for topic in (view.topics[name] for name in names)
        if (shown_internal or not is_internal(topic)) and _is_wanted(topic, health)
    ]
    found = await _sorted(services, found, sort)
    shown = found[offset : offset + limit]
    figures = await services.console.figures.of(shown) if shown else {}
    everything = Health.of(partition for topic in view.topics.values() for partition in topic.partitions)
    return json_response(
        TopicsAnswer(
            len(found),
            offset,
            limit,
            [_item(topic, figures[topic.name]) for topic in shown],
            TopicTotals(
                topics=len(view.topics),
                internal=sum(is_internal(topic) for topic in view.topics.values()),
                partitions=everything.partitions,
                under_replicated=everything.under_replicated,
                offline=everything.offline,
            ),
        )
    )


def _is_wanted(topic: TopicView, health: str) -> bool:
    return not health or getattr(Health.of(topic.partitions), health) > 0


async def _sorted(services: Services, found: Sequence[TopicView], sort: str) -> list[TopicView]:
    by, is_descending = sort.lstrip("-"), sort.startswith("-")
    if by in _BY_SHAPE:
        return sorted(found, key=_BY_SHAPE[by], reverse=is_descending)
    view = await services.cluster.view()
    figures = await services.console.figures.of_all(list(view.topics.values()))
    key = _BY_FIGURES[by]
    nothing = TopicFigures(None, None, None)
    return sorted(found, key=lambda topic: key(figures.get(topic.name, nothing)), reverse=is_descending)


def _item(topic: TopicView, figures: TopicFigures) -> TopicItem:
    health = Health.of(topic.partitions)
    return TopicItem(
        name=topic.name,
        topic_id=topic_id_text(topic.topic_id),
        internal=is_internal(topic),
        partitions=health.partitions,
        replicas=replication_factor(topic),
        under_replicated=health.under_replicated,
        offline=health.offline,
        messages=figures.messages,
        bytes=figures.bytes,
        messages_per_s=figures.messages_per_s,
    )


async def create(request: Request) -> Response:
    services = services_of(request)
    new = await body_of(request, NewTopic)
    await create_topic(
        services.cluster,
        new.name,
        partitions=-1 if new.partitions is None else new.partitions,
        replication_factor=-1 if new.replicas is None else new.replicas,
        configs={name: setting_text(value) for name, value in new.config.items()},
        validate_only=new.dry_run,
    )
    services.cluster.forget_view()
    return json_response(
        TopicMade(new.name, new.partitions, new.replicas, new.dry_run), status=200 if new.dry_run else 201
    )


def setting_text(value: SettingValue) -> str:
    """A setting's value as the protocol has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


ROUTES = [
    Endpoint(
        "GET",
        "/api/topics",
        topics,
        "A page of the topics.",
        "console",
        parameters=(
            Parameter("q", "Only names with this text in them."),
            *PAGING,
            choice_parameter("sort", "What by; with - downwards.", _SORTS, "name"),
            Parameter(
                "internal", "Whether internal topics are shown.", {"type": "boolean", "default": False}
            ),
            choice_parameter("health", "Only topics with such partitions.", (UNDER_REPLICATED, OFFLINE)),
        ),
        answers={200: Answer("The topics.", TopicsAnswer)},
        errors=(422, 503),
        description="Figures are asked for those topics alone that the page shows. Sorted by messages, rate or "
        "size, the order is from figures that may be ten seconds old.",
    ),
    Endpoint(
        "POST",
        "/api/topics",
        create,
        "Make a topic.",
        "console",
        bodies={JSON: NewTopic},
        answers={201: Answer("Made.", TopicMade), 200: Answer("It could be made (dry_run).", TopicMade)},
        errors=(403, 409, 413, 422, 503),
    ),
]
