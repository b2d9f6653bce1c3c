"""Producers of a simulated workload: unique values, several batches in flight, retries as in Kafka's clients."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from culver.errors import ErrorCode
from culver.protocol.messages.init_producer_id import InitProducerIdRequest
from culver.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from culver.protocol.records import Record, encode_batch
from culver.testing.history import ACKS_ALL, History, Outcome, Partition, Send
from culver.testing.simulation.client import Client, Connection, Disconnected, NotSent

_PRODUCE_VERSION = 9
_INIT_VERSION = 4
_ANSWER_WITHIN_MS = 1_500

# Refused before anything was written.
_CERTAIN = frozenset({ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION})
_DONE = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
_RETRIABLE = frozenset(
    {
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.KAFKA_STORAGE_ERROR,
        # A leader that does not know yet that it was replaced lacks what the new one has. Asking again is right; if it
        # stays so, the producer never gets through, and that is found.
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
    }
)


@dataclass
class _Batch:
    sends: list[Send]
    base_sequence: int
    data: bytes
    answer: asyncio.Future[Any] | None = None
    done: bool = False
    # Whether some attempt may have been appended.
    uncertain: bool = False
    errors: list[ErrorCode] = field(default_factory=list)


class Producer:
    """Sends to some partitions, each on its own, until it is told to stop; then until everything is answered."""

    def __init__(
        self,
        name: str,
        client: Client,
        history: History,
        partitions: list[Partition],
        *,
        acks: int = ACKS_ALL,
        in_flight: int = 1,
        pause_ms: tuple[int, int] = (50, 500),
    ) -> None:
        self.name = name
        self._client = client
        self._history = history
        self._partitions = partitions
        self._acks = acks
        self._idempotent = acks == ACKS_ALL
        self._in_flight = in_flight
        self._pause_ms = pause_ms
        self._producer_id = -1
        self._producer_epoch = -1
        self.stopping = False
        # Where a batch has been acknowledged.
        self._begun: set[Partition] = set()
        self.unanswered: dict[Partition, list[_Batch]] = {partition: [] for partition in partitions}

    @property
    def done(self) -> bool:
        return self.stopping and not any(self.unanswered.values())

    def told_to_stop(self) -> bool:
        return self.stopping

    def start(self) -> None:
        self._client.process.start(self._begin())

    async def _begin(self) -> None:
        if self._idempotent:
            await self._become_idempotent()
        for partition in self._partitions:
            self._client.process.start(self._lane(partition))

    async def _become_idempotent(self) -> None:
        client = self._client
        while True:
            try:
                await client.refresh(self._partitions[0][0])
                connection, _ = await client.leader(self._partitions[0])
                request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
                answer = await connection.ask(request, _INIT_VERSION)
            except Disconnected:
                await client.pause(50, 200)
                continue
            if not answer.error_code:
                self._producer_id, self._producer_epoch = answer.producer_id, answer.producer_epoch
                return
            await client.pause(50, 200)

    async def _lane(self, partition: Partition) -> None:
        client = self._client
        unanswered = self.unanswered[partition]
        number = 0
        while True:
            # A broker takes any first sequence of a producer that it does not know, as Kafka does. So the first batch
            # must be there before another is sent, or it might be overtaken.
            most = self._in_flight if partition in self._begun else 1
            while not self.stopping and len(unanswered) < most:
                await client.pause(*self._pause_ms)
                if self.told_to_stop():
                    break
                batch = self._new_batch(partition, number)
                number += len(batch.sends)
                unanswered.append(batch)
                if len(unanswered) < most and client.random.random() < 0.5:
                    break  # send what there is
            if not unanswered:
                if self.stopping:
                    return
                continue
            if self._acks == 0:
                await self._send_blindly(partition, unanswered)
            else:
                await self._send(partition, unanswered)

    def _new_batch(self, partition: Partition, number: int) -> _Batch:
        client = self._client
        count = client.random.choice((1, 1, 2, 4))
        sends = []
        for each in range(number, number + count):
            value = f"{self.name}/{partition[0]}-{partition[1]}/{each}".encode()
            value += b"." * client.random.randrange(0, 60)
            sends.append(
                Send(
                    self.name, partition, value, each, self._acks, self._idempotent, invoked_ms=client.now_ms
                )
            )
        self._history.sends += sends
        now_ms = round(client.now_ms)
        data = encode_batch(
            [Record(at, 1_750_000_000_000 + now_ms, None, send.value) for at, send in enumerate(sends)],
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=number if self._idempotent else -1,
        )
        return _Batch(sends, number, bytes(data))

    # -- sending ----------------------------------------------------------------------------------------

    async def _send(self, partition: Partition, unanswered: list[_Batch]) -> None:
        """One round: everything that is not under way is sent, in order; then the oldest answer is waited for."""
        client = self._client
        try:
            connection, _ = await client.leader(partition)
        except Disconnected:
            self._start_over(unanswered)
            await client.leader_is_another(partition)
            return
        for batch in unanswered:
            if batch.answer is None and not batch.done:
                batch.answer = connection.begin(self._request(partition, batch), _PRODUCE_VERSION)
        error = await self._answer(unanswered[0])
        if not unanswered[0].done:
            # What was sent behind it is waited for, then all that is left is sent again, in order.
            for batch in unanswered[1:]:
                await self._answer(batch)
        # Brokers remember the last five batches. So one that is done keeps its place until all before it are.
        while unanswered and unanswered[0].done:
            del unanswered[0]
        if error in _DONE:
            return
        first = unanswered[0]
        if not self._idempotent and first.uncertain:
            # Sent again it might be there twice: it is left at that.
            del unanswered[0]
        elif not self._idempotent and self._client.random.random() < 0.3:
            # Refused for certain, and not tried again: it must not turn up.
            for send in first.sends:
                send.outcome = Outcome.FAILED
            del unanswered[0]
        elif error is not None and error not in _RETRIABLE:
            self._history.complaints.append(f"{self.name} was told {error.name} for {first.sends[0].value!r}")
            del unanswered[0]
        self._start_over(unanswered)
        await client.leader_is_another(partition)

    def _start_over(self, unanswered: list[_Batch]) -> None:
        for batch in unanswered:
            if batch.answer is not None and not batch.answer.done():
                batch.uncertain = True
            batch.answer = None

    async def _answer(self, batch: _Batch) -> ErrorCode | None:
        """How the broker answered; None when it did not."""
        if batch.done:
            return ErrorCode.NONE
        assert batch.answer is not None
        try:
            response = await batch.answer
        except NotSent:
            return None
        except Disconnected:
            batch.uncertain = True
            return None
        answer = response.responses[0].partition_responses[0]
        error = ErrorCode(answer.error_code)
        batch.errors.append(error)
        if error in _DONE:
            batch.done = True
            self._begun.add(batch.sends[0].partition)
            for at, send in enumerate(batch.sends):
                send.outcome = Outcome.OK
                send.completed_ms = self._client.now_ms
                if error is ErrorCode.NONE and answer.base_offset >= 0:
                    send.offset = answer.base_offset + at
        elif error not in _CERTAIN:
            batch.uncertain = True
        return error

    def _request(self, partition: Partition, batch: _Batch) -> ProduceRequest:
        data = PartitionProduceData(index=partition[1], records=memoryview(batch.data))
        return ProduceRequest(
            acks=self._acks,
            timeout_ms=_ANSWER_WITHIN_MS,
            topic_data=[TopicProduceData(name=partition[0], partition_data=[data])],
        )

    async def _send_blindly(self, partition: Partition, unanswered: list[_Batch]) -> None:
        """acks=0: no answer comes, and nothing is known."""
        connection: Connection | None = None
        try:
            connection, _ = await self._client.leader(partition)
            connection.send_and_forget(self._request(partition, unanswered[0]), _PRODUCE_VERSION)
        except Disconnected:
            await self._client.leader_is_another(partition)
        del unanswered[0]
