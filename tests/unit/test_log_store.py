"""The data directory: creation, deletion, restart, and the lock."""

from __future__ import annotations

from pathlib import Path

import pytest
from log_batches import NOW_MS, batch, records_of

from culver.clock import ManualClock
from culver.config import TopicConfig
from culver.filesystem import OsFileSystem
from culver.log.limits import LogLimits
from culver.log.names import parse_partition_directory
from culver.log.store import DataDirectoryLocked, LogStore
from culver.testing.faults import FaultyFileSystem

CONFIG = TopicConfig()


class StoreFixture:
    def __init__(self) -> None:
        self.fs = FaultyFileSystem()
        self.clock = ManualClock(NOW_MS)
        self.topics = {"orders", "a.b_c-d"}
        self.store = self.open()

    def open(self) -> LogStore:
        self.store = LogStore.open(
            self.fs, self.clock, "/data", lambda topic: CONFIG if topic in self.topics else None
        )
        return self.store


@pytest.fixture
def fixture() -> StoreFixture:
    return StoreFixture()


def test_logs_come_back_after_a_clean_stop(fixture: StoreFixture) -> None:
    for partition in range(3):
        fixture.store.create("orders", partition, CONFIG).append(batch(b"%d" % partition), 0)
    fixture.store.create("a.b_c-d", 12, CONFIG)
    fixture.store.close()
    store = fixture.open()
    assert store.was_clean
    assert sorted(store.logs) == [("a.b_c-d", 12), ("orders", 0), ("orders", 1), ("orders", 2)]
    assert [r.value for r in records_of(store.logs["orders", 1])] == [b"1"]
    assert not fixture.fs.exists("/data/clean-shutdown")


def test_a_crash_is_noticed_and_recovered_from(fixture: StoreFixture) -> None:
    log = fixture.store.create("orders", 0, CONFIG)
    log.append(batch(b"kept"), 0)
    fixture.fs.crash()
    store = fixture.open()
    assert not store.was_clean
    assert [r.value for r in records_of(store.logs["orders", 0])] == [b"kept"]


def test_a_data_directory_has_one_broker(fixture: StoreFixture) -> None:
    with pytest.raises(DataDirectoryLocked, match="another broker is running on the data directory /data"):
        LogStore.open(fixture.fs, fixture.clock, "/data", lambda _: CONFIG)
    fixture.store.close()
    fixture.open()


def test_the_lock_works_between_open_files(tmp_path: Path) -> None:
    fs = OsFileSystem()
    store = LogStore.open(fs, ManualClock(), str(tmp_path), lambda _: CONFIG)
    with pytest.raises(DataDirectoryLocked):
        LogStore.open(fs, ManualClock(), str(tmp_path), lambda _: CONFIG)
    store.close()
    LogStore.open(fs, ManualClock(), str(tmp_path), lambda _: CONFIG).close()


def test_a_deleted_partition_is_gone_at_once_and_its_files_later(fixture: StoreFixture) -> None:
    log = fixture.store.create("orders", 0, CONFIG)
    log.append(batch(), 0)
    fixture.store.delete("orders", 0)
    assert fixture.store.get("orders", 0) is None
    assert not fixture.fs.exists("/data/orders-0")
    assert fixture.store.create("orders", 0, CONFIG).end_offset == 0
    task = fixture.store.begin_removal()
    assert task is not None
    task.run()
    assert fixture.fs.list("/data") == ["orders-0"]
    assert fixture.store.begin_removal() is None


def test_deletions_that_a_crash_interrupted_are_finished_at_the_next_start(fixture: StoreFixture) -> None:
    fixture.store.create("orders", 0, CONFIG)
    fixture.store.delete("orders", 0)
    fixture.fs.crash()
    store = fixture.open()
    assert not store.logs
    task = store.begin_removal()
    assert task is not None
    task.run()
    assert fixture.fs.list("/data") == []


def test_topics_with_the_longest_names_can_be_deleted(tmp_path: Path) -> None:
    store = LogStore.open(OsFileSystem(), ManualClock(), str(tmp_path), lambda _: CONFIG)
    store.create("x" * 249, 12345, CONFIG)
    store.delete("x" * 249, 12345)
    task = store.begin_removal()
    assert task is not None
    task.run()
    store.close()


def test_a_recreated_partition_is_not_mistaken_for_the_old_one(fixture: StoreFixture) -> None:
    """The checkpoint of the deleted partition must not make the new one look as if it had lost records."""
    log = fixture.store.create("orders", 0, CONFIG)
    for _ in range(10):
        log.append(batch(), 0)
    log.flush()
    fixture.store.begin_checkpoint().run()
    fixture.store.delete("orders", 0)
    fixture.store.create("orders", 0, CONFIG).append(batch(b"new"), 0)
    fixture.fs.crash()
    log = fixture.open().logs["orders", 0]
    assert log.corruption is None
    assert [r.value for r in records_of(log)] == [b"new"]


def test_directories_of_unknown_topics_are_left_alone(fixture: StoreFixture) -> None:
    fixture.store.create("orders", 0, CONFIG).append(batch(), 0)
    fixture.store.close()
    fixture.topics.clear()
    store = fixture.open()
    assert store.strays == ["orders-0"]
    assert not store.logs
    assert fixture.fs.exists("/data/orders-0")


