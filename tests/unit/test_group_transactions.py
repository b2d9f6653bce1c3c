"""Offsets committed in transactions: who may commit them, when they count, and what happens to pending ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from culver.core.coordinator_effects import Append, Effects, Marker, ProducerMark, Reply, RequestContext
from culver.core.group_coordinator import GroupCoordinator
from culver.core.group_settings import GroupSettings
from culver.errors import ErrorCode
from culver.protocol.messages.delete_groups import DeleteGroupsRequest
from culver.protocol.messages.describe_groups import DescribeGroupsRequest
from culver.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from culver.protocol.messages.list_groups import ListGroupsRequest
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from culver.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from culver.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from culver.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from culver.protocol.schema import encoder

RETENTION_MS = 10_000
CHECK_INTERVAL_MS = 1_000
NOTHING = (-1, ErrorCode.NONE)
UNSTABLE = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)


class Topics:
    """One topic, `t`, with two partitions; others may be deleted."""

    def topic_name(self, topic_id: bytes) -> str | None:
        return "t" if topic_id == b"t" * 16 else None

    def topic_id(self, name: str) -> bytes | None:
        return b"t" * 16 if name == "t" else None

    def partition_exists(self, name: str, partition: int) -> bool:
        return name == "t" and partition in (0, 1)


class Setting:
    """A coordinator with a log that takes everything at once, or when it is told to."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.at_once = True
        self.log: list[tuple[bytes, bytes | None, int] | Marker] = []
        self.in_flight: list[Append] = []
        self.answers: list[Any] = []
        self.start()

    def start(self) -> None:
        self.coordinator = GroupCoordinator(
            GroupSettings(
                offsets_topic_num_partitions=1,
                group_initial_rebalance_delay_ms=0,
                offsets_retention_ms=RETENTION_MS,
                offsets_retention_check_interval_ms=CHECK_INTERVAL_MS,
            ),
            Topics(),
            lambda stem: f"{stem}-id",
            lambda: self.now_ms,
        )
        self.coordinator.load_begin(0)
        for entry in self.log:
            if isinstance(entry, Marker):
                self.coordinator.replay_marker(0, entry.producer_id, entry.committed)
            else:
                self.coordinator.replay(0, *entry)
        self.carry_out(self.coordinator.load_done(0, self.now_ms))

    def carry_out(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                self.answers.append(effect.response)
            else:
                assert isinstance(effect, Append)
                self.in_flight.append(effect)
        while self.at_once and self.in_flight:
            self.write()

    def write(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """The log is done with the append that has waited longest."""
        append = self.in_flight.pop(0)
        if append.marker is not None:
            assert not append.records
            self.log.append(append.marker)
        else:
            producer_id = -1 if append.producer is None else append.producer.producer_id
            self.log += [(record.key, record.value, producer_id) for record in append.records]
        self.carry_out(self.coordinator.append_done(append, error, self.now_ms))

    def ask(self, handle: Callable[..., Effects], request: Any, version: int) -> Any:
        """The answer, if there is one already; it must be one that can be sent."""
        before = len(self.answers)
        self.carry_out(handle(request, RequestContext("c", "/h", version), object(), self.now_ms))
        if len(self.answers) == before:
            return None
        (answer,) = self.answers[before:]
        encoder(type(answer), version)(answer)
        return answer

    # --- requests, in short ---

    def commit(self, offset: int, partition: int = 0, group: str = "g") -> None:
        asked = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=None
        )
        topic = OffsetCommitRequestTopic(name="t", partitions=[asked])
        self.ask(
            self.coordinator.handle_offset_commit, OffsetCommitRequest(group_id=group, topics=[topic]), 8
        )

    def txn_commit(self, offset: int, producer_id: int = 7, version: int = 5, **fields: Any) -> list[int]:
        """The error of each partition; none while the answer is yet to come."""
        answer = self.ask(
            self.coordinator.handle_txn_offset_commit, txn_commit(offset, producer_id, **fields), version
        )
        return [] if answer is None else errors(answer)

    def end(self, committed: bool, producer_id: int = 7) -> list[ErrorCode]:
        """How writing the marker went; nothing while that is not known."""
        told: list[ErrorCode] = []
        marker = Marker(producer_id, 3, committed, 1, 2)
        self.carry_out(self.coordinator.write_marker(0, marker, lambda error, *_: told.append(error)))
        return told

    def fetch(self, partition: int = 0, stable: bool = False, group: str = "g", version: int = 9) -> Any:
        topics = [OffsetFetchRequestTopics(name="t", topic_id=b"t" * 16, partition_indexes=[partition])]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=stable
        )
        answer = self.ask(self.coordinator.handle_offset_fetch, request, version)
        return None if answer is None else fetched(answer)

    def fetch_all(self, stable: bool) -> dict[int, tuple[int, int]]:
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id="g", topics=None)], require_stable=stable
        )
        answer = self.ask(self.coordinator.handle_offset_fetch, request, 9)
        return {
            partition.partition_index: (partition.committed_offset, partition.error_code)
            for topic in answer.groups[0].topics
            for partition in topic.partitions
        }

    def delete_offset(self, partition: int = 0) -> int:
        topic = OffsetDeleteRequestTopic(
            name="t", partitions=[OffsetDeleteRequestPartition(partition_index=partition)]
        )
        request = OffsetDeleteRequest(group_id="g", topics=[topic])
        answer = self.ask(self.coordinator.handle_offset_delete, request, 0)
        return int(answer.error_code or answer.topics[0].partitions[0].error_code)

    def groups(self) -> list[str]:
        answer = self.ask(self.coordinator.handle_list_groups, ListGroupsRequest(), 5)
        return [group.group_id for group in answer.groups]

    def advance(self, delta_ms: int) -> None:
        self.now_ms += delta_ms
        self.carry_out(self.coordinator.expire(self.now_ms))

    def join(self) -> str:
        """A group of one, in the middle of its rebalance."""
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=1_000_000,
            rebalance_timeout_ms=1_000_000,
            member_id="",
            group_instance_id="i",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
        )
        answer = self.ask(self.coordinator.handle_join_group, request, 9)
        assert (answer.error_code, answer.generation_id) == (0, 1)
        return str(answer.member_id)


def txn_commit(
    offset: int,
    producer_id: int = 7,
    partitions: tuple[int, ...] = (0,),
    topic: str = "t",
    metadata: str | None = None,
    **fields: Any,
) -> TxnOffsetCommitRequest:
    asked = [
        TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        for partition in partitions
    ]
    return TxnOffsetCommitRequest(
        **{
            "transactional_id": "x",
            "group_id": "g",
            "producer_id": producer_id,
            "producer_epoch": 3,
            "topics": [TxnOffsetCommitRequestTopic(name=topic, partitions=asked)],
            **fields,
        }
    )


def errors(answer: Any) -> list[int]:
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]


def fetched(answer: Any) -> tuple[int, int]:
    (group,) = answer.groups
    assert group.error_code == 0
    partition = group.topics[0].partitions[0]
    return partition.committed_offset, partition.error_code


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
    request = DeleteGroupsRequest(groups_names=["g"])
    (result,) = setting.ask(setting.coordinator.handle_delete_groups, request, 2).results
    assert result.error_code == 0
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
