"""Writing to the cluster: records go to librdkafka, and what became of them comes back to the event loop.

There is one producer for each level of acknowledgement, made when it is first used. Its delivery reports are taken by
a thread of its own, which hands them to the loop in bunches: one wake-up of the loop for all that came at once.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import confluent_kafka
import msgspec

from culver.errors import ERRORS, ErrorCode, KafkaError
from culver.gateway.admission import Busy
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.known_topics import KnownTopics
from culver.logging import get_logger

_log = get_logger("culver.gateway.producing")
# librdkafka writes with the standard library's logging, and its lines come out as ours do.
_RDKAFKA_LOG = logging.getLogger("culver.gateway.librdkafka")

ACKS = ("all", "1", "0")
NO_PARTITION = -1  # the partitioner chooses: by the key, or any
NO_OFFSET = -1

# How long records may wait for the cluster before their request is answered with a failure.
DELIVERY_TIMEOUT_MS = 30_000
# What a record takes in memory beside its bytes.
RECORD_OVERHEAD_BYTES = 128
# So many records are handed over before the loop gets to do other things.
_RECORDS_AT_A_TIME = 1000
_POLL_SECONDS = 0.2
_CLOSE_SECONDS = 3.0

_LOCAL_CODES = {
    confluent_kafka.KafkaError._MSG_TIMED_OUT: ErrorCode.REQUEST_TIMED_OUT,
    confluent_kafka.KafkaError._TIMED_OUT: ErrorCode.REQUEST_TIMED_OUT,
    confluent_kafka.KafkaError._TIMED_OUT_QUEUE: ErrorCode.REQUEST_TIMED_OUT,
    confluent_kafka.KafkaError._UNKNOWN_TOPIC: ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    confluent_kafka.KafkaError._TRANSPORT: ErrorCode.NETWORK_EXCEPTION,
    # Given up at the end: whether the cluster has the record, nobody knows.
    confluent_kafka.KafkaError._PURGE_QUEUE: ErrorCode.NETWORK_EXCEPTION,
    confluent_kafka.KafkaError._PURGE_INFLIGHT: ErrorCode.NETWORK_EXCEPTION,
    confluent_kafka.KafkaError._ALL_BROKERS_DOWN: ErrorCode.BROKER_NOT_AVAILABLE,
    confluent_kafka.KafkaError._UNSUPPORTED_FEATURE: ErrorCode.UNSUPPORTED_VERSION,
}


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A record to write."""

    topic: str
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes | None], ...] = ()
    partition: int = NO_PARTITION
    timestamp_ms: int | None = None


class Sent(msgspec.Struct, frozen=True, gc=False):
    """What became of a record. The offset is -1 where nobody was asked (acks 0) or an error says why."""

    partition: int
    offset: int
    error: KafkaError | None = None


class UnknownPartition(KafkaError):
    """The topic is there, the partition is not: Kafka has one code for both."""

    def __init__(self, message: str) -> None:
        super().__init__(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, message)


