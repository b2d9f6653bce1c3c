"""Group state records: our own quick encoding is Kafka's, and what cannot be read is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culver.core.group_records import (
    NO_TIMESTAMP,
    ZERO_ID,
    CommittedOffset,
    MetadataChange,
    OffsetChange,
    decode_change,
    decode_group_value,
    group_record,
    group_tombstone,
    offset_record,
    offset_tombstone,
    subscribed_topics,
)
from culver.errors import MalformedRequest
from culver.protocol.messages.consumer_protocol import ConsumerProtocolSubscription
from culver.protocol.messages.group_state import (
    GroupMetadataKey,
    GroupMetadataValue,
    MemberMetadata,
    OffsetCommitKey,
    OffsetCommitValue,
)
from culver.protocol.schema import Message, encoder

INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)
NAMES = st.text(max_size=300)


def encoded(number: int, message: Message, version: int) -> bytes:
    """A number, then the message, as the schema compiler has it."""
    return number.to_bytes(2, "big") + b"".join(encoder(type(message), version)(message))


@given(NAMES, NAMES, INT32, INT64, INT32, NAMES, INT64, st.sampled_from(["plain", "expires", "has id"]))
def test_offset_records_are_what_the_schema_says(
    group: str, topic: str, partition: int, offset: int, epoch: int, metadata: str, time: int, kind: str
) -> None:
    version = {"plain": 4, "expires": 1, "has id": 4}[kind]
    committed = CommittedOffset(
        offset,
        epoch if kind != "expires" else -1,
        metadata,
        time,
        77 if kind == "expires" else NO_TIMESTAMP,
        b"i" * 16 if kind == "has id" else ZERO_ID,
    )
    record = offset_record(group, topic, partition, committed)
    key = OffsetCommitKey(group=group, topic=topic, partition=partition)
    value = OffsetCommitValue(
        offset=offset,
        leader_epoch=committed.leader_epoch,
        metadata=metadata,
        commit_timestamp=time,
        expire_timestamp=committed.expire_timestamp_ms,
        topic_id=committed.topic_id,
    )
    assert record.key == encoded(1, key, 0)
    assert record.value == encoded(version, value, version)
    assert record.change == OffsetChange(group, topic, partition, committed)
    assert decode_change(record.key, record.value) == record.change


@pytest.mark.parametrize("version", range(5))
def test_offsets_written_by_any_kafka_can_be_read(version: int) -> None:
    value = OffsetCommitValue(offset=5, metadata="m", commit_timestamp=9)
    key = OffsetCommitKey(group="g", topic="t", partition=1)
    for kind in (0, 1):
        change = decode_change(encoded(kind, key, 0), encoded(version, value, version))
        assert change == OffsetChange("g", "t", 1, CommittedOffset(5, -1, "m", 9))


def test_tombstones() -> None:
    record = offset_tombstone("g", "t", 1)
    assert (record.value, decode_change(record.key, None)) == (None, OffsetChange("g", "t", 1, None))
    record = group_tombstone("g")
    assert record.key == encoded(2, GroupMetadataKey(group="g"), 0)
    assert (record.value, decode_change(record.key, None)) == (None, MetadataChange("g", None))


@pytest.mark.parametrize("version", range(5))
def test_group_metadata_of_any_version_can_be_read(version: int) -> None:
    member = MemberMetadata(
        member_id="m", client_id="c", client_host="/h", session_timeout=6, subscription=b"s", assignment=b"a"
    )
    value = GroupMetadataValue(
        protocol_type="consumer", generation=3, protocol="range", leader="m", members=[member]
    )
    assert decode_group_value(encoded(version, value, version)) == value


def test_a_group_record_is_written_in_version_3() -> None:
    value = GroupMetadataValue(protocol_type="", generation=0, protocol=None, leader=None, members=[])
    record = group_record("g", value)
    assert record.value == encoded(3, value, 3)
    assert decode_change(record.key, record.value) == record.change == MetadataChange("g", record.value)


def test_records_of_other_kinds_are_passed_over() -> None:
    share_group = b"\x00\x0b\x00\x01g"
    assert decode_change(share_group, b"anything") is None
    assert decode_change(b"\xff\xff", None) is None


@given(st.binary(max_size=40), st.binary(max_size=40) | st.none())
def test_bytes_that_are_no_record_are_refused_and_nothing_worse(key: bytes, value: bytes | None) -> None:
    for prefix in (b"", b"\x00\x01", b"\x00\x02", b"\x00\x03", b"\x00\x05", b"\x00\x08", b"\x00\x10"):
        try:
            decode_change(prefix + key, value)
        except MalformedRequest:
            continue


@given(st.binary(max_size=60))
def test_a_damaged_group_value_is_refused_and_nothing_worse(payload: bytes) -> None:
    for prefix in (b"", b"\x00\x00", b"\x00\x03", b"\x00\x04"):
        try:
            decode_group_value(prefix + payload)
        except MalformedRequest:
            continue


@pytest.mark.parametrize("version", range(4))
def test_subscriptions_of_every_version_name_their_topics(version: int) -> None:
    subscription = ConsumerProtocolSubscription(topics=["t", "ü"], user_data=b"x")
    assert subscribed_topics(encoded(version, subscription, version)) == frozenset({"t", "ü"})


@given(st.binary(max_size=60))
def test_metadata_that_is_no_subscription_names_no_topics(metadata: bytes) -> None:
    topics = subscribed_topics(metadata)
    assert topics is None or all(isinstance(topic, str) for topic in topics)
    assert subscribed_topics(b"\x00\x00\x7f\xff\xff\xff" + metadata) is None
