"""Transactions in a partition's log: what begins and ends them, what is refused, and what readers may see."""

from __future__ import annotations

import pytest
from log_batches import LogFixture, batch, sequenced

from culver.errors import ErrorCode, KafkaError
from culver.log.partition_log import AppendResult, PartitionLog
from culver.log.producer_state import ProducerStates
from culver.log.transactions import UNVERIFIED_OK, OpenTransaction
from culver.protocol.control_records import EndMarker, decode_end_marker, encode_end_marker
from culver.protocol.records import Record, encode_batch, parse_header


def put(
    log: PartitionLog, producer_id: int, sequence: int, count: int = 1, epoch: int = 0, padding: int = 0
) -> int:
    """The offset of a batch in a transaction."""
    data = sequenced(producer_id, sequence, count, epoch, padding, is_transactional=True)
    return log.append(data, 0, UNVERIFIED_OK).base_offset


def end(
    log: PartitionLog,
    producer_id: int,
    epoch: int = 0,
    *,
    committed: bool = True,
    coordinator_epoch: int = 0,
    version: int = 1,
) -> AppendResult:
    return log.append_marker(producer_id, epoch, committed, coordinator_epoch, version, 0)


def refusal(code: ErrorCode, call: object, *arguments: object, **options: object) -> None:
    with pytest.raises(KafkaError) as raised:
        call(*arguments, **options)  # type: ignore[operator]
    assert raised.value.code is code


# -- the marker -------------------------------------------------------------------------------------------------


def test_a_marker_is_kafkas() -> None:
    data = encode_end_marker(EndMarker(True, 7), producer_id=9, producer_epoch=2, timestamp_ms=1234)
    header = parse_header(data)
    assert len(data) == 78
    assert header.is_control
    assert header.is_transactional
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, -1)
    assert (header.base_timestamp, header.max_timestamp, header.record_count) == (1234, 1234, 1)
    assert bytes(data[-12:]) == b"\0\0\0\1" + b"\x0c" + b"\0\0\0\0\0\7" + b"\0"
    assert decode_end_marker(data) == EndMarker(True, 7)
    aborted = encode_end_marker(EndMarker(False, 7), producer_id=9, producer_epoch=2, timestamp_ms=1234)
    assert decode_end_marker(aborted) == EndMarker(False, 7)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"\0\0\0\0\0\1"),
        (b"\0\0\0\1", None),
        (b"\0\0\0\2", b"\0\0\0\0\0\1"),
        (b"\0", b""),
        (b"\0\0\0\0", b""),
    ],
)
def test_other_control_records_end_nothing(key: bytes | None, value: bytes | None) -> None:
    assert decode_end_marker(encode_batch([Record(0, 0, key, value, ())], is_control=True)) is None


def test_an_empty_or_damaged_control_batch_ends_nothing() -> None:
    assert decode_end_marker(encode_batch([], is_control=True)) is None
    damaged = encode_end_marker(EndMarker(True, 7), producer_id=9, producer_epoch=2, timestamp_ms=1234)
    damaged[61] = 0x7F
    assert decode_end_marker(damaged) is None


# -- the last stable offset ---------------------------------------------------------------------------------------


def test_without_transactions_everything_below_the_high_watermark_is_stable() -> None:
    fixture = LogFixture()
    fixture.append(b"a", b"b")
    assert fixture.log.last_stable_offset == 2
    fixture.log.high_watermark = 1
    assert fixture.log.last_stable_offset == 1


def test_an_open_transaction_holds_the_last_stable_offset_at_its_first_record() -> None:
    log = LogFixture().log
    log.append(batch(b"a"), 0)
    put(log, 5, 0, 3)
    log.append(batch(b"b"), 0)
    assert log.last_stable_offset == 1
    assert log.open_transactions() == [OpenTransaction(5, 0, 1, log.open_transactions()[0].started_ms, -1)]
    assert end(log, 5).base_offset == 5
    assert log.last_stable_offset == 6
    assert log.open_transactions() == []


