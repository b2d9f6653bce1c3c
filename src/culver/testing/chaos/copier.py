"""A copier of a chaos run, in a process of its own: reads in a group, writes copies, commits its offsets with them."""

from __future__ import annotations

import contextlib
import random
import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from culver.testing.chaos.consumers import IMPOSSIBLE
from culver.testing.chaos.diary import Diary
from culver.testing.chaos.session import Abortable, Ended, Pulse, Session
from culver.testing.chaos.teller import transactional

_POLL_SECONDS = 0.1
_ASKING_SECONDS = 3.0
_RETRY_SECONDS = 0.2
_CHANGES_ITS_MIND_SHARE = 0.05
_NOT_COMMITTED = -1001
_FENCED = "Static consumer fenced"
CLASSIC = "classic"


@dataclass(frozen=True)
class CopierDuty:
    """What a copier is told to do."""

    transactional_id: str
    group: str
    # "classic", or "consumer" for a group whose broker assigns.
    protocol: str
    # A member under this name comes back to what it had; without one it is another member each time.
    instance: str | None
    source: str
    target: str
    target_partitions: int
    # Records in a transaction, if they come in time.
    size: int
    linger_s: float
    # How long a transaction takes besides its work.
    pause_s: float
    timeout_ms: int
    session_timeout_ms: int


@dataclass
class _Read:
    partition: int
    offset: int
    value: str


