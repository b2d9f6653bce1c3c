"""What the gateway tells a receiver beside records: what it has been given, what was taken away, what went wrong."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.errors import HttpError


class Notice(msgspec.Struct, tag_field="type", frozen=True):
    """A message that is no record. Its type is also the name of the event in a stream of server-sent events."""

    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)


class Place(msgspec.Struct, frozen=True):
    """A partition, and the offset of the record that comes next."""

    topic: str
    partition: int
    offset: int


class Subscribed(Notice, tag="subscribed", frozen=True):
    """The first message: the subscription's name for acknowledgements, and how it flows."""

    subscription: str
    topics: tuple[str, ...]
    group: str | None
    credits: int | None
    ack: str


class Assigned(Notice, tag="assigned", frozen=True):
    """These partitions are the receiver's now."""

    partitions: list[Place]


class Revoked(Notice, tag="revoked", frozen=True):
    """These are not any more; what was not acknowledged of them goes to others."""

    partitions: list[Place]


class Failed(Notice, tag="error", frozen=True):
    """Something went wrong. Whether the connection ends with it is seen by whether it ends."""

    error_code: int
    message: str


def places(positions: Iterable[tuple[TopicPartition, int]]) -> list[Place]:
    return [Place(place.topic, place.partition, offset) for place, offset in sorted(positions)]


def failed(error: HttpError) -> Failed:
    return Failed(int(error.problem), error.message)
