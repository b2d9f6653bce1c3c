"""Produce requests of transactional producers: which partitions their coordinator must be asked about first."""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING

from culver.broker.verification import as_told
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from culver.protocol.records import MAGIC, TRANSACTIONAL_BIT

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.broker.verification import Target, Verdicts

_MAGIC_POSITION = 16
_ATTRIBUTES_POSITION = 22
_PRODUCER = Struct(">qhi")  # id, epoch and first sequence
_PRODUCER_POSITION = 43
_HEADER_BYTES = 61

_ABORTABLE_SINCE_VERSION = 11
# From here on the producer does not add partitions itself: writing to them does.
_ADDS_SINCE_VERSION = 12


class Unverified:
    """Batches that would begin a transaction in their partition, of which this broker knows nothing yet."""

    __slots__ = (
        "_guards",
        "_producer_epoch",
        "_producer_id",
        "_transactional_id",
        "_version",
        "error",
        "refused",
        "verdicts",
        "why",
    )

    def __init__(self, transactional_id: str, producer_id: int, producer_epoch: int, version: int) -> None:
        self._transactional_id = transactional_id
        self._producer_id = producer_id
        self._producer_epoch = producer_epoch
        self._version = version
        # Ended by any marker of the producer: what was verified before it does not hold after it.
        self._guards: dict[Target, object] = {}
        # What the partitions themselves have against their batches.
        self.refused: Verdicts = {}
        self.verdicts: Verdicts | None = None
        self.error = ErrorCode.NONE
        self.why = ""

    def add(self, target: Target, guard: object) -> None:
        self._guards[target] = guard

    def refuse(self, error: ErrorCode, why: str) -> None:
        self.error, self.why = error, why

    def __bool__(self) -> bool:
        return bool(self._guards or self.refused) or self.error is not ErrorCode.NONE

    def is_of(self, producer: tuple[int, int]) -> bool:
        return producer == (self._producer_id, self._producer_epoch)

    def verify(self, node: Node, verified: Callable[[], object]) -> None:
        """Ask; `verified` is called when there are verdicts, perhaps at once."""
        if not self._guards:
            self.verdicts = {}
            verified()
            return

        def answered(verdicts: Verdicts) -> None:
            self.verdicts = verdicts
            verified()

        node.verification.ask(
            self._transactional_id,
            self._producer_id,
            self._producer_epoch,
            list(self._guards),
            adds=self._version >= _ADDS_SINCE_VERSION,
            answered=answered,
        )

    def verdict(self, topic: str, index: int) -> tuple[ErrorCode, object | None]:
        """What to say of a partition's batch, or the guard with which it may be appended."""
        if (topic, index) in self.refused:
            return self.refused[topic, index], None
        guard = self._guards.get((topic, index))
        if guard is None or self.verdicts is None:
            return ErrorCode.NONE, None  # not in question
        code = as_told(
            self.verdicts[topic, index],
            try_again=ErrorCode.NOT_ENOUGH_REPLICAS,
            knows_abortable=self._version >= _ABORTABLE_SINCE_VERSION,
            second_generation=self._version >= _ADDS_SINCE_VERSION,
        )
        return code, guard


def unverified(node: Node, request: ProduceRequest, version: int) -> Unverified | None:
    """What must be verified before anything of the request is appended; None when nothing must."""
    assert request.transactional_id is not None
    found: Unverified | None = None
    for topic in request.topic_data:
        name = topic.name
        if version >= 13:
            image = node.image.topics_by_id.get(topic.topic_id)
            name = "" if image is None else image.name
        for data in topic.partition_data:
            producer = _transactional_producer(data.records)
            if producer is None:
                continue
            producer_id, epoch, sequence = producer
            if found is None:
                found = Unverified(request.transactional_id, producer_id, epoch, version)
            elif not found.is_of((producer_id, epoch)):
                found.refuse(
                    ErrorCode.INVALID_PRODUCER_ID_MAPPING, "the request holds batches of several producers"
                )
            partition = node.partitions.get(name, data.index)
            if partition is None or partition.state is None:
                continue
            try:
                guard = partition.log.begin_verification(
                    producer_id, epoch, sequence, begins_at_zero=version >= _ADDS_SINCE_VERSION
                )
            except KafkaError as error:
                found.refused[name, data.index] = error.code
            else:
                if guard is not None:
                    found.add((name, data.index), guard)
    return found if found else None


def copied(request: ProduceRequest) -> ProduceRequest:
    """The request with records of its own: those in the receive buffer are gone when the handler returns."""
    return ProduceRequest(
        transactional_id=request.transactional_id,
        acks=request.acks,
        timeout_ms=request.timeout_ms,
        topic_data=[
            TopicProduceData(
                name=topic.name,
                topic_id=bytes(topic.topic_id),
                partition_data=[
                    PartitionProduceData(
                        index=data.index,
                        records=None if data.records is None else memoryview(bytearray(data.records)),
                    )
                    for data in topic.partition_data
                ],
            )
            for topic in request.topic_data
        ],
    )


def _transactional_producer(records: memoryview | None) -> tuple[int, int, int] | None:
    """Id, epoch and first sequence of a transactional batch's producer; None for anything else."""
    if (
        records is None
        or len(records) < _HEADER_BYTES
        or records[_MAGIC_POSITION] != MAGIC
        or not records[_ATTRIBUTES_POSITION] & TRANSACTIONAL_BIT
    ):
        return None
    producer: tuple[int, int, int] = _PRODUCER.unpack_from(records, _PRODUCER_POSITION)
    return producer if producer[0] >= 0 else None
