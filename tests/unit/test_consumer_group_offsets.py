"""Offsets of consumer groups: who may commit and read them by epoch, and what removes them and the groups."""

from __future__ import annotations

from typing import Any

import pytest
from offsets_setting import CHECK_INTERVAL_MS, NOTHING, RETENTION_MS, UNSTABLE, Setting, errors

from culver.core.consumer_group_member import ClassicSide, Current, MemberMetadata, MemberState
from culver.core.consumer_group_records import (
    ConsumerGroupRecord,
    current_record,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
)
from culver.errors import ErrorCode
from culver.protocol.messages.list_groups import ListGroupsRequest
from culver.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup

TOPIC_ID = b"t" * 16
EPOCH = 5
MEMBER: dict[str, Any] = {"member_id": "m"}


def with_group(*, members: bool = True, classic: bool = False, topics: tuple[str, ...] = ("t",)) -> Setting:
    """A group in epoch 5; its one member got partition 0 in epoch 3 and is to give up 1, which it got in 4."""
    records = [epoch_record("g", EPOCH), target_epoch_record("g", EPOCH)]
    if members:
        side = ClassicSide(45_000, (("range", b""),)) if classic else None
        metadata = MemberMetadata(topics=topics, rebalance_timeout_ms=300_000, classic=side)
        current = Current(
            EPOCH, EPOCH - 1, MemberState.UNREVOKED_PARTITIONS, {TOPIC_ID: {0: 3}}, {TOPIC_ID: {1: 4}}
        )
        records += [
            member_record("g", "m", metadata),
            target_record("g", "m", {TOPIC_ID: frozenset({0})}),
            current_record("g", "m", current),
        ]
    return started_with(records)


def started_with(records: list[ConsumerGroupRecord]) -> Setting:
    setting = Setting()
    setting.log += [(record.key, record.value, -1) for record in records]
    setting.start()
    return setting


def fetch_error(setting: Setting, member_id: str | None, member_epoch: int) -> int:
    group = OffsetFetchRequestGroup(group_id="g", member_id=member_id, member_epoch=member_epoch, topics=None)
    answer = setting.ask(setting.coordinator.handle_offset_fetch, OffsetFetchRequest(groups=[group]), 9)
    return int(answer.groups[0].error_code)


@pytest.mark.parametrize("version", [9, 10])
def test_a_member_commits_in_its_epoch(version: int) -> None:
    setting = with_group()
    assert setting.commit(1, version=version, generation_id_or_member_epoch=EPOCH, **MEMBER) == 0
    assert setting.fetch() == (1, 0)
    setting.start()
    assert setting.fetch() == (1, 0)
    assert setting.coordinator.group("g") is None


def commit_epoch(setting: Setting, epoch: int, partition: int = 0, **fields: Any) -> int | None:
    fields = {**MEMBER, **fields}
    return setting.commit(1, partition, version=9, generation_id_or_member_epoch=epoch, **fields)


