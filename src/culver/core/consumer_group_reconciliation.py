"""One step of a member towards its target: give up, move on to the target's epoch, take what is free."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from culver.core.consumer_group_member import Current, MemberState, Owned, owns_any
from culver.core.consumer_group_records import Partitions

Reported: TypeAlias = Sequence[tuple[bytes, Sequence[int]]] | None
"""What a member says it has, by topic id; None when it does not say."""

_NONE: Owned = {}


def reconcile(
    current: Current,
    target_epoch: int,
    target: Partitions,
    reported: Reported,
    is_taken: Callable[[bytes, int], bool],
) -> Current:
    """The member's next state, or the same one while it cannot go on.

    Transitions:

    * Stable -> Unrevoked: it has what it is to lose, and has not said that it let go of it.
    * Unrevoked -> Unrevoked, Stable or Unreleased: it has let go of it; on to the newest target.
    * Stable, Unreleased -> Stable: it has all of its target.
    * Stable, Unreleased -> Unreleased: others still have some of it.
    """
    state = current.state
    if state is MemberState.STABLE:
        if current.epoch == target_epoch:
            return current
    elif state is MemberState.UNREVOKED_PARTITIONS:
        if owns_any(reported, current.revoking):
            return current
    elif state is MemberState.UNKNOWN:
        # It was let in because it has nothing.
        reported = []
    return _advance(current, target_epoch, target, reported, is_taken)


def _advance(
    current: Current,
    target_epoch: int,
    target: Partitions,
    reported: Reported,
    is_taken: Callable[[bytes, int], bool],
) -> Current:
    kept: dict[bytes, dict[int, int]] = {}
    revoking: dict[bytes, dict[int, int]] = {}
    for topic, epochs in current.assigned.items():
        wanted = target.get(topic, frozenset())
        if stays := {index: epoch for index, epoch in epochs.items() if index in wanted}:
            kept[topic] = stays
        if goes := {index: epoch for index, epoch in epochs.items() if index not in wanted}:
            revoking[topic] = goes
    if revoking and owns_any(reported, revoking):
        return current.moved_to(current.epoch, MemberState.UNREVOKED_PARTITIONS, kept, revoking)
    waits = False
    for topic, partitions in target.items():
        mine = kept.get(topic, {})
        for index in partitions:
            if index in mine:
                continue
            if is_taken(topic, index):
                waits = True
            else:
                mine[index] = target_epoch
        if mine:
            kept[topic] = mine
    state = MemberState.UNRELEASED_PARTITIONS if waits else MemberState.STABLE
    return current.moved_to(target_epoch, state, kept, _NONE)
