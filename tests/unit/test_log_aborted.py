"""Which aborted transactions a read must skip, and the index that knows them."""

from __future__ import annotations

import pytest
from log_batches import DIRECTORY, LogFixture, batch
from test_log_transactions import end, put

from culver.log.aborted_index import AbortedIndex
from culver.log.aborted_search import rebuild_index
from culver.log.indexes import IndexDamaged
from culver.log.partition_log import PartitionLog
from culver.log.transactions import AbortedTransaction

INDEX_PATH = DIRECTORY + "/00000000000000000000.txnindex"


def everything(log: PartitionLog) -> list[tuple[int, int]]:
    return log.aborted_transactions(log.start_offset, log.last_stable_offset)


def mixed(fixture: LogFixture) -> PartitionLog:
    """Some transactions over three segments, one of them spanning all."""
    log = fixture.log
    put(log, 1, 0)  # 0
    put(log, 2, 0)  # 1
    end(log, 2, committed=False)  # 2
    put(log, 3, 0)  # 3
    log.roll()
    end(log, 3, committed=True)  # 4
    put(log, 2, 1)  # 5
    put(log, 3, 1)  # 6
    end(log, 2, committed=False)  # 7
    log.roll()
    end(log, 3, committed=False)  # 8
    end(log, 1, committed=False)  # 9
    log.append(batch(b"plain"), 0)  # 10
    return log


MIXED = [(1, 0), (2, 1), (2, 5), (3, 6)]


def test_committed_transactions_are_not_skipped() -> None:
    log = LogFixture().log
    put(log, 1, 0)
    end(log, 1)
    assert everything(log) == []


def test_a_read_gets_those_that_reach_into_it() -> None:
    log = mixed(LogFixture())
    assert everything(log) == MIXED
    assert log.aborted_transactions(3, 5) == [(1, 0)]
    assert log.aborted_transactions(2, 3) == [(1, 0), (2, 1)]
    assert log.aborted_transactions(8, 9) == [(1, 0), (3, 6)]
    assert log.aborted_transactions(9, 10) == [(1, 0)]
    assert log.aborted_transactions(10, 11) == []
    assert log.aborted_transactions(5, 5) == []


def test_the_search_ends_where_everything_had_ended() -> None:
    index = AbortedIndex()
    for at in range(0, 1000, 10):
        index.append(AbortedTransaction(7, at, at + 5, at + 6))
    found: list[AbortedTransaction] = []
    assert index.collect(100, 120, found)
    assert [one.first_offset for one in found] == [100, 110]
    assert not index.collect(995, 2000, found)
    assert [one.first_offset for one in found] == [100, 110, 990]


def test_where_nothing_was_aborted_is_remembered_until_something_is() -> None:
    fixture = LogFixture()
    log = fixture.log
    fixture.append(b"a")
    assert everything(log) == []
    put(log, 1, 0)
    end(log, 1, committed=False)
    assert everything(log) == [(1, 1)]


@pytest.mark.parametrize("how", ["flushed", "lost", "torn", "foreign"])
def test_the_index_of_closed_segments_is_read_or_made_again(how: str) -> None:
    fixture = LogFixture()
    log = mixed(fixture)
    if how != "lost":
        log.flush()
        assert len(fixture.fs.read(INDEX_PATH)) == 34
    if how == "torn":
        fixture.fs.write_atomic(INDEX_PATH, fixture.fs.read(INDEX_PATH)[:20])
    if how == "foreign":
        fixture.fs.write_atomic(INDEX_PATH, b"\0\1" + bytes(32))
    for segment in log._segments.items[:-1]:
        segment.aborted = None
    assert everything(log) == MIXED


def test_the_index_is_kafkas() -> None:
    fixture = LogFixture()
    mixed(fixture).flush()
    entry = [(2, 1, 2, 0)]
    assert [tuple(one) for one in AbortedIndex.from_bytes(fixture.fs.read(INDEX_PATH), 0).entries()] == entry
    assert fixture.fs.read(INDEX_PATH) == b"\0\0" + b"".join(
        number.to_bytes(8, "big") for number in (2, 1, 2, 0)
    )


