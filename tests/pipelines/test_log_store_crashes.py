"""A log store whose process is killed before any of its changes on the disk is whole when it is opened again."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_events import batch, messages, named_files, stored_files

from culver.pipelines.log_store import manifest
from culver.pipelines.log_store.store import LogStore

BATCHES = range(2, 5)
ROWS = 10


@pytest.fixture
def template(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two batches of one hour and one of the next; the next commit is followed by a checkpoint."""
    monkeypatch.setattr(manifest, "COMMITS_PER_CHECKPOINT", 2)
    store = LogStore(str(tmp_path / "template"))
    for number in BATCHES:
        store.write_batch(batch(number, ROWS), query_id="q", batch_id=number)
    return tmp_path / "template"


def killed_at_each_step(operation: str, template: Path, directory: Path) -> Iterator[LogStore]:
    """Stores that a process was killed on, in the order of its steps; the last one it was not killed on."""
    directory.mkdir()
    script = Path(__file__).with_name("crashing_writer.py")
    subprocess.run(
        [sys.executable, str(script), operation, str(template), str(directory)], check=True, timeout=100
    )
    paths = sorted(directory.iterdir(), key=lambda path: int(path.name))
    assert len(paths) > 5
    for path in paths:
        yield LogStore(str(path))


def everything(batches: range) -> set[str]:
    return {f"batch{number} line{row} everywhere" for number in batches for row in range(ROWS)}


def assert_sound(store: LogStore, batches: range) -> None:
    """It holds these batches, each line once; no file is damaged and none is left over."""
    found = messages(store, "everywhere")
    assert len(found) == len(set(found))
    assert set(found) == everything(batches)
    assert store.verify() == []
    store.collect_orphans(older_than_seconds=0)
    assert stored_files(store.path) == named_files(store)
    assert not list(Path(store.path, "manifest").glob("*.tmp"))
    assert sorted(messages(store)) == sorted(found)


def test_a_killed_batch_is_there_whole_or_not_at_all_and_once_when_repeated(
    template: Path, tmp_path: Path
) -> None:
    outcomes = []
    for store in killed_at_each_step("write", template, tmp_path / "killed"):
        before = len(messages(store))
        assert before in (30, 40)
        outcomes.append(before)
        again = store.write_batch(batch(5, ROWS), query_id="q", batch_id=5)
        assert again.is_new is (before == 30)
        assert store.write_batch(batch(6, ROWS), query_id="q", batch_id=6).is_new
        assert_sound(store, range(2, 7))
    assert outcomes == sorted(outcomes)
    assert set(outcomes) == {30, 40}


def test_a_killed_compaction_loses_and_doubles_nothing(template: Path, tmp_path: Path) -> None:
    counts = set()
    for store in killed_at_each_step("compact", template, tmp_path / "killed"):
        counts.add(len(store.state().files))
        assert set(messages(store)) == everything(BATCHES)
        store.compact()
        assert len(store.state().files) == 2
        assert_sound(store, BATCHES)
    assert counts == {3, 2}


def test_a_killed_expiry_has_removed_all_or_nothing(template: Path, tmp_path: Path) -> None:
    for store in killed_at_each_step("expire", template, tmp_path / "killed"):
        kept = BATCHES if len(store.state().files) == 3 else range(4, 5)
        assert_sound(store, kept)


def test_a_killed_repair_can_be_repeated(template: Path, tmp_path: Path) -> None:
    store = LogStore(str(template))
    for path in store.state().files.values():
        Path(store.path, path.index).write_bytes(b"damaged")
        break
    for killed in killed_at_each_step("repair", template, tmp_path / "killed"):
        killed.repair()
        assert_sound(killed, BATCHES)


def test_what_is_published_was_made_durable_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut takes what was not synced: a name must not appear before what it stands for is on the disk."""
    synced: set[int] = set()
    fsync = os.fsync

    def remember(descriptor: int) -> None:
        fsync(descriptor)
        synced.add(os.fstat(descriptor).st_ino)

    def published(publish: Callable[[str, str], None]) -> Callable[[str, str], None]:
        def check(source: str, target: str) -> None:
            assert os.stat(source).st_ino in synced, target
            publish(source, target)
            names.append(target)

        return check

    names: list[str] = []
    monkeypatch.setattr(os, "fsync", remember)
    monkeypatch.setattr(os, "rename", published(os.rename))
    monkeypatch.setattr(os, "link", published(os.link))
    LogStore(str(tmp_path)).write_batch(batch(0), query_id="q", batch_id=0)
    assert [Path(name).suffix for name in names] == [".parquet", ".fts", ".json"]
    directories = {parent for name in names for parent in list(Path(name).parents)[:2]}
    assert {directory.stat().st_ino for directory in directories} <= synced