class Producing:
    """All records that the gateway writes."""

    def __init__(
        self,
        bootstrap: str,
        cluster: Cluster,
        *,
        in_flight_max_bytes: int,
        client_settings: Mapping[str, str] | None = None,
    ) -> None:
        self._settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "client.id": "culver-gateway",
            # The topic's own limit decides what is too large.
            "message.max.bytes": 1_000_000_000,
            "batch.size": 1_000_000,
            "delivery.timeout.ms": DELIVERY_TIMEOUT_MS,
            # What may wait is bounded here, in bytes, for all producers together.
            "queue.buffering.max.messages": 0,
            "queue.buffering.max.kbytes": 2_097_151,
            # As Java clients do it, so that a key finds the same partition whoever writes it.
            "partitioner": "murmur2_random",
            # Requests that come at the same moment share a batch; the broker has a third of the work.
            "linger.ms": 0.5,
            "log.connection.close": False,
            **(client_settings or {}),
        }
        self._in_flight_max_bytes = in_flight_max_bytes
        self.in_flight_bytes = 0
        self.topics = KnownTopics(cluster)
        self._producers: dict[tuple[str, bool], _Producer] = {}
        self._closing = False

    async def start(self) -> None:
        """Make the usual producer, which needs half a second to introduce itself to the cluster.

        ValueError when librdkafka does not take its settings.
        """
        try:
            self._producer("all")
        except confluent_kafka.KafkaException as error:
            raise ValueError(f"the Kafka client cannot be used: {error.args[0].str()}") from None

    async def send(self, records: Sequence[Outgoing], *, acks: str = "all") -> list[Sent]:
        """Write the records and wait until each is acknowledged as asked, or has failed: one Sent each, in order.

        acks: "all" (every in-sync replica; written once, in order), "1" (the leader) or "0" (nobody is asked).
        Busy when too much waits for the cluster already; Unreachable when there is none to ask for the topics.
        """
        results = await self._send(records, acks, alone=False)
        too_large = [index for index, sent in enumerate(results) if _is_too_large(sent)]
        if too_large:
            # Refused is the batch in which a record travelled, perhaps with others. Alone it is told by its own size.
            again = await self._send([records[index] for index in too_large], acks, alone=True)
            for index, sent in zip(too_large, again, strict=True):
                results[index] = sent
        self._notice_missing(records, results)
        return results

    async def _send(self, records: Sequence[Outgoing], acks: str, *, alone: bool) -> list[Sent]:
        if self._closing:
            raise KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, "the gateway is shutting down")
        if not records:
            return []
        refusals = await self._refusals({record.topic for record in records})
        size = sum(_size(record) for record in records)
        if self.in_flight_bytes and self.in_flight_bytes + size > self._in_flight_max_bytes:
            raise Busy(f"{self.in_flight_bytes} bytes of records wait for the cluster; try again in a moment")
        self.in_flight_bytes += size
        delivery = _Delivery(len(records), partial(self._give_back, size))
        left = len(records)
        try:
            producer = self._producer(acks, alone)
            for start in range(0, len(records), _RECORDS_AT_A_TIME):
                if start:
                    await asyncio.sleep(0)
                for index, record in enumerate(records[start : start + _RECORDS_AT_A_TIME], start):
                    if record.topic in refusals:
                        delivery.settle(index, Sent(record.partition, NO_OFFSET, refusals[record.topic]))
                    else:
                        producer.produce(record, delivery, index)
                    left -= 1
        except BaseException as error:
            # Not handed over, as the gateway is ending or cannot make a producer.
            failed = Sent(
                NO_PARTITION, NO_OFFSET, KafkaError(ErrorCode.OPERATION_NOT_ATTEMPTED, type(error).__name__)
            )
            for index in range(len(records) - left, len(records)):
                delivery.settle(index, failed)
            raise
        return await delivery.done

    async def _refusals(self, topics: set[str]) -> dict[str, KafkaError]:
        """Why topics cannot be written to, for those that cannot."""
        refusals = {}
        for topic in topics:
            if topic not in self.topics and (error := await self.topics.check(topic)) is not None:
                refusals[topic] = error
        return refusals

    def _notice_missing(self, records: Sequence[Outgoing], results: Sequence[Sent]) -> None:
        """A topic that has gone is asked for again the next time."""
        for record, sent in zip(records, results, strict=True):
            if sent.error is not None and sent.error.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                self.topics.forget(record.topic)

    def _give_back(self, size: int) -> None:
        self.in_flight_bytes -= size

    def _producer(self, acks: str, alone: bool = False) -> _Producer:
        producer = self._producers.get((acks, alone))
        if producer is None or producer.fatal:
            if producer is not None:
                _log.error("producer failed for good and is replaced", acks=acks)
                producer.retire()
            settings = {**self._settings, "acks": acks, "enable.idempotence": acks == "all"}
            if alone:
                settings["batch.num.messages"] = 1
            producer = self._producers[acks, alone] = _Producer(settings)
        return producer

    async def close(self) -> None:
        """Wait for what is under way, but not for ever."""
        self._closing = True
        producers = list(self._producers.values())
        await asyncio.gather(*(asyncio.to_thread(producer.close) for producer in producers))


def _is_too_large(sent: Sent) -> bool:
    return sent.error is not None and sent.error.code is ErrorCode.MESSAGE_TOO_LARGE


def _size(record: Outgoing) -> int:
    return RECORD_OVERHEAD_BYTES + len(record.value or b"") + len(record.key or b"")


