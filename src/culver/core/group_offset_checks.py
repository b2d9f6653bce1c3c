"""Who may commit and read a group's offsets: its members of the present, or anybody where it has no members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from culver.core.consumer_group import ConsumerGroup
from culver.core.consumer_group_member import Member
from culver.core.group import ClassicGroup, GroupState
from culver.core.group_partition import GroupPartition
from culver.errors import ErrorCode

# Members of the consumer protocol commit with this version of OffsetCommit or a later one.
_FIRST_WITH_MEMBER_EPOCHS = 9


class Committer(NamedTuple):
    """Who a request to commit says it comes from. The epoch is a generation in a classic group."""

    member_id: str
    instance_id: str | None
    epoch: int
    api_version: int
    transactional: bool

    @property
    def says_nothing(self) -> bool:
        return self.epoch < 0 and not self.member_id and self.instance_id is None


def check_commit(
    partition: GroupPartition, group_id: str, who: Committer, targets: Iterable[tuple[bytes, int]]
) -> ErrorCode:
    """Whether these partitions (with the ids of their topics) may be committed by whoever asks. Hot."""
    classic = partition.groups.get(group_id)
    if classic is not None:
        return _check_classic(classic, who)
    consumer = partition.consumer_groups.get(group_id)
    if consumer is not None:
        error = _check_consumer(consumer, who, targets)
        # TxnOffsetCommit has no word for it yet.
        stale = error is ErrorCode.STALE_MEMBER_EPOCH and who.transactional
        return ErrorCode.ILLEGAL_GENERATION if stale else error
    if who.epoch < 0:
        # From a tool, or from a consumer that assigns its own partitions.
        return ErrorCode.NONE
    if who.transactional or who.api_version < _FIRST_WITH_MEMBER_EPOCHS:
        return ErrorCode.ILLEGAL_GENERATION
    return ErrorCode.GROUP_ID_NOT_FOUND


def check_fetch(
    partition: GroupPartition, group_id: str, member_id: str | None, member_epoch: int
) -> ErrorCode:
    """Whether offsets may be read. Only members of consumer groups say who they are, so that none reads too early."""
    consumer = partition.consumer_groups.get(group_id)
    if consumer is None or (member_id is None and member_epoch < 0):
        return ErrorCode.NONE
    member = None if member_id is None else consumer.members.get(member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    return ErrorCode.NONE if member.current.epoch == member_epoch else _wrong_epoch(member)


def _check_classic(group: ClassicGroup, who: Committer) -> ErrorCode:
    if who.epoch < 0 and group.state is GroupState.EMPTY:
        return ErrorCode.NONE
    if who.says_nothing:
        # Group management is in use: an outsider must not move its offsets. Old producers cannot say for whom
        # they commit; transactional ids fence them.
        return ErrorCode.NONE if who.transactional else ErrorCode.UNKNOWN_MEMBER_ID
    error = group.check_member(who.member_id, who.instance_id)
    if error is not ErrorCode.NONE:
        return error
    if who.epoch != group.generation:
        return ErrorCode.ILLEGAL_GENERATION
    if group.state is GroupState.COMPLETING_REBALANCE and not who.transactional:
        return ErrorCode.REBALANCE_IN_PROGRESS
    return ErrorCode.NONE


def _check_consumer(group: ConsumerGroup, who: Committer, targets: Iterable[tuple[bytes, int]]) -> ErrorCode:
    if who.epoch < 0 and not group.members:
        return ErrorCode.NONE
    if who.says_nothing and who.transactional:
        return ErrorCode.NONE
    member = group.members.get(who.member_id)
    if member is None:
        return ErrorCode.UNKNOWN_MEMBER_ID
    if (
        not who.transactional
        and member.metadata.classic is None
        and who.api_version < _FIRST_WITH_MEMBER_EPOCHS
    ):
        return ErrorCode.UNSUPPORTED_VERSION
    current = member.current
    if who.epoch == current.epoch:
        return ErrorCode.NONE
    if who.epoch > current.epoch:
        return _wrong_epoch(member)
    # The member has yet to hear of its new epoch. What it had in the old one, and nobody else has got since, is
    # still its own to commit (KIP-1251).
    for topic_id, index in targets:
        since = current.assigned.get(topic_id, {}).get(index)
        if since is None:
            since = current.revoking.get(topic_id, {}).get(index)
        if since is None or who.epoch < since:
            return _wrong_epoch(member)
    return ErrorCode.NONE


def _wrong_epoch(member: Member) -> ErrorCode:
    """As the member's own protocol calls it."""
    classic = member.metadata.classic is not None
    return ErrorCode.ILLEGAL_GENERATION if classic else ErrorCode.STALE_MEMBER_EPOCH