def test_the_oldest_of_several_transactions_counts() -> None:
    log = LogFixture().log
    for producer_id in range(5):
        put(log, producer_id, 0)
    end(log, 1)
    assert log.last_stable_offset == 0
    end(log, 0)
    assert log.last_stable_offset == 2
    end(log, 3)
    assert log.last_stable_offset == 2
    end(log, 2)
    assert log.last_stable_offset == 4
    end(log, 4)
    assert log.last_stable_offset == log.end_offset


def test_a_marker_counts_once_the_high_watermark_has_passed_it() -> None:
    log = LogFixture().log
    log.high_watermark = 0
    put(log, 5, 0)  # 0
    put(log, 6, 0)  # 1
    end(log, 6)  # 2
    end(log, 5)  # 3
    put(log, 7, 0)  # 4
    for high_watermark, expected in ((1, 0), (2, 0), (3, 0), (4, 4), (5, 4)):
        log.high_watermark = high_watermark
        assert log.last_stable_offset == expected


def test_deleted_records_are_not_waited_for() -> None:
    log = LogFixture().log
    put(log, 5, 0, 3)
    log.delete_records(2)
    assert log.last_stable_offset == 2


# -- what is refused ----------------------------------------------------------------------------------------------


def test_a_transaction_begins_with_a_guard_only() -> None:
    log = LogFixture().log
    first = sequenced(5, 0, is_transactional=True)
    refusal(ErrorCode.INVALID_TXN_STATE, log.append, first, 0)
    refusal(ErrorCode.INVALID_TXN_STATE, log.append, first, 0, object())
    guard = log.begin_verification(5, 0)
    assert guard is not None
    assert log.begin_verification(5, 0) is guard
    assert not log.transaction_open(5, 0)
    assert log.append(first, 0, guard).base_offset == 0
    assert log.transaction_open(5, 0)
    assert not log.transaction_open(5, 1)
    assert log.begin_verification(5, 0) is None
    assert log.append(sequenced(5, 1, is_transactional=True), 0).base_offset == 1


def test_a_marker_takes_the_guard_away() -> None:
    log = LogFixture().log
    guard = log.begin_verification(5, 0)
    end(log, 5, committed=False)
    refusal(ErrorCode.INVALID_TXN_STATE, log.append, sequenced(5, 0, is_transactional=True), 0, guard)
    assert log.begin_verification(5, 0) is not guard


def test_a_guard_is_good_for_one_transaction() -> None:
    log = LogFixture().log
    guard = log.begin_verification(5, 0)
    log.append(sequenced(5, 0, is_transactional=True), 0, guard)
    end(log, 5)
    refusal(ErrorCode.INVALID_TXN_STATE, log.append, sequenced(5, 1, is_transactional=True), 0, guard)


def test_questions_about_several_epochs_do_not_hinder_each_other() -> None:
    log = LogFixture().log
    claimed = log.begin_verification(5, 9)
    guard = log.begin_verification(5, 1)
    older = log.begin_verification(5, 0)
    assert len({id(claimed), id(guard), id(older)}) == 3
    log.append(sequenced(5, 0, epoch=1, is_transactional=True), 0, guard)
    # One of them was right, and the others can be asked again.
    refusal(ErrorCode.INVALID_TXN_STATE, log.append, sequenced(5, 0, 1, 9, is_transactional=True), 0, claimed)
    refusal(ErrorCode.INVALID_PRODUCER_EPOCH, log.append, sequenced(5, 0, is_transactional=True), 0, older)
    refusal(ErrorCode.INVALID_PRODUCER_EPOCH, log.begin_verification, 5, 0)


def test_a_marker_that_raises_the_epoch_leaves_the_guard_of_what_comes_next() -> None:
    log = LogFixture().log
    put(log, 5, 0)
    guard = log.begin_verification(5, 1)
    end(log, 5, epoch=1, version=2)
    assert log.append(sequenced(5, 0, epoch=1, is_transactional=True), 0, guard).base_offset == 2


def test_batches_that_wait_for_one_answer_do_not_overtake_each_other() -> None:
    log = LogFixture().log
    guard = log.begin_verification(5, 0, 7)
    assert log.begin_verification(5, 0, 6) is guard
    late = sequenced(5, 7, is_transactional=True)
    refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log.append, late, 0, guard)
    log.append(sequenced(5, 6, is_transactional=True), 0, guard)
    log.append(late, 0)
    assert log.end_offset == 2


