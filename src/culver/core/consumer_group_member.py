"""One member of a consumer group, as the log describes it: what it said of itself, and which partitions it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple, TypeAlias

LEAVE_EPOCH = -1
LEAVE_FOR_A_WHILE_EPOCH = -2
JOIN_EPOCH = 0

Owned: TypeAlias = Mapping[bytes, Mapping[int, int]]
"""Topic id -> partition -> the epoch in which the member got it. No empty mappings inside."""


class MemberState(IntEnum):
    """How far a member is on its way to its target; the numbers are those of Kafka's records."""

    # It has all of its target (of the epoch that it is in).
    STABLE = 0
    # It has been told to give partitions up, and has not said that it has.
    UNREVOKED_PARTITIONS = 1
    # It waits for partitions that others have not given up.
    UNRELEASED_PARTITIONS = 2
    # Written by a later version: the member has to start over.
    UNKNOWN = 127


class ClassicSide(NamedTuple):
    """What a member that speaks the classic protocol has said in its JoinGroup."""

    session_timeout_ms: int
    protocols: tuple[tuple[str, bytes], ...]


class MemberMetadata(NamedTuple):
    """What a member has said of itself."""

    instance_id: str | None = None
    rack_id: str | None = None
    client_id: str = ""
    client_host: str = ""
    topics: tuple[str, ...] = ()  # sorted
    pattern: str | None = None
    rebalance_timeout_ms: int = -1
    assignor: str | None = None
    # None for members that speak the consumer protocol.
    classic: ClassicSide | None = None


class Current(NamedTuple):
    """What a member has: only told to it once it is in the log, and only free for others once it is given up."""

    epoch: int = 0
    # A member that has not seen the answer which raised its epoch asks again with this one.
    previous_epoch: int = 0
    state: MemberState = MemberState.STABLE
    assigned: Owned = {}
    revoking: Owned = {}

    def moved_to(self, epoch: int, state: MemberState, assigned: Owned, revoking: Owned) -> Current:
        previous_epoch = self.previous_epoch if epoch == self.epoch else self.epoch
        return Current(epoch, previous_epoch, state, assigned, revoking)


class Member(NamedTuple):
    """A member. Values: a change makes another one."""

    member_id: str
    metadata: MemberMetadata = MemberMetadata()
    current: Current = Current()

    def is_reconciled_to(self, epoch: int) -> bool:
        return self.current.state is MemberState.STABLE and self.current.epoch == epoch


def owns_any(reported: Iterable[tuple[bytes, Iterable[int]]] | None, partitions: Owned) -> bool:
    """Whether a member still has some of these, by its own report; without one it has."""
    if reported is None:
        return True
    for topic, indexes in reported:
        there = partitions.get(topic)
        if there is not None and any(index in there for index in indexes):
            return True
    return False


def is_within(reported: Iterable[tuple[bytes, Iterable[int]]] | None, partitions: Owned) -> bool:
    """Whether all that a member reports to have is among these; not without a report."""
    if reported is None:
        return False
    for topic, indexes in reported:
        there = partitions.get(topic)
        if there is None or not all(index in there for index in indexes):
            return False
    return True
