"""Whose a data directory is, which topic a partition's directory belongs to, and when bytes may be lost."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest
from log_batches import NOW_MS, batch, records_of

from culver.clock import ManualClock
from culver.config import TopicConfig
from culver.errors import KafkaError
from culver.filesystem import OsFileSystem
from culver.log.identity import DataDirectoryOfAnother
from culver.log.store import LogStore
from culver.testing.faults import FaultyFileSystem

CONFIG = TopicConfig()
ID = bytes(range(16))
OTHER_ID = bytes(range(1, 17))


class Directory:
    """A data directory that brokers come and go on."""

    def __init__(self) -> None:
        self.fs = FaultyFileSystem()
        self.clock = ManualClock(NOW_MS)
        self.ids: dict[str, bytes] = {"orders": ID}

    def open(self, *, claim: bool = True, settle: bool = True) -> LogStore:
        store = LogStore.open(self.fs, self.clock, "/data", lambda _: CONFIG, topic_id_of=self.ids.get)
        self.lost = store.lost_bytes_possible
        if claim:
            store.claim("cluster-a", 1)
        if settle:
            store.losses_settled()
        return store


@pytest.fixture
def directory() -> Directory:
    return Directory()


# -- cluster and broker ---------------------------------------------------------------------------------------


def test_a_directory_keeps_its_identity(directory: Directory) -> None:
    store = directory.open(claim=False)
    assert (store.identity, store.directory_id) == (None, "")
    identity = store.claim("cluster-a", 1)
    assert (identity.cluster_id, identity.broker_id) == ("cluster-a", 1)
    assert len(identity.directory_id) == 22
    store.close()
    directory.fs.crash(power_cut=True)
    store = directory.open(claim=False)
    assert store.directory_id == identity.directory_id
    assert store.claim("cluster-a", 1).directory_id == identity.directory_id


@pytest.mark.parametrize(
    ("cluster_id", "broker_id", "message"),
    [
        (
            "cluster-b",
            1,
            "belongs to cluster cluster-a, and this broker is to join cluster cluster-b. Give it a",
        ),
        (
            "cluster-a",
            2,
            "belongs to broker 1, and this is broker 2. Start it with broker id 1, or give it a",
        ),
    ],
)
def test_another_cluster_or_broker_is_refused(
    directory: Directory, cluster_id: str, broker_id: int, message: str
) -> None:
    directory.open().close()
    store = directory.open(claim=False)
    with pytest.raises(DataDirectoryOfAnother, match=message):
        store.claim(cluster_id, broker_id)
    assert store.identity is not None
    assert store.identity.cluster_id == "cluster-a"


def test_an_identity_that_cannot_be_read_is_nobodys(directory: Directory) -> None:
    directory.open().close()
    directory.fs.write_atomic("/data/identity", b"{rubbish")
    with pytest.raises(DataDirectoryOfAnother, match="nobody knows whose data this is"):
        directory.open()
    directory.fs.remove("/data/identity")
    directory.open()  # the lock was released


def test_two_directories_have_two_ids(directory: Directory) -> None:
    first = directory.open().directory_id
    second = LogStore.open(directory.fs, directory.clock, "/other", lambda _: CONFIG)
    assert second.claim("cluster-a", 1).directory_id != first


# -- lost bytes -----------------------------------------------------------------------------------------------


def test_a_new_directory_may_be_all_that_is_left_of_a_broker(directory: Directory) -> None:
    directory.open()
    assert directory.lost


def test_a_clean_stop_loses_nothing(directory: Directory) -> None:
    directory.open().close()
    directory.fs.crash(power_cut=True)  # even if the machine is started anew
    directory.open()
    assert not directory.lost


def test_a_killed_process_loses_nothing(directory: Directory) -> None:
    for _ in range(3):
        directory.open()
        directory.fs.crash()
    assert not directory.lost


def test_a_power_cut_may_lose_bytes(directory: Directory) -> None:
    directory.open()
    directory.fs.crash(power_cut=True)
    directory.open()
    assert directory.lost


@pytest.mark.parametrize("end", ["kill", "clean stop", "power cut"])
def test_a_loss_is_remembered_until_the_cluster_knows(directory: Directory, end: str) -> None:
    directory.open()
    directory.fs.crash(power_cut=True)
    store = directory.open(settle=False)
    if end == "clean stop":
        store.close()
    directory.fs.crash(power_cut=end == "power cut")
    store = directory.open(settle=False)
    assert directory.lost
    store.losses_settled()
    assert not store.lost_bytes_possible
    directory.fs.crash()
    directory.open()
    assert not directory.lost


def test_a_loss_is_remembered_when_the_process_dies_before_it_claims(directory: Directory) -> None:
    directory.open()
    directory.fs.crash(power_cut=True)
    directory.open(claim=False, settle=False)
    directory.fs.crash()
    directory.open()
    assert directory.lost


@pytest.mark.parametrize("clean", [True, False])
def test_a_failed_log_may_lose_bytes_though_the_machine_runs_on(directory: Directory, clean: bool) -> None:
    store = directory.open()
    log = store.create("orders", 0, CONFIG, ID)
    log.append(batch(), 0)
    directory.fs.fail("sync", path_contains="orders-0")
    with pytest.raises(OSError):
        log.flush()
    assert log.failed is not None
    if clean:
        store.close()
    directory.fs.crash()
    directory.open()
    assert directory.lost


def test_a_disk_that_takes_no_mark_either_does_not_stop_the_broker(directory: Directory) -> None:
    log = directory.open().create("orders", 0, CONFIG, ID)
    directory.fs.fail("write", sticky=True)
    with pytest.raises(KafkaError):
        log.append(batch(), 0)
    assert log.failed is not None


def test_a_full_disk_loses_nothing(directory: Directory) -> None:
    log = directory.open().create("orders", 0, CONFIG, ID)
    directory.fs.fail("write", error=OSError(errno.ENOSPC, "full"))
    with pytest.raises(KafkaError):
        log.append(batch(), 0)
    directory.fs.crash()
    directory.open()
    assert not directory.lost


def test_an_unknown_boot_id_is_no_proof_that_nothing_is_lost(
    directory: Directory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FaultyFileSystem, "boot_id", lambda _: "")
    directory.open()
    directory.fs.crash()
    directory.open()
    assert directory.lost


def test_this_machine_has_a_boot_id() -> None:
    fs = OsFileSystem()
    assert len(fs.boot_id()) == 36
    assert fs.boot_id() == fs.boot_id()


# -- topics ---------------------------------------------------------------------------------------------------


def test_a_directory_says_which_topic_it_is_of_in_kafkas_words(tmp_path: Path) -> None:
    store = LogStore.open(OsFileSystem(), ManualClock(NOW_MS), str(tmp_path), lambda _: CONFIG)
    log = store.create("orders", 0, CONFIG, ID)
    assert log.topic_id == ID
    log.flush()
    text = (tmp_path / "orders-0" / "partition.metadata").read_text()
    assert text == "version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw"
    store.close()


def test_a_partition_of_a_topic_made_anew_is_not_taken_for_the_old_one(directory: Directory) -> None:
    store = directory.open()
    store.create("orders", 0, CONFIG, ID).append(batch(b"old"), 0)
    store.close()
    directory.ids["orders"] = OTHER_ID
    store = directory.open()
    assert (store.strays, store.logs) == (["orders-0"], {})
    log = store.create("orders", 0, CONFIG, OTHER_ID)
    assert log.end_offset == 0
    log.append(batch(b"new"), 0)
    assert directory.fs.exists("/data/0.stray/00000000000000000000.log")
    store.close()
    store = directory.open()
    assert [record.value for record in records_of(store.logs["orders", 0])] == [b"new"]
    assert store.logs["orders", 0].topic_id == OTHER_ID


def test_a_topic_id_is_known_before_the_first_flush(directory: Directory) -> None:
    """The process is killed; the topic is deleted and made anew before it is back."""
    for _ in range(2):
        store = directory.open()
        if not store.logs:
            store.create("orders", 0, CONFIG, ID).append(batch(), 0)
        directory.fs.crash()
    directory.ids["orders"] = OTHER_ID
    for _ in range(2):
        store = directory.open()
        assert (store.strays, store.logs) == (["orders-0"], {})
        directory.fs.crash()
    store = directory.open()
    store.create("orders", 0, CONFIG, OTHER_ID)
    directory.fs.crash()
    assert directory.open().logs["orders", 0].topic_id == OTHER_ID


def test_making_partitions_makes_no_file_for_the_id(directory: Directory) -> None:
    store = directory.open()
    store.create("orders", 0, CONFIG, ID)
    directory.fs.history.clear()
    store.create("orders", 1, CONFIG, ID)
    assert [operation for operation, _ in directory.fs.history] == ["open", "write", "open"]
    assert directory.fs.list("/data/orders-1") == ["00000000000000000000.log"]


def test_the_list_of_recent_ids_does_not_grow_for_ever(directory: Directory) -> None:
    for partition in range(20):
        store = directory.open()
        store.create("orders", partition, CONFIG, ID)
        store.close()
    assert directory.fs.size("/data/topic-ids") < 100


def test_a_full_disk_puts_the_topic_id_off(directory: Directory) -> None:
    log = directory.open().create("orders", 0, CONFIG, ID)
    log.append(batch(), 0)
    directory.fs.fail("write", error=OSError(errno.ENOSPC, "full"), path_contains="partition.metadata")
    log.flush()
    assert (log.failed, log.flushed_offset) == (None, 1)
    log.append(batch(), 0)
    log.flush()
    directory.fs.crash(power_cut=True)
    directory.ids["orders"] = OTHER_ID
    assert directory.open().strays == ["orders-0"]


def test_a_topic_id_is_as_durable_as_the_records(directory: Directory) -> None:
    log = directory.open().create("orders", 0, CONFIG, ID)
    log.append(batch(), 0)
    log.flush()
    directory.fs.crash(power_cut=True)
    directory.ids["orders"] = OTHER_ID
    assert directory.open().strays == ["orders-0"]


@pytest.mark.parametrize("content", [None, b"", b"\0" * 40, b"version: 0\ntopic_id: short", b"\xff\xfe"])
def test_a_directory_that_does_not_say_is_accepted_and_says_so_from_then_on(
    directory: Directory, content: bytes | None
) -> None:
    store = directory.open()
    store.create("orders", 0, CONFIG).append(batch(), 0)
    store.close()
    if content is not None:
        directory.fs.write_atomic("/data/orders-0/partition.metadata", content)
    store = directory.open()
    assert store.logs["orders", 0].topic_id == ID
    store.logs["orders", 0].flush()
    directory.fs.crash(power_cut=True)
    directory.ids["orders"] = OTHER_ID
    assert directory.open().strays == ["orders-0"]


# -- corrupt logs ---------------------------------------------------------------------------------------------


def test_a_corrupt_log_makes_way_and_is_kept(directory: Directory) -> None:
    log = directory.open().create("orders", 0, CONFIG, ID)
    for _ in range(3):
        log.append(batch(b"old"), 0)
    log.flush()
    directory.fs.flip_bit("/data/orders-0/00000000000000000000.log", 80)
    directory.fs.crash()
    store = directory.open()
    assert store.logs["orders", 0].corruption is not None
    damaged = directory.fs.read("/data/orders-0/00000000000000000000.log")
    store.begin_checkpoint().run()
    aside = store.set_aside("orders", 0)
    assert store.get("orders", 0) is None
    store.create("orders", 0, CONFIG, ID).append(batch(b"new"), 0)
    assert directory.fs.read(f"{aside}/00000000000000000000.log") == damaged
    directory.fs.crash()
    store = directory.open()
    assert store.logs["orders", 0].corruption is None
    assert [record.value for record in records_of(store.logs["orders", 0])] == [b"new"]
    task = store.begin_removal()
    assert task is None or aside not in task.directories
