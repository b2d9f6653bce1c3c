"""The records of consumer groups, in Kafka's own format: kinds 3 to 8 and 16 of the offsets topic.

3 the group's epoch, 4 what Kafka 4.0 knew of its topics (read, never written), 5 what a member says of itself, 6 the
epoch of the target assignment, 7 a member's target, 8 what a member has, 16 the topics that a pattern stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from struct import Struct
from typing import NamedTuple, TypeAlias, TypeVar

from culver.core.consumer_group_member import ClassicSide, Current, MemberMetadata, MemberState, Owned
from culver.errors import MalformedRequest
from culver.protocol.messages import consumer_group_state as wire
from culver.protocol.schema import Message, decoder, encoder

Partitions: TypeAlias = Mapping[bytes, frozenset[int]]
"""Topic id -> partitions. No empty sets inside."""


class EpochChange(NamedTuple):
    """A group's epoch, and the hash of what it knows of its topics; None removes the group."""

    group_id: str
    epoch: int | None
    metadata_hash: int = 0


class OldTopicsChange(NamedTuple):
    """Whether there is a record of kind 4."""

    group_id: str
    present: bool


class MemberChange(NamedTuple):
    group_id: str
    member_id: str
    metadata: MemberMetadata | None


class TargetEpochChange(NamedTuple):
    group_id: str
    epoch: int | None


class TargetChange(NamedTuple):
    group_id: str
    member_id: str
    partitions: Partitions | None


class CurrentChange(NamedTuple):
    group_id: str
    member_id: str
    current: Current | None


class PatternChange(NamedTuple):
    group_id: str
    pattern: str
    topics: frozenset[str] | None


ConsumerGroupChange: TypeAlias = (
    EpochChange
    | OldTopicsChange
    | MemberChange
    | TargetEpochChange
    | TargetChange
    | CurrentChange
    | PatternChange
)


class ConsumerGroupRecord(NamedTuple):
    """A record as it goes to the log, with the change that it stands for."""

    key: bytes
    value: bytes | None
    change: ConsumerGroupChange


_INT16 = Struct(">h")
_VALUE_VERSION = _INT16.pack(0)
KINDS = frozenset({3, 4, 5, 6, 7, 8, 16})


def _encoded(kind: int, key: Message, value: Message | None) -> tuple[bytes, bytes | None]:
    payload = None if value is None else _VALUE_VERSION + b"".join(encoder(type(value), 0)(value))
    return _INT16.pack(kind) + b"".join(encoder(type(key), 0)(key)), payload


# --- to the log ---


def epoch_record(group_id: str, epoch: int | None, metadata_hash: int = 0) -> ConsumerGroupRecord:
    value = None
    if epoch is not None:
        value = wire.ConsumerGroupMetadataValue(epoch=epoch, metadata_hash=metadata_hash)
    key = wire.ConsumerGroupMetadataKey(group_id=group_id)
    return ConsumerGroupRecord(*_encoded(3, key, value), EpochChange(group_id, epoch, metadata_hash))


def old_topics_tombstone(group_id: str) -> ConsumerGroupRecord:
    key = wire.ConsumerGroupPartitionMetadataKey(group_id=group_id)
    return ConsumerGroupRecord(*_encoded(4, key, None), OldTopicsChange(group_id, False))


def member_record(group_id: str, member_id: str, metadata: MemberMetadata | None) -> ConsumerGroupRecord:
    value = None
    if metadata is not None:
        classic = None
        if metadata.classic is not None:
            classic = wire.ClassicMemberMetadata(
                session_timeout_ms=metadata.classic.session_timeout_ms,
                supported_protocols=[
                    wire.ClassicProtocol(name=name, metadata=data)
                    for name, data in metadata.classic.protocols
                ],
            )
        value = wire.ConsumerGroupMemberMetadataValue(
            instance_id=metadata.instance_id,
            rack_id=metadata.rack_id,
            client_id=metadata.client_id,
            client_host=metadata.client_host,
            subscribed_topic_names=list(metadata.topics),
            subscribed_topic_regex=metadata.pattern,
            rebalance_timeout_ms=metadata.rebalance_timeout_ms,
            server_assignor=metadata.assignor,
            classic_member_metadata=classic,
        )
    key = wire.ConsumerGroupMemberMetadataKey(group_id=group_id, member_id=member_id)
    return ConsumerGroupRecord(*_encoded(5, key, value), MemberChange(group_id, member_id, metadata))


