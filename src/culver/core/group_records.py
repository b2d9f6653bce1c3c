"""The records in which group state is kept, in Kafka's own format, so that Kafka's tools can read them.

A key starts with a 16-bit number that says what it is: 0 or 1 an offset commit, 2 a classic group's metadata; others
belong to consumer groups (`consumer_group_records`). A value starts with the version of its own layout; no value
means that the offset or group is gone.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import NamedTuple, TypeAlias

from culver.core.consumer_group_records import KINDS, ConsumerGroupChange, decode_consumer_group_change
from culver.errors import MalformedRequest
from culver.protocol.messages.group_state import GroupMetadataKey, GroupMetadataValue
from culver.protocol.schema import decoder, encoder

ZERO_ID = bytes(16)
NO_TIMESTAMP = -1

_OFFSET_KEY_KIND = 1
_GROUP_KEY_KIND = 2
# As Kafka 4.3 writes them.
_GROUP_VALUE_VERSION = 3


class CommittedOffset(NamedTuple):
    """One committed offset: where a group is to go on reading a partition."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    # Only commits of OffsetCommit 2-4 that name a retention time have this.
    expire_timestamp_ms: int = NO_TIMESTAMP
    topic_id: bytes = ZERO_ID


class OffsetChange(NamedTuple):
    """A partition's committed offset is now `committed`, or gone."""

    group_id: str
    topic: str
    partition: int
    committed: CommittedOffset | None


class MetadataChange(NamedTuple):
    """A group's saved metadata is now `value` (the record's bytes), or gone."""

    group_id: str
    value: bytes | None


StateChange: TypeAlias = OffsetChange | MetadataChange | ConsumerGroupChange


class StateRecord(NamedTuple):
    """A record as it goes to the log, with the change that it stands for."""

    key: bytes
    value: bytes | None
    change: StateChange


_INT16 = Struct(">h")
_INT32 = Struct(">i")
_KEY_HEAD = Struct(">hh")
_V1_HEAD = Struct(">hqh")
_V4_HEAD = Struct(">hqi")
_INT64 = Struct(">q")
_TWO_INT64 = Struct(">qq")
_TAGGED_TOPIC_ID = b"\x01\x00\x10"  # one tagged field: number 0, 16 bytes
_NO_TAGS = b"\x00"
_ONE_BYTE = [bytes((value,)) for value in range(0x80)]


def offset_record(group_id: str, topic: str, partition: int, committed: CommittedOffset) -> StateRecord:
    """The record of a committed offset. Hot: once per partition and commit."""
    metadata = committed.metadata.encode()
    if committed.expire_timestamp_ms != NO_TIMESTAMP:
        value = (
            _V1_HEAD.pack(1, committed.offset, len(metadata))
            + metadata
            + _TWO_INT64.pack(committed.commit_timestamp_ms, committed.expire_timestamp_ms)
        )
    else:
        length = len(metadata) + 1
        tagged = _NO_TAGS if committed.topic_id == ZERO_ID else _TAGGED_TOPIC_ID + committed.topic_id
        value = b"".join(
            (
                _V4_HEAD.pack(4, committed.offset, committed.leader_epoch),
                _ONE_BYTE[length] if length < 0x80 else _unsigned_varint(length),
                metadata,
                _INT64.pack(committed.commit_timestamp_ms),
                tagged,
            )
        )
    key = _offset_key(group_id, topic, partition)
    return StateRecord(key, value, OffsetChange(group_id, topic, partition, committed))


def offset_tombstone(group_id: str, topic: str, partition: int) -> StateRecord:
    """The record that removes a committed offset."""
    key = _offset_key(group_id, topic, partition)
    return StateRecord(key, None, OffsetChange(group_id, topic, partition, None))


def group_record(group_id: str, value: GroupMetadataValue) -> StateRecord:
    """The record of a group's members and assignments."""
    payload = _INT16.pack(_GROUP_VALUE_VERSION) + b"".join(
        encoder(GroupMetadataValue, _GROUP_VALUE_VERSION)(value)
    )
    return StateRecord(_group_key(group_id), payload, MetadataChange(group_id, payload))


def group_tombstone(group_id: str) -> StateRecord:
    """The record that removes a group."""
    return StateRecord(_group_key(group_id), None, MetadataChange(group_id, None))


