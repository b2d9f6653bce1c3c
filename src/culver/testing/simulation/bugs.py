"""Deliberate bugs of replication and groups, to show that the simulator finds them."""

from __future__ import annotations

from typing import Any

from culver.broker.coordinator_runtime import CoordinatorRuntime
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
from culver.testing.simulation.planting import Patch, named, names


@named("truncate to the high watermark")
def _truncate_to_high_watermark() -> list[Patch]:
    """What Kafka did before KIP-101: a new follower throws away what it does not know to be committed."""
    original = Replication._follow

    def follow(self: Replication, partition: Partition, *, renewed: bool) -> None:
        log = partition.log
        if renewed and partition.leader not in (NO_LEADER, self._node.broker_id) and log.failed is None:
            log.truncate_to(max(log.high_watermark, log.start_offset))
        original(self, partition, renewed=renewed)

    return [(Replication, "_follow", follow)]


@named("acknowledge before the in-sync replicas have it")
def _acknowledge_early() -> list[Patch]:
    def commit(
        self: Replication, partition: Partition, end_offset: int, timeout_ms: float | None, done: Any
    ) -> None:
        done(ErrorCode.NONE if partition.leading else ErrorCode.NOT_LEADER_OR_FOLLOWER)

    return [(Replication, "commit", commit)]


@named("skip the epoch check")
def _skip_epoch_check() -> list[Patch]:
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


@named("acknowledge after a failed fsync")
def _acknowledge_failed_sync() -> list[Patch]:
    original = Replication._on_disk

    def on_disk(self: Replication, partition: Partition, end_offset: int, done: Any) -> None:
        original(self, partition, end_offset, lambda error: done(ErrorCode.NONE))

    return [(Replication, "_on_disk", on_disk)]


@named("stay in sync after losing bytes")
def _stay_in_sync() -> list[Patch]:
    """A broker comes back from a power cut and still counts as in sync."""

    def may_lack(self: Membership, topic: Any, image: Any) -> bool:
        self._lost_bytes = False
        return original(self, topic, image)

    original = Membership._may_lack
    return [(Membership, "_may_lack", may_lack)]


@named("elect from outside the in-sync replicas")
def _elect_anyone() -> list[Patch]:
    original = elections.settle

    def settle(partition: Any, alive: Any, *, min_insync: int, unclean_allowed: bool = False) -> Any:
        return original(partition, alive, min_insync=min_insync, unclean_allowed=True)

    return [(elections, "settle", settle)]


@named("forget producers at a failover")
def _forget_producers() -> list[Patch]:
    original = Replication._lead

    def lead(self: Replication, partition: Partition, image: Any) -> None:
        if not partition.leading:
            partition.log._producers = type(partition.log._producers)(partition.log._producers._limit)
        original(self, partition, image)

    return [(Replication, "_lead", lead)]


@named("show what is not committed")
def _show_uncommitted() -> list[Patch]:
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


@named("wait only for the old in-sync replicas")
def _ignore_proposed() -> list[Patch]:
    return [(LeaderState, "maximal_isr", property(lambda self: self.isr))]


@named("answer commits before they are replicated")
def _answer_commits_early() -> list[Patch]:
    original = CoordinatorRuntime._append

    def append(self: CoordinatorRuntime[Any], effect: Any) -> None:
        replication: Any = self._node.replication
        if not isinstance(self, Groups):
            original(self, effect)
            return
        replication.commit = lambda partition, end, timeout_ms, done: done(ErrorCode.NONE)
        try:
            original(self, effect)
        finally:
            del replication.commit

    return [(CoordinatorRuntime, "_append", append)]


NAMES = names(__name__)
