"""Metadata, versions 0 to 13: describes brokers and topics, creating asked-for topics where allowed."""

from __future__ import annotations

from culver.protocol.schema import ZERO_UUID, Message, array, boolean, int16, int32, string, uuid


class MetadataRequestTopic(Message):
    topic_id: bytes = uuid(since=10, default=ZERO_UUID)
    name: str | None = string(nullable_since=10)


class MetadataRequest(Message, api_key=3, versions=(0, 13), flexible_since=9):
    # 0: an empty list asks for all topics; from 1 null does, and empty asks for none.
    # 4: auto-creation can be refused. 8: authorised operations. 10: topic ids. 12: a topic by id alone.
    topics: list[MetadataRequestTopic] | None = array(MetadataRequestTopic, nullable_since=1)
    allow_auto_topic_creation: bool = boolean(since=4, default=True)
    include_cluster_authorized_operations: bool = boolean(since=8, until=10, default=False)
    include_topic_authorized_operations: bool = boolean(since=8, default=False)


class MetadataResponseBroker(Message):
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(since=1, nullable_since=1, default=None)


class MetadataResponsePartition(Message):
    error_code: int = int16()
    partition_index: int = int32()
    leader_id: int = int32()
    leader_epoch: int = int32(since=7, default=-1)
    replica_nodes: list[int] = array(int32())
    isr_nodes: list[int] = array(int32())
    offline_replicas: list[int] = array(int32(), since=5, default=())


class MetadataResponseTopic(Message):
    error_code: int = int16()
    name: str | None = string(nullable_since=12)
    topic_id: bytes = uuid(since=10, default=ZERO_UUID)
    is_internal: bool = boolean(since=1, default=False)
    partitions: list[MetadataResponsePartition] = array(MetadataResponsePartition)
    topic_authorized_operations: int = int32(since=8, default=-0x80000000)


class MetadataResponse(Message, api_key=3, versions=(0, 13), flexible_since=9):
    # 1: controller, racks. 2: cluster id. 5: offline replicas. 7: leader epochs. 10: topic ids.
    # 11: cluster operations are gone. 13: a top-level error.
    throttle_time_ms: int = int32(since=3, default=0)
    brokers: list[MetadataResponseBroker] = array(MetadataResponseBroker)
    cluster_id: str | None = string(since=2, nullable_since=2, default=None)
    controller_id: int = int32(since=1, default=-1)
    topics: list[MetadataResponseTopic] = array(MetadataResponseTopic)
    cluster_authorized_operations: int = int32(since=8, until=10, default=-0x80000000)
    error_code: int = int16(since=13, default=0)
