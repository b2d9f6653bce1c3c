"""Writes rows to topics: a batch job appends them, a stream writes each micro-batch exactly once.

A task of a streaming query writes its rows in one transaction, and commits in the same transaction the number of the
micro-batch as the offset of a group of its own. When Spark runs a micro-batch again, after a crash between the write
and its own bookkeeping, the task finds that number and writes nothing. As everywhere in Structured Streaming, a
micro-batch must consist of the same rows, in the same tasks, when it is run again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)

from culver.spark.write_options import WriteOptions
from culver.spark.write_rows import records

if TYPE_CHECKING:
    from confluent_kafka import Consumer, Producer, TopicPartition

_TIMEOUT_SECONDS = 60.0
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


class WriteFailed(RuntimeError):
    """The cluster did not take the rows."""


@dataclass
class Written(WriterCommitMessage):
    """What a task tells the driver."""

    rows: int


class BatchWriter(DataSourceArrowWriter):
    """Appends the rows of a batch job; a task that fails and is tried again writes its rows again."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        producer = _new_producer(self._options, {})
        return Written(_produce(producer, self._options, iterator))


class StreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches exactly once."""

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:
        context = TaskContext.get()
        assert context is not None, "a task has a context"
        query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if not query_id or batch_id is None:
            raise WriteFailed("Spark does not say which micro-batch this is: is it a streaming query?")
        return self._write(iterator, f"culver-sink-{query_id}-{context.partitionId()}", int(batch_id))

    def _write(self, iterator: Iterator[pa.RecordBatch], name: str, batch_id: int) -> Written:
        options = self._options
        batches = _beginning_with_rows(iterator)
        if batches is None:
            return Written(0)  # nothing to write, now or if it is run again
        topic = options.topic or next(iter(records(batches[0], None))).topic
        producer = _new_producer(
            options,
            {"transactional.id": name, "transaction.timeout.ms": options.transaction_timeout_ms},
        )
        # Whoever else has this name, an earlier attempt that was given up, is shut out from here on.
        _call(producer.init_transactions, _TIMEOUT_SECONDS)
        marker = _Marker(options, name, topic)
        try:
            if marker.last_batch() >= batch_id:
                return Written(0)
            producer.begin_transaction()
            try:
                rows = _produce(producer, options, chain(batches, iterator))
                marker.commit(producer, batch_id)
                _call(producer.commit_transaction, _TIMEOUT_SECONDS)
            except BaseException:
                _abort(producer)
                raise
        finally:
            marker.close()
        return Written(rows)


class _Marker:
    """The last micro-batch of a task that was written, as the committed offset of a group."""

    def __init__(self, options: WriteOptions, group: str, topic: str) -> None:
        from confluent_kafka import Consumer

        self._topic = topic
        self._consumer: Consumer = Consumer(
            {
                "bootstrap.servers": options.bootstrap,
                "group.id": group,
                # Offsets of an open transaction, such as that of an attempt that has just died, are waited for.
                "isolation.level": "read_committed",
                "enable.auto.commit": False,
            }
        )

    def _partition(self, offset: int) -> TopicPartition:
        from confluent_kafka import TopicPartition

        return TopicPartition(self._topic, 0, offset)

    def last_batch(self) -> int:
        (found,) = _call(self._consumer.committed, [self._partition(0)], _TIMEOUT_SECONDS)
        if found.error is not None:
            raise WriteFailed(f"cannot tell which micro-batches have been written: {found.error.str()}")
        return int(found.offset) - 1 if found.offset > 0 else -1

    def commit(self, producer: Producer, batch_id: int) -> None:
        offsets = [self._partition(batch_id + 1)]
        metadata = self._consumer.consumer_group_metadata()
        _call(producer.send_offsets_to_transaction, offsets, metadata, _TIMEOUT_SECONDS)

    def close(self) -> None:
        self._consumer.close()


# -- producing ----------------------------------------------------------------------------------------------


def _new_producer(options: WriteOptions, more: dict[str, Any]) -> Producer:
    from confluent_kafka import KafkaException, Producer

    settings = {
        "bootstrap.servers": options.bootstrap,
        "client.id": "culver-spark",
        "linger.ms": 50,
        **options.producer,
        "enable.idempotence": True,
        **more,
    }
    try:
        return Producer(settings)
    except KafkaException as error:
        raise WriteFailed(f"an option kafka.* cannot be used: {error.args[0].str()}") from error


class _Deliveries:
    """Hears of records that could not be delivered."""

    def __init__(self) -> None:
        self.failure: str | None = None

    def __call__(self, error: Any, message: Any) -> None:
        if error is not None and self.failure is None:
            self.failure = f"{message.topic()} did not take a record: {error.str()}"


def _produce(producer: Producer, options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> int:
    """Send all rows; how many there were. Raises WriteFailed when one cannot be delivered."""
    from confluent_kafka import KafkaException

    deliveries = _Deliveries()
    rows = 0
    for batch in batches:
        for record in records(batch, options.topic):
            more: dict[str, Any] = {} if record.partition is None else {"partition": record.partition}
            if record.headers:
                more["headers"] = record.headers
            while True:
                try:
                    producer.produce(record.topic, record.value, record.key, on_delivery=deliveries, **more)
                    break
                except BufferError:
                    producer.poll(0.1)
                except KafkaException as error:
                    raise WriteFailed(
                        f"{record.topic} does not take a record: {error.args[0].str()}"
                    ) from error
            rows += 1
        producer.poll(0)
        if deliveries.failure is not None:
            raise WriteFailed(deliveries.failure)
    _flush(producer)
    if deliveries.failure is not None:
        raise WriteFailed(deliveries.failure)
    return rows


def _flush(producer: Producer) -> None:
    left = producer.flush(_TIMEOUT_SECONDS)
    if left:
        raise WriteFailed(
            f"{left} records were not acknowledged within {_TIMEOUT_SECONDS:g} s: is the cluster there?"
        )


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call the client; its error as one that says what failed."""
    from confluent_kafka import KafkaException

    try:
        return function(*arguments)
    except KafkaException as error:
        name = getattr(function, "__name__", "the client")
        raise WriteFailed(f"{name} failed: {error.args[0].str()}") from error


def _abort(producer: Producer) -> None:
    from confluent_kafka import KafkaException

    try:
        producer.abort_transaction(_TIMEOUT_SECONDS)
    except KafkaException:
        return  # the error that led here is the one to tell; the transaction ends by its timeout


def _beginning_with_rows(iterator: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch] | None:
    for batch in iterator:
        if batch.num_rows:
            return [batch]
    return None
