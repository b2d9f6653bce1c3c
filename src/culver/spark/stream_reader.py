"""Streaming queries on topics: `spark.readStream.format("culver")`.

Spark keeps the offsets of a stream in its checkpoint, and asks here how far the next batch may reach. Each time it
does, the batch before is done, so that is when progress is stored for `commitGroup`: Spark calls `commit` for all
batches but the last of an AvailableNow query, and `stop` only sometimes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from culver.errors import KafkaError
from culver.spark.admission import new_offsets, within_bytes, within_offsets
from culver.spark.fetching import BlockingCluster, TopicPartition
from culver.spark.offset_ranges import OffsetRange, cut
from culver.spark.options import ReadOptions
from culver.spark.position import (
    Offsets,
    earliest_offsets,
    from_json,
    latest_offsets,
    starting_offsets,
    subscribed_partitions,
    to_json,
)
from culver.spark.read_settings import DataLost
from culver.wire_client import Unreachable

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

JsonOffsets = dict[str, dict[str, int]]


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One streaming query's view of its topics. Lives in a process of the driver's; `read` runs on executors."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options
        self._connected: BlockingCluster | None = None
        # Where an AvailableNow query ends; None with other triggers.
        self._target: Offsets | None = None
        self._latest: Offsets | None = None
        self._stored: Offsets | None = None
        self._batch_at = time.monotonic()

    def __getstate__(self) -> dict[str, Any]:
        # Executors get the reader pickled; they make connections of their own.
        return {**self.__dict__, "_connected": None}

    @property
    def _cluster(self) -> BlockingCluster:
        if self._connected is None:
            self._connected = BlockingCluster(self._options.bootstrap)
        return self._connected

    # -- how far ------------------------------------------------------------------------------------------

    def initialOffset(self) -> JsonOffsets:
        places = subscribed_partitions(self._cluster, self._options.subscription)
        return to_json(starting_offsets(self._cluster, places, self._options))

    def prepareForTriggerAvailableNow(self) -> None:
        places = subscribed_partitions(self._cluster, self._options.subscription)
        self._target = latest_offsets(self._cluster, places, self._options)

    def getDefaultReadLimit(self) -> ReadLimit:
        """Spark knows one limit at a time and hands it back; here all that are set apply, whichever it is."""
        options = self._options
        if options.offsets_per_trigger_max is not None:
            return ReadMaxRows(options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        if options.offsets_per_trigger_min is not None:
            return ReadMinRows(options.offsets_per_trigger_min)
        return ReadAllAvailable()

    def latestOffset(self, start: JsonOffsets, limit: ReadLimit) -> JsonOffsets:
        begin = from_json(start)
        self._store_progress(begin)
        end = self._available(begin)
        # New partitions count from where they will be read.
        begin = begin | self._new_partitions(begin, end)
        if not isinstance(limit, ReadAllAvailable):
            if self._should_wait(begin, end):
                return start
            end = self._limited(begin, end)
        if new_offsets(begin, end):
            self._batch_at = time.monotonic()
        return to_json(end)

    def reportLatestOffset(self) -> JsonOffsets | None:
        return None if self._latest is None else to_json(self._latest)

    def _available(self, begin: Offsets) -> Offsets:
        """The ends of all partitions, or those that an AvailableNow query set out to reach."""
        if self._target is not None:
            end = self._target
        else:
            places = subscribed_partitions(self._cluster, self._options.subscription)
            end = latest_offsets(self._cluster, places, self._options)
        self._latest = end
        if gone := sorted(begin.keys() - end.keys()):
            topic, partition = gone[0]
            self._lost(f"{topic}-{partition} is gone, and what was not read yet is gone with it")
        for place, offset in end.items():
            if offset < begin.get(place, 0):
                self._lost(
                    f"{place[0]}-{place[1]} ends at offset {offset}, but {begin[place]} has been read: "
                    "the topic was created anew, or lost its end"
                )
        return end

    def _should_wait(self, begin: Offsets, end: Offsets) -> bool:
        """Whether there is too little for a batch. An AvailableNow query takes what there is: no more will come."""
        least = self._options.offsets_per_trigger_min
        if least is None or self._target is not None:
            return False
        waited_s = time.monotonic() - self._batch_at
        return sum(new_offsets(begin, end).values()) < least and waited_s < self._options.trigger_delay_max_s

    def _limited(self, begin: Offsets, end: Offsets) -> Offsets:
        options = self._options
        if options.offsets_per_trigger_max is not None:
            end = within_offsets(begin, end, options.offsets_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            end = within_bytes(self._cluster, begin, end, options.bytes_per_trigger_max)
        return end

    # -- what -----------------------------------------------------------------------------------------------

    def partitions(self, start: JsonOffsets, end: JsonOffsets) -> Sequence[InputPartition]:
        begin, until = from_json(start), from_json(end)
        begin = begin | self._new_partitions(begin, until)
        return cut(
            [OffsetRange(*place, begin[place], offset) for place, offset in sorted(until.items())],
            at_least=self._options.partitions_min,
            records_max=self._options.records_per_partition_max,
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Only those who read need what it takes to decode, and the planner starts anew for every query.
        from culver.spark.partition_reader import read_range

        assert isinstance(partition, OffsetRange)
        with BlockingCluster(self._options.bootstrap) as cluster:
            yield from read_range(cluster, partition, self._options.settings)

    def _new_partitions(
        self, begin: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]
    ) -> Offsets:
        """Partitions that have come since `begin` are read from their first record on."""
        new = sorted(end.keys() - begin.keys())
        found = earliest_offsets(self._cluster, new) if new else {}
        for place, offset in found.items():
            if offset > 0:
                self._lost(
                    f"{place[0]}-{place[1]} is new to this query, but begins with offset {offset}, not 0"
                )
        return found

    # -- progress -------------------------------------------------------------------------------------------

    def _store_progress(self, done: Offsets) -> None:
        group = self._options.commit_group
        if group is None or done == self._stored:
            return
        try:
            self._cluster.commit_offsets(group, done)
        except (KafkaError, Unreachable) as error:
            # Only those who watch the lag depend on it; the query has its checkpoint.
            log.warning("progress was not stored for group %s: %s", group, error)
        else:
            self._stored = done

    def stop(self) -> None:
        if self._connected is not None:
            self._connected.close()
            self._connected = None

    def _lost(self, what: str) -> None:
        if self._options.settings.fail_on_data_loss:
            raise DataLost(what)
        log.warning("%s; going on without", what)
