"""Batches are added to a log store exactly once, each event to its hour, by one writer at a time."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from store_events import HOUR_US, START_US, batch, event, events, messages, named_files, stored_files

from culver.pipelines.log_store import durable_files, files, manifest
from culver.pipelines.log_store.entries import FileEntry
from culver.pipelines.log_store.errors import (
    BatchConflict,
    LogStoreError,
    StoreNotFound,
    StoreTooNew,
    WriterFenced,
)
from culver.pipelines.log_store.store import LogStore


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return LogStore(str(tmp_path / "logs"))


def test_what_was_written_is_found_newest_first(store: LogStore) -> None:
    result = store.write_batch(batch(0), query_id="q", batch_id=0)
    assert (result.is_new, result.rows, result.files) == (True, 10, 1)
    assert messages(store, "line3") == ["batch0 line3 everywhere"]
    assert messages(store) == [f"batch0 line{row} everywhere" for row in reversed(range(10))]


def test_a_batch_given_again_is_left_alone(store: LogStore) -> None:
    for _ in range(2):
        store.write_batch(batch(0), query_id="q", batch_id=0, offsets={"t": {"0": 10}})
    again = LogStore(store.path).write_batch(batch(0), query_id="q", batch_id=0, offsets={"t": {"0": 10}})
    assert not again.is_new
    assert store.state().rows == 10
    assert store.progress("q").offsets == {"t": {"0": 10}}


def test_queries_number_their_batches_independently(store: LogStore) -> None:
    store.write_batch(batch(0), query_id="one", batch_id=0)
    assert store.write_batch(batch(1), query_id="two", batch_id=0).is_new
    assert store.state().rows == 20


def test_an_old_batch_is_not_added_after_a_later_one(store: LogStore) -> None:
    store.write_batch(batch(0), query_id="q", batch_id=0)
    store.write_batch(batch(1), query_id="q", batch_id=1)
    assert not store.write_batch(batch(0), query_id="q", batch_id=0).is_new


def test_a_replayed_batch_with_other_offsets_is_a_foreign_checkpoint(store: LogStore) -> None:
    store.write_batch(batch(0), query_id="q", batch_id=0, offsets={"t": {"0": 10}})
    with pytest.raises(BatchConflict, match="new checkpoint"):
        store.write_batch(batch(0), query_id="q", batch_id=0, offsets={"t": {"0": 99}})


def test_an_empty_batch_is_remembered(store: LogStore) -> None:
    result = store.write_batch(batch(0).slice(0, 0), query_id="q", batch_id=0, offsets={"t": 1})
    assert (result.is_new, result.files) == (True, 0)
    assert store.progress("q").batch_id == 0


def test_tasks_write_apart_and_the_driver_commits_them_at_once(store: LogStore) -> None:
    written = [entry for number in range(3) for entry in LogStore(store.path).write_files(batch(number))]
    lost_attempt = store.write_files(batch(0))
    assert store.state().rows == 0
    assert messages(store) == []
    carried = [FileEntry.from_json(entry.to_json()) for entry in written]
    assert carried == written
    store.commit("q", 0, carried, {"t": {"0": 30}})
    assert store.state().rows == 30
    assert store.collect_orphans(older_than_seconds=3600) == []
    assert store.collect_orphans(older_than_seconds=0) == sorted(
        path for entry in lost_attempt for path in (entry.path, entry.index)
    )
    assert stored_files(store.path) == named_files(store)


def test_files_that_have_gone_cannot_be_committed(store: LogStore) -> None:
    written = store.write_files(batch(0))
    store.collect_orphans(older_than_seconds=0)
    with pytest.raises(BatchConflict, match="has gone"):
        store.commit("q", 0, written)


def test_late_events_go_to_the_hour_they_happened_in(store: LogStore) -> None:
    late = event(START_US - 30 * HOUR_US, "late")
    store.write_batch(
        events([event(START_US, "on time"), late, event(START_US + HOUR_US, "next")]),
        query_id="q",
        batch_id=0,
    )
    directories = {str(Path(path).parent) for path in store.state().files}
    assert directories == {
        "data/date=2026-11-15/hour=08",
        "data/date=2026-11-14/hour=02",
        "data/date=2026-11-15/hour=09",
    }
    assert messages(store) == ["next", "on time", "late"]
    assert messages(store, until=START_US) == ["late"]


def test_events_before_1970_have_their_place_too(store: LogStore) -> None:
    store.write_batch(events([event(-1, "before"), event(0, "after")]), query_id="q", batch_id=0)
    assert {Path(path).parts[1] for path in store.state().files} == {"date=1969-12-31", "date=1970-01-01"}


def test_a_file_is_sorted_and_pruned_by_statistics(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 4)
    store.write_batch(batch(0).take(list(reversed(range(10)))), query_id="q", batch_id=0)
    [path] = store.parquet_files()
    with pq.ParquetFile(path) as file:
        table = file.read()
        group = file.metadata.row_group(0).column(0)
    assert table["ts"].to_pylist() == sorted(table["ts"].to_pylist())
    assert group.compression == "ZSTD"
    assert group.statistics.has_min_max


def test_a_large_batch_is_split_into_files(tmp_path: Path) -> None:
    entries = files.write_files(str(tmp_path), batch(0), rows_per_file_max=4)
    assert [entry.rows for entry in entries] == [4, 4, 2]


def test_events_without_a_needed_column_are_refused(store: LogStore) -> None:
    with pytest.raises(LogStoreError, match="no column message"):
        store.write_files(batch(0).drop_columns(["message"]))
    with pytest.raises(LogStoreError, match="raw of the events holds nulls"):
        store.write_files(events([event(START_US, "x", raw=None)]))


def test_a_second_writer_fences_the_first(store: LogStore) -> None:
    second = LogStore(store.path)
    store.write_batch(batch(0), query_id="q", batch_id=0)
    second.write_batch(batch(1), query_id="q", batch_id=1)
    for number in (1, 2):
        with pytest.raises(WriterFenced, match="another writer of query q has taken over"):
            store.write_batch(batch(number), query_id="q", batch_id=number)
    assert second.write_batch(batch(2), query_id="q", batch_id=2).is_new
    assert second.state().rows == 30


def test_a_claim_fences_before_the_first_batch(store: LogStore) -> None:
    store.write_batch(batch(0), query_id="q", batch_id=0)
    written = store.write_files(batch(1))
    LogStore(store.path).claim("q")
    with pytest.raises(WriterFenced):
        store.commit("q", 1, written)


def test_commits_of_two_writers_at_the_same_moment_are_both_kept(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = LogStore(store.path)
    create = durable_files.create_exclusively

    def overtaken(path: str, data: bytes) -> bool:
        monkeypatch.setattr(durable_files, "create_exclusively", create)
        other.write_batch(batch(1), query_id="other", batch_id=0)
        return create(path, data)

    monkeypatch.setattr(durable_files, "create_exclusively", overtaken)
    store.write_batch(batch(0), query_id="q", batch_id=0)
    assert store.state().rows == 20
    assert store.state().version == 2


def test_a_writer_that_slept_through_a_checkpoint_does_not_commit_into_the_past(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest, "COMMITS_PER_CHECKPOINT", 2)
    other = LogStore(store.path)
    create = durable_files.create_exclusively

    def asleep(path: str, data: bytes) -> bool:
        monkeypatch.setattr(durable_files, "create_exclusively", create)
        for number in range(1, 8):
            other.write_batch(batch(number), query_id="other", batch_id=number)
        assert not Path(path).exists()  # its number was used and cleaned away
        return create(path, data)

    monkeypatch.setattr(durable_files, "create_exclusively", asleep)
    assert store.write_batch(batch(0), query_id="q", batch_id=0).is_new
    assert store.state().version == 8
    assert LogStore(store.path).state() == store.state()
    assert len(messages(store, "batch0")) == 10


def test_the_manifest_stays_small_and_says_the_same(store: LogStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(manifest, "COMMITS_PER_CHECKPOINT", 4)
    for number in range(20):
        store.write_batch(batch(number, rows=1), query_id="q", batch_id=number, offsets=number)
    assert len(list(Path(store.path, "manifest").iterdir())) <= 10
    fresh = LogStore(store.path)
    assert fresh.state() == store.state()
    assert fresh.state().rows == 20
    assert fresh.progress("q").offsets == 19


def test_a_directory_without_a_store_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreNotFound, match=str(tmp_path)):
        LogStore(str(tmp_path), create=False)


def test_a_store_of_a_later_format_is_not_touched(store: LogStore) -> None:
    store.write_batch(batch(0), query_id="q", batch_id=0)
    [commit] = Path(store.path, "manifest").iterdir()
    commit.write_text(commit.read_text().replace('{"id"', '{"format":2,"id"'))
    with pytest.raises(StoreTooNew, match="format 2"):
        LogStore(store.path).state()
