"""/api/topics/{topic}: one topic, its partitions and settings, and changes to them."""

from __future__ import annotations

import asyncio
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.errors import KafkaError
from culver.gateway.cluster.groups import committed_offsets, list_groups
from culver.gateway.cluster.topics import (
    ConfigEntry,
    ConfigResource,
    ConfigSource,
    ResourceKind,
    alter_configs,
    create_partitions,
    delete_records,
    delete_topics,
    describe_configs,
)
from culver.gateway.cluster.view import PartitionView, TopicPartition
from culver.gateway.console.bodies import SettingName, SettingValue, body_of
from culver.gateway.console.browsing import Bounds
from culver.gateway.console.lag import behind
from culver.gateway.console.parameters import TOPIC, refused, topic_id_text
from culver.gateway.console.places import bounds_of, chosen_partitions, is_internal, topic_of
from culver.gateway.console.topic_figures import bytes_of
from culver.gateway.console.topic_list import replication_factor, setting_text
from culver.gateway.routing import JSON, Answer, Endpoint, json_response
from culver.gateway.services import Services, services_of

_TO_THE_END = -1
# Whose offsets are looked through to say who reads a topic.
_GROUPS_LOOKED_AT_MAX = 500
_SOURCES = {
    ConfigSource.TOPIC: "topic",
    ConfigSource.DYNAMIC_BROKER: "broker_dynamic",
    ConfigSource.DYNAMIC_DEFAULT_BROKER: "broker_default",
    ConfigSource.STATIC_BROKER: "broker_static",
    ConfigSource.DEFAULT: "default",
}


class PartitionItem(msgspec.Struct, frozen=True):
    """One partition. Offsets are None, and `error` says why, when its leader could not be asked."""

    partition: int
    leader: int | None
    leader_epoch: int
    replicas: list[int]
    isr: list[int]
    offline: list[int]
    under_replicated: bool
    earliest: int | None
    latest: int | None
    messages: int | None
    bytes: int | None
    error: str | None


class SettingItem(msgspec.Struct, frozen=True):
    """One setting, and where its value comes from."""

    name: str
    value: str | None
    source: str
    is_default: bool
    read_only: bool
    sensitive: bool
    documentation: str | None


class TopicAnswer(msgspec.Struct, frozen=True):
    """One topic."""

    name: str
    topic_id: str | None
    internal: bool
    partitions_count: int
    replicas: int
    messages: int | None
    bytes: int | None
    messages_per_s: float | None
    partitions: list[PartitionItem]
    config: list[SettingItem]


class Deleted(msgspec.Struct, frozen=True):
    """A topic that is no more."""

    name: str
    deleted: bool


class NewCount(msgspec.Struct, forbid_unknown_fields=True):
    """How many partitions there shall be."""

    count: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]


class PartitionsAdded(msgspec.Struct, frozen=True):
    """How many partitions there are now."""

    name: str
    partitions: int


class SettingChanges(msgspec.Struct, forbid_unknown_fields=True):
    """Settings to set, and those to take back to their defaults."""

    set: dict[SettingName, SettingValue] = {}
    reset: list[SettingName] = []


class Settings(msgspec.Struct, frozen=True):
    """All settings of a topic."""

    name: str
    config: list[SettingItem]


class Truncation(msgspec.Struct, forbid_unknown_fields=True):
    """By partition: the first offset to keep, or null to keep nothing."""

    partitions: Annotated[
        dict[
            Annotated[str, msgspec.Meta(pattern=r"^[0-9]{1,9}$")],
            Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)] | None,
        ],
        msgspec.Meta(min_length=1),
    ]


class TruncatedPartition(msgspec.Struct, frozen=True):
    """Where a partition begins now."""

    partition: int
    earliest: int | None
    error: str | None


class Truncated(msgspec.Struct, frozen=True):
    """What became of each partition."""

    name: str
    partitions: list[TruncatedPartition]


class ReadingGroup(msgspec.Struct, frozen=True):
    """A group that has committed offsets of the topic."""

    group: str
    state: str
    lag: int | None