def test_sequences_that_wrap_do_not_overtake_either() -> None:
    log = LogFixture().log
    guard = log.begin_verification(5, 0, 0x7FFF_FFFF)
    assert log.begin_verification(5, 0, 0) is guard
    refusal(
        ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log.append, sequenced(5, 0, is_transactional=True), 0, guard
    )
    log.append(sequenced(5, 0x7FFF_FFFF, is_transactional=True), 0, guard)
    assert put(log, 5, 0) == 1


def test_a_transaction_with_an_epoch_of_its_own_begins_at_sequence_0() -> None:
    log = LogFixture().log
    guard = log.begin_verification(5, 3, 1, begins_at_zero=True)
    second = sequenced(5, 1, epoch=3, is_transactional=True)
    refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, log.append, second, 0, guard)
    log.append(sequenced(5, 0, epoch=3, is_transactional=True), 0, guard)
    log.append(second, 0)
    assert log.end_offset == 2


def test_a_guard_does_not_outlive_leadership() -> None:
    log = LogFixture().log
    guard = log.begin_verification(5, 0)
    leader = LogFixture().log
    end(leader, 5, committed=False)
    read = leader.read(0, 1 << 20, leader.end_offset, wait=True)
    log.append_replica(read.buffers[0])  # type: ignore[union-attr, arg-type]
    refusal(ErrorCode.INVALID_TXN_STATE, log.append, sequenced(5, 0, is_transactional=True), 0, guard)


def test_a_repeated_batch_is_answered_even_after_its_transaction() -> None:
    log = LogFixture().log
    put(log, 5, 0, 2)
    end(log, 5)
    again = log.append(sequenced(5, 0, 2, is_transactional=True), 0)
    assert (again.duplicate, again.base_offset, again.last_offset) == (True, 0, 1)


def test_nothing_is_written_beside_an_open_transaction_by_its_producer() -> None:
    log = LogFixture().log
    put(log, 5, 0)
    refusal(ErrorCode.INVALID_TXN_STATE, log.append, sequenced(5, 1), 0)
    assert log.append(sequenced(6, 0), 0).base_offset == 1
    end(log, 5)
    assert log.append(sequenced(5, 1), 0).base_offset == 3
    # And from there on into a transaction.
    assert put(log, 5, 2) == 4


def test_sequences_are_checked_in_transactions() -> None:
    log = LogFixture().log
    put(log, 5, 0)
    refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, put, log, 5, 2)
    end(log, 5)
    refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, put, log, 5, 2)
    assert put(log, 5, 1) == 2


def test_after_a_marker_that_raised_the_epoch_the_sequence_begins_anew() -> None:
    log = LogFixture().log
    put(log, 5, 0)
    end(log, 5, epoch=1, version=2)
    refusal(ErrorCode.INVALID_PRODUCER_EPOCH, put, log, 5, 1)
    refusal(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, put, log, 5, 1, epoch=1)
    assert put(log, 5, 0, epoch=1) == 2


def test_too_many_transactions_are_refused() -> None:
    states = ProducerStates(4)
    for producer_id in range(2):
        states.check_transactional(producer_id, 0, 0, 1, UNVERIFIED_OK)
        states.record(producer_id, 0, 0, 1, producer_id, 0, 0)
        states.begin_transaction(producer_id, producer_id, 0)
    refusal(ErrorCode.INVALID_TXN_STATE, states.check_transactional, 3, 0, 0, 1, UNVERIFIED_OK)
    assert states.check_transactional(1, 0, 1, 1, None) is None


def test_a_producer_with_an_open_transaction_is_never_forgotten() -> None:
    states = ProducerStates(4)
    states.record(1, 0, 0, 1, 0, 0, 0)
    states.begin_transaction(1, 0, 0)
    for producer_id in range(100, 120):
        states.record(producer_id, 0, 0, 1, producer_id, 0, producer_id)
    assert states.expire(10**15, 1) > 0
    assert list(states.producers) == [1]
    assert [one.producer_id for one in states.open_transactions()] == [1]


# -- markers ------------------------------------------------------------------------------------------------------


