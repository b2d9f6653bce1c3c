"""Compaction among transactions: what was aborted goes, and markers stay for as long as they matter."""

from __future__ import annotations

from typing import Any

import pytest
from test_log_compaction import DAY_MS, CompactedLog
from test_log_transactions import end

from culver.log import names
from culver.log.transactions import UNVERIFIED_OK
from culver.protocol.records import BatchHeader, Record, encode_batch, iterate_headers


class Fixture(CompactedLog):
    def __init__(self, **config: Any) -> None:
        super().__init__(**({"segment_bytes": 10_000, "delete_retention_ms": DAY_MS} | config))

    def put_by(self, producer_id: int, sequence: int, key: bytes, value: bytes, epoch: int = 0) -> None:
        batch = encode_batch(
            [Record(0, self.clock.now_ms(), key, value, ())],
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        self.log.append(memoryview(batch), 0, UNVERIFIED_OK)

    def clean(self) -> None:
        """A pass over everything so far."""
        self.put((b"other", b"other"))
        self.roll()
        assert self.compact() is not None

    def headers(self) -> list[BatchHeader]:
        found = []
        for name in self.fs.list(self.directory):
            if name.endswith(names.LOG):
                found += [header for _, header in iterate_headers(self.fs.read(f"{self.directory}/{name}"))]
        return found

    def markers(self) -> list[int]:
        return [header.base_offset for header in self.headers() if header.is_control]


def test_aborted_records_replace_nothing_and_go() -> None:
    fixture = Fixture()
    fixture.put((b"a", b"first"))  # 0
    fixture.put_by(5, 0, b"a", b"aborted")  # 1
    end(fixture.log, 5, committed=False)  # 2
    fixture.put_by(5, 1, b"b", b"kept")  # 3
    end(fixture.log, 5)  # 4
    fixture.clean()
    assert (0, b"a", b"first") in fixture.contents()
    assert (3, b"b", b"kept") in fixture.contents()
    assert [header.base_offset for header in fixture.headers()] == [0, 2, 3, 4, 5]


def test_what_is_not_stable_is_left_alone() -> None:
    fixture = Fixture()
    fixture.put_by(5, 0, b"a", b"open")
    fixture.roll()
    fixture.put((b"a", b"later"))
    fixture.roll()
    assert fixture.compact() is None
    end(fixture.log, 5)
    fixture.clean()
    assert fixture.contents()[0] == (1, b"a", b"later")


@pytest.mark.parametrize("committed", [True, False])
def test_a_marker_stays_for_a_while_after_the_last_of_its_transaction(committed: bool) -> None:
    fixture = Fixture()
    fixture.put_by(5, 0, b"a", b"1")  # 0
    end(fixture.log, 5, committed=committed)  # 1
    fixture.put((b"a", b"2"))  # 2
    fixture.put_by(5, 1, b"c", b"3")  # 3, the last of its producer
    end(fixture.log, 5)  # 4
    fixture.clean()
    assert fixture.markers() == [1, 4]
    assert len(fixture.log.aborted_transactions(0, 5)) == (0 if committed else 1)
    fixture.clock.advance_ms(2 * DAY_MS)
    fixture.clean()  # meets nothing of it, and says until when it has to stay
    assert fixture.markers() == [1, 4]
    assert fixture.log.aborted_transactions(0, 5) == []
    horizons = {
        header.base_offset: header.delete_horizon_ms for header in fixture.headers() if header.is_control
    }
    assert horizons == {1: fixture.clock.now_ms() + DAY_MS, 4: None}
    fixture.clock.advance_ms(DAY_MS - 1)
    fixture.clean()
    assert fixture.markers() == [1, 4]
    fixture.clock.advance_ms(1)
    fixture.clean()
    assert fixture.markers() == [4]


def test_the_last_batch_of_a_producer_keeps_its_header_and_its_marker() -> None:
    fixture = Fixture()
    fixture.put_by(5, 7, b"a", b"aborted")  # 0
    end(fixture.log, 5, committed=False)  # 1
    for _ in range(3):
        fixture.clock.advance_ms(2 * DAY_MS)
        fixture.clean()
    first, second = fixture.headers()[:2]
    assert (first.base_offset, first.record_count, first.base_sequence, second.base_offset) == (0, 0, 7, 1)
    assert fixture.reopen().open_transactions() == []
    fixture.put_by(5, 8, b"a", b"next")


def test_a_producer_of_which_only_markers_are_left_keeps_its_epoch() -> None:
    fixture = Fixture()
    fixture.put_by(5, 0, b"a", b"1")
    end(fixture.log, 5, epoch=1, version=2)
    fixture.put((b"a", b"2"))
    for _ in range(4):
        fixture.clock.advance_ms(2 * DAY_MS)
        fixture.clean()
    assert fixture.markers() == [1]
    assert [(one.producer_id, one.epoch) for one in fixture.reopen().producers()] == [(5, 1)]
    fixture.clock.advance_ms(2 * DAY_MS)
    assert fixture.log.expire_producers(fixture.clock.now_ms()) == 1
    fixture.clean()
    assert fixture.markers() == [1]  # its time begins only now
    fixture.clock.advance_ms(2 * DAY_MS)
    fixture.clean()
    assert fixture.markers() == []


def test_transactions_that_reach_over_merged_segments_are_known_by_their_new_one() -> None:
    fixture = Fixture()
    fixture.put_by(5, 0, b"a", b"aborted")  # 0
    fixture.roll()
    fixture.put_by(6, 0, b"b", b"aborted")  # 1
    end(fixture.log, 6, committed=False)  # 2
    fixture.roll()
    end(fixture.log, 5, committed=False)  # 3
    fixture.clean()
    log = fixture.log
    assert log.segment_count == 2
    assert log.aborted_transactions(0, 4) == [(5, 0), (6, 1)]
    # Also when the process dies before the index is written anew.
    assert fixture.reopen().aborted_transactions(0, 4) == [(5, 0), (6, 1)]


def test_retention_waits_for_open_transactions() -> None:
    fixture = Fixture(cleanup_policy=frozenset({"delete"}), retention_ms=1000)
    fixture.put((b"a", b"0"))
    fixture.roll()
    fixture.put_by(5, 0, b"a", b"1")
    fixture.roll()
    fixture.put((b"a", b"2"))
    fixture.clock.advance_ms(DAY_MS)
    assert fixture.log.retention_step(fixture.clock.now_ms()) == 1
    assert fixture.log.start_offset == 1
    end(fixture.log, 5)
    fixture.clock.advance_ms(DAY_MS)
    assert fixture.log.retention_step(fixture.clock.now_ms()) == 2
    assert fixture.log.start_offset == 4


def test_records_of_open_transactions_can_be_deleted_by_hand() -> None:
    fixture = Fixture(cleanup_policy=frozenset({"delete"}))
    fixture.put_by(5, 0, b"a", b"1")
    fixture.roll()
    fixture.put((b"a", b"2"))
    fixture.log.delete_records(1)
    assert fixture.log.retention_step(fixture.clock.now_ms()) == 1
    assert fixture.log.last_stable_offset == 1
    assert fixture.log.transaction_open(5, 0)
    end(fixture.log, 5)
    assert fixture.log.last_stable_offset == 3