class ReadingGroups(msgspec.Struct, frozen=True):
    """Who reads a topic, as far as groups were looked at."""

    items: list[ReadingGroup]
    looked_at: int
    complete: bool


# --- looking ---


async def topic(request: Request) -> Response:
    services = services_of(request)
    _, found = await topic_of(services.cluster, request.path_params["topic"])
    places = [TopicPartition(found.name, each.index) for each in found.partitions]
    (bounds, errors), disks, settings, figures = await asyncio.gather(
        bounds_of(services.cluster, places, committed=False),
        services.console.figures.disks([found.name]),
        settings_of(services, found.name),
        services.console.figures.of([found]),
    )
    return json_response(
        TopicAnswer(
            name=found.name,
            topic_id=topic_id_text(found.topic_id),
            internal=is_internal(found),
            partitions_count=len(found.partitions),
            replicas=replication_factor(found),
            messages=figures[found.name].messages,
            bytes=figures[found.name].bytes,
            messages_per_s=figures[found.name].messages_per_s,
            partitions=[
                _partition(each, bounds.get(place), bytes_of([place], disks.values()), errors.get(place))
                for place, each in zip(places, found.partitions, strict=True)
            ],
            config=settings,
        )
    )


def _partition(
    view: PartitionView, bounds: Bounds | None, size: int | None, error: KafkaError | None
) -> PartitionItem:
    return PartitionItem(
        partition=view.index,
        leader=view.leader if view.leader >= 0 else None,
        leader_epoch=view.leader_epoch,
        replicas=list(view.replicas),
        isr=list(view.isr),
        offline=list(view.offline),
        under_replicated=len(view.isr) < len(view.replicas),
        earliest=bounds.earliest if bounds else None,
        latest=bounds.latest if bounds else None,
        messages=bounds.latest - bounds.earliest if bounds else None,
        bytes=size,
        error=str(error) if error else None,
    )


async def settings_of(services: Services, name: str) -> list[SettingItem]:
    """The settings of a topic, by name."""
    resource = ConfigResource(ResourceKind.TOPIC, name)
    found = (await describe_configs(services.cluster, [resource]))[resource]
    if isinstance(found, KafkaError):
        raise found
    return [_setting(entry) for entry in sorted(found, key=lambda entry: entry.name)]


def _setting(entry: ConfigEntry) -> SettingItem:
    return SettingItem(
        name=entry.name,
        value=entry.value,
        source=_SOURCES.get(ConfigSource(entry.source), "unknown") if entry.source in _SOURCES else "unknown",
        is_default=entry.source != ConfigSource.TOPIC,
        read_only=entry.read_only,
        sensitive=entry.sensitive,
        documentation=entry.documentation or None,
    )


async def groups(request: Request) -> Response:
    services = services_of(request)
    _, found = await topic_of(services.cluster, request.path_params["topic"])
    listed = await services.console.groups.get("", lambda: list_groups(services.cluster))
    looked_at = listed[:_GROUPS_LOOKED_AT_MAX]
    committed = await committed_offsets(services.cluster, [each.group for each in looked_at])
    places = [TopicPartition(found.name, each.index) for each in found.partitions]
    bounds, _ = await bounds_of(services.cluster, places, committed=False)
    items = []
    for each in looked_at:
        offsets = {place: at for place, at in committed.get(each.group, {}).items() if place in bounds}
        if offsets:
            lag = sum(behind(bounds[place], at.offset) for place, at in offsets.items())
            items.append(ReadingGroup(each.group, each.state, lag))
    return json_response(ReadingGroups(items, len(looked_at), len(looked_at) == len(listed)))


# --- changing ---


async def delete(request: Request) -> Response:
    services = services_of(request)
    name = request.path_params["topic"]
    await topic_of(services.cluster, name)
    error = (await delete_topics(services.cluster, [name]))[name]
    if error is not None:
        raise error
    services.cluster.forget_view()
    return json_response(Deleted(name, True))


