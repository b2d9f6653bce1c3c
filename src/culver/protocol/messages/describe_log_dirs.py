"""DescribeLogDirs, versions 1 to 5: shows what partitions take up on disk."""

from __future__ import annotations

from culver.protocol.schema import Message, array, boolean, int16, int32, int64, string


class DescribableLogDirTopic(Message):
    topic: str = string()
    partitions: list[int] = array(int32())


class DescribeLogDirsRequest(Message, api_key=35, versions=(1, 5), flexible_since=2):
    topics: list[DescribableLogDirTopic] | None = array(DescribableLogDirTopic, nullable_since=0)


class DescribeLogDirsPartition(Message):
    partition_index: int = int32()
    partition_size: int = int64()
    offset_lag: int = int64()
    is_future_key: bool = boolean()


class DescribeLogDirsTopic(Message):
    name: str = string()
    partitions: list[DescribeLogDirsPartition] = array(DescribeLogDirsPartition)


class DescribeLogDirsResult(Message):
    error_code: int = int16()
    log_dir: str = string()
    topics: list[DescribeLogDirsTopic] = array(DescribeLogDirsTopic)
    total_bytes: int = int64(since=4, default=-1)
    usable_bytes: int = int64(since=4, default=-1)
    is_cordoned: bool = boolean(since=5, default=False)


class DescribeLogDirsResponse(Message, api_key=35, versions=(1, 5), flexible_since=2):
    # 3: a top-level error. 4: size of the volume. 5: whether the directory is cordoned.
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(since=3, default=0)
    results: list[DescribeLogDirsResult] = array(DescribeLogDirsResult)
