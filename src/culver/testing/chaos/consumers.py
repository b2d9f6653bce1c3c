"""Consumers of a chaos run: one that reads partitions from start to end, and members of a group that commit."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from culver.testing.chaos.worker import Worker, Workplace
from culver.testing.history import Commit, CommittedRead, Outcome, Partition, Poll

_POLL_SECONDS = 0.2
_AT_ONCE = 500
_COMMIT_EVERY_MS = 400.0
_ASKING_SECONDS = 5.0
_RETRY_SECONDS = 0.2
_NOT_COMMITTED = -1001

# A position that nobody ever gave it: nothing is ever deleted in a run, so nothing can be out of range.
IMPOSSIBLE = frozenset(
    {
        KafkaError._AUTO_OFFSET_RESET,
        KafkaError.OFFSET_OUT_OF_RANGE,
        KafkaError._BAD_MSG,
        KafkaError._BAD_COMPRESSION,
        KafkaError.INVALID_MSG,
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._LOG_TRUNCATION,
    }
)


def settings(place: Workplace, name: str, group: str, *, committed_only: bool = False) -> dict[str, Any]:
    """What all consumers have in common."""
    return place.settings(name) | {
        "group.id": group,
        "enable.auto.commit": False,
        "auto.offset.reset": "error",
        "fetch.wait.max.ms": 200,
        "isolation.level": "read_committed" if committed_only else "read_uncommitted",
    }


class Reader(Worker):
    """Keeps positions, and writes down what was read."""

    def __init__(
        self, name: str, place: Workplace, group: str | None = None, *, committed_only: bool = False
    ) -> None:
        super().__init__(name, place)
        self.positions: dict[Partition, int] = {}
        self._group = group
        self.committed_only = committed_only
        self._assignment = 0

    def _take(self, messages: list[Message]) -> bool:
        """Write down what was read; False when the consumer lost its place and must be given it again."""
        read: dict[Partition, list[tuple[int, bytes]]] = {}
        sound = True
        for message in messages:
            error = message.error()
            if error is None:
                key = (message.topic() or "", message.partition() or 0)
                offset, value = message.offset(), message.value()
                assert offset is not None
                read.setdefault(key, []).append((offset, value if isinstance(value, bytes) else b""))
                continue
            self.errors[error.name()] += 1
            if error.code() in IMPOSSIBLE:
                sound = False
                self.complain(f"told {error.name()}, positions {self.positions}: {error.str()}")
        for key, records in read.items():
            if key not in self.positions:
                continue  # of an assignment that is over
            poll = Poll(
                self.name,
                key,
                self.positions[key],
                records,
                self._now_ms(),
                self._group,
                self._assignment,
                self.committed_only,
            )
            self._history.polls.append(poll)
            self.positions[key] = poll.next_position
        return sound


class AssignedConsumer(Reader):
    """Reads all partitions from the start on and goes on for ever, from the replica in its own rack if it has one.

    With isolation it reads what was committed, and no more.
    """

    def __init__(
        self,
        name: str,
        place: Workplace,
        partitions: Sequence[Partition],
        *,
        rack: str | None = None,
        committed_only: bool = False,
    ) -> None:
        super().__init__(name, place, committed_only=committed_only)
        self.positions = dict.fromkeys(partitions, 0)
        self._settings = settings(place, name, f"reader-{name}", committed_only=committed_only)
        if rack is not None:
            self._settings["client.rack"] = rack

    def _run(self) -> None:
        consumer = Consumer(self._settings)
        try:
            self._assign(consumer)
            while not self._stopping.is_set():
                if not self._take(consumer.consume(_AT_ONCE, _POLL_SECONDS)):
                    self._stopping.wait(_RETRY_SECONDS)
                    self._assign(consumer)
        finally:
            consumer.close()

    def _assign(self, consumer: Consumer) -> None:
        consumer.assign([TopicPartition(*key, offset) for key, offset in self.positions.items()])


class GroupMember(Reader):
    """Reads what the group gives it from where the group has committed; now and then it leaves and comes back."""

    def __init__(self, name: str, place: Workplace, *, group: str, stays_s: float) -> None:
        super().__init__(name, place, group)
        self._topics = sorted({topic for topic, _ in place.partitions})
        self._stays_s = stays_s
        self._may_leave = True
        self._committed: dict[Partition, int] = {}
        self._settings = settings(place, name, group) | {
            "session.timeout.ms": 6_000,
            "heartbeat.interval.ms": 1_000,
        }

    def stay(self) -> None:
        """From now on it does not leave any more."""
        self._may_leave = False

    def _run(self) -> None:
        while not self._stopping.is_set():
            leaves_at_s = time.monotonic() + self._stays_s
            consumer = Consumer(self._settings)
            try:
                consumer.subscribe(self._topics, on_assign=self._assigned, on_revoke=self._revoked)
                self._consume(consumer, leaves_at_s)
            finally:
                consumer.close()
                self.positions = {}

    def _consume(self, consumer: Consumer, leaves_at_s: float) -> None:
        next_commit_ms = self._now_ms() + _COMMIT_EVERY_MS
        while not self._stopping.is_set():
            message = consumer.poll(_POLL_SECONDS)
            if message is not None and not self._take([message]):
                return
            if self._now_ms() >= next_commit_ms:
                self._commit(consumer)
                next_commit_ms = self._now_ms() + _COMMIT_EVERY_MS
            if self._may_leave and time.monotonic() > leaves_at_s:
                return

    # -- the group's word -----------------------------------------------------------------------------------

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.positions = {}
        self._assignment += 1
        committed = self._ask(consumer, partitions)
        for each in committed:
            key = (each.topic, each.partition)
            each.offset = self.positions[key] = self._committed[key] = max(each.offset, 0)
        consumer.assign(committed)

    def _ask(self, consumer: Consumer, partitions: list[TopicPartition]) -> list[TopicPartition]:
        """Where the group stands; asked until somebody knows."""
        while partitions and not self._stopping.is_set():
            invoked_ms = self._now_ms()
            try:
                answer = consumer.committed(partitions, timeout=_ASKING_SECONDS)
            except KafkaException as error:
                self.errors[error.args[0].name()] += 1
                self._stopping.wait(_RETRY_SECONDS)
                continue
            refused = [each.error for each in answer if each.error is not None]
            if refused:
                self.errors[refused[0].name()] += 1
                self._stopping.wait(_RETRY_SECONDS)
                continue
            assert self._group is not None
            for each in answer:
                if each.offset == _NOT_COMMITTED:
                    each.offset = -1
                self._history.committed_reads.append(
                    CommittedRead(
                        self._group,
                        (each.topic, each.partition),
                        each.offset,
                        invoked_ms,
                        self._now_ms(),
                    )
                )
            return answer
        return []

    def _revoked(self, consumer: Consumer, _partitions: list[TopicPartition]) -> None:
        self.positions = {}
        consumer.unassign()

    def _commit(self, consumer: Consumer) -> None:
        assert self._group is not None
        due = {key: offset for key, offset in self.positions.items() if offset != self._committed.get(key, 0)}
        if not due:
            return
        invoked_ms = self._now_ms()
        commits = {
            key: Commit(self._group, self.name, key, offset, invoked_ms) for key, offset in due.items()
        }
        self._history.commits += commits.values()
        try:
            answer = consumer.commit(
                offsets=[TopicPartition(*key, offset) for key, offset in due.items()], asynchronous=False
            )
        except KafkaException as error:
            self.errors[error.args[0].name()] += 1
            return  # it may have been made or not
        for each in answer or []:
            key = (each.topic, each.partition)
            if each.error is None:
                commits[key].outcome = Outcome.OK
                commits[key].completed_ms = self._now_ms()
                self._committed[key] = each.offset
            else:
                self.errors[each.error.name()] += 1


def read_all(
    place: Workplace, partitions: Sequence[Partition], deadline_s: float, *, committed_only: bool = False
) -> dict[Partition, list[tuple[int, bytes]]]:
    """Every record of the partitions from start to end. TimeoutError when the ends are not reached in time."""
    found: dict[Partition, list[tuple[int, bytes]]] = {partition: [] for partition in partitions}
    consumer = Consumer(
        settings(place, "last", "last", committed_only=committed_only) | {"enable.partition.eof": True}
    )
    try:
        consumer.assign([TopicPartition(topic, index, 0) for topic, index in partitions])
        ended: set[Partition] = set()
        while len(ended) < len(partitions):
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"the ends of {sorted(set(partitions) - ended)} were not reached")
            for message in consumer.consume(_AT_ONCE, _POLL_SECONDS):
                error = message.error()
                key = (message.topic() or "", message.partition() or 0)
                if error is None:
                    offset, value = message.offset(), message.value()
                    assert offset is not None
                    found[key].append((offset, value if isinstance(value, bytes) else b""))
                    ended.discard(key)
                elif error.code() == KafkaError._PARTITION_EOF:
                    ended.add(key)
                elif error.code() in IMPOSSIBLE:
                    raise TimeoutError(f"told {error.name()} while reading {key}: {error.str()}")
    finally:
        consumer.close()
    return found
