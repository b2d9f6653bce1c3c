"""The consumer inside an instance: reads records in an embedded format, and loses none between two reads.

Everything here happens in one thread at a time, outside the event loop. What was read ahead but not handed out waits in
`_waiting`, and offsets count as read only once their records were handed out.
"""

from __future__ import annotations

import base64
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import confluent_kafka
import msgspec
from confluent_kafka import OFFSET_INVALID

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.errors import HttpError, Problem
from culver.gateway.producing import kafka_error

# A poll is cut into pieces, so that an instance which is being deleted does not wait for its last long poll.
_POLL_SECONDS = 0.2
_CALL_TIMEOUT_SECONDS = 10.0


class RecordHeader(msgspec.Struct):
    """A header; its value in base64."""

    key: str
    value: str | None


class ConsumedRecord(msgspec.Struct, omit_defaults=True):
    """A record as a read gives it. Headers are there when it has some."""

    topic: str
    key: msgspec.Raw
    value: msgspec.Raw
    partition: int
    offset: int
    headers: list[RecordHeader] = []


class CommittedOffset(msgspec.Struct):
    """How far a group has got in a partition: the offset of the record to be read next."""

    topic: str
    partition: int
    offset: int
    metadata: str


class NotInFormat(Exception):
    """A key or value that cannot be given in the instance's format."""


_NULL = msgspec.Raw(b"null")
_encode = msgspec.json.encode
_decode_json = msgspec.json.Decoder().decode


def _binary(data: bytes) -> bytes:
    return b'"' + base64.b64encode(data) + b'"'


def _text(data: bytes) -> bytes:
    try:
        return _encode(data.decode())
    except UnicodeDecodeError as error:
        raise NotInFormat(f"not UTF-8: {error}") from error


def _json(data: bytes) -> bytes:
    try:
        _decode_json(data)
        data.decode()
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise NotInFormat(f"not JSON: {error}") from error
    return data


def _json_or_text(data: bytes) -> bytes:
    """Keys are seldom JSON where values are; a key that is not comes as text."""
    try:
        return _json(data)
    except NotInFormat:
        return _text(data)


Writer = Callable[[bytes], bytes]
# How keys and values become JSON.
FORMATS: Mapping[str, tuple[Writer, Writer]] = {
    "binary": (_binary, _binary),
    "json": (_json_or_text, _json),
    "text": (_text, _text),
}


