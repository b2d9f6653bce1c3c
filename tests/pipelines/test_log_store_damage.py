"""A damaged or missing file of a log store is named with its remedy; the rest is found, and repair mends it."""

from __future__ import annotations

from pathlib import Path

import pytest
from store_events import HOUR_US, START_US, batch, event, events, messages, named_files, stored_files

from culver.pipelines.log_store import files
from culver.pipelines.log_store.errors import DamagedFile
from culver.pipelines.log_store.store import DamagedFileWarning, LogStore
from culver.testing import leaks


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> LogStore:
    """Three hours with one file each, of four row groups."""
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 64)
    store = LogStore(str(tmp_path / "logs"))
    for number in range(3):
        rows = [
            event(
                START_US + number * HOUR_US + row * 1_000_000,
                f"hour{number} line{row} everywhere number{row * row}",
            )
            for row in range(256)
        ]
        store.write_batch(events(rows), query_id="q", batch_id=number)
    return store


def files_of(store: LogStore, hour: int) -> tuple[Path, Path]:
    """The Parquet file and the index of an hour."""
    [entry] = [entry for entry in store.state().files.values() if entry.ts_min == START_US + hour * HOUR_US]
    return Path(store.path, entry.path), Path(store.path, entry.index)


def damage(path: Path, position: int, data: bytes = b"\xa5" * 64) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


@pytest.mark.parametrize(
    "harm", [lambda path: damage(path, 0), cut, Path.unlink, lambda path: path.write_bytes(b"")],
    ids=["header", "cut", "missing", "empty"],
)  # fmt: skip
@pytest.mark.parametrize("which", [0, 1], ids=["parquet", "index"])
def test_the_damaged_file_is_named_and_the_rest_is_found(store: LogStore, harm, which: int) -> None:  # type: ignore[no-untyped-def]
    path = files_of(store, 1)[which]
    if not (which == 0 and harm.__name__ == "<lambda>"):
        harm(path)
    else:
        damage(path, path.stat().st_size - 64)  # its footer, where a Parquet file is opened
    found = store.find("line3")
    assert [text.split()[0] for text in found.events["message"].to_pylist()] == ["hour2", "hour0"]
    [problem] = found.problems
    assert problem.path == str(path)
    assert "culver pipeline logs --repair" in problem.remedy
    with pytest.warns(DamagedFileWarning, match=str(path)):
        store.search("line3")
    assert str(path) in [problem.path for problem in store.verify()]


def test_a_damaged_index_is_built_again_without_loss(store: LogStore) -> None:
    damage(files_of(store, 0)[1], 0)
    files_of(store, 1)[1].unlink()
    assert len(store.find("everywhere", limit=10_000).problems) == 2
    result = store.repair()
    assert (result.indexes_rebuilt, result.rows_lost, len(result.problems)) == (2, 0, 2)
    assert store.verify() == []
    assert len(messages(store, "everywhere")) == 3 * 256
    store.collect_orphans(older_than_seconds=0)
    assert stored_files(store.path) == named_files(store)
    assert store.repair().problems == []


def test_a_flipped_byte_in_an_index_is_found_by_its_checksum(store: LogStore) -> None:
    index = files_of(store, 1)[1]
    damage(index, index.stat().st_size // 2, b"\x00")
    assert [problem.path for problem in store.verify()] == [str(index)]
    assert store.repair().indexes_rebuilt == 1


def test_of_a_damaged_parquet_file_the_sound_row_groups_are_saved(store: LogStore) -> None:
    parquet, _ = files_of(store, 1)
    damage(parquet, 2000)
    found = store.find("hour1", limit=10_000)
    assert isinstance(found.problems[0], DamagedFile)
    assert "row group" in found.problems[0].message
    result = store.repair()
    assert (result.rows_saved, result.rows_lost) == (192, 64)
    assert [Path(path).name for path in result.put_aside] == [parquet.name]
    assert store.verify() == []
    assert len(messages(store, "everywhere")) == 3 * 256 - 64
    assert store.write_batch(batch(3), query_id="q", batch_id=3).is_new


def test_rows_that_cannot_be_read_take_no_place_among_the_newest(store: LogStore) -> None:
    parquet, index = files_of(store, 2)
    for path in (index, parquet):
        data = path.read_bytes()
        for position in range(len(data) // 3, len(data), len(data) // 40):
            damage(path, position)
            found = store.find("everywhere", limit=100)
            assert found.events.num_rows == 100
            path.write_bytes(data)


def test_a_flipped_bit_in_a_parquet_file_never_changes_a_line_unnoticed(store: LogStore) -> None:
    parquet, _ = files_of(store, 1)
    sound = store.find("hour1", limit=10_000).events
    data = parquet.read_bytes()
    noticed = 0
    for position in range(100, len(data) // 2, len(data) // 150):
        damage(parquet, position, bytes([data[position] ^ 4]))
        found = store.find("hour1", limit=10_000)
        noticed += bool(found.problems)
        assert found.problems or found.events == sound, position
        damage(parquet, position, data[position : position + 1])
    assert noticed > 50


def test_a_parquet_file_put_back_is_used_again(store: LogStore) -> None:
    parquet, _ = files_of(store, 1)
    aside = parquet.rename(parquet.with_name("elsewhere"))
    assert len(store.find("everywhere", limit=10_000).problems) == 1
    aside.rename(parquet)
    assert len(messages(store, "everywhere")) == 3 * 256


def test_compaction_leaves_damaged_files_alone(store: LogStore) -> None:
    store.write_batch(batch(0), query_id="q", batch_id=3)
    cut(files_of(store, 1)[0])
    cut(Path(store.path, next(path for path in store.state().files if "hour=08" in path)))
    with leaks.forbidden():
        result = store.compact()
    assert len(result.problems) == 1
    assert len(store.state().files) == 4


def test_a_damaged_commit_is_named(store: LogStore) -> None:
    commit = sorted(Path(store.path, "manifest").iterdir())[1]
    commit.write_bytes(commit.read_bytes()[:50])
    with pytest.raises(DamagedFile, match=f"{commit}.*backup"):
        LogStore(store.path).state()
    commit.unlink()
    with pytest.raises(DamagedFile, match="lacks some of its commits"):
        LogStore(store.path).state()
