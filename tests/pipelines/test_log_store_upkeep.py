"""Compaction and retention: few files, each line written seldom, what is old gone and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_events import HOUR_US, START_US, batch, event, events, messages, named_files, stored_files

from culver.pipelines.log_store import compaction
from culver.pipelines.log_store.store import LogStore


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    return LogStore(str(tmp_path / "logs"))


def test_small_files_of_an_hour_become_one(store: LogStore) -> None:
    for number in range(6):
        store.write_batch(batch(number), query_id="q", batch_id=number)
    before = sorted(messages(store))
    result = store.compact()
    assert (result.files_before, result.files_after, result.rows, result.problems) == (6, 2, 60, [])
    assert sorted(messages(store)) == before
    assert messages(store, "batch3 line7") == ["batch3 line7 everywhere"]
    assert stored_files(store.path) == named_files(store)
    assert store.compact().files_before == 0


def test_a_file_does_not_grow_beyond_the_target(store: LogStore) -> None:
    for number in range(4):
        store.write_batch(batch(number), query_id="q", batch_id=number)
    store.compact(target_rows=20)
    assert sorted(entry.rows for entry in store.state().files.values()) == [20, 20]
    assert store.compact(target_rows=20).files_before == 0


def test_a_line_is_written_again_only_as_often_as_its_file_doubles(store: LogStore) -> None:
    written = 0
    batches = 40
    for number in range(batches):
        row = event(START_US + number, f"line{number}")
        store.write_batch(events([row]), query_id="q", batch_id=number)
        written += store.compact(files_min=4).rows
        assert len(store.state().files) < 4 + batches.bit_length()
    assert written < batches * batches.bit_length()
    assert sorted(messages(store)) == sorted(f"line{number}" for number in range(batches))


def test_a_merge_of_files_that_went_meanwhile_changes_nothing(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        store.write_batch(batch(number), query_id="q", batch_id=number)
    other = LogStore(store.path)
    replace = compaction.replace

    def expired_first(*arguments: object) -> bool:
        other.expire(START_US + HOUR_US)
        return replace(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(compaction, "replace", expired_first)
    assert store.compact().files_before == 0
    assert messages(store) == []
    assert stored_files(store.path) == set()


def test_what_is_older_goes_and_the_rest_stays(store: LogStore) -> None:
    for number in range(12):
        store.write_batch(batch(number), query_id="q", batch_id=number)
    result = store.expire(START_US + HOUR_US + 5_000_000)
    assert (result.files, result.rows) == (4, 40)  # of the second hour, part is younger: it stays whole
    assert result.bytes > 0
    assert {text.split()[0] for text in messages(store)} == {f"batch{number}" for number in range(4, 12)}
    assert not Path(store.path, "data", "date=2026-11-15", "hour=08").exists()
    assert stored_files(store.path) == named_files(store)
    assert store.expire(START_US).files == 0


def test_a_batch_whose_lines_have_expired_is_not_added_again(store: LogStore) -> None:
    store.write_batch(batch(0), query_id="q", batch_id=0)
    store.expire(START_US + HOUR_US)
    assert store.state().files == {}
    assert not store.write_batch(batch(0), query_id="q", batch_id=0).is_new
