"""Produce, versions 3 to 13: appends record batches to partitions."""

from __future__ import annotations

from culver.protocol.schema import (
    ZERO_UUID,
    Message,
    array,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)


class PartitionProduceData(Message):
    index: int = int32()
    records: memoryview | None = records(nullable_since=0)


class TopicProduceData(Message):
    name: str = string(until=12, default="")
    topic_id: bytes = uuid(since=13, default=ZERO_UUID)
    partition_data: list[PartitionProduceData] = array(PartitionProduceData)


class ProduceRequest(Message, api_key=0, versions=(3, 13), flexible_since=9):
    # Versions 0 to 2 are advertised for old clients' sake but have no definition here.
    # 3: transactional ids, v2 batches only. 7: zstd. 9: flexible.
    # 12: adds the partition to the transaction by itself (transactions V2). 13: topic ids instead of names.
    transactional_id: str | None = string(nullable_since=0, default=None)
    acks: int = int16()
    timeout_ms: int = int32()
    topic_data: list[TopicProduceData] = array(TopicProduceData)


class BatchIndexAndErrorMessage(Message):
    batch_index: int = int32()
    batch_index_error_message: str | None = string(nullable_since=0, default=None)


class LeaderIdAndEpoch(Message):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class PartitionProduceResponse(Message):
    index: int = int32()
    error_code: int = int16()
    base_offset: int = int64()
    log_append_time_ms: int = int64(default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    record_errors: list[BatchIndexAndErrorMessage] = array(BatchIndexAndErrorMessage, since=8, default=())
    error_message: str | None = string(since=8, nullable_since=8, default=None)
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, since=10, tag=0, default=None)


class TopicProduceResponse(Message):
    name: str = string(until=12, default="")
    topic_id: bytes = uuid(since=13, default=ZERO_UUID)
    partition_responses: list[PartitionProduceResponse] = array(PartitionProduceResponse)


class NodeEndpoint(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None)


class ProduceResponse(Message, api_key=0, versions=(3, 13), flexible_since=9):
    # 5: log start offset. 8: errors of single records. 10: the current leader, and where it is.
    responses: list[TopicProduceResponse] = array(TopicProduceResponse)
    throttle_time_ms: int = int32(default=0)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=10, tag=0, default=())