class _Delivery:
    """The records of one call: what became of each, until all are known. Touched by the event loop only."""

    __slots__ = ("_left", "_on_end", "_results", "done")

    def __init__(self, count: int, on_end: Callable[[], object]) -> None:
        self.done: asyncio.Future[list[Sent]] = asyncio.get_running_loop().create_future()
        self._results: list[Sent | None] = [None] * count
        self._left = count
        self._on_end = on_end

    def settle(self, index: int, sent: Sent) -> None:
        self._results[index] = sent
        self._left -= 1
        if not self._left:
            # Even if nobody waits any more: the memory is only now free.
            self._on_end()
            if not self.done.done():
                self.done.set_result([each for each in self._results if each is not None])


class _Producer:
    """One librdkafka producer, and the thread that takes its delivery reports."""

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._loop = asyncio.get_running_loop()
        self._producer = confluent_kafka.Producer(dict(settings), logger=_RDKAFKA_LOG)
        self._produce = self._producer.produce
        self._reports: list[tuple[_Delivery, int, Sent]] = []
        self._ending = False
        self.fatal = False
        self._thread = threading.Thread(target=self._poll, name="producer-reports", daemon=True)
        self._thread.start()

    def produce(self, record: Outgoing, delivery: _Delivery, index: int) -> None:
        """Hand a record over. A hot path: keywords and empty headers would take a third longer."""
        report = partial(self._reported, delivery, index)
        try:
            if record.headers or record.timestamp_ms is not None:
                self._produce(
                    record.topic,
                    record.value,
                    record.key,
                    record.partition,
                    report,
                    timestamp=record.timestamp_ms or 0,
                    headers=list(record.headers),
                )
            else:
                self._produce(record.topic, record.value, record.key, record.partition, report)
        except confluent_kafka.KafkaException as error:
            delivery.settle(index, self._failed(record.partition, error.args[0]))
        except BufferError:
            full = KafkaError(ErrorCode.THROTTLING_QUOTA_EXCEEDED, "too many records wait for the cluster")
            delivery.settle(index, Sent(record.partition, NO_OFFSET, full))

    def _reported(self, delivery: _Delivery, index: int, error: Any, message: Any) -> None:
        """In the thread, for each record: keep it for the next bunch."""
        if error is None:
            offset = message.offset()
            sent = Sent(message.partition(), NO_OFFSET if offset is None else offset)
        else:
            sent = self._failed(message.partition(), error)
        self._reports.append((delivery, index, sent))

    def _failed(self, partition: int, error: Any) -> Sent:
        if error.fatal() or error.code() == confluent_kafka.KafkaError._FATAL:
            self.fatal = True
        return Sent(partition, NO_OFFSET, kafka_error(error))

    def _poll(self) -> None:
        while not self._ending:
            self._producer.poll(_POLL_SECONDS)
            self._hand_over()

    def _hand_over(self) -> None:
        if self._reports:
            reports, self._reports = self._reports, []
            self._loop.call_soon_threadsafe(_settle_all, reports)

    def retire(self) -> None:
        """End it in the background: nothing more is given to it."""
        threading.Thread(target=self.close, name="producer-close", daemon=True).start()

    def close(self) -> None:
        """Wait a while for what is under way, then give it up. Nothing may be handed over any more."""
        # First the thread, so that reports come in one place: those of flush() come here.
        self._ending = True
        self._thread.join()
        self._producer.flush(_CLOSE_SECONDS)
        self._producer.purge()
        self._producer.flush(_CLOSE_SECONDS)
        self._hand_over()


def _settle_all(reports: list[tuple[_Delivery, int, Sent]]) -> None:
    for delivery, index, sent in reports:
        delivery.settle(index, sent)


def kafka_error(error: Any) -> KafkaError:
    """librdkafka's error as one of the protocol's table; its own codes are below zero."""
    if error.code() == confluent_kafka.KafkaError._UNKNOWN_PARTITION:
        return UnknownPartition("the topic has no such partition")
    code = _LOCAL_CODES.get(error.code())
    if code is None:
        info = ERRORS.get(error.code()) if error.code() > 0 else None
        code = info.code if info is not None else ErrorCode.UNKNOWN_SERVER_ERROR
    return KafkaError(code, error.str())
