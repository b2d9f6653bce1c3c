"""Moving a partition to other brokers: what its entry holds while the new replicas copy and the old ones stay.

While it is under way `replicas` lists the target first, in its order, then those that are to go; `adding` and
`removing` say which of them are new and which leave. The controller finishes it (`elections.settle`) once the whole
target is in sync; until then it can be given another target, or cancelled.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from culver.core.image import NO_LEADER, PartitionImage
from culver.errors import ErrorCode, KafkaError


def is_under_way(partition: PartitionImage) -> bool:
    return bool(partition.adding or partition.removing)


def target(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas as they are to be; those it has, when nothing is under way."""
    return tuple(broker for broker in partition.replicas if broker not in partition.removing)


def original(partition: PartitionImage) -> tuple[int, ...]:
    """The replicas before the reassignment, in the order in which they are listed now."""
    return tuple(broker for broker in partition.replicas if broker not in partition.adding)


def begin(partition: PartitionImage, target: Sequence[int]) -> PartitionImage | None:
    """The entry with a new target; None when that is already its target.

    A target with the same brokers in another order takes effect at once. One that replaces an earlier target drops
    the replicas that only that one asked for.
    """
    wanted = tuple(target)
    if not wanted or len(set(wanted)) < len(wanted) or min(wanted) < 0:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"replicas must be different brokers, not {list(wanted)}"
        )
    before = original(partition)
    adding = tuple(broker for broker in wanted if broker not in before)
    removing = tuple(broker for broker in before if broker not in wanted)
    kept = _without(partition, set(partition.adding) - set(adding))
    after = replace(kept, replicas=wanted + removing, adding=adding, removing=removing)
    return None if after == partition else after


def cancel(partition: PartitionImage) -> PartitionImage | None:
    """The entry as if nothing had been asked for; None when nothing is under way.

    Refused when only replicas that would go have everything: the others would have to catch up first.
    """
    if not is_under_way(partition):
        return None
    return replace(_without(partition, partition.adding), adding=(), removing=())


def _without(partition: PartitionImage, gone: Collection[int]) -> PartitionImage:
    """The entry without some replicas. If one of them led, there is no leader until the controller elects one.

    The epoch is a new one in any case: see `elections` on replicas that are out.
    """
    if not gone:
        return partition
    isr = tuple(broker for broker in partition.isr if broker not in gone)
    elr = tuple(broker for broker in partition.elr if broker not in gone)
    if not isr:
        # Those eligible have everything that was acknowledged, which is all that membership says without a leader.
        isr, elr = elr, ()
    if not isr:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"only brokers {sorted(gone)}, which would go, have all records of partition {partition.index}",
        )
    return replace(
        partition,
        replicas=tuple(broker for broker in partition.replicas if broker not in gone),
        isr=isr,
        elr=elr,
        leader=partition.leader if partition.leader in isr else NO_LEADER,
        leader_epoch=partition.leader_epoch + 1,
    )
