"""Offsets committed in transactions: who may commit them, when they count, and what happens to pending ones."""

from __future__ import annotations

from typing import Any

import pytest
from offsets_setting import (
    CHECK_INTERVAL_MS,
    NOTHING,
    RETENTION_MS,
    UNSTABLE,
    Setting,
    errors,
    fetched,
)

from culver.core.coordinator_effects import ProducerMark
from culver.errors import ErrorCode
from culver.protocol.messages.describe_groups import DescribeGroupsRequest

# --- what counts when ---


@pytest.mark.parametrize("version", range(6))
def test_offsets_count_once_their_transaction_is_committed(version: int) -> None:
    setting = Setting()
    setting.commit(5)
    assert setting.txn_commit(9, version=version) == [0]
    assert setting.fetch() == (5, 0)
    assert setting.fetch(stable=True) == UNSTABLE
    assert setting.end(committed=True) == [ErrorCode.NONE]
    assert setting.fetch(stable=True) == (9, 0)
    setting.start()
    assert setting.fetch(stable=True, version=10) == (9, 0)


def test_offsets_of_an_aborted_transaction_never_count() -> None:
    setting = Setting()
    setting.txn_commit(9)
    assert setting.end(committed=False) == [ErrorCode.NONE]
    assert setting.fetch(stable=True) == NOTHING
    # The marker once more, as a coordinator sends it that does not know whether it arrived.
    assert setting.end(committed=True) == [ErrorCode.NONE]
    assert setting.fetch() == NOTHING


def test_records_carry_the_producer_and_wait_for_the_log() -> None:
    setting = Setting()
    setting.at_once = False
    assert setting.txn_commit(9, partitions=(0, 1)) == []
    (append,) = setting.in_flight
    assert append.producer == ProducerMark(7, 3)
    assert [record.change.committed.topic_id for record in append.records] == [b"t" * 16] * 2
    setting.write()
    assert errors(setting.answers[-1]) == [0, 0]


def test_only_partitions_of_the_transaction_are_unstable() -> None:
    setting = Setting()
    setting.commit(5, partition=0)
    setting.commit(6, partition=1)
    setting.txn_commit(9, partitions=(1,))
    assert setting.fetch(0, stable=True) == (5, 0)
    assert setting.fetch(1, stable=True) == UNSTABLE
    assert setting.fetch_all(stable=False) == {0: (5, 0), 1: (6, 0)}
    assert setting.fetch_all(stable=True) == {0: (5, 0), 1: UNSTABLE}
    assert setting.fetch(1, stable=True, group="h") == NOTHING


def test_asked_for_all_a_partition_with_nothing_but_pending_offsets_is_not_named() -> None:
    setting = Setting()
    setting.txn_commit(9)
    assert setting.fetch_all(stable=True) == {}


def test_the_newest_record_counts_whatever_the_order_of_markers() -> None:
    setting = Setting()
    setting.txn_commit(1, producer_id=1)
    setting.txn_commit(2, producer_id=2)
    setting.end(committed=True, producer_id=2)
    setting.end(committed=True, producer_id=1)
    assert setting.fetch(stable=True) == (2, 0)
    setting.start()
    assert setting.fetch(stable=True) == (2, 0)


def test_an_ordinary_commit_behind_a_pending_one_stays() -> None:
    setting = Setting()
    setting.txn_commit(1)
    setting.commit(5)
    assert setting.fetch() == (5, 0)
    # The transaction is open all the same.
    assert setting.fetch(stable=True) == UNSTABLE
    setting.end(committed=True)
    assert setting.fetch(stable=True) == (5, 0)


def test_a_second_commit_of_a_transaction_is_newer_than_what_came_between() -> None:
    setting = Setting()
    setting.txn_commit(1)
    setting.commit(5)
    setting.txn_commit(2)
    setting.end(committed=True)
    assert setting.fetch(stable=True) == (2, 0)


def test_an_aborted_commit_does_not_outrank_an_older_one() -> None:
    setting = Setting()
    setting.txn_commit(1, producer_id=1)
    setting.txn_commit(2, producer_id=2)
    setting.end(committed=False, producer_id=2)
    assert setting.fetch(stable=True) == UNSTABLE
    setting.end(committed=True, producer_id=1)
    assert setting.fetch(stable=True) == (1, 0)


def test_a_transaction_may_concern_several_groups() -> None:
    setting = Setting()
    setting.txn_commit(1)
    setting.txn_commit(2, group_id="h")
    assert setting.groups() == ["g", "h"]
    setting.end(committed=True)
    assert (setting.fetch(), setting.fetch(group="h")) == ((1, 0), (2, 0))