@pytest.mark.parametrize(
    "entries",
    [
        [AbortedTransaction(1, 5, 5, 0)],
        [AbortedTransaction(1, -1, 5, 0)],
        [AbortedTransaction(1, 0, 2, 0)],
        [AbortedTransaction(1, 0, 9, 0), AbortedTransaction(1, 2, 8, 0)],
    ],
)
def test_an_index_that_cannot_be_is_damaged(entries: list[AbortedTransaction]) -> None:
    index = AbortedIndex()
    for entry in entries:
        index.append(entry)
    with pytest.raises(IndexDamaged):
        AbortedIndex.from_bytes(index.to_bytes(), 3)


def test_every_index_can_be_made_again() -> None:
    log = mixed(LogFixture())
    for at, segment in enumerate(log._segments.items):
        assert segment.aborted is not None
        known = [one[:3] for one in segment.aborted.entries()]
        assert [one[:3] for one in rebuild_index(log._segments, at).entries()] == known


def test_a_clean_stop_saves_the_index_of_the_active_segment() -> None:
    fixture = LogFixture()
    mixed(fixture)
    log = fixture.close_and_reopen()
    assert everything(log) == MIXED
    # In memory only from now on: a crash must not find one that lacks what comes next.
    assert not fixture.fs.exists(DIRECTORY + "/00000000000000000008.txnindex")
    put(log, 5, 0)
    end(log, 5, committed=False)
    fixture.faulty.crash(power_cut=True)
    log = fixture.reopen()
    assert everything(log) == ([*MIXED, (5, 11)] if log.end_offset == 13 else MIXED)


@pytest.mark.parametrize("saved", [b"", None])
def test_an_index_that_a_clean_stop_could_not_save_is_made_again(saved: bytes | None) -> None:
    fixture = LogFixture()
    mixed(fixture)
    fixture.log.close()
    path = DIRECTORY + "/00000000000000000008.txnindex"
    if saved is None:
        fixture.fs.remove(path)
    else:
        fixture.fs.write_atomic(path, saved)
    assert everything(fixture.reopen(clean=True, checkpoint=fixture.log.checkpoint())) == MIXED


def test_a_crash_finds_the_same() -> None:
    fixture = LogFixture()
    log = mixed(fixture)
    log.flush()
    checkpoint = log.checkpoint()
    put(log, 5, 0)
    end(log, 5, committed=False)
    assert everything(fixture.reopen(checkpoint=checkpoint)) == [*MIXED, (5, 11)]
    assert everything(fixture.reopen()) == [*MIXED, (5, 11)]


def test_a_crash_after_a_clean_stop_in_the_same_segment_finds_the_same() -> None:
    fixture = LogFixture()
    mixed(fixture)
    log = fixture.close_and_reopen()
    checkpoint = log.checkpoint()
    put(log, 5, 0)
    end(log, 5, committed=False)
    assert everything(fixture.reopen(checkpoint=checkpoint)) == [*MIXED, (5, 11)]


def test_truncation_takes_markers_out_of_the_index() -> None:
    fixture = LogFixture()
    log = mixed(fixture)
    log.flush()
    log.truncate_to(7)
    assert [(one.producer_id, one.first_offset) for one in log.open_transactions()] == [
        (1, 0),
        (2, 5),
        (3, 6),
    ]
    assert log.aborted_transactions(0, log.end_offset) == [(2, 1)]
    for producer_id in (2, 3, 1):
        end(log, producer_id, committed=producer_id == 3)
    assert everything(log) == [(1, 0), (2, 1), (2, 5)]


def test_the_file_goes_with_the_segment() -> None:
    fixture = LogFixture()
    log = mixed(fixture)
    log.flush()
    log.delete_records(8)
    log.retention_step(fixture.clock.now_ms())
    assert not fixture.fs.exists(INDEX_PATH)
    assert everything(log) == [(1, 0), (3, 6)]