class InstanceConsumer:
    """A confluent_kafka.Consumer and what lies between it and its HTTP client."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        self._subscribed: list[str] | re.Pattern[str] | None = None
        self._is_assigned = False
        self._waiting: deque[Any] = deque()
        # Where each partition is read next by the client, as far as it has read or sought.
        self._positions: dict[TopicPartition, int] = {}
        self._hurried = threading.Event()

    def hurry(self) -> None:
        """End a read that is under way. The one call that may come from another thread."""
        self._hurried.set()

    def close(self) -> None:
        self._consumer.close()

    # --- what is read ---

    def subscribe(self, topics: Sequence[str] | None, pattern: str | None) -> None:
        """Take part in the group, with these topics or those that a regular expression matches."""
        if self._is_assigned:
            raise HttpError(
                Problem.CONSUMER_STATE,
                "partitions have been assigned to this instance by hand; it cannot subscribe to topics too",
            )
        names = list(topics or ())
        wanted: list[str] | re.Pattern[str] = names
        if pattern is not None:
            inside = pattern.removeprefix("^").removesuffix("$")
            try:
                wanted = re.compile(inside)
            except re.error as error:
                raise HttpError(Problem.INVALID_VALUE, f"topic_pattern: {error}") from error
            names = [f"^({inside})$"]  # what begins with ^ is a pattern for librdkafka
        if wanted != self._subscribed:
            self._called(self._consumer.subscribe, names, on_revoke=self._revoked, on_lost=self._revoked)
            self._subscribed = wanted

    def subscription(self) -> list[str]:
        """The topics it subscribed to; with a pattern, those that match at the moment."""
        if not isinstance(self._subscribed, re.Pattern):
            return sorted(self._subscribed or ())
        known = self._called(self._consumer.list_topics, timeout=_CALL_TIMEOUT_SECONDS)
        return sorted(name for name in known.topics if self._subscribed.fullmatch(name))

    def unsubscribe(self) -> None:
        """Leave the group, or give up partitions that were assigned by hand."""
        self._called(self._consumer.unsubscribe if self._subscribed is not None else self._consumer.unassign)
        self._subscribed = None
        self._is_assigned = False
        self._waiting.clear()
        self._positions.clear()

    def assign(self, places: Iterable[TopicPartition]) -> None:
        """Read these partitions, outside the group's assignment."""
        if self._subscribed is not None:
            raise HttpError(
                Problem.CONSUMER_STATE,
                "this instance has subscribed to topics; partitions cannot be assigned to it by hand too",
            )
        wanted = dict.fromkeys(places)
        self._positions = {place: at for place, at in self._positions.items() if place in wanted}
        self._reassign(wanted)
        self._is_assigned = True

    def assignment(self) -> list[TopicPartition]:
        held = self._called(self._consumer.assignment)
        return sorted(TopicPartition(place.topic, place.partition) for place in held)

    def _reassign(self, places: Iterable[TopicPartition]) -> None:
        """Begin anew, each partition where the client is; where it has read nothing yet, at the committed offset."""
        self._waiting.clear()
        positions = [
            confluent_kafka.TopicPartition(*place, self._positions.get(place, OFFSET_INVALID))
            for place in places
        ]
        self._called(self._consumer.assign, positions)

    def _revoked(self, _: Any, partitions: Any) -> None:
        """Another member reads these now, from the last commit on: what waits here would come twice."""
        gone = {TopicPartition(place.topic, place.partition) for place in partitions}
        self._waiting = deque(message for message in self._waiting if _place(message) not in gone)
        for place in gone:
            self._positions.pop(place, None)

    # --- positions and offsets ---

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read on from these offsets.

        librdkafka cannot seek before it has begun to read a partition, so the assignment is made anew instead.
        """
        held = self._held(offsets)
        self._positions.update(offsets)
        self._reassign(held)

    def seek_to_edge(self, places: Iterable[TopicPartition], *, end: bool) -> None:
        """Read on from the beginning or the end that these partitions have now."""
        wanted = list(places)
        self._held(wanted)
        offsets = {}
        for place in wanted:
            partition = confluent_kafka.TopicPartition(*place)
            edges = self._called(
                self._consumer.get_watermark_offsets, partition, timeout=_CALL_TIMEOUT_SECONDS, cached=False
            )
            offsets[place] = edges[1 if end else 0]
        self.seek(offsets)

    def _held(self, places: Iterable[TopicPartition]) -> list[TopicPartition]:
        held = self.assignment()
        missing = sorted(set(places) - set(held))
        if missing:
            names = ", ".join(map(str, missing))
            raise HttpError(Problem.CONSUMER_STATE, f"not assigned to this instance at the moment: {names}")
        return held

    def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]] | None) -> None:
        """Commit the offsets to be read next, with metadata; without any, of all that was handed out."""
        if offsets is None:
            offsets = {place: (offset, "") for place, offset in self._positions.items()}
        if not offsets:
            return
        places = [
            confluent_kafka.TopicPartition(*place, offset, metadata)
            for place, (offset, metadata) in offsets.items()
        ]
        for place in self._called(self._consumer.commit, offsets=places, asynchronous=False):
            if place.error is not None:
                raise kafka_error(place.error)

    def committed(self, places: Iterable[TopicPartition] | None) -> list[CommittedOffset]:
        """What the group has committed; without any partitions given, for those that are assigned."""
        wanted = [
            confluent_kafka.TopicPartition(*place)
            for place in (self.assignment() if places is None else places)
        ]
        if not wanted:
            return []
        found = self._called(self._consumer.committed, wanted, timeout=_CALL_TIMEOUT_SECONDS)
        return [
            CommittedOffset(place.topic, place.partition, place.offset, place.metadata or "")
            for place in found
            if place.offset >= 0
        ]

    # --- reading ---

    def read(
        self, format_name: str, *, wait_ms: int, max_bytes: int, min_bytes: int, keep_offsets: bool
    ) -> list[ConsumedRecord]:
        """Records, as soon as there are `min_bytes` of them; fewer, or none, when the time is over.

        At most `max_bytes` of keys and values, but one record at least. A record that cannot be given in the format
        ends the answer before it; when it is the first, it raises HttpError, and stays the first.
        """
        if self._subscribed is None and not self._is_assigned:
            raise HttpError(
                Problem.CONSUMER_STATE,
                "the instance has neither subscribed to topics nor partitions assigned",
            )
        records: list[ConsumedRecord] = []
        read_bytes = 0
        deadline = time.monotonic() + wait_ms / 1000
        while True:
            enough = bool(records) and read_bytes >= min_bytes
            message = self._next(0 if enough else deadline - time.monotonic())
            if message is None:
                break
            size = len(message.key() or b"") + len(message.value() or b"")
            if records and read_bytes + size > max_bytes:
                self._waiting.appendleft(message)
                break
            try:
                records.append(_record(message, *FORMATS[format_name]))
            except NotInFormat as error:
                self._waiting.appendleft(message)
                if records:
                    break
                raise _unreadable(message, format_name, error) from error
            read_bytes += size
        self._handed_out(records, keep_offsets)
        return records

    def _next(self, wait_s: float) -> Any:
        """The next message, waiting or fetched; None when none comes in time."""
        if self._waiting:
            return self._waiting.popleft()
        deadline = time.monotonic() + wait_s
        while not self._hurried.is_set():
            message = self._called(
                self._consumer.poll, min(max(deadline - time.monotonic(), 0), _POLL_SECONDS)
            )
            if message is not None:
                if message.error() is None:
                    return message
                failure = kafka_error(message.error())
                # What may pass by itself (a topic that is not there yet, a broker that is gone) is waited out.
                if not failure.retriable:
                    raise failure
            if time.monotonic() >= deadline:
                return None
        return None

    def _handed_out(self, records: Iterable[ConsumedRecord], keep_offsets: bool) -> None:
        ends = {TopicPartition(record.topic, record.partition): record.offset + 1 for record in records}
        self._positions.update(ends)
        if keep_offsets and ends:
            offsets = [confluent_kafka.TopicPartition(*place, offset) for place, offset in ends.items()]
            self._called(self._consumer.store_offsets, offsets=offsets)

    def _called(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The call's result; librdkafka's errors in the words of the protocol."""
        try:
            return call(*arguments, **named)
        except confluent_kafka.KafkaException as error:
            raise kafka_error(error.args[0]) from error


def _place(message: Any) -> TopicPartition:
    return TopicPartition(message.topic(), message.partition())


def _record(message: Any, write_key: Writer, write_value: Writer) -> ConsumedRecord:
    key, value = message.key(), message.value()
    return ConsumedRecord(
        message.topic(),
        _NULL if key is None else msgspec.Raw(write_key(key)),
        _NULL if value is None else msgspec.Raw(write_value(value)),
        message.partition(),
        message.offset(),
        [
            RecordHeader(name, None if data is None else base64.b64encode(data).decode())
            for name, data in message.headers() or ()
        ],
    )


def _unreadable(message: Any, format_name: str, error: NotInFormat) -> HttpError:
    return HttpError(
        Problem.CLUSTER_FAILED,
        f"record {message.offset()} of {_place(message)} cannot be given as {format_name}: {error}; "
        f"read it with an instance of the format binary, or seek past it",
    )
