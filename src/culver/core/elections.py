"""Who leads a partition, and who may: every change of a partition's entry that touches the ISR or the leader.

All functions take an entry and return what it should become, or None when it is fine as it is; the caller puts it
into the store by compare-and-set. The invariant they keep, together with `leader_state`: every member of the ISR and
of the ELR that is alive has every record that was ever acknowledged (that a leader's high watermark has passed).
Hence any of them may lead.

The ELR (eligible leader replicas) follows KIP-966: whoever leaves the ISR while it is, or thereby becomes, smaller
than min.insync.replicas stays eligible, for nothing is acknowledged from then on; all are dropped once the ISR is
large enough again; a broker that may have lost bytes leaves ISR and ELR before it registers. Differences:

- The ISR is never empty. When all of it is dead it stays as it is, without a leader, and whichever member comes
  back first leads. KIP-966 lets it run empty and moves everyone to the ELR: the same brokers are electable.
- There is no "last known leader". A last member that may have lost bytes remains the only one electable: that is
  what KIP-966 keeps it for.
- There is no bound on the size of ISR and ELR together, as there is none in Kafka's implementation.
- During a reassignment the replicas that are being added do not count towards the effective min.insync.replicas:
  adding two replicas to a partition that had one must not stop its writes until they have caught up.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from culver.core import reassignment
from culver.core.image import NO_LEADER, PartitionImage


def effective_min_insync(partition: PartitionImage, min_insync: int) -> int:
    """min.insync.replicas as far as the partition has replicas to meet it."""
    return max(1, min(min_insync, len(partition.replicas) - len(partition.adding)))


def settle(
    partition: PartitionImage, alive: Collection[int], *, min_insync: int, unclean_allowed: bool = False
) -> PartitionImage | None:
    """The controller's word: dead brokers leave the ISR, a dead leader is replaced, a finished reassignment ends."""
    eligible = _eligible(partition, min_insync)
    living = tuple(broker for broker in partition.isr if broker in alive)
    after = partition
    if living:
        if reassignment.is_under_way(partition) and set(reassignment.target(partition)) <= set(living):
            replicas = reassignment.target(partition)
            living = tuple(broker for broker in living if broker in replicas)
            after = replace(partition, replicas=replicas, adding=(), removing=())
        leader = partition.leader if partition.leader in living else _first(after, living)
        after = replace(after, isr=living, elr=_elr(after, (*partition.isr, *eligible), living, min_insync))
        return _led_by(partition, after, leader)
    successor = _first(partition, (broker for broker in eligible if broker in alive))
    if successor != NO_LEADER:
        elr = _elr(partition, (*partition.isr, *eligible), (successor,), min_insync)
        return _led_by(partition, replace(partition, isr=(successor,), elr=elr), successor)
    if unclean_allowed:
        successor = _first(partition, (broker for broker in partition.replicas if broker in alive))
        if successor != NO_LEADER:
            return _led_by(partition, replace(partition, isr=(successor,), elr=()), successor)
    return _led_by(partition, replace(partition, elr=eligible), NO_LEADER)


def with_isr(partition: PartitionImage, isr: tuple[int, ...], *, min_insync: int) -> PartitionImage | None:
    """The leader's word on who is in sync."""
    assert partition.leader in isr
    assert set(isr) <= set(partition.replicas)
    elr = _elr(partition, (*partition.isr, *_eligible(partition, min_insync)), isr, min_insync)
    return _changed(partition, replace(partition, isr=isr, elr=elr))


def leave(partition: PartitionImage, broker_id: int, *, min_insync: int) -> PartitionImage | None:
    """A broker that may have lost bytes takes itself out of ISR, ELR and lead, before it registers as alive.

    The last member of both stays electable, since nobody else has more. But it gives up the lead too: what it
    writes next must be told by its epoch from what it has lost.
    """
    if broker_id not in (*partition.isr, *partition.elr, partition.leader):
        return None
    eligible = _eligible(partition, min_insync)
    isr = tuple(broker for broker in partition.isr if broker != broker_id)
    elr = tuple(broker for broker in eligible if broker != broker_id)
    if not isr:
        # Those eligible have everything that was acknowledged, which is all that membership says without a leader.
        isr, elr = elr, ()
    if not isr:
        isr, elr = partition.isr, ()
    leader = partition.leader if partition.leader in isr and partition.leader != broker_id else NO_LEADER
    elr = _elr(partition, elr, isr, min_insync)
    return _led_by(partition, replace(partition, isr=isr, elr=elr), leader)


def hand_over(
    partition: PartitionImage, broker_id: int, alive: Collection[int], *, min_insync: int
) -> PartitionImage | None:
    """A broker is about to stop in good order: another member of the ISR leads, and nobody waits for it any more.

    None when there is no living member to hand over to: then it serves to the end.
    """
    if broker_id not in partition.isr:
        return None
    isr = tuple(broker for broker in partition.isr if broker != broker_id)
    leader = partition.leader
    if leader == broker_id:
        leader = _first(partition, (broker for broker in isr if broker in alive))
        if leader == NO_LEADER:
            return None
    if not isr:
        return None
    elr = _elr(partition, (*partition.isr, *_eligible(partition, min_insync)), isr, min_insync)
    return _led_by(partition, replace(partition, isr=isr, elr=elr), leader)


def prefer(partition: PartitionImage, alive: Collection[int]) -> PartitionImage | None:
    """The preferred replica, the first of the list, leads if it is alive and in sync."""
    preferred = reassignment.target(partition)[0]
    if preferred not in partition.isr or preferred not in alive:
        return None
    return _led_by(partition, partition, preferred)


def elect_unclean(
    partition: PartitionImage, alive: Collection[int], min_insync: int
) -> PartitionImage | None:
    """An operator's demand for a leader at any price: a clean one if there is one, else any living replica."""
    if partition.leader in alive and partition.leader in partition.isr:
        return None
    return settle(partition, alive, min_insync=min_insync, unclean_allowed=True)


def _eligible(partition: PartitionImage, min_insync: int) -> tuple[int, ...]:
    """The ELR as far as it can be relied on: with a large enough ISR records may have been acknowledged without it."""
    if len(partition.isr) >= effective_min_insync(partition, min_insync):
        return ()
    return partition.elr


def _elr(
    partition: PartitionImage, candidates: Iterable[int], isr: tuple[int, ...], min_insync: int
) -> tuple[int, ...]:
    """The ELR next to this ISR, from those that were in either before."""
    if len(isr) >= effective_min_insync(partition, min_insync):
        return ()
    members = set(candidates) - set(isr)
    return tuple(broker for broker in partition.replicas if broker in members)


def _first(partition: PartitionImage, brokers: Iterable[int]) -> int:
    """The first of the replicas that is among these; those on their way out are listed last."""
    members = set(brokers)
    return next((broker for broker in partition.replicas if broker in members), NO_LEADER)


def _led_by(before: PartitionImage, after: PartitionImage, leader: int) -> PartitionImage | None:
    if leader != before.leader or len(after.replicas) < len(before.replicas):
        # A replica that is out deletes its log when it hears of it. A new epoch makes sure that it cannot have come
        # back and be counted in sync by then: it must know of the epoch to fetch, and by that of having been out.
        after = replace(after, leader=leader, leader_epoch=before.leader_epoch + 1)
    return _changed(before, after)


def _changed(before: PartitionImage, after: PartitionImage) -> PartitionImage | None:
    return None if after == before else after
