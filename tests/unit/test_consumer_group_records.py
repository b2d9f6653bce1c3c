"""Records of consumer groups: what is written is read back the same, and Kafka's bytes are read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culver.core.consumer_group import ConsumerGroupTable
from culver.core.consumer_group_member import ClassicSide, Current, MemberMetadata, MemberState
from culver.core.consumer_group_records import (
    ConsumerGroupRecord,
    CurrentChange,
    current_record,
    epoch_record,
    member_record,
    old_topics_tombstone,
    pattern_record,
    target_epoch_record,
    target_record,
)
from culver.core.group_records import decode_change
from culver.errors import MalformedRequest

texts = st.text(max_size=20)
topic_ids = st.binary(min_size=16, max_size=16)
indexes = st.integers(0, 2**31 - 1)
epochs = st.integers(-2, 2**31 - 1)
owned = st.dictionaries(topic_ids, st.dictionaries(indexes, epochs, min_size=1, max_size=3), max_size=3)
metadata = st.builds(
    MemberMetadata,
    instance_id=st.none() | texts,
    rack_id=st.none() | texts,
    client_id=texts,
    client_host=texts,
    topics=st.frozensets(texts, max_size=3).map(lambda topics: tuple(sorted(topics))),
    pattern=st.none() | st.text(min_size=1, max_size=20),
    rebalance_timeout_ms=st.integers(-1, 2**31 - 1),
    assignor=st.none() | texts,
    classic=st.none()
    | st.builds(
        ClassicSide,
        session_timeout_ms=st.integers(1, 2**31 - 1),
        protocols=st.lists(st.tuples(texts, st.binary(max_size=20)), min_size=1, max_size=3).map(tuple),
    ),
)
states = st.sampled_from(MemberState)
currents = st.builds(Current, epochs, epochs, states, owned, owned)
targets = st.dictionaries(topic_ids, st.frozensets(indexes, min_size=1, max_size=3), max_size=3)
records = st.one_of(
    st.builds(epoch_record, texts, st.none() | epochs, st.integers(-(2**63), 2**63 - 1)),
    st.builds(old_topics_tombstone, texts),
    st.builds(member_record, texts, texts, st.none() | metadata),
    st.builds(target_epoch_record, texts, st.none() | epochs),
    st.builds(target_record, texts, texts, st.none() | targets),
    st.builds(current_record, texts, texts, st.none() | currents),
    st.builds(pattern_record, texts, texts, st.none() | st.frozensets(texts, max_size=3)),
)


@given(records)
def test_what_is_written_is_read_back(record: ConsumerGroupRecord) -> None:
    change = record.change
    if record.value is None:
        change = change._replace(**({"metadata_hash": 0} if hasattr(change, "metadata_hash") else {}))
    assert decode_change(record.key, record.value) == change


def test_partitions_from_before_epochs_were_kept_belong_to_the_members_epoch() -> None:
    key = current_record("g", "m", None).key
    topic = bytes(range(16))
    # Version 0; epoch 5, previous 4, stable; one topic with partitions 1 and 2, without the tagged epochs; none
    # pending; no tagged fields.
    value = (
        bytes.fromhex("0000 00000005 00000004 00 02") + topic + bytes.fromhex("03 00000001 00000002 00 01 00")
    )
    change = decode_change(key, value)
    assert change == CurrentChange("g", "m", Current(5, 4, MemberState.STABLE, {topic: {1: 5, 2: 5}}))


def test_a_value_of_a_later_version_is_refused() -> None:
    record = epoch_record("g", 1)
    assert record.value is not None
    with pytest.raises(MalformedRequest):
        decode_change(record.key, b"\x00\x01" + record.value[2:])


def test_what_a_group_left_behind_in_a_compacted_log_makes_no_group() -> None:
    table = ConsumerGroupTable()
    for record in (
        current_record("g", "m", None),
        target_record("g", "m", None),
        member_record("g", "m", None),
        pattern_record("g", "p", None),
        target_epoch_record("g", None),
        old_topics_tombstone("g"),
        epoch_record("g", None),
    ):
        table.apply(record.change)
    assert not table.groups


def test_members_are_put_together_whatever_order_their_records_come_in() -> None:
    topic = bytes(16)
    current = Current(3, 2, MemberState.STABLE, {topic: {0: 3}})
    parts = [
        member_record("g", "m", MemberMetadata(instance_id="i", topics=("t",))),
        current_record("g", "m", current),
        epoch_record("g", 3),
    ]
    for order in (parts, parts[::-1]):
        table = ConsumerGroupTable()
        for record in order:
            table.apply(record.change)
        group = table.groups["g"]
        assert group.members["m"].current == current
        assert group.static_members == {"i": "m"}
        assert group.owner(topic, 0) == "m"
        assert table.index.by_topic == {"t": {"g"}}
        table.apply(epoch_record("g", None).change)
        assert not table.index.by_topic
