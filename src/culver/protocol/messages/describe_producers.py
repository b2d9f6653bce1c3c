"""DescribeProducers, version 0: shows the producers that a partition remembers."""

from __future__ import annotations

from culver.protocol.schema import Message, array, int16, int32, int64, string


class TopicRequest(Message):
    name: str = string()
    partition_indexes: list[int] = array(int32())


class DescribeProducersRequest(Message, api_key=61, versions=(0, 0), flexible_since=0):
    topics: list[TopicRequest] = array(TopicRequest)


class ProducerState(Message):
    producer_id: int = int64()
    producer_epoch: int = int32()
    last_sequence: int = int32(default=-1)
    last_timestamp: int = int64(default=-1)
    coordinator_epoch: int = int32()
    current_txn_start_offset: int = int64(default=-1)


class PartitionResponse(Message):
    partition_index: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    active_producers: list[ProducerState] = array(ProducerState)


class TopicResponse(Message):
    name: str = string()
    partitions: list[PartitionResponse] = array(PartitionResponse)


class DescribeProducersResponse(Message, api_key=61, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = int32(default=0)
    topics: list[TopicResponse] = array(TopicResponse)