def test_a_directory_of_an_unknown_topic_makes_way_for_a_new_one_and_is_kept(fixture: StoreFixture) -> None:
    log = fixture.store.create("orders", 0, CONFIG)
    for _ in range(3):
        log.append(batch(b"old"), 0)
    fixture.store.close()
    fixture.topics.clear()
    store = fixture.open()
    store.create("orders", 0, CONFIG).append(batch(b"new"), 0)
    assert store.strays == []
    assert fixture.fs.exists("/data/0.stray/00000000000000000000.log")
    fixture.topics.add("orders")
    fixture.fs.crash()
    log = fixture.open().logs["orders", 0]
    assert log.corruption is None, "the old one's checkpoint does not count for the new one"
    assert {record.value for record in records_of(log)} <= {b"new"}


def test_a_new_log_is_never_put_on_top_of_an_old_one(fixture: StoreFixture) -> None:
    fixture.store.create("orders", 0, CONFIG).append(batch(), 0)
    del fixture.store.logs["orders", 0]
    with pytest.raises(FileExistsError):
        fixture.store.create("orders", 0, CONFIG)


def test_one_corrupt_log_does_not_keep_the_others_from_serving(fixture: StoreFixture) -> None:
    for partition in range(2):
        log = fixture.store.create("orders", partition, CONFIG)
        for _ in range(3):
            log.append(batch(), 0)
    fixture.fs.flip_bit("/data/orders-0/00000000000000000000.log", 80)
    fixture.fs.crash()
    store = fixture.open()
    assert store.logs["orders", 0].corruption is not None
    assert store.logs["orders", 1].corruption is None
    store.close()
    store = fixture.open()  # a clean stop does not launder it
    assert store.was_clean
    assert store.logs["orders", 0].corruption is not None
    assert store.logs["orders", 1].end_offset == 3


def test_an_unusable_checkpoint_file_only_costs_time(fixture: StoreFixture) -> None:
    log = fixture.store.create("orders", 0, CONFIG)
    log.append(batch(), 0)
    fixture.store.close()
    fixture.fs.write_atomic("/data/log-checkpoint", b"{rubbish")
    assert fixture.open().logs["orders", 0].end_offset == 1


def test_a_removal_that_fails_is_no_failure_of_the_broker(fixture: StoreFixture) -> None:
    log = fixture.store.create("orders", 0, CONFIG.replace(retention_bytes=0, file_delete_delay_ms=0))
    log.append(batch(), 0)
    log.retention_step(NOW_MS)
    fixture.fs.fail("remove")
    task = fixture.store.begin_removal()
    assert task is not None
    task.run()


def test_few_files_are_open_however_many_segments_there_are(tmp_path: Path) -> None:
    config = TopicConfig(segment_bytes=100)
    limits = LogLimits(open_files_max=5)
    store = LogStore.open(OsFileSystem(), ManualClock(NOW_MS), str(tmp_path), lambda _: config, limits=limits)
    for partition in range(10):
        log = store.create("orders", partition, config)
        for _ in range(10):
            log.append(batch(), 0)
        log.flush()
        assert len(records_of(log)) == 10
        assert len(store._files) <= 6
    store.close()
    assert len(store._files) == 0


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("orders-0", ("orders", 0)),
        ("a-b-12", ("a-b", 12)),
        ("3.deleted", None),
        ("orders", None),
        ("orders-", None),
        ("-3", None),
        ("orders-x", None),
        ("orders-01", None),
        ("orders-²", None),
    ],
)
def test_names_of_partition_directories(name: str, expected: tuple[str, int] | None) -> None:
    assert parse_partition_directory(name) == expected


def test_a_store_of_many_logs_closes_on_several_threads(tmp_path: Path) -> None:
    fs = OsFileSystem()
    store = LogStore.open(fs, ManualClock(NOW_MS), str(tmp_path), lambda _: CONFIG)
    for partition in range(30):
        store.create("orders", partition, CONFIG).append(batch(b"%d" % partition), 0)
    store.close(threads=4)
    store = LogStore.open(fs, ManualClock(NOW_MS), str(tmp_path), lambda _: CONFIG)
    assert store.was_clean
    assert [records_of(store.logs["orders", n])[0].value for n in range(30)] == [b"%d" % n for n in range(30)]
    assert all(log.flushed_offset == 1 for log in store)
    store.close(threads=4)


def test_a_checkpoint_never_replaces_a_later_one(fixture: StoreFixture) -> None:
    """One is being written on a thread when a truncation needs another at once."""
    log = fixture.store.create("orders", 0, CONFIG)
    for _ in range(5):
        log.append(batch(b"old"), 0)
    log.flush()
    slow = fixture.store.begin_checkpoint()
    log.truncate_to(2)
    slow.run()
    fixture.fs.crash()
    log = fixture.open().logs["orders", 0]
    assert log.corruption is None, "the slow one promises five records"
    assert log.end_offset == 2


def test_a_checkpoint_of_a_deleted_partition_does_not_come_back(fixture: StoreFixture) -> None:
    log = fixture.store.create("orders", 0, CONFIG)
    log.append(batch(b"old"), 0)
    log.flush()
    slow = fixture.store.begin_checkpoint()
    fixture.store.delete("orders", 0)
    fixture.store.create("orders", 0, CONFIG)
    slow.run()
    fixture.fs.crash()
    log = fixture.open().logs["orders", 0]
    assert (log.corruption, log.end_offset) == (None, 0)
