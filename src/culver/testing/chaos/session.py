"""A transactional producer of a chaos run: librdkafka's, with what its errors mean, and every step in the diary."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer, TopicPartition

from culver.testing.chaos.diary import Diary

T = TypeVar("T")

CALL_SECONDS = 5.0
_RETRY_SECONDS = 0.05
_FULL_SECONDS = 0.1

# Why a producer may have come to its end: somebody else has its transactional id, or the coordinator gave up on it.
_END = frozenset({KafkaError._FENCED, KafkaError.PRODUCER_FENCED, KafkaError.INVALID_PRODUCER_EPOCH})
# librdkafka also ends a transaction of which its coordinator may not have heard, if it died before it could be told. To
# that coordinator there is nothing to abort, which librdkafka takes for the end of the world.
_NOTHING_TO_ABORT = frozenset({KafkaError.INVALID_TXN_STATE})


class Abortable(Exception):
    """The transaction cannot be committed; abort it and go on."""


class Ended(Exception):
    """The producer is of no more use; take a new one."""


class Pulse:
    """Whether a client gets on, for somebody on another thread who looks now and then."""

    def __init__(self) -> None:
        self._calls = 0
        self._busy = False

    @contextlib.contextmanager
    def calling(self) -> Iterator[None]:
        self._calls += 1
        self._busy = True
        try:
            yield
        finally:
            self._busy = False

    @property
    def call(self) -> int | None:
        """Which call it is in, None for none."""
        return self._calls if self._busy else None


class Session:
    """One producer from its `init_transactions` to its end."""

    def __init__(self, settings: dict[str, Any], diary: Diary, pulse: Pulse) -> None:
        self._diary = diary
        self._pulse = pulse
        self._number = -1
        self._places: list[int | None] = []
        self._unanswered = 0
        self._aborting = False
        self._producer = Producer(settings | {"error_cb": self._informed})
        try:
            self._attempt(lambda: self._producer.init_transactions(CALL_SECONDS))
        except Abortable as error:
            raise Ended(str(error)) from error
        diary.write("ready")

    def begin(self, number: int, sends: Sequence[tuple[str, int, str]], **details: Any) -> None:
        """Begin a transaction with what will be in it."""
        self._number = number
        self._places = [None] * len(sends)
        self._aborting = False
        self._diary.write("begin", number=number, sends=sends, **details)
        self._attempt(self._producer.begin_transaction)

    def send(self, at: int, topic: str, partition: int, value: str) -> None:
        """The transaction's record number `at`."""

        def delivered(error: KafkaError | None, message: Message, places: list[int | None]) -> None:
            self._unanswered -= 1
            if error is None:
                offset = message.offset()
                places[at] = -1 if offset is None else offset
            else:
                self._diary.write("told", error=error.name())

        places = self._places
        while True:
            try:
                self._producer.produce(
                    topic,
                    value.encode(),
                    partition=partition,
                    on_delivery=lambda error, message: delivered(error, message, places),
                )
                self._unanswered += 1
                return
            except BufferError:
                self._poll()
            except KafkaException as error:
                self._judge(error)

    def add_offsets(self, offsets: list[TopicPartition], metadata: object) -> None:
        self._diary.write("does", what="offsets", number=self._number)
        self._attempt(lambda: self._producer.send_offsets_to_transaction(offsets, metadata, CALL_SECONDS))

    def flush(self) -> None:
        """Wait until every record has its answer. Abortable when one was not written."""
        self._diary.write("does", what="flush", number=self._number)
        # Not its own flush(): that calls callbacks with an exception pending when the producer is at its end, of which
        # Python dies.
        while self._unanswered:
            self._poll()
        self._diary.write("written", number=self._number, offsets=self._places)
        if None in self._places:
            raise Abortable("a record was not written")

    def _poll(self) -> None:
        try:
            self._producer.poll(_FULL_SECONDS)
        except KafkaException as error:
            self._judge(error)

    def commit(self) -> None:
        """Call `flush` before: as long as it is not certain that all is written, nobody has asked for a commit."""
        self._diary.write("commit", number=self._number)
        self._attempt(lambda: self._producer.commit_transaction(CALL_SECONDS))
        self._diary.write("committed", number=self._number)

    def abort(self) -> None:
        self._aborting = True
        self._diary.write("does", what="abort", number=self._number)
        try:
            self._attempt(lambda: self._producer.abort_transaction(CALL_SECONDS))
        except Abortable as error:
            raise Ended(str(error)) from error
        self._diary.write("aborted", number=self._number)

    def close(self) -> None:
        """What is still in the queue goes nowhere."""
        self._producer.purge()

    # -- errors ---------------------------------------------------------------------------------------------

    def _attempt(self, call: Callable[[], T]) -> T:
        """Call until the answer is final; librdkafka takes up again where it was."""
        while True:
            try:
                with self._pulse.calling():
                    return call()
            except KafkaException as error:
                self._judge(error)
                time.sleep(_RETRY_SECONDS)

    def _judge(self, exception: KafkaException) -> None:
        """Return if the same call may be made again."""
        error: KafkaError = exception.args[0]
        self._diary.write("told", error=error.name(), text=error.str(), number=self._number)
        if error.retriable():
            return
        if error.txn_requires_abort():
            raise Abortable(error.str())
        self._question(self._reason() if error.code() == KafkaError._FATAL else error)
        raise Ended(error.str())

    def _reason(self) -> KafkaError:
        """Why a producer has come to its end that merely says that it has: transactional calls do tell."""
        try:
            self._producer.abort_transaction(CALL_SECONDS)
        except KafkaException as exception:
            reason: KafkaError = exception.args[0]
            self._diary.write(
                "told", error=f"_FATAL: {reason.name()}", text=reason.str(), number=self._number
            )
            return reason
        return KafkaError(KafkaError._FATAL)

    def _informed(self, error: KafkaError) -> None:
        """Of something that belongs to no call."""
        self._diary.write("told", error=error.name(), text=error.str(), number=self._number)
        if error.fatal():
            self._question(error)

    def _question(self, error: KafkaError) -> None:
        """Whether that is a reason to end."""
        if error.code() not in _END | (_NOTHING_TO_ABORT if self._aborting else frozenset()):
            self._diary.write("complaint", text=f"told {error.name()}, fatal: {error.fatal()}: {error.str()}")
