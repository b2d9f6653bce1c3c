"""ElectLeaders, versions 0 to 2: lets preferred replicas lead, or any living one where nothing else helps."""

from __future__ import annotations

from culver.protocol.schema import Message, array, int8, int16, int32, string


class TopicPartitions(Message):
    topic: str = string()
    partitions: list[int] = array(int32())


class ElectLeadersRequest(Message, api_key=43, versions=(0, 2), flexible_since=2):
    election_type: int = int8(since=1)
    # Null asks for all.
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable_since=0)
    timeout_ms: int = int32(default=60_000)


class PartitionResult(Message):
    partition_id: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0)


class ReplicaElectionResult(Message):
    topic: str = string()
    partition_result: list[PartitionResult] = array(PartitionResult)


class ElectLeadersResponse(Message, api_key=43, versions=(0, 2), flexible_since=2):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(since=1, default=0)
    replica_election_results: list[ReplicaElectionResult] = array(ReplicaElectionResult)
