"""Keys and values of the records that groups with broker-side assignment keep in `__consumer_offsets`.

As with the classic groups' records, an int16 comes before each: before a key the record's type, which is the number
at each pair below; before a value its version.
"""

from __future__ import annotations

from culver.protocol.schema import Message, array, bytes_, int8, int32, int64, string, struct, uuid

# 3: the group itself.


class ConsumerGroupMetadataKey(Message, versions=(0, 0)):
    group_id: str = string()


class ConsumerGroupMetadataValue(Message, versions=(0, 0), flexible_since=0):
    epoch: int = int32()
    metadata_hash: int = int64(tag=0, default=0)


# 4: the topics that a group of Kafka 4.0 subscribed to; later ones keep a hash of them with the group.


class ConsumerGroupPartitionMetadataKey(Message, versions=(0, 0)):
    group_id: str = string()


class PartitionMetadata(Message):
    partition: int = int32()
    racks: list[str] = array(string())


class TopicMetadata(Message):
    topic_id: bytes = uuid()
    topic_name: str = string()
    num_partitions: int = int32()
    partition_metadata: list[PartitionMetadata] = array(PartitionMetadata)


class ConsumerGroupPartitionMetadataValue(Message, versions=(0, 0), flexible_since=0):
    topics: list[TopicMetadata] = array(TopicMetadata)


# 5: a member as it described itself.


class ConsumerGroupMemberMetadataKey(Message, versions=(0, 0)):
    group_id: str = string()
    member_id: str = string()


class ClassicProtocol(Message):
    name: str = string()
    metadata: bytes = bytes_()


class ClassicMemberMetadata(Message):
    session_timeout_ms: int = int32()
    supported_protocols: list[ClassicProtocol] = array(ClassicProtocol)


class ConsumerGroupMemberMetadataValue(Message, versions=(0, 0), flexible_since=0):
    instance_id: str | None = string(nullable_since=0)
    rack_id: str | None = string(nullable_since=0)
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string())
    subscribed_topic_regex: str | None = string(nullable_since=0)
    rebalance_timeout_ms: int = int32(default=-1)
    server_assignor: str | None = string(nullable_since=0)
    # None for a member that does not speak the classic protocol. That null is written: Kafka takes a member
    # without the field for a classic one.
    classic_member_metadata: ClassicMemberMetadata | None = struct(
        ClassicMemberMetadata, nullable_since=0, tag=0
    )


# 6: the epoch of the assignment that the group is moving to.


class ConsumerGroupTargetAssignmentMetadataKey(Message, versions=(0, 0)):
    group_id: str = string()


class ConsumerGroupTargetAssignmentMetadataValue(Message, versions=(0, 0), flexible_since=0):
    assignment_epoch: int = int32()
    assignment_timestamp: int = int64(tag=0, default=0)


# 7: what a member shall have.


class ConsumerGroupTargetAssignmentMemberKey(Message, versions=(0, 0)):
    group_id: str = string()
    member_id: str = string()


class TopicPartition(Message):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32())


class ConsumerGroupTargetAssignmentMemberValue(Message, versions=(0, 0), flexible_since=0):
    topic_partitions: list[TopicPartition] = array(TopicPartition)


# 8: what a member has, and what it still has to give up.


class ConsumerGroupCurrentMemberAssignmentKey(Message, versions=(0, 0)):
    group_id: str = string()
    member_id: str = string()


class TopicPartitions(Message):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32())
    assignment_epochs: list[int] | None = array(int32(), nullable_since=0, tag=0, default=())


class ConsumerGroupCurrentMemberAssignmentValue(Message, versions=(0, 0), flexible_since=0):
    member_epoch: int = int32()
    previous_member_epoch: int = int32()
    state: int = int8()
    assigned_partitions: list[TopicPartitions] = array(TopicPartitions)
    partitions_pending_revocation: list[TopicPartitions] = array(TopicPartitions)


# 16: the topics that matched a pattern which members subscribe to.


class ConsumerGroupRegularExpressionKey(Message, versions=(0, 0)):
    group_id: str = string()
    regular_expression: str = string()


class ConsumerGroupRegularExpressionValue(Message, versions=(0, 0), flexible_since=0):
    topics: list[str] = array(string())
    version: int = int64()
    timestamp: int = int64()