class Copier:
    """One copy of every committed record, whatever becomes of this process."""

    def __init__(self, name: str, duty: CopierDuty, settings: dict[str, Any], diary: Diary) -> None:
        self._name = name
        self._duty = duty
        self._diary = diary
        self._random = random.Random(name)
        self._transactions = 0
        self._producer_settings = settings | transactional(duty.transactional_id, duty.timeout_ms)
        self._consumer_settings = settings | {
            "group.id": duty.group,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            # Nothing is ever deleted: whoever is out of range has been told a wrong place.
            "auto.offset.reset": "error",
            "fetch.wait.max.ms": 200,
            "group.protocol": duty.protocol,
        }
        if duty.protocol == CLASSIC:
            self._consumer_settings |= {
                "session.timeout.ms": duty.session_timeout_ms,
                "heartbeat.interval.ms": duty.session_timeout_ms // 5,
            }
        if duty.instance is not None:
            self._consumer_settings["group.instance.id"] = duty.instance
        self.stopping = False
        self.pulse = Pulse()
        self._positions: dict[int, int] = {}
        # The group's generation as of the last assignment, or as of when the transaction's first record was read. The
        # one at the time of the commit may be another, to which what was read before does not belong any more.
        self._metadata: object = None
        self._buffer: list[_Read] = []
        self._session: Session | None = None
        # Whether the consumer is of no more use.
        self._ended = False

    def work(self) -> None:
        # First of all: that ends the transaction in which an earlier life was killed. Nobody is told where the group
        # stands before it has ended.
        while self._session is None and not self.stopping:
            self._renew()
        while not self.stopping:
            consumer = Consumer(self._consumer_settings)
            consumer.subscribe([self._duty.source], on_assign=self._assigned, on_revoke=self._revoked)
            try:
                self._copy(consumer)
            finally:
                consumer.close()
                self._buffer = []
                self._positions = {}

    def _copy(self, consumer: Consumer) -> None:
        since_s = time.monotonic()
        self._ended = False
        while not self.stopping and not self._ended:
            if not self._buffer:
                since_s = time.monotonic()
            # One at a time: a rebalance happens between two messages, and never within what is returned at once.
            message = consumer.poll(_POLL_SECONDS)
            if message is not None:
                if not self._buffer and not self._classic:
                    self._metadata = consumer.consumer_group_metadata()
                self._take(message)
            late = time.monotonic() - since_s > self._duty.linger_s
            if len(self._buffer) >= self._duty.size or (self._buffer and late):
                self._commit(consumer)
                time.sleep(self._random.uniform(0.0, self._duty.pause_s))

    def _take(self, message: Message) -> None:
        error, value = message.error(), message.value()
        if error is not None:
            self._diary.write("told", error=error.name(), text=error.str())
            # When librdkafka has forgotten its member id, because there was no coordinator for as long as a session
            # lasts, it still sends a heartbeat of its static member, with no id: to the group that is an impostor.
            forgot = error.code() == KafkaError._FATAL and _FENCED in (error.str() or "")
            self._ended = forgot
            if error.code() in IMPOSSIBLE or (error.code() == KafkaError._FATAL and not forgot):
                self._diary.write("complaint", text=f"told {error.name()}: {error.str()}")
            return
        partition, offset = message.partition(), message.offset()
        assert partition is not None
        assert offset is not None
        if partition not in self._positions:
            self._diary.write("complaint", text=f"got partition {partition}, which it was not assigned")
            return
        self._buffer.append(_Read(partition, offset, (value or b"").decode()))

    # -- transactions ---------------------------------------------------------------------------------------

    def _commit(self, consumer: Consumer) -> None:
        """Copy what has been read. What cannot be committed is read again from where the group stands."""
        reads, self._buffer = sorted(self._buffer, key=lambda read: (read.partition, read.offset)), []
        try:
            if self._session is None:
                self._renew()
            elif self._transact(self._session, reads):
                return
        except Ended:
            self._renew()
        self._return(consumer)

    def _renew(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None
            time.sleep(self._random.uniform(0.05, 0.3))
        with contextlib.suppress(Ended):
            self._session = Session(self._producer_settings, self._diary, self.pulse)

    def _transact(self, session: Session, reads: list[_Read]) -> bool:
        """Whether it was committed."""
        duty, number = self._duty, self._transactions
        self._transactions += 1
        sends = [
            (
                duty.target,
                (read.offset + read.partition) % duty.target_partitions,
                f"{self._name}/{number}/{at}|{read.value}",
            )
            for at, read in enumerate(reads)
        ]
        offsets_read: dict[int, list[int]] = {}
        for read in reads:
            offsets_read.setdefault(read.partition, []).append(read.offset)
        following = {partition: offsets[-1] + 1 for partition, offsets in offsets_read.items()}
        session.begin(
            number,
            sends,
            group=duty.group,
            reads=[
                (duty.source, partition, self._positions[partition], offsets)
                for partition, offsets in offsets_read.items()
            ],
            offsets=[(duty.source, partition, offset) for partition, offset in following.items()],
        )
        self._positions.update(following)
        pauses = sorted(self._random.sample(range(len(sends)), min(2, len(sends))))
        try:
            for at, send in enumerate(sends):
                session.send(at, *send)
                if at in pauses:
                    time.sleep(self._random.uniform(0.0, duty.pause_s / 2))
            places = [
                TopicPartition(duty.source, partition, offset) for partition, offset in following.items()
            ]
            session.add_offsets(places, self._metadata)
            session.flush()
            if self._random.random() < _CHANGES_ITS_MIND_SHARE:
                raise Abortable("changed its mind")
            session.commit()
        except Abortable:
            session.abort()
            return False
        return True

    # -- the group's word -----------------------------------------------------------------------------------

    @property
    def _classic(self) -> bool:
        """All partitions are assigned anew each time; otherwise those that come or go, and the rest are kept."""
        return self._duty.protocol == CLASSIC

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._classic:
            self._buffer = []
            self._positions = {}
            self._metadata = consumer.consumer_group_metadata()
        places = self._places(consumer, [each.partition for each in partitions])
        if self._classic:
            consumer.assign(places)
        else:
            consumer.incremental_assign(places)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        if self._classic:
            self._buffer = []
            self._positions = {}
            consumer.unassign()
            return
        gone = {each.partition for each in partitions}
        self._buffer = [read for read in self._buffer if read.partition not in gone]
        for partition in gone:
            self._positions.pop(partition, None)
        consumer.incremental_unassign(partitions)

    def _return(self, consumer: Consumer) -> None:
        """Go back to where the group stands."""
        places = self._places(consumer, list(self._positions))
        if self._classic:
            consumer.assign(places)
            return
        for place in places:
            self._seek(consumer, place)

    def _seek(self, consumer: Consumer, place: TopicPartition) -> None:
        while not self.stopping:
            try:
                consumer.seek(place)
                return
            except KafkaException as error:
                self._diary.write("told", error=error.args[0].name())
                time.sleep(_RETRY_SECONDS)

    def _places(self, consumer: Consumer, partitions: list[int]) -> list[TopicPartition]:
        """Where the group stands; asked until somebody knows, which may be when a transaction has ended."""
        asked = [TopicPartition(self._duty.source, partition) for partition in partitions]
        while asked and not self.stopping:
            asked_ms = self._diary.now_ms()
            try:
                answer = consumer.committed(asked, timeout=_ASKING_SECONDS)
            except KafkaException as error:
                self._diary.write("told", error=error.args[0].name())
                time.sleep(_RETRY_SECONDS)
                continue
            refused = [each.error for each in answer if each.error is not None]
            if refused:
                self._diary.write("told", error=refused[0].name())
                time.sleep(_RETRY_SECONDS)
                continue
            for each in answer:
                each.offset = -1 if each.offset == _NOT_COMMITTED else each.offset
            self._diary.write(
                "placed",
                asked_ms=asked_ms,
                group=self._duty.group,
                offsets=[(each.topic, each.partition, each.offset) for each in answer],
            )
            for each in answer:
                each.offset = self._positions[each.partition] = max(each.offset, 0)
            return answer
        return []
