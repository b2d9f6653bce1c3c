"""Consuming in the REST proxy's conventions: instances with subscriptions, assignments, positions and offsets."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import quote

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.core.names import is_valid_topic_name
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.errors import HttpError, Problem
from culver.gateway.private_topics import refuse_private
from culver.gateway.rest.consumer_instances import ConsumerInstance, InstanceOptions
from culver.gateway.rest.embedded_formats import FORMATS, ConsumedRecord
from culver.gateway.rest.instance_consumer import CommittedOffset, InstanceConsumer
from culver.gateway.routing import Answer, Endpoint, Handler, Parameter, json_response
from culver.gateway.services import services_of

V2 = "application/vnd.kafka.v2+json"
EMBEDDED = {name: f"application/vnd.kafka.{name}.v2+json" for name in FORMATS}
# Any of these names no embedded format: the instance's own is given.
_GENERAL = frozenset({V2, "application/vnd.kafka+json", "application/json", "application/*", "*/*", ""})
_REQUEST_TYPES = frozenset({V2, "application/vnd.kafka+json", "application/json", "", *EMBEDDED.values()})

_BODY_MAX_BYTES = 1 << 20
_WAIT_DEFAULT_MS = 1000
_WAIT_MAX_MS = 60_000
_NAME_CHARACTERS_MAX = 250
_OFFSET_RESETS = ("earliest", "latest", "none")

_WHOLE_NUMBER = re.compile(r"-?\d{1,19}", re.ASCII)

T = TypeVar("T")
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=_NAME_CHARACTERS_MAX)]
PartitionNumber = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
Offset = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 2)]


# --- bodies ---


class NewInstance(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /consumers/{group}. Numbers and truth values may be written as texts."""

    name: Name | None = None
    format: str = "binary"
    offset_reset: str = msgspec.field(default="latest", name="auto.offset.reset")
    auto_commit: bool | str = msgspec.field(default=True, name="auto.commit.enable")
    fetch_min_bytes: int | str = msgspec.field(default=1, name="fetch.min.bytes")
    request_timeout_ms: int | str | None = msgspec.field(default=None, name="consumer.request.timeout.ms")


class InstanceMade(msgspec.Struct):
    """A new instance, and the address at which it is used."""

    instance_id: str
    base_uri: str


class Subscription(msgspec.Struct):
    """Topics by name, or those whose names a regular expression matches."""

    topics: list[Name] | None = None
    topic_pattern: Name | None = None


def _checked_topic(name: str) -> str:
    if not is_valid_topic_name(name):
        raise HttpError(Problem.INVALID_VALUE, f"{name!r} cannot be the name of a topic")
    refuse_private(name)
    return name


class Topics(msgspec.Struct):
    topics: list[str]


class Place(msgspec.Struct):
    topic: Name
    partition: PartitionNumber

    @property
    def topic_partition(self) -> TopicPartition:
        return TopicPartition(_checked_topic(self.topic), self.partition)


class Places(msgspec.Struct):
    partitions: list[Place]

    @property
    def topic_partitions(self) -> list[TopicPartition]:
        return [place.topic_partition for place in self.partitions]


class PlaceAndOffset(Place):
    offset: Offset
    metadata: Annotated[str, msgspec.Meta(max_length=4096, pattern="^[^\\x00]*$")] = ""


class Offsets(msgspec.Struct):
    offsets: list[PlaceAndOffset]


class CommittedOffsets(msgspec.Struct):
    offsets: list[CommittedOffset]