def test_markers_of_an_older_epoch_are_refused() -> None:
    log = LogFixture().log
    put(log, 5, 0, epoch=3)
    for version in (1, 2):
        refusal(ErrorCode.INVALID_PRODUCER_EPOCH, end, log, 5, 2, version=version)
    assert log.end_offset == 1
    assert log.transaction_open(5, 3)


def test_from_version_2_on_a_marker_must_raise_the_epoch() -> None:
    log = LogFixture().log
    put(log, 5, 0, epoch=3)
    refusal(ErrorCode.INVALID_PRODUCER_EPOCH, end, log, 5, 3, version=2)
    assert end(log, 5, 4, version=2).base_offset == 1
    # Sent again: it ends nothing.
    assert end(log, 5, 4, version=2).base_offset == 2
    put(log, 5, 0, epoch=4)
    refusal(ErrorCode.INVALID_PRODUCER_EPOCH, end, log, 5, 4, version=2)
    assert log.transaction_open(5, 4)


def test_the_highest_epoch_cannot_be_raised() -> None:
    log = LogFixture().log
    put(log, 5, 0, epoch=0x7FFF)
    end(log, 5, 0x7FFF, version=2)
    assert log.open_transactions() == []


def test_an_older_coordinator_is_fenced() -> None:
    log = LogFixture().log
    put(log, 5, 0)
    end(log, 5, coordinator_epoch=4)
    put(log, 5, 1)
    refusal(ErrorCode.TRANSACTION_COORDINATOR_FENCED, end, log, 5, coordinator_epoch=3)
    assert log.transaction_open(5, 0)
    assert log.open_transactions()[0].coordinator_epoch == 4
    end(log, 5, coordinator_epoch=4)


def test_a_marker_for_a_producer_that_is_not_known_is_written() -> None:
    log = LogFixture().log
    assert end(log, 5, 3).base_offset == 0
    refusal(ErrorCode.INVALID_PRODUCER_EPOCH, put, log, 5, 0, epoch=2)
    # It may be one whose history has expired: its sequence goes on.
    assert put(log, 5, 17, epoch=3) == 1


# -- the broker's own ---------------------------------------------------------------------------------------------


def test_the_brokers_own_batches_may_be_part_of_a_transaction() -> None:
    log = LogFixture().log
    offsets = encode_batch(
        [Record(0, 0, b"key", b"value", ())], producer_id=5, producer_epoch=2, is_transactional=True
    )
    for expected in range(2):
        assert log.append_internal(offsets, 0).base_offset == expected
    assert log.last_stable_offset == 0
    assert log.transaction_open(5, 2)
    older = encode_batch(
        [Record(0, 0, b"key", b"value", ())], producer_id=5, producer_epoch=1, is_transactional=True
    )
    refusal(ErrorCode.INVALID_PRODUCER_EPOCH, log.append_internal, older, 0)
    end(log, 5, 2, committed=False)
    assert log.last_stable_offset == 3
    refusal(ErrorCode.INVALID_TXN_STATE, log.append_internal, offsets, 0, None)
    guard = log.begin_verification(5, 2)
    assert log.append_internal(offsets, 0, guard).base_offset == 3


# -- followers ----------------------------------------------------------------------------------------------------


def test_a_follower_knows_the_same_transactions() -> None:
    leader = LogFixture().log
    put(leader, 5, 0)
    put(leader, 6, 0)
    end(leader, 5, committed=False)
    put(leader, 5, 1)
    end(leader, 6, 1, version=2, coordinator_epoch=3)
    put(leader, 6, 0, epoch=1)
    follower = LogFixture().log
    read = leader.read(0, 1 << 20, leader.end_offset, wait=True)
    follower.append_replica(read.buffers[0])  # type: ignore[union-attr, arg-type]
    assert follower.open_transactions() == leader.open_transactions()
    assert [(one.producer_id, one.first_offset) for one in follower.open_transactions()] == [(5, 3), (6, 5)]
    assert follower.last_stable_offset == leader.last_stable_offset == 3
    assert follower.transaction_open(6, 1)
    refusal(ErrorCode.TRANSACTION_COORDINATOR_FENCED, end, follower, 6, 2, coordinator_epoch=2, version=2)
