"""The reading loop of `culver consume`: which records of which partitions, and when it is done."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from culver.cli.clients import Cluster, Partition, as_topic_partitions
from culver.cli.failure import Failure
from culver.cli.position import Kind, Position
from culver.cli.record_format import timestamp_ms

_POLL_SECONDS = 0.2
_BATCH_RECORDS = 1000
_COMMIT_INTERVAL_SECONDS = 1.0
# A group may take this long to settle when another member has died without a word.
_JOIN_SECONDS = 60.0


@dataclass(slots=True)
class Limits:
    """Where reading ends. `follow` means it does not end at the end of the partitions."""

    follow: bool = False
    until: Position | None = None
    count: int | None = None


@dataclass(slots=True)
class Span:
    """The part of one partition to read: from `start`, up to but without `stop` (None: no end in sight)."""

    start: int
    stop: int | None


@dataclass(slots=True)
class Reading:
    """Reads the spans it is given and says when they are all done. One per command."""

    cluster: Cluster
    consumer: Consumer
    limits: Limits
    flush: Callable[[], None]
    commits: bool = False
    spans: dict[Partition, Span] = field(default_factory=dict)
    assigned: bool = False
    # Partitions that are not read to the end of their span.
    _open: set[Partition] = field(default_factory=set)
    _positions: dict[Partition, int] = field(default_factory=dict)
    _count: int = 0

    # --- what to read ---

    def assign(self, starts: dict[Partition, int]) -> None:
        """Read these partitions from these offsets, with no group deciding who reads what."""
        self.plan(starts)
        first, last = self.cluster.start_offsets(starts), self.cluster.end_offsets(starts)
        # An offset beyond the end would be out of range: wait at the end and skip until it is reached.
        reachable = {
            each: max(first[each], min(span.start, last[each]))
            for each, span in self.spans.items()
            if each in self._open
        }
        self.consumer.assign(as_topic_partitions(reachable))

    def subscribe(self, topics: list[str]) -> None:
        """Read what the group assigns to us, from where it left off."""
        self.consumer.subscribe(
            topics, on_assign=self._on_assign, on_revoke=self._on_revoke, on_lost=self._on_lost
        )

    def plan(self, starts: dict[Partition, int]) -> None:
        """Set the spans; those with nothing to read are done at once."""
        stops = self._stops(starts)
        self.spans = {each: Span(start, stops[each]) for each, start in starts.items()}
        self._open = {
            each for each, span in self.spans.items() if span.stop is None or span.start < span.stop
        }
        self.assigned = True

    def _stops(self, partitions: Iterable[Partition]) -> dict[Partition, int | None]:
        partitions = list(partitions)
        until = self.limits.until
        stops: dict[Partition, int | None] = dict.fromkeys(partitions)
        if not self.limits.follow:
            stops.update(self.cluster.end_offsets(partitions))
        # While following, a time or an end that lies ahead is noticed when records pass it.
        if until is not None and not (self.limits.follow and until.kind is Kind.TIME):
            for each, offset in self.cluster.locate(until, partitions).items():
                known = stops[each]
                stops[each] = offset if known is None else min(offset, known)
        return stops

    # --- reading ---

    def records(self) -> Iterator[Message]:
        """The records, until done. What was handed out is flushed before it is committed."""
        quiet_since = committed_at = time.monotonic()
        while not self.is_finished():
            first = self.consumer.poll(_POLL_SECONDS)
            now = time.monotonic()
            if first is None:
                self.flush()
                self._check_alive(now - quiet_since)
            else:
                quiet_since = now
                for message in (first, *self.consumer.consume(_BATCH_RECORDS - 1, 0)):
                    if self._wanted(message):
                        yield message
                    if self.is_finished():
                        break
                if self.limits.follow:
                    self.flush()
            if self.commits and now - committed_at >= _COMMIT_INTERVAL_SECONDS:
                self.commit()
                committed_at = now
        self.flush()
        if self.commits:
            self.commit()

    def is_finished(self) -> bool:
        if self.limits.count is not None and self._count >= self.limits.count:
            return True
        return self.assigned and not self._open

    def commit(self) -> None:
        """Commit what has been handed out, and wait for the answer."""
        self.flush()
        if not self._positions:
            return
        offsets = as_topic_partitions(self._positions)
        self._positions = {}
        try:
            self.consumer.commit(offsets=offsets, asynchronous=False)
        except KafkaException as error:
            self.cluster.fail(error.args[0], "committing offsets")

    def _wanted(self, message: Message) -> bool:
        """Whether to hand the record out; takes note of what it means for its partition."""
        partition = (message.topic() or "", message.partition() or 0)
        span = self.spans.get(partition)
        error = message.error()
        if error is not None:
            self._note_error(error, partition)
            return False
        offset = message.offset() or 0
        if span is None or partition not in self._open or offset < span.start:
            return False
        until = self.limits.until
        late = until is not None and until.kind is Kind.TIME and self.limits.follow
        if (span.stop is not None and offset >= span.stop) or (
            late and until is not None and timestamp_ms(message) >= until.number
        ):
            self._finish(partition)
            return False
        self._positions[partition] = offset + 1
        self._count += 1
        if span.stop is not None and offset + 1 >= span.stop:
            self._finish(partition)
        return True

    def _note_error(self, error: KafkaError, partition: Partition) -> None:
        if error.code() == KafkaError._PARTITION_EOF:
            # The last offsets may hold no record (compacted away, transaction markers): the end says so.
            if not self.limits.follow:
                self._finish(partition)
        elif error.code() not in (KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN):
            # The client itself reconnects; _check_alive decides when that has taken too long.
            self.cluster.fail(error, f"reading topic {partition[0]} partition {partition[1]}")

    def _finish(self, partition: Partition) -> None:
        if partition in self._open:
            self._open.discard(partition)
            self.consumer.pause([TopicPartition(*partition)])

    def _check_alive(self, quiet_seconds: float) -> None:
        if self.limits.follow:
            return
        patience = self.cluster.timeout_s if self.assigned else max(self.cluster.timeout_s, _JOIN_SECONDS)
        if quiet_seconds > patience:
            self.cluster.unanswered("reading")

    # --- what the group decides ---

    def _on_assign(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        found = {(each.topic, each.partition): 0 for each in partitions}
        self.plan(found)
        # Where the group left off is known only to the client: even an empty span ends when the client says so.
        self._open = set(found)

    def _on_revoke(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        try:
            self.commit()
        except Failure:
            # The next owner reads these records again: at least once, as promised.
            self._positions = {}

    def _on_lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self._positions = {}
