"""Fetch, versions 4 to 18: reads record batches from partitions, for consumers and followers."""

from __future__ import annotations

from collections.abc import Sequence

from culver.protocol.schema import (
    ZERO_UUID,
    Buffer,
    Message,
    array,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uuid,
)


class ReplicaState(Message):
    replica_id: int = int32(default=-1)
    replica_epoch: int = int64(default=-1)


class FetchPartition(Message):
    partition: int = int32()
    current_leader_epoch: int = int32(since=9, default=-1)
    fetch_offset: int = int64()
    last_fetched_epoch: int = int32(since=12, default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    partition_max_bytes: int = int32()
    replica_directory_id: bytes = uuid(since=17, tag=0, default=ZERO_UUID)
    high_watermark: int = int64(since=18, tag=1, default=0x7FFFFFFFFFFFFFFF)


class FetchTopic(Message):
    topic: str = string(until=12, default="")
    topic_id: bytes = uuid(since=13, default=ZERO_UUID)
    partitions: list[FetchPartition] = array(FetchPartition)


class ForgottenTopic(Message):
    topic: str = string(until=12, default="")
    topic_id: bytes = uuid(since=13, default=ZERO_UUID)
    partitions: list[int] = array(int32())


class FetchRequest(Message, api_key=1, versions=(4, 18), flexible_since=12):
    # 7: sessions. 9: leader epoch fencing. 11: reader's rack. 12: flexible; last fetched epoch.
    # 13: topic ids instead of names. 15: replica state in a tag. 17: replica directory. 18: high watermark.
    cluster_id: str | None = string(since=12, nullable_since=12, tag=0, default=None)
    replica_id: int = int32(until=14, default=-1)
    replica_state: ReplicaState | None = struct(ReplicaState, since=15, tag=1, default=None)
    max_wait_ms: int = int32()
    min_bytes: int = int32()
    max_bytes: int = int32(default=0x7FFFFFFF)
    isolation_level: int = int8(default=0)
    session_id: int = int32(since=7, default=0)
    session_epoch: int = int32(since=7, default=-1)
    topics: list[FetchTopic] = array(FetchTopic)
    forgotten_topics_data: list[ForgottenTopic] = array(ForgottenTopic, since=7, default=())
    rack_id: str = string(since=11, default="")


class EpochEndOffset(Message):
    epoch: int = int32(default=-1)
    end_offset: int = int64(default=-1)


class LeaderIdAndEpoch(Message):
    leader_id: int = int32(default=-1)
    leader_epoch: int = int32(default=-1)


class SnapshotId(Message):
    end_offset: int = int64(default=-1)
    epoch: int = int32(default=-1)


class AbortedTransaction(Message):
    producer_id: int = int64()
    first_offset: int = int64()


class PartitionData(Message):
    partition_index: int = int32()
    error_code: int = int16()
    high_watermark: int = int64()
    last_stable_offset: int = int64(default=-1)
    log_start_offset: int = int64(since=5, default=-1)
    diverging_epoch: EpochEndOffset | None = struct(EpochEndOffset, since=12, tag=0, default=None)
    current_leader: LeaderIdAndEpoch | None = struct(LeaderIdAndEpoch, since=12, tag=1, default=None)
    snapshot_id: SnapshotId | None = struct(SnapshotId, since=12, tag=2, default=None)
    aborted_transactions: list[AbortedTransaction] | None = array(AbortedTransaction, nullable_since=0)
    preferred_read_replica: int = int32(since=11, default=-1)
    records: Buffer | Sequence[Buffer] | None = records(nullable_since=0)


class FetchableTopicResponse(Message):
    topic: str = string(until=12, default="")
    topic_id: bytes = uuid(since=13, default=ZERO_UUID)
    partitions: list[PartitionData] = array(PartitionData)


class NodeEndpoint(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None)


class FetchResponse(Message, api_key=1, versions=(4, 18), flexible_since=12):
    # 5: log start offset. 7: session. 11: preferred read replica.
    # 12: diverging epoch and current leader. 13: topic ids. 16: where the leaders are.
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(since=7, default=0)
    session_id: int = int32(since=7, default=0)
    responses: list[FetchableTopicResponse] = array(FetchableTopicResponse)
    node_endpoints: list[NodeEndpoint] = array(NodeEndpoint, since=16, tag=0, default=())