def test_wrong_epochs_and_strangers() -> None:
    setting = with_group()
    assert commit_epoch(setting, EPOCH + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert commit_epoch(setting, EPOCH, member_id="n") == ErrorCode.UNKNOWN_MEMBER_ID
    assert commit_epoch(setting, -1, member_id="") == ErrorCode.UNKNOWN_MEMBER_ID
    old = setting.commit(1, version=8, generation_id_or_member_epoch=EPOCH, **MEMBER)
    assert old == ErrorCode.UNSUPPORTED_VERSION


def test_an_older_epoch_is_good_for_what_the_member_had_in_it() -> None:
    setting = with_group()
    assert commit_epoch(setting, 4, partition=0) == 0
    assert commit_epoch(setting, 3, partition=0) == 0
    assert commit_epoch(setting, 2, partition=0) == ErrorCode.STALE_MEMBER_EPOCH
    # It is to give this one up, and has not said that it has.
    assert commit_epoch(setting, 4, partition=1) == 0
    assert commit_epoch(setting, 3, partition=1) == ErrorCode.STALE_MEMBER_EPOCH


def test_a_member_that_speaks_the_classic_protocol_hears_its_words() -> None:
    setting = with_group(classic=True)
    assert setting.commit(1, version=8, generation_id_or_member_epoch=EPOCH, **MEMBER) == 0
    assert commit_epoch(setting, EPOCH + 1) == ErrorCode.ILLEGAL_GENERATION
    assert commit_epoch(setting, 2) == ErrorCode.ILLEGAL_GENERATION
    assert fetch_error(setting, "m", EPOCH - 1) == ErrorCode.ILLEGAL_GENERATION


def test_transactional_commits() -> None:
    setting = with_group()
    assert setting.txn_commit(1, generation_id=EPOCH, **MEMBER) == [0]
    assert setting.txn_commit(1, generation_id=4, partitions=(0, 1), **MEMBER) == [0, 0]
    # TxnOffsetCommit does not know stale epochs.
    assert setting.txn_commit(1, generation_id=2, **MEMBER) == [ErrorCode.ILLEGAL_GENERATION]
    assert setting.txn_commit(1, generation_id=EPOCH + 1, **MEMBER) == [ErrorCode.ILLEGAL_GENERATION]
    assert setting.txn_commit(1, generation_id=EPOCH, member_id="n") == [ErrorCode.UNKNOWN_MEMBER_ID]
    # A producer that does not say for whom it commits.
    assert setting.txn_commit(2) == [0]
    setting.end(committed=True)
    assert setting.fetch(stable=True) == (2, 0)


def test_anybody_commits_to_a_group_without_members() -> None:
    setting = with_group(members=False)
    assert setting.commit(1) == 0
    assert setting.txn_commit(2) == [0]
    assert commit_epoch(setting, EPOCH) == ErrorCode.UNKNOWN_MEMBER_ID


def test_members_read_in_their_epoch_and_tools_at_any_time() -> None:
    setting = with_group()
    assert fetch_error(setting, None, -1) == 0
    assert fetch_error(setting, "m", EPOCH) == 0
    assert fetch_error(setting, "m", EPOCH - 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch_error(setting, "m", EPOCH + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert fetch_error(setting, "n", EPOCH) == ErrorCode.UNKNOWN_MEMBER_ID
    assert fetch_error(setting, None, EPOCH) == ErrorCode.UNKNOWN_MEMBER_ID


def test_offsets_of_topics_that_are_read_are_not_deleted() -> None:
    setting = with_group()
    commit_epoch(setting, EPOCH)
    assert setting.delete_offset() == ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
    setting = with_group(topics=("u",))
    commit_epoch(setting, EPOCH)
    assert setting.delete_offset() == 0
    assert setting.fetch() == NOTHING


def test_offsets_expire_when_their_topic_is_not_read() -> None:
    for topics, left in ((("t",), {0: (1, 0)}), (("u",), {})):
        setting = with_group(topics=topics)
        commit_epoch(setting, EPOCH)
        setting.advance(RETENTION_MS + CHECK_INTERVAL_MS)
        assert setting.fetch_all(stable=False) == left
        assert setting.groups() == ["g"]


def test_a_group_without_members_and_offsets_goes() -> None:
    setting = with_group(members=False)
    setting.commit(1)
    setting.txn_commit(2)
    setting.advance(RETENTION_MS + CHECK_INTERVAL_MS)
    setting.advance(CHECK_INTERVAL_MS)
    assert setting.groups() == ["g"]
    setting.end(committed=False)
    setting.advance(CHECK_INTERVAL_MS)
    assert setting.fetch() == NOTHING
    setting.advance(CHECK_INTERVAL_MS)
    for _ in range(2):
        assert setting.groups() == []
        setting.start()


def test_a_group_that_gets_an_offset_in_the_meantime_stays() -> None:
    setting = with_group(members=False)
    setting.at_once = False
    setting.commit(1, group="h")
    setting.advance(CHECK_INTERVAL_MS)
    setting.commit(1)
    while setting.in_flight:
        setting.write()
    assert setting.fetch() == (1, 0)
    assert setting.groups() == ["h", "g"]


def test_deleting_a_group() -> None:
    setting = with_group()
    assert setting.delete_group() == ErrorCode.NON_EMPTY_GROUP
    setting = with_group(members=False)
    setting.commit(1)
    setting.txn_commit(2, partitions=(0, 1))
    assert setting.fetch(stable=True) == UNSTABLE
    assert setting.delete_group() == 0
    assert setting.delete_group() == ErrorCode.GROUP_ID_NOT_FOUND
    setting.end(committed=True)
    for _ in range(2):
        assert setting.groups() == []
        assert setting.fetch_all(stable=True) == {}
        setting.start()


def test_a_deletion_that_the_log_refuses() -> None:
    setting = with_group(members=False)
    setting.at_once = False
    assert setting.delete_group() is None
    setting.write(ErrorCode.NOT_ENOUGH_REPLICAS)
    assert setting.answers[-1].results[0].error_code == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert setting.groups() == ["g"]


def test_deletion_and_commits_are_answered_when_the_partition_moves_away() -> None:
    setting = with_group(members=False)
    setting.at_once = False
    setting.txn_commit(1)
    assert setting.delete_group() is None
    setting.carry_out(setting.coordinator.unload(0, 0))
    commit, deletion = setting.answers[-2:]
    assert errors(commit) == [ErrorCode.NOT_COORDINATOR]
    assert deletion.results[0].error_code == ErrorCode.NOT_COORDINATOR


def test_groups_are_listed_by_type_and_state() -> None:
    setting = with_group(members=False)
    setting.commit(1, group="h")

    def listed(**filters: list[str]) -> list[tuple[str, str, str, str]]:
        request = ListGroupsRequest(**filters)
        answer = setting.ask(setting.coordinator.handle_list_groups, request, 5)
        return [
            (group.group_id, group.protocol_type, group.group_state, group.group_type)
            for group in answer.groups
        ]

    consumer, classic = ("g", "consumer", "Empty", "consumer"), ("h", "", "Empty", "classic")
    assert listed() == [classic, consumer]
    assert listed(types_filter=["Consumer"]) == [consumer]
    assert listed(types_filter=["classic"], states_filter=["empty"]) == [classic]
    assert listed(states_filter=["Stable"]) == []
    assert listed(types_filter=["share"]) == []


def test_offsets_in_the_log_before_their_group_belong_to_it() -> None:
    setting = Setting()
    setting.txn_commit(1)
    group = [epoch_record("g", EPOCH), target_epoch_record("g", EPOCH)]
    setting.log += [(record.key, record.value, -1) for record in group]
    setting.start()
    assert setting.coordinator.group("g") is None
    assert setting.groups() == ["g"]
    # The group goes, and what is pending stays: a group of nobody.
    gone = [epoch_record("g", None), target_epoch_record("g", None)]
    setting.log += [(record.key, record.value, -1) for record in gone]
    setting.start()
    assert setting.coordinator.group("g") is not None
    setting.end(committed=True)
    assert setting.fetch(stable=True) == (1, 0)