async def _body(request: Request, shape: type[T]) -> T | None:
    """The body as one of the above; None when there is none. HttpError 415 or 422."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in _REQUEST_TYPES:
        raise HttpError(Problem.UNSUPPORTED_MEDIA_TYPE, f"consumers are talked to in {V2}, not in {kind}")
    async with services_of(request).admission.body(request, max_bytes=_BODY_MAX_BYTES) as body:
        if not body.strip():
            return None
        try:
            return msgspec.json.decode(body, type=shape)
        except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
            raise HttpError(Problem.INVALID_JSON, str(error)) from error


async def _required(request: Request, shape: type[T]) -> T:
    body = await _body(request, shape)
    if body is None:
        raise HttpError(Problem.INVALID_JSON, "the request needs a body")
    return body


def _v2(value: object) -> Response:
    return json_response(value, media_type=V2)


def _nothing() -> Response:
    return Response(status_code=204)


# --- instances ---


async def create(request: Request) -> Response:
    group = _checked_name(request.path_params["group"], may_have_slash=True)
    wanted = await _body(request, NewInstance) or NewInstance()
    name = None if wanted.name is None else _checked_name(wanted.name)
    if wanted.format not in FORMATS:
        raise HttpError(Problem.INVALID_VALUE, f"format is one of {', '.join(FORMATS)}")
    if wanted.offset_reset not in _OFFSET_RESETS:
        raise HttpError(Problem.INVALID_VALUE, f"auto.offset.reset is one of {', '.join(_OFFSET_RESETS)}")
    timeout_ms = wanted.request_timeout_ms
    options = InstanceOptions(
        wanted.format,
        wanted.offset_reset,
        _truth("auto.commit.enable", wanted.auto_commit),
        _number("fetch.min.bytes", wanted.fetch_min_bytes),
        None if timeout_ms is None else _number("consumer.request.timeout.ms", timeout_ms),
    )
    instance = await services_of(request).consumers.create(group, name, options)
    address = f"{request.url.scheme}://{request.url.netloc}/consumers/{quote(group, safe='')}"
    return _v2(InstanceMade(instance.name, f"{address}/instances/{quote(instance.name, safe='')}"))


def _checked_name(name: str, *, may_have_slash: bool = False) -> str:
    """Of a group, which may exist already, or of an instance: something that can stand in the logs of brokers."""
    if not name.isprintable() or len(name) > _NAME_CHARACTERS_MAX or ("/" in name and not may_have_slash):
        raise HttpError(Problem.INVALID_VALUE, f"{name[:_NAME_CHARACTERS_MAX]!r} cannot be used as a name")
    return name


def _truth(name: str, value: bool | str) -> bool:
    text = str(value).lower()
    if text not in ("true", "false"):
        raise HttpError(Problem.INVALID_VALUE, f"{name} is true or false")
    return text == "true"


def _number(name: str, value: int | str) -> int:
    """Below zero is the REST proxy's way to say that nothing is asked for."""
    try:
        number = int(value)
    except ValueError:
        raise HttpError(Problem.INVALID_VALUE, f"{name} is a whole number") from None
    if number >= 2**31:
        raise HttpError(Problem.INVALID_VALUE, f"{name} is too large")
    return max(number, 0)


def _instance(request: Request) -> ConsumerInstance:
    return services_of(request).consumers.get(request.path_params["group"], request.path_params["instance"])


async def _use(request: Request, call: Callable[[InstanceConsumer], T]) -> T:
    return await services_of(request).consumers.use(_instance(request), call)


async def delete(request: Request) -> Response:
    await services_of(request).consumers.delete(_instance(request))
    return _nothing()


# --- what is read ---


async def subscribe(request: Request) -> Response:
    instance = _instance(request)
    wanted = await _required(request, Subscription)
    if (wanted.topics is None) == (wanted.topic_pattern is None):
        raise HttpError(Problem.INVALID_VALUE, "either topics or topic_pattern is needed")
    for name in wanted.topics or ():
        _checked_topic(name)
    if wanted.topic_pattern is not None and not wanted.topic_pattern.isprintable():
        raise HttpError(Problem.INVALID_VALUE, "topic_pattern has characters that no topic has")
    await services_of(request).consumers.use(
        instance, lambda consumer: consumer.subscribe(wanted.topics, wanted.topic_pattern)
    )
    return _nothing()