def decode_change(key: bytes, value: bytes | None) -> StateChange | None:
    """What a record of the offsets topic means, or None for kinds that Culver does not keep.

    Raises MalformedRequest for bytes that are no such record.
    """
    try:
        (kind,) = _INT16.unpack_from(key)
        if kind in (0, 1):
            group_id, position = _string(key, 2)
            topic, position = _string(key, position)
            (partition,) = _INT32.unpack_from(key, position)
            committed = None if value is None else _decode_offset_value(value)
            return OffsetChange(group_id, topic, partition, committed)
        if kind == _GROUP_KEY_KIND:
            group_id, _ = _string(key, 2)
            return MetadataChange(group_id, None if value is None else bytes(value))
        if kind in KINDS:
            return decode_consumer_group_change(kind, key, value)
    except (struct_error, UnicodeDecodeError, IndexError) as error:
        raise MalformedRequest(f"a record of the offsets topic cannot be read: {error}") from error
    return None


def decode_group_value(payload: bytes) -> GroupMetadataValue:
    """The saved metadata of a group; raises MalformedRequest if it cannot be read."""
    if len(payload) < 2:
        raise MalformedRequest("a group's saved metadata has no version")
    (version,) = _INT16.unpack_from(payload)
    if not 0 <= version <= 4:
        raise MalformedRequest(f"a group's saved metadata has the unknown version {version}")
    value, _ = decoder(GroupMetadataValue, version)(payload, 2)
    return value


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """The topics in the metadata that a consumer joins with, or None if it is not a consumer's."""
    try:
        version, count = Struct(">hi").unpack_from(subscription)
        if version < 0 or count < 0 or count > len(subscription):
            return None
        topics = []
        position = 6
        for _ in range(count):
            topic, position = _string(subscription, position)
            topics.append(topic)
    except (struct_error, UnicodeDecodeError, IndexError):
        return None
    return frozenset(topics)


def _group_key(group_id: str) -> bytes:
    return _INT16.pack(_GROUP_KEY_KIND) + b"".join(
        encoder(GroupMetadataKey, 0)(GroupMetadataKey(group=group_id))
    )


def _offset_key(group_id: str, topic: str, partition: int) -> bytes:
    group_bytes = group_id.encode()
    topic_bytes = topic.encode()
    return b"".join(
        (
            _KEY_HEAD.pack(_OFFSET_KEY_KIND, len(group_bytes)),
            group_bytes,
            _INT16.pack(len(topic_bytes)),
            topic_bytes,
            _INT32.pack(partition),
        )
    )


def _decode_offset_value(value: bytes) -> CommittedOffset:
    version, offset = Struct(">hq").unpack_from(value)
    position = 10
    leader_epoch = -1
    expire_ms = NO_TIMESTAMP
    topic_id = ZERO_ID
    if version >= 3:
        (leader_epoch,) = _INT32.unpack_from(value, position)
        position += 4
    if version >= 4:
        length, position = _read_unsigned_varint(value, position)
        metadata, position = _text(value, position, length - 1)
    else:
        metadata, position = _string(value, position)
    (commit_ms,) = _INT64.unpack_from(value, position)
    position += 8
    if version == 1:
        (expire_ms,) = _INT64.unpack_from(value, position)
    if version >= 4:
        count, position = _read_unsigned_varint(value, position)
        for _ in range(count):
            tag, position = _read_unsigned_varint(value, position)
            size, position = _read_unsigned_varint(value, position)
            if tag == 0 and size == 16:
                topic_id = bytes(value[position : position + 16])
            position += size
    if not 0 <= version <= 4 or len(topic_id) != 16:
        raise MalformedRequest(f"a committed offset of the unknown version {version}")
    return CommittedOffset(offset, leader_epoch, metadata, commit_ms, expire_ms, topic_id)


def _string(buffer: bytes, position: int) -> tuple[str, int]:
    (length,) = _INT16.unpack_from(buffer, position)
    return _text(buffer, position + 2, length)


def _text(buffer: bytes, position: int, length: int) -> tuple[str, int]:
    end = position + length
    if length < 0 or end > len(buffer):
        raise IndexError(f"a string of {length} bytes at {position} runs over the end")
    return str(buffer[position:end], "utf-8"), end


def _unsigned_varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_unsigned_varint(buffer: bytes, position: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 35, 7):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
    raise IndexError(f"a number at {position} has no end")
