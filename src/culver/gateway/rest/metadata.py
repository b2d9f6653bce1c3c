"""Topics, partitions and brokers in the REST proxy's conventions."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.core.names import MAX_NAME_LENGTH
from culver.errors import KafkaError
from culver.gateway.cluster.topics import ConfigResource, ResourceKind, describe_configs
from culver.gateway.cluster.view import PartitionView, TopicPartition, TopicView, view_of
from culver.gateway.errors import HttpError, Problem
from culver.gateway.rest.consumers import V2
from culver.gateway.routing import JSON, Answer, Endpoint, Parameter, json_response
from culver.gateway.services import services_of
from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

_EARLIEST = -2
_LATEST = -1
# Older versions create a topic that is asked for.
_NO_CREATION_SINCE_VERSION = 4
_PARTITION_DIGITS_MAX = 10


class ReplicaAnswer(msgspec.Struct):
    broker: int
    leader: bool
    in_sync: bool


class PartitionAnswer(msgspec.Struct):
    """A partition; the leader is -1 while there is none."""

    partition: int
    leader: int
    replicas: list[ReplicaAnswer]


class TopicAnswer(msgspec.Struct):
    name: str
    configs: dict[str, str | None]
    partitions: list[PartitionAnswer]


class OffsetsAnswer(msgspec.Struct):
    """The first offset that is there, and the one that the next record gets."""

    beginning_offset: int
    end_offset: int


class BrokersAnswer(msgspec.Struct):
    brokers: list[int]


def _answer(request: Request, value: object) -> Response:
    """The REST proxy's media type for those who ask for it; JSON for everyone else."""
    wants_v2 = "vnd.kafka" in request.headers.get("accept", "")
    return json_response(value, media_type=V2 if wants_v2 else JSON)


async def topics(request: Request) -> Response:
    view = await services_of(request).cluster.view(max_age_ms=0)
    return _answer(request, list(view.topics))


async def topic(request: Request) -> Response:
    found = await _topic(request)
    resource = ConfigResource(ResourceKind.TOPIC, found.name)
    configs = (await describe_configs(services_of(request).cluster, [resource]))[resource]
    if isinstance(configs, KafkaError):
        raise configs
    values = {entry.name: entry.value for entry in configs}
    return _answer(request, TopicAnswer(found.name, values, [_partition(each) for each in found.partitions]))


async def partitions(request: Request) -> Response:
    found = await _topic(request)
    return _answer(request, [_partition(each) for each in found.partitions])


async def partition(request: Request) -> Response:
    _, found = await _place(request)
    return _answer(request, _partition(found))


async def offsets(request: Request) -> Response:
    place, _ = await _place(request)
    cluster = services_of(request).cluster
    edges = []
    for moment in (_EARLIEST, _LATEST):
        found = (await cluster.list_offsets({place: moment}))[place]
        if isinstance(found, KafkaError):
            raise found
        edges.append(found.offset)
    return _answer(request, OffsetsAnswer(*edges))


async def brokers(request: Request) -> Response:
    view = await services_of(request).cluster.view()
    return _answer(request, BrokersAnswer(sorted(view.brokers)))


async def _topic(request: Request) -> TopicView:
    """The topic as it is now: one that was created a moment ago is there."""
    name = request.path_params["topic"]
    if len(name) > MAX_NAME_LENGTH:
        # A broker closes the connection over one that is long enough, which is everybody's.
        raise HttpError(Problem.TOPIC_NOT_FOUND, f"there is no topic {name[:MAX_NAME_LENGTH]}...")
    question = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    answer = await services_of(request).cluster.ask(
        question, MetadataResponse, least_version=_NO_CREATION_SINCE_VERSION
    )
    found = view_of(answer).topics.get(name)
    if found is None:
        raise HttpError(Problem.TOPIC_NOT_FOUND, f"there is no topic {name}")
    return found


async def _place(request: Request) -> tuple[TopicPartition, PartitionView]:
    found = await _topic(request)
    text = request.path_params["partition"]
    is_number = text.isascii() and text.isdigit() and len(text) <= _PARTITION_DIGITS_MAX
    if not is_number or int(text) >= len(found.partitions):
        raise HttpError(Problem.PARTITION_NOT_FOUND, f"topic {found.name} has no partition {text[:100]}")
    return TopicPartition(found.name, int(text)), found.partitions[int(text)]


def _partition(view: PartitionView) -> PartitionAnswer:
    replicas = [ReplicaAnswer(broker, broker == view.leader, broker in view.isr) for broker in view.replicas]
    return PartitionAnswer(view.index, view.leader, replicas)


def _endpoint(path: str, handler: Any, summary: str, schema: Any, errors: tuple[int, ...]) -> Endpoint:
    parameters: tuple[Parameter, ...] = ()
    if "{partition}" in path:
        number = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}
        parameters = (Parameter("partition", "The partition's number.", number, "path", required=True),)
    answers = {200: Answer(summary, schema, (JSON, V2))}
    return Endpoint("GET", path, handler, summary, "topics", parameters, answers=answers, errors=errors)


_PARTITION = "/topics/{topic}/partitions/{partition}"
ROUTES = [
    _endpoint("/topics", topics, "The names of all topics.", list[str], (503,)),
    _endpoint("/topics/{topic}", topic, "A topic, its settings and its partitions.", TopicAnswer, (404, 503)),
    _endpoint(
        "/topics/{topic}/partitions",
        partitions,
        "The partitions of a topic.",
        list[PartitionAnswer],
        (404, 503),
    ),
    _endpoint(_PARTITION, partition, "One partition.", PartitionAnswer, (404, 503)),
    _endpoint(
        f"{_PARTITION}/offsets", offsets, "Where a partition begins and ends.", OffsetsAnswer, (404, 503)
    ),
    _endpoint("/brokers", brokers, "The ids of the brokers.", BrokersAnswer, (503,)),
]
