"""Deliberate bugs, to show that the simulator finds them: each is a real class patched for as long as a run takes.

with bug("truncate to the high watermark"):
    assert not run_seed(3).passed
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from culver.broker.groups import Groups
from culver.broker.handlers import fetch
from culver.broker.membership import Membership
from culver.broker.partition import Partition
from culver.broker.replica_read import ReplicaRead
from culver.broker.replication import Replication
from culver.core import elections
from culver.core.image import NO_LEADER
from culver.core.leader_state import LeaderState
from culver.errors import ErrorCode

_Patch = tuple[Any, str, Any]
_bugs: dict[str, Callable[[], list[_Patch]]] = {}


def _named(name: str) -> Callable[[Callable[[], list[_Patch]]], Callable[[], list[_Patch]]]:
    def note(patches: Callable[[], list[_Patch]]) -> Callable[[], list[_Patch]]:
        _bugs[name] = patches
        return patches

    return note


def names() -> list[str]:
    return list(_bugs)


@contextlib.contextmanager
def bug(name: str) -> Iterator[None]:
    """With this bug in every broker of this process."""
    patches = _bugs[name]()
    before = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute, _ in patches]
    try:
        for owner, attribute, replacement in patches:
            setattr(owner, attribute, replacement)
        yield
    finally:
        for owner, attribute, original in before:
            setattr(owner, attribute, original)


@_named("truncate to the high watermark")
def _truncate_to_high_watermark() -> list[_Patch]:
    """What Kafka did before KIP-101: a new follower throws away what it does not know to be committed."""
    original = Replication._follow

    def follow(self: Replication, partition: Partition, *, renewed: bool) -> None:
        log = partition.log
        if renewed and partition.leader not in (NO_LEADER, self._node.broker_id) and log.failed is None:
            log.truncate_to(max(log.high_watermark, log.start_offset))
        original(self, partition, renewed=renewed)

    return [(Replication, "_follow", follow)]


@_named("acknowledge before the in-sync replicas have it")
def _acknowledge_early() -> list[_Patch]:
    def commit(
        self: Replication, partition: Partition, end_offset: int, timeout_ms: float | None, done: Any
    ) -> None:
        done(ErrorCode.NONE if partition.leading else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    return [(Replication, "commit", commit)]


@_named("skip the epoch check")
def _skip_epoch_check() -> list[_Patch]:
    """On both sides: the leader compares no epochs, and the follower takes whatever answer comes."""

    def admit(self: ReplicaRead, want: Any) -> Any:
        want.last_fetched_epoch = -1
        if want.partition is not None:
            want.current_leader_epoch = want.partition.leader_epoch
        return original(self, want)

    original = ReplicaRead._admit
    return [
        (ReplicaRead, "_admit", admit),
        (Partition, "epoch_error", lambda self, claimed_epoch: ErrorCode.NONE),
    ]


@_named("acknowledge after a failed fsync")
def _acknowledge_failed_sync() -> list[_Patch]:
    original = Replication._on_disk

    def on_disk(self: Replication, partition: Partition, end_offset: int, done: Any) -> None:
        original(self, partition, end_offset, lambda error: done(ErrorCode.NONE))

    return [(Replication, "_on_disk", on_disk)]


@_named("stay in sync after losing bytes")
def _stay_in_sync() -> list[_Patch]:
    """A broker comes back from a power cut and still counts as in sync."""

    def may_lack(self: Membership, topic: Any, image: Any) -> bool:
        self._lost_bytes = False
        return original(self, topic, image)

    original = Membership._may_lack
    return [(Membership, "_may_lack", may_lack)]


@_named("elect from outside the in-sync replicas")
def _elect_anyone() -> list[_Patch]:
    original = elections.settle

    def settle(partition: Any, alive: Any, *, min_insync: int, unclean_allowed: bool = False) -> Any:
        return original(partition, alive, min_insync=min_insync, unclean_allowed=True)

    return [(elections, "settle", settle)]


@_named("forget producers at a failover")
def _forget_producers() -> list[_Patch]:
    original = Replication._lead

    def lead(self: Replication, partition: Partition, image: Any) -> None:
        if not partition.leading:
            partition.log._producers = type(partition.log._producers)(partition.log._producers._limit)
        original(self, partition, image)

    return [(Replication, "_lead", lead)]


@_named("show what is not committed")
def _show_uncommitted() -> list[_Patch]:
    def read_one(self: Any, partition: Partition, *rest: Any) -> Any:
        log = partition.log
        before = log._high_watermark
        log._high_watermark = None
        try:
            return original(self, partition, *rest)
        finally:
            log._high_watermark = before

    original = fetch._Fetch._read_one
    return [(fetch._Fetch, "_read_one", read_one)]


@_named("wait only for the old in-sync replicas")
def _ignore_proposed() -> list[_Patch]:
    return [(LeaderState, "maximal_isr", property(lambda self: self.isr))]


@_named("answer commits before they are replicated")
def _answer_commits_early() -> list[_Patch]:
    original = Groups._append

    def append(self: Groups, effect: Any) -> None:
        replication: Any = self._node.replication
        replication.commit = lambda partition, end, timeout_ms, done: done(ErrorCode.NONE)
        try:
            original(self, effect)
        finally:
            del replication.commit

    return [(Groups, "_append", append)]
