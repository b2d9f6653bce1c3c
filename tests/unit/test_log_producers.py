"""Idempotent producers: retries answered, gaps refused, and all of it remembered across restarts."""

from __future__ import annotations

import pytest
from log_batches import DIRECTORY, NOW_MS, LogFixture, sequenced

from culver.errors import ErrorCode, KafkaError
from culver.log.limits import LogLimits
from culver.log.partition_log import PartitionLog
from culver.log.producer_snapshot import SnapshotDamaged, decode_snapshot, encode_snapshot
from culver.log.producer_state import MAX_SEQUENCE, ProducerStates


def refused(fixture: LogFixture, records: memoryview) -> ErrorCode:
    end = fixture.log.end_offset
    with pytest.raises(KafkaError) as caught:
        fixture.log.append(records, 0)
    assert fixture.log.end_offset == end
    return caught.value.code


@pytest.fixture
def fixture() -> LogFixture:
    return LogFixture()


def test_a_retry_of_each_of_the_last_five_batches_gets_its_first_answer(fixture: LogFixture) -> None:
    for number in range(6):
        fixture.log.append(sequenced(1, number * 2, count=2), 0)
    for number in range(1, 6):
        result = fixture.log.append(sequenced(1, number * 2, count=2), 0)
        assert result.duplicate
        assert (result.base_offset, result.last_offset) == (number * 2, number * 2 + 1)
    assert fixture.log.end_offset == 12
    # The sixth is forgotten, so it looks like a step back.
    assert refused(fixture, sequenced(1, 0, count=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_gap_or_an_overlap_is_out_of_order(fixture: LogFixture) -> None:
    fixture.log.append(sequenced(1, 0, count=3), 0)
    for sequence, count in ((4, 1), (2, 1), (0, 2), (1, 3), (100, 1)):
        assert refused(fixture, sequenced(1, sequence, count)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert fixture.log.append(sequenced(1, 3), 0).base_offset == 3


def test_an_unknown_producer_may_begin_anywhere(fixture: LogFixture) -> None:
    assert fixture.log.append(sequenced(1, 41), 0).base_offset == 0
    assert fixture.log.append(sequenced(1, 42), 0).base_offset == 1


def test_an_older_epoch_is_fenced_and_a_newer_one_begins_at_zero(fixture: LogFixture) -> None:
    fixture.log.append(sequenced(1, 0, epoch=3), 0)
    assert refused(fixture, sequenced(1, 1, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert refused(fixture, sequenced(1, 1, epoch=4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert fixture.log.append(sequenced(1, 0, epoch=4), 0).base_offset == 1
    assert refused(fixture, sequenced(1, 1, epoch=3)) == ErrorCode.INVALID_PRODUCER_EPOCH
    # Sequence 0 of the old epoch was another batch.
    assert fixture.log.append(sequenced(1, 0, epoch=4), 0).duplicate


def test_sequences_wrap_to_zero_after_the_largest(fixture: LogFixture) -> None:
    fixture.log.append(sequenced(1, MAX_SEQUENCE - 1, count=2), 0)
    assert fixture.log.append(sequenced(1, 0), 0).base_offset == 2
    fixture.log.append(sequenced(2, MAX_SEQUENCE - 1, count=4), 0)  # wraps inside the batch
    assert fixture.log.append(sequenced(2, MAX_SEQUENCE - 1, count=4), 0).duplicate
    assert fixture.log.append(sequenced(2, 2), 0).base_offset == 7
    assert refused(fixture, sequenced(2, 4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_producers_do_not_disturb_each_other(fixture: LogFixture) -> None:
    for sequence in range(3):
        for producer_id in range(4):
            fixture.log.append(sequenced(producer_id, sequence), 0)
    assert fixture.log.end_offset == 12
    assert {
        producer.producer_id: producer.last_sequence for producer in fixture.log.producers()
    } == dict.fromkeys(range(4), 2)


@pytest.mark.parametrize("how", ["clean", "crash", "crash without snapshots", "damaged snapshots"])
def test_the_last_five_batches_survive_a_restart(how: str) -> None:
    fixture = LogFixture(segment_bytes=400)
    for number in range(12):
        fixture.log.append(sequenced(1, number), 0)
        fixture.log.append(sequenced(2, number, epoch=3), 0)
        fixture.log.flush()
    assert fixture.log.segment_count > 3
    if how == "clean":
        fixture.close_and_reopen()
    else:
        checkpoint = fixture.log.checkpoint()
        for name in fixture.fs.list(DIRECTORY):
            if name.endswith(".snapshot"):
                if how == "crash without snapshots":
                    fixture.fs.remove(f"{DIRECTORY}/{name}")
                elif how == "damaged snapshots":
                    fixture.faulty.flip_bit(f"{DIRECTORY}/{name}", 9)
        fixture.reopen(checkpoint=checkpoint)
    for number in range(7, 12):
        result = fixture.log.append(sequenced(1, number), 0)
        assert result.duplicate
        assert result.base_offset == number * 2
    assert refused(fixture, sequenced(1, 13)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refused(fixture, sequenced(2, 12, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert fixture.log.append(sequenced(1, 12), 0).base_offset == 24


def test_a_roll_right_before_a_stop_leaves_its_snapshot(fixture: LogFixture) -> None:
    fixture.log.append(sequenced(1, 0), 0)
    fixture.log.roll()
    fixture.log.close()
    assert fixture.fs.exists(f"{DIRECTORY}/00000000000000000001.snapshot")


def test_snapshots_do_not_pile_up() -> None:
    fixture = LogFixture(segment_bytes=200)
    for number in range(40):
        fixture.log.append(sequenced(1, number), 0)
        fixture.log.flush()
    assert sum(name.endswith(".snapshot") for name in fixture.fs.list(DIRECTORY)) <= 2


def test_silent_producers_are_forgotten(fixture: LogFixture) -> None:
    fixture.log.append(sequenced(1, 5), 0)
    fixture.clock.advance_ms(86_400_000 - 1)
    fixture.log.append(sequenced(2, 0), 0)
    assert fixture.log.expire_producers(fixture.clock.now_ms()) == 0
    fixture.clock.advance_ms(1)
    assert fixture.log.expire_producers(fixture.clock.now_ms()) == 1
    assert [producer.producer_id for producer in fixture.log.producers()] == [2]
    assert not fixture.log.append(sequenced(1, 5), 0).duplicate


def test_the_number_of_producers_is_bounded() -> None:
    fixture = LogFixture()
    limits = LogLimits(producers_max=100)
    log = PartitionLog.open(
        fixture.fs, fixture.clock, DIRECTORY, fixture.config, clean=False, checkpoint=None, limits=limits
    )
    for producer_id in range(1000):
        fixture.clock.advance_ms(1)
        log.append(sequenced(producer_id, 0), 0)
    producers = {producer.producer_id for producer in log.producers()}
    assert len(producers) <= 100
    assert 999 in producers


def test_a_snapshot_round_trips_and_notices_damage() -> None:
    states = ProducerStates(10)
    for sequence in range(7):
        states.record(1, 2, sequence * 3, 3, sequence * 10, NOW_MS + sequence, 5)
    states.bump_epoch(9, 4, 100, NOW_MS, 5)
    data = encode_snapshot(states)
    decoded = decode_snapshot(data, 10, 77, 0)
    assert decoded.producers[1].batches == states.producers[1].batches
    assert (decoded.producers[1].epoch, decoded.producers[1].last_seen_ms) == (2, 77)
    assert (decoded.producers[9].epoch, decoded.producers[9].batches) == (4, [])
    for position in range(len(data)):
        damaged = bytearray(data)
        damaged[position] ^= 1
        with pytest.raises(SnapshotDamaged):
            decode_snapshot(bytes(damaged), 10, 0, 0)
    for size in range(len(data)):
        with pytest.raises(SnapshotDamaged):
            decode_snapshot(data[:size], 10, 0, 0)
