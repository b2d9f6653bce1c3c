"""The range assignor: a contiguous share of each topic, so that equal partitions of topics meet in one member.

Members are taken in order of their ids, static ones first and by their instance ids, which do not change when a
member restarts. It does not try to keep what a member has. Racks play no role, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from culver.core.assignors.subscriber import Assignment, Subscriber


def assign_ranges(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[bytes, int]
) -> dict[str, Assignment]:
    """Cut every topic into as many ranges as it has subscribers; the first ones are larger by one if need be."""
    ordered = sorted(subscribers, key=_place)
    by_topic: dict[bytes, list[str]] = {}
    for subscriber in ordered:
        for topic in subscriber.topics:
            by_topic.setdefault(topic, []).append(subscriber.member_id)
    assigned: dict[str, dict[bytes, frozenset[int]]] = {
        subscriber.member_id: {} for subscriber in subscribers
    }
    for topic, member_ids in by_topic.items():
        share, larger_ones = divmod(partition_counts[topic], len(member_ids))
        start = 0
        for position, member_id in enumerate(member_ids):
            end = start + share + (position < larger_ones)
            if end > start:
                assigned[member_id][topic] = frozenset(range(start, end))
            start = end
    return dict(assigned)


def _place(subscriber: Subscriber) -> tuple[bool, str]:
    if subscriber.instance_id is not None:
        return False, subscriber.instance_id
    return True, subscriber.member_id