async def subscription(request: Request) -> Response:
    return _v2(Topics(await _use(request, InstanceConsumer.subscription)))


async def unsubscribe(request: Request) -> Response:
    await _use(request, InstanceConsumer.unsubscribe)
    return _nothing()


async def assign(request: Request) -> Response:
    wanted = await _required(request, Places)
    await _use(request, lambda consumer: consumer.assign(wanted.topic_partitions))
    return _nothing()


async def assignment(request: Request) -> Response:
    held = await _use(request, InstanceConsumer.assignment)
    return _v2(Places([Place(*place) for place in held]))


# --- positions and offsets ---


async def seek(request: Request) -> Response:
    wanted = await _required(request, Offsets)
    offsets = {place.topic_partition: place.offset for place in wanted.offsets}
    await _use(request, lambda consumer: consumer.seek(offsets))
    return _nothing()


def _seek_to_edge(*, end: bool) -> Handler:
    async def handler(request: Request) -> Response:
        wanted = await _required(request, Places)
        await _use(request, lambda consumer: consumer.seek_to_edge(wanted.topic_partitions, end=end))
        return _nothing()

    return handler


async def commit(request: Request) -> Response:
    """The offsets that are sent are those of the last records that were read: one less than what is committed."""
    wanted = await _body(request, Offsets)
    offsets: dict[TopicPartition, tuple[int, str]] | None = None
    if wanted is not None:
        offsets = {place.topic_partition: (place.offset + 1, place.metadata) for place in wanted.offsets}
    await _use(request, lambda consumer: consumer.commit(offsets))
    return _v2([])


async def committed(request: Request) -> Response:
    wanted = await _body(request, Places)
    places = None if wanted is None else wanted.topic_partitions
    return _v2(CommittedOffsets(await _use(request, lambda consumer: consumer.committed(places))))


# --- records ---


async def records(request: Request) -> Response:
    instance = _instance(request)
    options = instance.options
    _check_accepted(request.headers.get("accept", ""), options.format)
    services = services_of(request)
    wait_ms = _wait_ms(_asked(request, "timeout"), options.request_timeout_ms)
    most = services.settings.body_max_bytes
    asked = _asked(request, "max_bytes")
    max_bytes = most if asked is None or asked <= 0 else min(asked, most)
    given_up = threading.Event()
    watching = asyncio.create_task(_watch(request, given_up))
    try:
        found = await services.consumers.use(
            instance,
            lambda consumer: consumer.read(
                options.format,
                wait_ms=wait_ms,
                max_bytes=max_bytes,
                min_bytes=min(options.fetch_min_bytes, max_bytes),
                given_up=given_up,
            ),
        )
    finally:
        watching.cancel()
    return json_response(found, media_type=EMBEDDED[options.format])