async def add_partitions(request: Request) -> Response:
    services = services_of(request)
    name = request.path_params["topic"]
    wanted = await body_of(request, NewCount)
    _, found = await topic_of(services.cluster, name)
    if wanted.count <= len(found.partitions):
        raise refused(
            f"topic {name} has {len(found.partitions)} partitions, and can only be given more: {wanted.count}"
        )
    await create_partitions(services.cluster, name, wanted.count)
    services.cluster.forget_view()
    return json_response(PartitionsAdded(name, wanted.count))


async def change_settings(request: Request) -> Response:
    services = services_of(request)
    name = request.path_params["topic"]
    changes = await body_of(request, SettingChanges)
    if both := sorted(changes.set.keys() & set(changes.reset)):
        raise refused(f"{both[0]} is both to be set and to be reset")
    wanted: dict[str, str | None] = {key: setting_text(value) for key, value in changes.set.items()}
    wanted |= dict.fromkeys(changes.reset)
    await topic_of(services.cluster, name)
    if wanted:
        await alter_configs(services.cluster, ConfigResource(ResourceKind.TOPIC, name), wanted)
    return json_response(Settings(name, await settings_of(services, name)))


async def truncate(request: Request) -> Response:
    services = services_of(request)
    name = request.path_params["topic"]
    given = (await body_of(request, Truncation)).partitions
    wanted = {int(index): offset for index, offset in given.items()}
    _, found = await topic_of(services.cluster, name)
    chosen_partitions(found, sorted(wanted))
    before = {
        TopicPartition(name, index): _TO_THE_END if offset is None else offset
        for index, offset in wanted.items()
    }
    done = await delete_records(services.cluster, before)
    return json_response(
        Truncated(
            name,
            [
                TruncatedPartition(place.partition, None, str(result))
                if isinstance(result, KafkaError)
                else TruncatedPartition(place.partition, result, None)
                for place, result in sorted(done.items())
            ],
        )
    )


_PATH = "/api/topics/{topic}"
_CHANGE_ERRORS = (403, 404, 413, 422, 503)

ROUTES = [
    Endpoint(
        "GET",
        _PATH,
        topic,
        "One topic: its partitions with their offsets, and its settings.",
        "console",
        parameters=(TOPIC,),
        answers={200: Answer("The topic.", TopicAnswer)},
        errors=(404, 503),
    ),
    Endpoint(
        "DELETE",
        _PATH,
        delete,
        "Delete a topic with all its records.",
        "console",
        parameters=(TOPIC,),
        answers={200: Answer("Deleted.", Deleted)},
        errors=(403, 404, 503),
    ),
    Endpoint(
        "GET",
        _PATH + "/groups",
        groups,
        "The groups that read a topic.",
        "console",
        parameters=(TOPIC,),
        answers={200: Answer("The groups.", ReadingGroups)},
        errors=(404, 503),
        description=f"Looks through the offsets of {_GROUPS_LOOKED_AT_MAX} groups at most.",
    ),
    Endpoint(
        "POST",
        _PATH + "/partitions",
        add_partitions,
        "Give a topic more partitions.",
        "console",
        parameters=(TOPIC,),
        bodies={JSON: NewCount},
        answers={200: Answer("Added.", PartitionsAdded)},
        errors=_CHANGE_ERRORS,
    ),
    Endpoint(
        "PATCH",
        _PATH + "/config",
        change_settings,
        "Set settings of a topic, or take them back to their defaults.",
        "console",
        parameters=(TOPIC,),
        bodies={JSON: SettingChanges},
        answers={200: Answer("All settings as they are now.", Settings)},
        errors=_CHANGE_ERRORS,
    ),
    Endpoint(
        "POST",
        _PATH + "/truncate",
        truncate,
        "Delete the records of partitions that lie before an offset.",
        "console",
        parameters=(TOPIC,),
        bodies={JSON: Truncation},
        answers={200: Answer("Where the partitions begin now.", Truncated)},
        errors=_CHANGE_ERRORS,
    ),
]
