"""The consumer inside an instance: reads records in an embedded format, and loses none between two reads.

Everything here happens in one thread at a time, outside the event loop. What was read ahead but not handed out waits in
`_waiting`, and offsets count as read only once their records were handed out.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import confluent_kafka
import msgspec
from confluent_kafka import OFFSET_INVALID

from culver.core.patterns import check_pattern, matching_topics
from culver.errors import KafkaError
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.errors import HttpError, Problem
from culver.gateway.private_topics import PRIVATE_TOPICS
from culver.gateway.producing import kafka_error
from culver.gateway.rest.embedded_formats import ConsumedRecord, NotInFormat, consumed_record

# A poll is cut into pieces, so that an instance which is being deleted does not wait for its last long poll.
_POLL_SECONDS = 0.2
_CALL_TIMEOUT_SECONDS = 10.0
_RECORDS_MAX = 10_000  # in one answer, however small they are


class CommittedOffset(msgspec.Struct):
    """How far a group has got in a partition: the offset of the record to be read next."""

    topic: str
    partition: int
    offset: int
    metadata: str


class InstanceConsumer:
    """A confluent_kafka.Consumer and what lies between it and its HTTP client."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer
        # Topics, or the pattern of their names.
        self._subscribed: list[str] | str | None = None
        self._is_assigned = False
        self._waiting: deque[Any] = deque()
        # Where each partition is read next by the client, as far as it has read or sought.
        self._positions: dict[TopicPartition, int] = {}
        # What the last answer held: it counts as read when the client comes for more.
        self._answered: dict[TopicPartition, int] = {}
        self._failure: KafkaError | None = None
        # Assigned, but not fetched while the client stays away.
        self._paused: set[TopicPartition] = set()
        self._hurried = threading.Event()

    def hurry(self) -> None:
        """End a read that is under way. The one call that may come from another thread."""
        self._hurried.set()

    def close(self, *, has_read: bool) -> None:
        """Leave the group. `has_read`: the client itself ends it, and so has the last answer."""
        if has_read:
            self._count_as_read()
        self._consumer.close()

    # --- what is read ---

    def subscribe(self, topics: Sequence[str] | None, pattern: str | None) -> None:
        """Take part in the group, with these topics or those that a regular expression matches. Raises KafkaError."""
        if self._is_assigned:
            raise HttpError(
                Problem.CONSUMER_STATE,
                "partitions have been assigned to this instance by hand; it cannot subscribe to topics too",
            )
        wanted: list[str] | str = list(topics or ())
        names = list(topics or ())
        if pattern is not None:
            wanted = pattern.removeprefix("^").removesuffix("$")
            check_pattern(wanted)
            names = [f"^({wanted})$"]  # what begins with ^ is a pattern for librdkafka
        if wanted != self._subscribed:
            self._called(self._consumer.subscribe, names, on_revoke=self._revoked, on_lost=self._revoked)
            self._subscribed = wanted

    def subscription(self) -> list[str]:
        """The topics it subscribed to; with a pattern, those that match at the moment."""
        if not isinstance(self._subscribed, str):
            return sorted(self._subscribed or ())
        known = self._called(self._consumer.list_topics, timeout=_CALL_TIMEOUT_SECONDS)
        return sorted(matching_topics(self._subscribed, known.topics) - PRIVATE_TOPICS)

    def unsubscribe(self) -> None:
        """Leave the group, or give up partitions that were assigned by hand."""
        self._resume()
        self._called(self._consumer.unsubscribe if self._subscribed is not None else self._consumer.unassign)
        self._subscribed = None
        self._is_assigned = False
        self._waiting.clear()
        self._positions.clear()
        self._answered.clear()

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
        self._resume()
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
            self._answered.pop(place, None)
        # librdkafka remembers the pause, and would apply it when the partition comes back.
        self._resume(gone)

    # --- positions and offsets ---

    def seek(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Read on from these offsets.

        librdkafka cannot seek before it has begun to read a partition, so the assignment is made anew instead.
        """
        held = self._held(offsets)
        self._positions.update(offsets)
        for place in offsets:
            self._answered.pop(place, None)
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
        self,
        format_name: str,
        *,
        wait_ms: int,
        max_bytes: int,
        min_bytes: int,
        given_up: threading.Event | None = None,
    ) -> list[ConsumedRecord]:
        """Records, as soon as there are `min_bytes` of them; fewer, or none, when the time is over or it is `given_up`.

        At most `max_bytes` of keys and values, but one record at least. A record that cannot be given in the format
        ends the answer before it; when it is the first, it raises HttpError, and stays the first.
        """
        if self._subscribed is None and not self._is_assigned:
            raise HttpError(
                Problem.CONSUMER_STATE,
                "the instance has neither subscribed to topics nor partitions assigned",
            )
        self._count_as_read()
        self._resume()
        records: list[ConsumedRecord] = []
        read_bytes = 0
        deadline = time.monotonic() + wait_ms / 1000
        while len(records) < _RECORDS_MAX:
            enough = bool(records) and read_bytes >= min_bytes
            try:
                message = self._next(0 if enough else deadline - time.monotonic(), given_up)
            except KafkaError as error:
                if not records:
                    raise
                self._failure = error  # for the next read: these records are not to be lost for it
                break
            if message is None:
                break
            size = len(message.key() or b"") + len(message.value() or b"")
            if records and read_bytes + size > max_bytes:
                self._waiting.appendleft(message)
                break
            try:
                records.append(consumed_record(message, format_name))
            except NotInFormat as error:
                self._waiting.appendleft(message)
                if not records:
                    raise _unreadable(message, format_name, error) from error
                break
            read_bytes += size
        self._answered = {
            TopicPartition(record.topic, record.partition): record.offset + 1 for record in records
        }
        self._positions.update(self._answered)
        if records and given_up is not None and given_up.is_set():
            self._take_back(records)
            return []
        return records

    def _take_back(self, records: Iterable[ConsumedRecord]) -> None:
        """Nobody waits for these records any more: they are for the next read."""
        starts: dict[TopicPartition, int] = {}
        for record in records:
            starts.setdefault(TopicPartition(record.topic, record.partition), record.offset)
        held = set(self.assignment())
        self.seek({place: offset for place, offset in starts.items() if place in held})

    def stay_member(self) -> None:
        """Take part in what the group does while the client does not read, so that it holds up no other member."""
        if self._subscribed is None:
            return
        new = set(self.assignment()) - self._paused
        if new:
            self._called(self._consumer.pause, [confluent_kafka.TopicPartition(*place) for place in new])
            self._paused |= new
        message = self._called(self._consumer.poll, 0)
        if message is None:
            return
        if message.error() is None:
            self._waiting.append(message)
        elif not (failure := kafka_error(message.error())).retriable:
            self._failure = failure

    def _resume(self, among: Iterable[TopicPartition] | None = None) -> None:
        """Fetch again what was paused: all of it, or what is among these."""
        resumed = self._paused.copy() if among is None else self._paused.intersection(among)
        if resumed:
            self._paused -= resumed
            self._called(self._consumer.resume, [confluent_kafka.TopicPartition(*place) for place in resumed])

    def _next(self, wait_s: float, given_up: threading.Event | None) -> Any:
        """The next message, waiting or fetched; None when none comes in time. Raises KafkaError."""
        if self._waiting:
            return self._waiting.popleft()
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        deadline = time.monotonic() + wait_s
        while not self._hurried.is_set() and not (given_up is not None and given_up.is_set()):
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

    def _count_as_read(self) -> None:
        """What the client has may be committed, if the instance commits by itself."""
        offsets = [confluent_kafka.TopicPartition(*place, offset) for place, offset in self._answered.items()]
        self._answered = {}
        # Refused for partitions that another member reads by now, which will read them anew.
        with suppress(confluent_kafka.KafkaException):
            self._consumer.store_offsets(offsets=offsets)

    def _called(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """The call's result; librdkafka's errors in the words of the protocol."""
        try:
            return call(*arguments, **named)
        except confluent_kafka.KafkaException as error:
            raise kafka_error(error.args[0]) from error


def _place(message: Any) -> TopicPartition:
    return TopicPartition(message.topic(), message.partition())


def _unreadable(message: Any, format_name: str, error: NotInFormat) -> HttpError:
    return HttpError(
        Problem.CLUSTER_FAILED,
        f"record {message.offset()} of {_place(message)} cannot be given as {format_name}: {error}; "
        f"read it with an instance of the format binary, or seek past it",
    )