def target_epoch_record(group_id: str, epoch: int | None, wall_ms: int = 0) -> ConsumerGroupRecord:
    value = None
    if epoch is not None:
        value = wire.ConsumerGroupTargetAssignmentMetadataValue(
            assignment_epoch=epoch, assignment_timestamp=wall_ms
        )
    key = wire.ConsumerGroupTargetAssignmentMetadataKey(group_id=group_id)
    return ConsumerGroupRecord(*_encoded(6, key, value), TargetEpochChange(group_id, epoch))


def target_record(group_id: str, member_id: str, partitions: Partitions | None) -> ConsumerGroupRecord:
    value = None
    if partitions is not None:
        value = wire.ConsumerGroupTargetAssignmentMemberValue(
            topic_partitions=[
                wire.TopicPartition(topic_id=topic, partitions=sorted(indexes))
                for topic, indexes in sorted(partitions.items())
            ]
        )
    key = wire.ConsumerGroupTargetAssignmentMemberKey(group_id=group_id, member_id=member_id)
    return ConsumerGroupRecord(*_encoded(7, key, value), TargetChange(group_id, member_id, partitions))


def current_record(group_id: str, member_id: str, current: Current | None) -> ConsumerGroupRecord:
    value = None
    if current is not None:
        value = wire.ConsumerGroupCurrentMemberAssignmentValue(
            member_epoch=current.epoch,
            previous_member_epoch=current.previous_epoch,
            state=current.state,
            assigned_partitions=_wire_owned(current.assigned),
            partitions_pending_revocation=_wire_owned(current.revoking),
        )
    key = wire.ConsumerGroupCurrentMemberAssignmentKey(group_id=group_id, member_id=member_id)
    return ConsumerGroupRecord(*_encoded(8, key, value), CurrentChange(group_id, member_id, current))


def pattern_record(
    group_id: str, pattern: str, topics: frozenset[str] | None, wall_ms: int = 0
) -> ConsumerGroupRecord:
    value = None
    if topics is not None:
        value = wire.ConsumerGroupRegularExpressionValue(topics=sorted(topics), version=0, timestamp=wall_ms)
    key = wire.ConsumerGroupRegularExpressionKey(group_id=group_id, regular_expression=pattern)
    return ConsumerGroupRecord(*_encoded(16, key, value), PatternChange(group_id, pattern, topics))


def _wire_owned(owned: Owned) -> list[wire.TopicPartitions]:
    return [
        wire.TopicPartitions(
            topic_id=topic,
            partitions=sorted(epochs),
            assignment_epochs=[epochs[index] for index in sorted(epochs)],
        )
        for topic, epochs in sorted(owned.items())
    ]


# --- from the log ---


def decode_consumer_group_change(kind: int, key: bytes, value: bytes | None) -> ConsumerGroupChange:
    """What a record of one of KINDS means. Raises MalformedRequest for bytes that are no such record."""
    return _DECODERS[kind](key, value)


_AnyMessage = TypeVar("_AnyMessage", bound=Message)


def _key(message: type[_AnyMessage], key: bytes) -> _AnyMessage:
    decoded, _ = decoder(message, 0)(key, 2)
    return decoded


def _value(message: type[_AnyMessage], value: bytes | None) -> _AnyMessage | None:
    if value is None:
        return None
    if len(value) < 2 or value[:2] != _VALUE_VERSION:
        raise MalformedRequest(f"a group record of an unknown version: {bytes(value[:2]).hex()}")
    decoded, _ = decoder(message, 0)(value, 2)
    return decoded


def _decode_epoch(key: bytes, value: bytes | None) -> EpochChange:
    group_id = _key(wire.ConsumerGroupMetadataKey, key).group_id
    decoded = _value(wire.ConsumerGroupMetadataValue, value)
    if decoded is None:
        return EpochChange(group_id, None)
    return EpochChange(group_id, decoded.epoch, decoded.metadata_hash)


