"""What tasks of the replay pipeline do: publish archived records of one partition to a topic, in order, resumably.

Records go out in transactions, each of which also commits the offset that comes next in the archive, as the offset
of a group that bears the replay's id. So a task that is run again begins where the last transaction ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from culver.pipelines.archive_manifest import ArchiveError

if TYPE_CHECKING:
    from confluent_kafka import Producer

RESULT_SCHEMA = "partition INT, records LONG"
RECORDS_PER_TRANSACTION = 20_000

_RESULT = pa.schema([("partition", pa.int32()), ("records", pa.int64())])
_TIMEOUT_SECONDS = 60.0
_TRANSACTION_TIMEOUT_MS = 120_000
_COLUMNS = ["key", "value", "offset", "timestamp", "headers"]


class ReplayFailed(RuntimeError):
    """The cluster did not take the records."""


class Stretch(msgspec.Struct, frozen=True, kw_only=True):
    """What one task is to publish: records of one partition, and where to."""

    replay_id: str
    bootstrap: str
    target: str
    partition: int
    # start <= offset < end, and since <= timestamp < until.
    start: int
    end: int
    since_ms: int
    until_ms: int
    keep_timestamps: bool
    files: list[str]

    @property
    def name(self) -> str:
        return f"culver-replay-{self.replay_id}-{self.target}-{self.partition}"


def replay_task(
    records_per_transaction: int = RECORDS_PER_TRANSACTION,
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow over a column `stretch` that holds them as JSON."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for text in batch.column("stretch").to_pylist():
                stretch = msgspec.json.decode(text, type=Stretch)
                records = publish(stretch, records_per_transaction)
                row = {"partition": stretch.partition, "records": records}
                yield pa.RecordBatch.from_pylist([row], schema=_RESULT)

    return run


def publish(stretch: Stretch, records_per_transaction: int) -> int:
    """Publish what is left of a stretch; how many records that was."""
    with _Publisher(stretch) as publisher:
        start = max(stretch.start, publisher.next_offset())
        pending = total = 0
        for batch in archived(stretch, start):
            for record in zip(*(batch.column(name).to_pylist() for name in _COLUMNS), strict=True):
                publisher.send(*record)
                pending += 1
                if pending >= records_per_transaction:
                    publisher.commit()
                    total, pending = total + pending, 0
        if pending:
            publisher.commit()
        return total + pending


def archived(stretch: Stretch, start: int) -> Iterator[pa.RecordBatch]:
    """The records of a stretch from an offset on, in order. Raises ArchiveError for a file that cannot be read."""
    for path in stretch.files:
        try:
            with pq.ParquetFile(path, page_checksum_verification=True) as file:
                for batch in file.iter_batches(columns=_COLUMNS, use_threads=False):
                    millis = pc.divide(batch.column("timestamp").cast(pa.int64()), 1000)
                    wanted = _between(batch.column("offset"), start, stretch.end)
                    yield batch.filter(pc.and_(wanted, _between(millis, stretch.since_ms, stretch.until_ms)))
        except (OSError, pa.ArrowException) as error:
            reason = str(error).splitlines()[0]
            raise ArchiveError(f"{path} cannot be read ({reason}): put it back from a copy") from error


def _between(column: pa.Array, least: int, end: int) -> pa.Array:
    return pc.and_(pc.greater_equal(column, least), pc.less(column, end))


@dataclass
class _Publisher:
    """A producer with a transaction, and the group that remembers how far it is."""

    stretch: Stretch

    def __enter__(self) -> _Publisher:
        from confluent_kafka import Consumer, Producer, TopicPartition

        stretch = self.stretch
        self._producer: Producer = Producer(
            {
                "bootstrap.servers": stretch.bootstrap,
                "transactional.id": stretch.name,
                "transaction.timeout.ms": _TRANSACTION_TIMEOUT_MS,
                "linger.ms": 20,
                "log_level": 0,
            }
        )
        self._consumer: Any = Consumer(
            {
                "bootstrap.servers": stretch.bootstrap,
                "group.id": stretch.name,
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
                "log_level": 0,
            }
        )
        self._place: Callable[[int], Any] = lambda offset: TopicPartition(
            stretch.target, stretch.partition, offset
        )
        self._failure: str | None = None
        self._after = 0
        self._open = False
        # An attempt that was given up, if there is one, is shut out from here on.
        self._call(self._producer.init_transactions, _TIMEOUT_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._open:
                self._call(self._producer.abort_transaction, _TIMEOUT_SECONDS)
        except ReplayFailed:
            pass  # it ends by its timeout; what led here is the error to tell
        finally:
            self._consumer.close()

    def next_offset(self) -> int:
        (found,) = self._call(self._consumer.committed, [self._place(0)], _TIMEOUT_SECONDS)
        if found.error is not None:
            raise ReplayFailed(f"cannot tell how far the replay has come: {found.error.str()}")
        return int(max(found.offset, 0))

    def send(self, key: Any, value: Any, offset: int, timestamp: Any, headers: Any) -> None:
        from confluent_kafka import KafkaException

        if not self._open:
            self._producer.begin_transaction()
            self._open = True
        more: dict[str, Any] = {}
        if self.stretch.keep_timestamps:
            more["timestamp"] = max(0, int(timestamp.timestamp() * 1000 + 0.5))
        if headers:
            more["headers"] = [(header["key"], header["value"]) for header in headers]
        deadline_s = time.monotonic() + _TIMEOUT_SECONDS
        while True:
            try:
                self._producer.produce(
                    self.stretch.target,
                    value,
                    key,
                    partition=self.stretch.partition,
                    on_delivery=self._delivered,
                    **more,
                )
                break
            except BufferError:
                self._producer.poll(0.1)
                if time.monotonic() > deadline_s:
                    raise ReplayFailed(f"{self.stretch.target} takes no records any more") from None
            except KafkaException as error:
                raise ReplayFailed(
                    f"{self.stretch.target} does not take a record: {error.args[0].str()}"
                ) from error
        self._producer.poll(0)
        self._after = offset + 1

    def commit(self) -> None:
        if self._producer.flush(_TIMEOUT_SECONDS) or self._failure is not None:
            raise ReplayFailed(self._failure or f"{self.stretch.target} did not acknowledge records in time")
        metadata = self._consumer.consumer_group_metadata()
        offsets = [self._place(self._after)]
        self._call(self._producer.send_offsets_to_transaction, offsets, metadata, _TIMEOUT_SECONDS)
        self._call(self._producer.commit_transaction, _TIMEOUT_SECONDS)
        self._open = False

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None and self._failure is None:
            self._failure = f"{message.topic()} did not take a record: {error.str()}"

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        from confluent_kafka import KafkaException

        try:
            return function(*arguments)
        except KafkaException as error:
            raise ReplayFailed(f"{function.__name__} failed: {error.args[0].str()}") from error