# --- who may commit ---


@pytest.mark.parametrize("version", range(6))
def test_errors_that_do_not_depend_on_the_group(version: int) -> None:
    setting = Setting()
    assert setting.txn_commit(1, version=version, group_id="") == [ErrorCode.INVALID_GROUP_ID]
    assert setting.txn_commit(1, version=version, partitions=(0, 2)) == [
        ErrorCode.NONE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert setting.txn_commit(1, version=version, topic="u") == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    long = "x" * 4_097
    assert setting.txn_commit(1, version=version, metadata=long) == [ErrorCode.OFFSET_METADATA_TOO_LARGE]
    assert setting.txn_commit(1, version=version, metadata=long[1:]) == [ErrorCode.NONE]
    assert setting.txn_commit(1, version=version, topics=[]) == []


@pytest.mark.parametrize("wrong", [{"producer_id": -1}, {"producer_epoch": -1}])
def test_nobody_commits_without_a_producer(wrong: dict[str, int]) -> None:
    setting = Setting()
    assert setting.txn_commit(1, **wrong) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert setting.log == []
    assert setting.fetch() == NOTHING


def test_a_consumer_that_says_who_it_is_must_be_in_the_group() -> None:
    setting = Setting()
    # There is no group, so there is no generation of it.
    assert setting.txn_commit(1, generation_id=1, member_id="m") == [ErrorCode.ILLEGAL_GENERATION]
    member = setting.join()
    # In the middle of a rebalance, but that does not matter to a transaction.
    in_group: dict[str, Any] = {"generation_id": 1, "member_id": member}
    assert setting.txn_commit(1, **in_group) == [ErrorCode.NONE]
    assert setting.txn_commit(1, **in_group, group_instance_id="i") == [ErrorCode.NONE]
    assert setting.txn_commit(1, generation_id=2, member_id=member) == [ErrorCode.ILLEGAL_GENERATION]
    assert setting.txn_commit(1, generation_id=0, member_id=member) == [ErrorCode.ILLEGAL_GENERATION]
    assert setting.txn_commit(1, generation_id=1, member_id="m") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert setting.txn_commit(1, **in_group, group_instance_id="j") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert setting.txn_commit(1, generation_id=1, member_id="m", group_instance_id="i") == [
        ErrorCode.FENCED_INSTANCE_ID
    ]


def test_an_old_producer_may_commit_for_a_group_in_use() -> None:
    setting = Setting()
    setting.join()
    assert setting.txn_commit(1, version=2) == [ErrorCode.NONE]
    assert setting.txn_commit(1, version=5) == [ErrorCode.NONE]


def test_a_partition_that_is_loading_or_elsewhere() -> None:
    setting = Setting()
    setting.coordinator.unload(0, 0)
    assert setting.txn_commit(1) == [ErrorCode.NOT_COORDINATOR]
    assert setting.end(committed=True) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    setting.coordinator.load_begin(0)
    assert setting.txn_commit(1) == [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS]
    assert setting.txn_commit(1, version=1) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    assert setting.end(committed=True) == [ErrorCode.NOT_LEADER_OR_FOLLOWER]


# --- the log ---


def test_a_refused_commit_leaves_nothing_behind() -> None:
    setting = Setting()
    setting.at_once = False
    setting.txn_commit(1)
    setting.write(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert errors(setting.answers[-1]) == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert setting.fetch(stable=True) == NOTHING
    assert setting.groups() == []


def test_a_refused_marker_ends_nothing() -> None:
    setting = Setting()
    setting.txn_commit(1)
    setting.at_once = False
    told = setting.end(committed=True)
    assert told == []
    setting.write(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert told == [ErrorCode.INVALID_PRODUCER_EPOCH]
    assert setting.fetch(stable=True) == UNSTABLE


def test_a_stable_fetch_waits_for_a_commit_and_a_marker_in_flight() -> None:
    setting = Setting()
    setting.at_once = False
    setting.txn_commit(1)
    told = setting.end(committed=True)
    assert setting.fetch(stable=True) is None
    assert setting.fetch() == NOTHING
    setting.write()
    setting.write()
    assert fetched(setting.answers[-1]) == (1, 0)
    assert told == [ErrorCode.NONE]


def test_what_was_written_but_not_seen_to_be_durable_counts_with_what_follows() -> None:
    setting = Setting()
    setting.at_once = False
    setting.txn_commit(1)
    setting.write(ErrorCode.REQUEST_TIMED_OUT)
    assert errors(setting.answers[-1]) == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
    # It may be in the log, and be committed yet.
    assert setting.fetch(stable=True) == UNSTABLE
    assert setting.fetch() == NOTHING
    told = setting.end(committed=True)
    setting.write(ErrorCode.REQUEST_TIMED_OUT)
    assert told == [ErrorCode.REQUEST_TIMED_OUT]
    assert setting.fetch(stable=True) == UNSTABLE
    setting.commit(5, partition=1)
    setting.write()
    assert setting.fetch(stable=True) == (1, 0)


def test_unloading_answers_everyone() -> None:
    setting = Setting()
    setting.at_once = False
    setting.txn_commit(1)
    told = setting.end(committed=True)
    setting.carry_out(setting.coordinator.unload(0, 0))
    assert errors(setting.answers[-1]) == [ErrorCode.NOT_COORDINATOR]
    assert told == [ErrorCode.NOT_LEADER_OR_FOLLOWER]
    for append in setting.in_flight:
        assert setting.coordinator.append_done(append, ErrorCode.NONE, 0) == []


# --- pending offsets and what removes offsets ---


def test_a_group_with_nothing_but_pending_offsets_exists() -> None:
    setting = Setting()
    setting.txn_commit(1)
    for _ in range(2):
        assert setting.groups() == ["g"]
        request = DescribeGroupsRequest(groups=["g"])
        (described,) = setting.ask(setting.coordinator.handle_describe_groups, request, 6).groups
        assert (described.error_code, described.group_state) == (0, "Empty")
        setting.start()
    setting.advance(RETENTION_MS + CHECK_INTERVAL_MS)
    assert setting.groups() == ["g"]
    setting.end(committed=False)
    setting.advance(CHECK_INTERVAL_MS)
    assert setting.groups() == []


def test_an_expired_offset_stays_while_a_transaction_may_replace_it() -> None:
    setting = Setting()
    setting.commit(5, partition=0)
    setting.commit(6, partition=1)
    setting.txn_commit(9)
    setting.advance(RETENTION_MS + CHECK_INTERVAL_MS)
    assert setting.fetch_all(stable=False) == {0: (5, 0)}
    setting.end(committed=False)
    setting.advance(CHECK_INTERVAL_MS)
    assert setting.fetch_all(stable=False) == {}
    assert setting.groups() == []


def test_a_group_is_not_removed_while_a_transaction_may_commit_to_it() -> None:
    setting = Setting()
    setting.commit(6, partition=1)
    setting.txn_commit(9)
    written = len(setting.log)
    setting.advance(RETENTION_MS + CHECK_INTERVAL_MS)
    # The old offset goes, the group does not.
    assert len(setting.log) - written == 1
    setting.end(committed=True)
    assert setting.groups() == ["g"]
    assert setting.fetch_all(stable=True) == {0: (9, 0)}


def test_a_commit_that_comes_while_expiry_waits_for_the_log_is_kept() -> None:
    setting = Setting()
    setting.commit(5)
    setting.now_ms += RETENTION_MS
    setting.at_once = False
    setting.commit(1, group="h")
    setting.advance(CHECK_INTERVAL_MS)
    setting.commit(6)
    while setting.in_flight:
        setting.write()
    assert setting.fetch() == (6, 0)


def test_deleting_an_offset_removes_what_is_pending() -> None:
    setting = Setting()
    setting.txn_commit(1, partitions=(0, 1))
    assert setting.delete_offset(0) == 0
    assert setting.fetch(0, stable=True) == NOTHING
    assert setting.fetch(1, stable=True) == UNSTABLE
    setting.end(committed=True)
    for _ in range(2):
        assert setting.fetch_all(stable=True) == {1: (1, 0)}
        setting.start()


def test_deleting_a_group_removes_what_is_pending() -> None:
    setting = Setting()
    setting.commit(5)
    setting.txn_commit(1, partitions=(0, 1))
    written = len(setting.log)
    assert setting.delete_group() == 0
    # One tombstone for each partition and one for the group, none twice.
    assert len(setting.log) - written == 3
    assert setting.groups() == []
    setting.end(committed=True)
    for _ in range(2):
        assert setting.groups() == []
        assert setting.fetch(stable=True) == NOTHING
        setting.start()


def test_deleting_a_topic_removes_what_is_pending() -> None:
    setting = Setting()
    setting.commit(5)
    setting.txn_commit(1, partitions=(0, 1))
    setting.txn_commit(2, producer_id=8)
    written = len(setting.log)
    setting.carry_out(setting.coordinator.on_topics_deleted(["t", "u"], 0))
    assert len(setting.log) - written == 2
    setting.end(committed=True)
    setting.end(committed=True, producer_id=8)
    assert setting.fetch_all(stable=True) == {}