def _decode_old_topics(key: bytes, value: bytes | None) -> OldTopicsChange:
    return OldTopicsChange(_key(wire.ConsumerGroupPartitionMetadataKey, key).group_id, value is not None)


def _decode_member(key: bytes, value: bytes | None) -> MemberChange:
    who = _key(wire.ConsumerGroupMemberMetadataKey, key)
    decoded = _value(wire.ConsumerGroupMemberMetadataValue, value)
    if decoded is None:
        return MemberChange(who.group_id, who.member_id, None)
    said = decoded.classic_member_metadata
    classic = None
    if said is not None:
        protocols = tuple((protocol.name, bytes(protocol.metadata)) for protocol in said.supported_protocols)
        classic = ClassicSide(said.session_timeout_ms, protocols)
    metadata = MemberMetadata(
        decoded.instance_id,
        decoded.rack_id,
        decoded.client_id,
        decoded.client_host,
        tuple(sorted(decoded.subscribed_topic_names)),
        decoded.subscribed_topic_regex or None,
        decoded.rebalance_timeout_ms,
        decoded.server_assignor,
        classic,
    )
    return MemberChange(who.group_id, who.member_id, metadata)


def _decode_target_epoch(key: bytes, value: bytes | None) -> TargetEpochChange:
    group_id = _key(wire.ConsumerGroupTargetAssignmentMetadataKey, key).group_id
    decoded = _value(wire.ConsumerGroupTargetAssignmentMetadataValue, value)
    return TargetEpochChange(group_id, None if decoded is None else decoded.assignment_epoch)


def _decode_target(key: bytes, value: bytes | None) -> TargetChange:
    who = _key(wire.ConsumerGroupTargetAssignmentMemberKey, key)
    decoded = _value(wire.ConsumerGroupTargetAssignmentMemberValue, value)
    if decoded is None:
        return TargetChange(who.group_id, who.member_id, None)
    partitions = {
        bytes(item.topic_id): frozenset(item.partitions)
        for item in decoded.topic_partitions
        if item.partitions
    }
    return TargetChange(who.group_id, who.member_id, partitions)


def _decode_current(key: bytes, value: bytes | None) -> CurrentChange:
    who = _key(wire.ConsumerGroupCurrentMemberAssignmentKey, key)
    decoded = _value(wire.ConsumerGroupCurrentMemberAssignmentValue, value)
    if decoded is None:
        return CurrentChange(who.group_id, who.member_id, None)
    known = decoded.state in (0, 1, 2)
    current = Current(
        decoded.member_epoch,
        decoded.previous_member_epoch,
        MemberState(decoded.state) if known else MemberState.UNKNOWN,
        _owned(decoded.assigned_partitions, decoded.member_epoch),
        _owned(decoded.partitions_pending_revocation, decoded.member_epoch),
    )
    return CurrentChange(who.group_id, who.member_id, current)


def _owned(items: Iterable[wire.TopicPartitions], epoch: int) -> Owned:
    owned: dict[bytes, dict[int, int]] = {}
    for item in items:
        epochs = item.assignment_epochs
        if not epochs or len(epochs) != len(item.partitions):
            # From before Kafka 4.3: it is not known in which epoch they came, so only the present one counts.
            epochs = [epoch] * len(item.partitions)
        if item.partitions:
            owned[bytes(item.topic_id)] = dict(zip(item.partitions, epochs, strict=True))
    return owned


def _decode_pattern(key: bytes, value: bytes | None) -> PatternChange:
    which = _key(wire.ConsumerGroupRegularExpressionKey, key)
    decoded = _value(wire.ConsumerGroupRegularExpressionValue, value)
    topics = None if decoded is None else frozenset(decoded.topics)
    return PatternChange(which.group_id, which.regular_expression, topics)


_DECODERS: dict[int, Callable[[bytes, bytes | None], ConsumerGroupChange]] = {
    3: _decode_epoch,
    4: _decode_old_topics,
    5: _decode_member,
    6: _decode_target_epoch,
    7: _decode_target,
    8: _decode_current,
    16: _decode_pattern,
}