async def _watch(request: Request, given_up: threading.Event) -> None:
    """A client that goes away leaves its long poll, and what would have been its answer."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    given_up.set()


def _wait_ms(asked_ms: int | None, bound_ms: int | None) -> int:
    """A read may shorten what its instance was made with, not lengthen it."""
    if asked_ms is None or asked_ms < 0:
        asked_ms = _WAIT_DEFAULT_MS if bound_ms is None else bound_ms
    return min(asked_ms, _WAIT_MAX_MS if bound_ms is None else bound_ms, _WAIT_MAX_MS)


def _asked(request: Request, name: str) -> int | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    number = int(text) if _WHOLE_NUMBER.fullmatch(text) else None
    if number is None or not -(2**63) <= number < 2**63:
        raise HttpError(Problem.INVALID_VALUE, f"{name} is a whole number of 64 bits")
    return number


def _check_accepted(accept: str, format_name: str) -> None:
    kinds = {kind.partition(";")[0].strip().lower() for kind in accept.split(",")}
    if kinds & _GENERAL or EMBEDDED[format_name] in kinds:
        return
    if kinds & set(EMBEDDED.values()):
        raise HttpError(
            Problem.CONSUMER_FORMAT_MISMATCH,
            f"the instance was made for the format {format_name}: accept {EMBEDDED[format_name]}",
        )
    raise HttpError(Problem.NOT_ACCEPTABLE, f"records come as {EMBEDDED[format_name]}")


# --- routes ---

_GROUP = "/consumers/{group}"
_INSTANCE = "/consumers/{group}/instances/{instance}"
_DONE: Mapping[int, Answer] = {204: Answer("Done.")}
_LONG = {"type": "integer", "format": "int64"}


def _answered(doc: str, schema: Any) -> Mapping[int, Answer]:
    return {200: Answer(doc, schema, (V2,))}


def _endpoint(
    method: str,
    path: str,
    handler: Handler,
    summary: str,
    *,
    body: type | None = None,
    answers: Mapping[int, Answer] = _DONE,
    errors: tuple[int, ...] = (404, 409, 422, 500, 503),
    parameters: tuple[Parameter, ...] = (),
    description: str = "",
) -> Endpoint:
    bodies = {} if body is None else {V2: body}
    all_errors = (*errors, *((413, 415) if body is not None else ()))
    return Endpoint(
        method, path, handler, summary, "consumers", parameters, bodies, answers, all_errors, description
    )


ROUTES = [
    _endpoint(
        "POST",
        _GROUP,
        create,
        "Make a consumer instance in a group.",
        body=NewInstance,
        answers=_answered("The instance. It is closed when it has not been used for a while.", InstanceMade),
        errors=(409, 422, 429),
    ),
    _endpoint("DELETE", _INSTANCE, delete, "Close a consumer instance.", errors=(404,)),
    _endpoint("POST", f"{_INSTANCE}/subscription", subscribe, "Subscribe to topics.", body=Subscription),
    _endpoint(
        "GET",
        f"{_INSTANCE}/subscription",
        subscription,
        "The topics that the instance has subscribed to.",
        answers=_answered("The topics.", Topics),
    ),
    _endpoint("DELETE", f"{_INSTANCE}/subscription", unsubscribe, "Give up subscriptions and assignments."),
    _endpoint("POST", f"{_INSTANCE}/assignments", assign, "Assign partitions by hand.", body=Places),
    _endpoint(
        "GET",
        f"{_INSTANCE}/assignments",
        assignment,
        "The partitions that the instance reads.",
        answers=_answered("The partitions.", Places),
    ),
    _endpoint("POST", f"{_INSTANCE}/positions", seek, "Read on from given offsets.", body=Offsets),
    _endpoint(
        "POST",
        f"{_INSTANCE}/positions/beginning",
        _seek_to_edge(end=False),
        "Read on from the beginning.",
        body=Places,
    ),
    _endpoint(
        "POST", f"{_INSTANCE}/positions/end", _seek_to_edge(end=True), "Read on from the end.", body=Places
    ),
    _endpoint(
        "GET",
        f"{_INSTANCE}/records",
        records,
        "Read records, waiting for some.",
        answers={
            200: Answer(
                "Records, or none when the time was over.", list[ConsumedRecord], (*EMBEDDED.values(),)
            )
        },
        errors=(404, 406, 409, 422, 500, 503),
        parameters=(
            Parameter("timeout", "How many milliseconds to wait at most.", _LONG),
            Parameter("max_bytes", "How many bytes of keys and values at most; one record always.", _LONG),
        ),
    ),
    _endpoint(
        "POST",
        f"{_INSTANCE}/offsets",
        commit,
        "Commit offsets of records that were read; without a body, of all of them.",
        body=Offsets,
        answers=_answered("Committed.", {"type": "array"}),
        description="As with the REST proxy, an offset here is that of the last record that was dealt with.",
    ),
    _endpoint(
        "GET",
        f"{_INSTANCE}/offsets",
        committed,
        "The committed offsets of partitions; without a body, of those that are assigned.",
        answers=_answered("The offsets of the records to be read next.", CommittedOffsets),
    ),
]
