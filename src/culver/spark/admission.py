"""How much of what is new a stream takes in at a time: limits in offsets and in bytes, shared out by partition."""

from __future__ import annotations

from collections.abc import Mapping

from culver.errors import ErrorCode, KafkaError
from culver.spark.fetching import BlockingCluster, TopicPartition
from culver.spark.position import Offsets
from culver.spark.wire_batches import offset_after

# Enough batches to tell how large records are, little enough to fetch for every partition at every trigger.
_SAMPLE_BYTES = 64 << 10


def new_offsets(start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int]) -> Offsets:
    """How many offsets each partition has beyond `start`; partitions without any are left out."""
    sizes = {place: offset - start.get(place, offset) for place, offset in end.items()}
    return {place: size for place, size in sizes.items() if size > 0}


def within_offsets(
    start: Mapping[TopicPartition, int], end: Mapping[TopicPartition, int], offsets_max: int
) -> Offsets:
    """The ends for a batch of about `offsets_max` offsets: every partition gives in proportion to what it has.

    Every partition that has something gives one at least, so that none waits for ever behind the others.
    """
    sizes = new_offsets(start, end)
    total = sum(sizes.values())
    if total <= offsets_max:
        return dict(end)
    limited = dict(end)
    for place, size in sizes.items():
        limited[place] = start[place] + max(1, size * offsets_max // total)
    return limited


def within_bytes(
    cluster: BlockingCluster,
    start: Mapping[TopicPartition, int],
    end: Mapping[TopicPartition, int],
    bytes_max: int,
) -> Offsets:
    """The ends for a batch of about `bytes_max` bytes as stored, by the size of the records that come next.

    No broker tells how many bytes lie between two offsets, so each partition is sampled at its start.
    """
    sizes = new_offsets(start, end)
    bytes_each = {place: _bytes_per_offset(cluster, place, start[place]) for place in sizes}
    total_bytes = sum(size * bytes_each[place] for place, size in sizes.items())
    if total_bytes <= bytes_max:
        return dict(end)
    limited = dict(end)
    for place, size in sizes.items():
        limited[place] = start[place] + max(1, int(size * bytes_max / total_bytes))
    return limited


def _bytes_per_offset(cluster: BlockingCluster, place: TopicPartition, offset: int) -> float:
    try:
        records = cluster.fetch(*place, offset, _SAMPLE_BYTES, max_wait_ms=0).records
    except KafkaError as error:
        if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
            return 0.0  # gone; those who read will say so, and what to do
        raise
    after = offset_after(records)
    # A last batch that is not whole makes the estimate a little high, which keeps to the safe side of a limit.
    return len(records) / (after - offset) if after is not None and after > offset else 0.0
