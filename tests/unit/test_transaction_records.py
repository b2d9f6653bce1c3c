"""The records of the transaction log: Kafka's own bytes, there and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culver.core.transaction_records import decode_change, transaction_record, transaction_tombstone
from culver.core.transaction_state import TransactionMetadata, TransactionState
from culver.errors import MalformedRequest

PREPARED = TransactionMetadata(
    producer_id=5,
    producer_epoch=7,
    timeout_ms=60_000,
    state=TransactionState.PREPARE_COMMIT,
    updated_ms=123,
    started_ms=100,
    partitions=frozenset({("a", 0), ("a", 2), ("b", 1)}),
    last_producer_epoch=6,
    previous_producer_id=5,
    next_producer_id=99,
    client_version=2,
)
WRITTEN = st.sampled_from([state for state in TransactionState if state <= TransactionState.COMPLETE_ABORT])


def test_the_bytes_are_those_that_kafka_reads() -> None:
    # Read back with TransactionLogKey and TransactionLogValue of Kafka 4.3.1.
    record = transaction_record("tt", PREPARED)
    assert record.key.hex() == "000000027474"
    assert record.value is not None
    assert record.value.hex() == (
        "0001" + "0000000000000005" + "0007" + "0000ea60" + "02"
        "03" + "0261" + "03" + "00000000" + "00000002" + "00" + "0262" + "02" + "00000001" + "00"
        "000000000000007b" + "0000000000000064"
        "03" + "0008" + "0000000000000005" + "0108" + "0000000000000063" + "0202" + "0002"
    )


def test_an_id_without_a_transaction_has_no_list_of_partitions() -> None:
    record = transaction_record("tt", TransactionMetadata.created(5, 60_000, 9))
    assert record.value is not None
    assert record.value.hex() == (
        "0001" + "0000000000000005" + "0000" + "0000ea60" + "00" + "00"
        "0000000000000009" + "ffffffffffffffff" + "01" + "0008" + "0000000000000005"
    )


def test_records_of_older_brokers_are_read() -> None:
    value = bytes.fromhex(
        "0000" + "0000000000000005" + "0007" + "0000ea60" + "01"
        "00000001" + "000161" + "00000001" + "00000003" + "000000000000007b" + "0000000000000064"
    )
    change = decode_change(transaction_tombstone("tt").key, value)
    assert change is not None
    assert change.transactional_id == "tt"
    assert change.metadata == TransactionMetadata(
        producer_id=5,
        producer_epoch=7,
        timeout_ms=60_000,
        state=TransactionState.ONGOING,
        updated_ms=123,
        started_ms=100,
        partitions=frozenset({("a", 3)}),
    )


@given(
    st.text(min_size=1),
    st.builds(
        TransactionMetadata,
        producer_id=st.integers(0, 2**63 - 1),
        producer_epoch=st.integers(0, 2**15 - 1),
        timeout_ms=st.integers(1, 2**31 - 1),
        state=WRITTEN,
        updated_ms=st.integers(0, 2**62),
        started_ms=st.integers(-1, 2**62),
        partitions=st.frozensets(st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2**31 - 1))),
        last_producer_epoch=st.just(-1),
        previous_producer_id=st.integers(-1, 2**63 - 1),
        next_producer_id=st.integers(-1, 2**63 - 1),
        client_version=st.integers(0, 2),
    ),
)
def test_there_and_back(name: str, metadata: TransactionMetadata) -> None:
    if metadata.state is TransactionState.EMPTY:
        metadata = metadata._replace(partitions=frozenset())
    record = transaction_record(name, metadata)
    assert record.change == (name, metadata)
    change = decode_change(record.key, record.value)
    assert change is not None
    assert change.metadata is not None
    # The last epoch is not in the record; what follows from the others is tested below.
    assert change.metadata._replace(last_producer_epoch=-1) == metadata
    assert decode_change(record.key, None) == (name, None)


def test_the_last_epoch_follows_from_an_end_that_has_raised_it() -> None:
    def after(metadata: TransactionMetadata) -> int:
        record = transaction_record("tt", metadata)
        change = decode_change(record.key, record.value)
        assert change is not None
        assert change.metadata is not None
        return change.metadata.last_producer_epoch

    begun = TransactionMetadata.created(5, 60_000, 9).with_partitions(frozenset({("a", 0)}), 2, 10)
    for committed in (True, False):
        ending = begun.ending(committed, 2, -1, 11)
        assert after(ending) == ending.last_producer_epoch == 0
        assert after(ending.completed(12)) == 0
        worn = begun._replace(producer_epoch=32_766).ending(committed, 2, 6, 11)
        assert after(worn) == 32_766
        assert after(worn.completed(12)) == worn.completed(12).last_producer_epoch == 32_766
        assert after(begun.ending(committed, 0, -1, 11)) == -1


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"", b""),
        (b"\0\0", b""),
        (b"\0\0\0\5tt", None),
        (b"\0\0\0\2tt", b""),
        (b"\0\0\0\2tt", b"\0\1"),
        (b"\0\0\0\2tt", b"\0\7" + bytes(60)),
        # The states Dead and PrepareEpochFence, and one that nobody knows.
        *((b"\0\0\0\2tt", b"\0\0" + bytes(14) + bytes([state]) + bytes(20)) for state in (6, 7, 99)),
    ],
)
def test_damaged_records_are_refused(key: bytes, value: bytes | None) -> None:
    with pytest.raises(MalformedRequest):
        decode_change(key, value)


def test_kinds_of_records_that_are_not_known_are_passed_over() -> None:
    assert decode_change(b"\0\1\0\2tt", b"whatever") is None
