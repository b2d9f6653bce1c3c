"""Batch queries on topics: `spark.read.format("culver")`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from culver.spark.fetching import BlockingCluster
from culver.spark.offset_ranges import OffsetRange, cut
from culver.spark.options import ReadOptions
from culver.spark.position import ending_offsets, starting_offsets, subscribed_partitions

if TYPE_CHECKING:
    import pyarrow as pa


class BatchReader(DataSourceReader):
    """Reads once, from the starting to the ending offsets as they are when the query is planned."""

    def __init__(self, options: ReadOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        with BlockingCluster(self._options.bootstrap) as cluster:
            places = subscribed_partitions(cluster, self._options.subscription)
            starts = starting_offsets(cluster, places, self._options)
            ends = ending_offsets(cluster, places, self._options)
        ranges = cut(
            [OffsetRange(*place, starts[place], ends[place]) for place in places],
            at_least=self._options.partitions_min,
            records_max=self._options.records_per_partition_max,
        )
        # Spark takes no partitions at all for one that it knows nothing about.
        return ranges or [OffsetRange("", 0, 0, 0)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        # Only those who read need what it takes to decode, and the planner starts anew for every query.
        from culver.spark.partition_reader import read_range

        assert isinstance(partition, OffsetRange)
        with BlockingCluster(self._options.bootstrap) as cluster:
            yield from read_range(cluster, partition, self._options.settings)
