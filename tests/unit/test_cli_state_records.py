"""`culver log dump` tells in words what brokers write for themselves: markers, group and transaction state."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from random import Random
from typing import Any

import pytest

from culver.cli.failure import ExitCode
from culver.cli.main import run
from culver.cli.state_records import Marker, marker_of, state_record
from culver.protocol.messages import consumer_group_state, group_state, transaction_state
from culver.protocol.messages.consumer_group_state import (
    ConsumerGroupCurrentMemberAssignmentKey,
    ConsumerGroupCurrentMemberAssignmentValue,
    TopicPartitions,
)
from culver.protocol.messages.group_state import OffsetCommitKey, OffsetCommitValue
from culver.protocol.messages.transaction_state import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from culver.protocol.records import Record, encode_batch
from culver.protocol.schema import Message, encoder
from message_values import random_message, versions_of

OFFSETS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
KEYS_AND_VALUES = {
    (OFFSETS, 1): (group_state, "OffsetCommit"),
    (OFFSETS, 2): (group_state, "GroupMetadata"),
    (OFFSETS, 3): (consumer_group_state, "ConsumerGroupMetadata"),
    (OFFSETS, 4): (consumer_group_state, "ConsumerGroupPartitionMetadata"),
    (OFFSETS, 5): (consumer_group_state, "ConsumerGroupMemberMetadata"),
    (OFFSETS, 6): (consumer_group_state, "ConsumerGroupTargetAssignmentMetadata"),
    (OFFSETS, 7): (consumer_group_state, "ConsumerGroupTargetAssignmentMember"),
    (OFFSETS, 8): (consumer_group_state, "ConsumerGroupCurrentMemberAssignment"),
    (OFFSETS, 16): (consumer_group_state, "ConsumerGroupRegularExpression"),
    (TRANSACTIONS, 0): (transaction_state, "TransactionLog"),
}


def numbered(number: int, message: Message, version: int) -> bytes:
    return struct.pack(">h", number) + b"".join(encoder(type(message), version)(message))


def record(kind: int, key: Message, value: Message | None = None, version: int = 0) -> Record:
    return Record(
        5, 0, numbered(kind, key, 0), None if value is None else numbered(version, value, version), []
    )


def marker(kind: int, coordinator_epoch: int = 9, offset: int = 0) -> Record:
    return Record(offset, 0, struct.pack(">hh", 0, kind), struct.pack(">hi", 0, coordinator_epoch), [])


TRANSACTION = record(
    0,
    TransactionLogKey(transactional_id="copy"),
    TransactionLogValue(
        producer_id=7,
        producer_epoch=3,
        transaction_timeout_ms=60_000,
        transaction_status=1,
        transaction_partitions=[PartitionsSchema(topic="orders", partition_ids=[0, 2])],
        transaction_last_update_timestamp_ms=2,
        transaction_start_timestamp_ms=1,
        client_transaction_version=2,
    ),
    version=1,
)


def test_markers() -> None:
    assert marker_of(marker(1)) == Marker("commit", 9)
    assert marker_of(marker(0, 3)) == Marker("abort", 3)
    assert marker_of(marker(2)) == Marker("control type 2", None)
    assert marker_of(Record(0, 0, b"\0\0\0", b"", [])) is None
    assert marker_of(Record(0, 0, None, None, [])) is None


def test_a_transaction() -> None:
    found = state_record(TRANSACTIONS, TRANSACTION)
    assert found is not None
    assert found.kind == "transaction"
    assert found.key == {"transactional_id": "copy"}
    assert found.value == {
        "version": 1,
        "producer_id": 7,
        "previous_producer_id": -1,
        "next_producer_id": -1,
        "producer_epoch": 3,
        "next_producer_epoch": -1,
        "transaction_timeout_ms": 60_000,
        "transaction_status": "ongoing",
        "transaction_partitions": [{"topic": "orders", "partition_ids": [0, 2]}],
        "transaction_last_update_timestamp_ms": 2,
        "transaction_start_timestamp_ms": 1,
        "client_transaction_version": 2,
    }


def test_an_offset_has_the_fields_of_its_version() -> None:
    key = OffsetCommitKey(group="billing", topic="orders", partition=1)
    value = OffsetCommitValue(offset=42, leader_epoch=3, metadata="", commit_timestamp=5)
    found = state_record(OFFSETS, record(1, key, value, 3))
    assert found is not None
    assert found.value == {
        "version": 3,
        "offset": 42,
        "leader_epoch": 3,
        "metadata": "",
        "commit_timestamp": 5,
    }
    gone = state_record(OFFSETS, record(1, key))
    assert gone == ("offset", {"group": "billing", "topic": "orders", "partition": 1}, None)


def test_ids_and_states_are_shown_as_tools_show_them() -> None:
    key = ConsumerGroupCurrentMemberAssignmentKey(group_id="g", member_id="m")
    assigned = TopicPartitions(topic_id=bytes(15) + b"\1", partitions=[3], assignment_epochs=[2])
    value = ConsumerGroupCurrentMemberAssignmentValue(
        member_epoch=2,
        previous_member_epoch=1,
        state=1,
        assigned_partitions=[assigned],
        partitions_pending_revocation=[],
    )
    found = state_record(OFFSETS, record(8, key, value))
    assert found is not None
    assert found.value is not None
    assert found.value["state"] == "unrevoked-partitions"
    assert found.value["assigned_partitions"] == [
        {"topic_id": "AAAAAAAAAAAAAAAAAAAAAQ", "partitions": [3], "assignment_epochs": [2]}
    ]


@pytest.mark.parametrize(("topic", "kind"), KEYS_AND_VALUES)
def test_every_kind_in_every_version_becomes_json(topic: str, kind: int) -> None:
    module, name = KEYS_AND_VALUES[topic, kind]
    key_class, value_class = getattr(module, f"{name}Key"), getattr(module, f"{name}Value")
    rng = Random(name)
    for version in versions_of(value_class):
        for _ in range(20):
            key, value = random_message(key_class, 0, rng), random_message(value_class, version, rng)
            found = state_record(topic, record(kind, key, value, version))
            assert found is not None
            json.dumps(found._asdict())


@pytest.mark.parametrize(
    "strange",
    [
        Record(0, 0, None, b"", []),
        Record(0, 0, b"", b"", []),
        Record(0, 0, b"\0\x7f", b"", []),  # a kind that is not known
        Record(0, 0, b"\0\0\0\x09cut", None, []),
        Record(0, 0, TRANSACTION.key, b"\0\x09", []),  # a version that is not known
        Record(0, 0, TRANSACTION.key, (TRANSACTION.value or b"")[:-9], []),
    ],
)
def test_what_cannot_be_read_is_left_as_it_is(strange: Record) -> None:
    assert state_record(TRANSACTIONS, strange) is None


def test_records_of_other_topics_are_nobodys_state() -> None:
    assert state_record("orders", TRANSACTION) is None


# --- in the dump ---


@pytest.fixture
def segment(tmp_path: Path) -> Path:
    """A partition of the transactions' topic: a record, and markers, which elsewhere stand among records."""
    batches = [
        encode_batch([TRANSACTION], base_offset=5),
        encode_batch(
            [marker(1, offset=6)],
            base_offset=6,
            producer_id=7,
            producer_epoch=3,
            is_transactional=True,
            is_control=True,
        ),
    ]
    path = tmp_path / "__transaction_state-3" / "00000000000000000005.log"
    path.parent.mkdir()
    path.write_bytes(b"".join(batches))
    return path


def dumped(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(["log", "dump", *arguments]) == ExitCode.OK
    return capsys.readouterr().out.splitlines()


def test_a_marker_says_how_the_transaction_ended(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    *_, last = dumped(capsys, str(segment))
    assert last.endswith("producer 7 epoch 3 sequence -1, transactional, commit (coordinator epoch 9)")


def test_state_is_decoded_with_the_records(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines = dumped(capsys, str(segment.parent), "--records")
    (transaction,) = [line for line in lines if " transaction {" in line]
    assert '{"transactional_id": "copy"} = {"version": 1, "producer_id": 7' in transaction
    assert lines[-1].endswith("commit (coordinator epoch 9)")


def test_json_has_both(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (json.loads(line) for line in dumped(capsys, str(segment), "-r", "-o", "json"))
    decoded: dict[str, Any] = first["records"][0]["decoded"]
    assert (decoded["kind"], decoded["key"]) == ("transaction", {"transactional_id": "copy"})
    assert decoded["value"]["transaction_status"] == "ongoing"
    assert (second["marker"], second["coordinator_epoch"]) == ("commit", 9)
    assert "marker" not in first
    assert "decoded" not in second["records"][0]
