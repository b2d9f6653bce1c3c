"""The offline look at log files: what is there, what is damaged, in words."""

from __future__ import annotations

import pytest
from crc32c import crc32c
from log_batches import DIRECTORY, LOG_PATH, LogFixture, batch, sequenced

from culver.log.inspect import (
    BatchVerdict,
    inspect_aborted,
    inspect_partition,
    inspect_segment,
    inspect_snapshot,
)
from culver.log.transactions import UNVERIFIED_OK, AbortedTransaction

SIZE = len(batch(b"value 0"))


@pytest.fixture
def fixture() -> LogFixture:
    fixture = LogFixture()
    for number in range(5):
        fixture.append(b"value %d" % number)
    return fixture


def verdicts(fixture: LogFixture) -> list[BatchVerdict]:
    found = list(inspect_segment(fixture.fs, LOG_PATH))
    assert sum(verdict.size_bytes for verdict in found) == fixture.fs.size(LOG_PATH)
    return found


def faults(fixture: LogFixture) -> list[str]:
    return [f"{f.position}: {f.text}" for f in inspect_partition(fixture.fs, DIRECTORY) if f.is_fault]


def test_a_sound_log_is_shown_batch_by_batch(fixture: LogFixture) -> None:
    found = verdicts(fixture)
    assert [verdict.position for verdict in found] == [number * SIZE for number in range(5)]
    assert all(verdict.is_sound and verdict.crc_ok and not verdict.notes for verdict in found)
    assert [verdict.records[0].value for verdict in found if verdict.records] == [
        b"value %d" % n for n in range(5)
    ]
    assert faults(fixture) == []


def test_damage_in_the_middle_does_not_hide_what_follows(fixture: LogFixture) -> None:
    fixture.faulty.flip_bit(LOG_PATH, SIZE + 65)
    found = verdicts(fixture)
    assert [verdict.is_sound for verdict in found] == [True, False, True, True, True]
    assert "CRC-32C" in found[1].faults[0]


@pytest.mark.parametrize("bit", range(8))
@pytest.mark.parametrize("byte", [8, 9, 10, 11, 16])
def test_a_lying_length_or_magic_is_stepped_over(fixture: LogFixture, byte: int, bit: int) -> None:
    fixture.faulty.flip_bit(LOG_PATH, SIZE + byte, bit)
    found = verdicts(fixture)
    assert [verdict.position for verdict in found if verdict.is_sound] == [0, 2 * SIZE, 3 * SIZE, 4 * SIZE]


def test_a_torn_tail_is_called_so(fixture: LogFixture) -> None:
    data = fixture.fs.read(LOG_PATH)
    fixture.fs.write_atomic(LOG_PATH, data[:-4])
    assert "a write that was cut off" in verdicts(fixture)[-1].faults[0]
    fixture.fs.write_atomic(LOG_PATH, data[: 4 * SIZE + 20])
    assert "only 20 bytes are left" in verdicts(fixture)[-1].faults[0]
    fixture.fs.write_atomic(LOG_PATH, data + bytes(4096))
    assert "no sound batch in the 4096 bytes" in verdicts(fixture)[-1].faults[0]


def test_gaps_are_notes_and_overlaps_are_faults(fixture: LogFixture) -> None:
    data = fixture.fs.read(LOG_PATH)
    fixture.fs.write_atomic(LOG_PATH, data[:SIZE] + data[2 * SIZE :])
    found = verdicts(fixture)
    assert found[1].is_sound
    assert "1 offsets from 1 on are left out" in found[1].notes[0]
    fixture.fs.write_atomic(LOG_PATH, data[: 2 * SIZE] + data[SIZE:])
    assert "overlaps what came before" in verdicts(fixture)[2].faults[0]


def test_records_that_cannot_be_decoded_are_a_fault_of_their_batch(fixture: LogFixture) -> None:
    broken = bytearray(batch(b"x" * 20))
    broken[61] = 0x7F
    broken[17:21] = crc32c(memoryview(broken)[21:]).to_bytes(4, "big")
    fixture.log.append(memoryview(broken), 0)
    last = verdicts(fixture)[-1]
    assert last.crc_ok
    assert "cannot be decoded" in last.faults[0]
    assert list(inspect_segment(fixture.fs, LOG_PATH, decode=False))[-1].is_sound


def test_segments_indexes_and_snapshots_are_compared() -> None:
    fixture = LogFixture(segment_bytes=300, index_interval_bytes=0)
    for number in range(12):
        fixture.log.append(sequenced(1, number), 0)
    fixture.log.close()
    assert faults(fixture) == []
    index = f"{DIRECTORY}/{0:020d}.index"
    content = bytearray(fixture.fs.read(index))
    content[-1] ^= 1
    fixture.fs.write_atomic(index, content)
    assert len(faults(fixture)) == 1
    assert "there is none" in faults(fixture)[0]
    fixture.fs.remove(index)
    snapshot = next(name for name in fixture.fs.list(DIRECTORY) if name.endswith(".snapshot"))
    fixture.faulty.flip_bit(f"{DIRECTORY}/{snapshot}", 8)
    assert any("producer snapshot" in fault for fault in faults(fixture))
    logs = [name for name in fixture.fs.list(DIRECTORY) if name.endswith(".log")]
    fixture.fs.remove(f"{DIRECTORY}/{logs[1]}")
    notes = [f.text for f in inspect_partition(fixture.fs, DIRECTORY) if not f.is_fault]
    assert any("compacted away, or lost" in note for note in notes)


def test_transactions_in_index_and_snapshot_are_shown(fixture: LogFixture) -> None:
    log = fixture.log
    for producer_id in (7, 8):
        log.append(sequenced(producer_id, 0, 2, is_transactional=True), 0, UNVERIFIED_OK)
    log.append_marker(7, 0, False, 3, 1, 0)
    log.roll()
    log.flush()
    index = DIRECTORY + "/00000000000000000000.txnindex"
    snapshot = DIRECTORY + "/00000000000000000010.snapshot"
    assert inspect_aborted(fixture.fs, index) == [AbortedTransaction(7, 5, 9, 7)]
    ended, begun = inspect_snapshot(fixture.fs, snapshot)
    assert (ended.producer_id, ended.coordinator_epoch, ended.transaction_first_offset) == (7, 3, None)
    assert (begun.producer_id, begun.last_sequence, begun.last_offset) == (8, 1, 8)
    assert begun.transaction_first_offset == 7
    notes = [f.text for f in inspect_partition(fixture.fs, DIRECTORY)]
    assert notes == ["producer 8 (epoch 0) had a transaction open that began at offset 7"]


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (bytes(33), "0: 33 bytes is not a whole number of entries; it will be rebuilt"),
        (
            b"\0\0" + b"".join(number.to_bytes(8, "big") for number in (7, 1, 3, 4)),
            "0: says that producer 7 has a marker at offset 3; there is none",
        ),
    ],
)
def test_a_wrong_index_of_aborted_transactions_is_named(
    fixture: LogFixture, content: bytes, fault: str
) -> None:
    fixture.fs.write_atomic(DIRECTORY + "/00000000000000000000.txnindex", content)
    assert faults(fixture) == [fault]
