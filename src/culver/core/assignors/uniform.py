"""The uniform assignor: members get equal numbers of partitions, and keep what they have where that allows it.

Two ways. When all members want the same topics, each has a quota, and only what is above it moves. When they differ,
the partitions that nobody has go to whoever may have them and has least, and then single partitions move until no
move makes two members more equal. Racks play no role, as in Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from culver.core.assignors.subscriber import Assignment, Subscriber

_Held = dict[bytes, set[int]]


def assign_uniformly(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[bytes, int]
) -> dict[str, Assignment]:
    """Equal numbers, few moves."""
    if not subscribers:
        return {}
    held, free = _what_can_stay(subscribers, partition_counts)
    if all(subscriber.topics == subscribers[0].topics for subscriber in subscribers):
        _fill_to_quotas(held, free)
    else:
        _fill_the_poorest(subscribers, held, free)
        _even_out(subscribers, held)
    return {
        member_id: {topic: frozenset(partitions) for topic, partitions in topics.items() if partitions}
        for member_id, topics in held.items()
    }


def _what_can_stay(
    subscribers: Sequence[Subscriber], partition_counts: Mapping[bytes, int]
) -> tuple[dict[str, _Held], dict[bytes, list[int]]]:
    """What each member has and still wants; and per topic, in order, what nobody has."""
    free: dict[bytes, set[int]] = {}
    for subscriber in subscribers:
        for topic in subscriber.topics:
            if topic not in free:
                free[topic] = set(range(partition_counts[topic]))
    held: dict[str, _Held] = {}
    for subscriber in subscribers:
        mine = held[subscriber.member_id] = {}
        for topic, partitions in subscriber.held.items():
            if topic in subscriber.topics:
                kept = free[topic] & partitions
                free[topic] -= kept
                mine[topic] = kept
    return held, {topic: sorted(free[topic]) for topic in sorted(free)}


# --- everyone wants the same ---


def _fill_to_quotas(held: dict[str, _Held], free: dict[bytes, list[int]]) -> None:
    counts = {member_id: sum(map(len, topics.values())) for member_id, topics in held.items()}
    total = sum(counts.values()) + sum(map(len, free.values()))
    share, larger_ones = divmod(total, len(held))
    # Those who have most get the larger shares: that moves least.
    by_wealth = sorted(held, key=lambda member_id: (-counts[member_id], member_id))
    loose = [(topic, partition) for topic, partitions in free.items() for partition in partitions]
    wanting: list[tuple[str, int]] = []
    for position, member_id in enumerate(by_wealth):
        quota = share + (position < larger_ones)
        surplus = counts[member_id] - quota
        if surplus > 0:
            loose += _take(held[member_id], surplus)
        elif surplus < 0:
            wanting.append((member_id, -surplus))
    loose.sort()
    # In turns, so that the partitions of one topic spread over the members.
    position = 0
    while wanting:
        still_wanting = []
        for member_id, missing in wanting:
            topic, partition = loose[position]
            position += 1
            held[member_id].setdefault(topic, set()).add(partition)
            if missing > 1:
                still_wanting.append((member_id, missing - 1))
        wanting = still_wanting


def _take(topics: _Held, count: int) -> list[tuple[bytes, int]]:
    """Take partitions away from a member, always from the topic of which it has most."""
    taken = []
    by_size = [(-len(partitions), topic) for topic, partitions in topics.items()]
    heapify(by_size)
    for _ in range(count):
        size, topic = heappop(by_size)
        partition = max(topics[topic])
        topics[topic].remove(partition)
        taken.append((topic, partition))
        if size < -1:
            heappush(by_size, (size + 1, topic))
    return taken


# --- they want different topics ---


def _subscribers_by_topic(subscribers: Sequence[Subscriber]) -> dict[bytes, list[str]]:
    by_topic: dict[bytes, list[str]] = {}
    for subscriber in sorted(subscribers, key=lambda subscriber: subscriber.member_id):
        for topic in sorted(subscriber.topics):
            by_topic.setdefault(topic, []).append(subscriber.member_id)
    return by_topic


def _fill_the_poorest(
    subscribers: Sequence[Subscriber], held: dict[str, _Held], free: dict[bytes, list[int]]
) -> None:
    counts = {member_id: sum(map(len, topics.values())) for member_id, topics in held.items()}
    by_topic = _subscribers_by_topic(subscribers)
    # Topics with the smallest choice first: the others can make up for what these do.
    for topic in sorted(free, key=lambda topic: (len(by_topic[topic]), topic)):
        if not free[topic]:
            continue
        poorest = [(counts[member_id], member_id) for member_id in by_topic[topic]]
        heapify(poorest)
        for partition in free[topic]:
            count, member_id = heappop(poorest)
            held[member_id].setdefault(topic, set()).add(partition)
            counts[member_id] = count + 1
            heappush(poorest, (count + 1, member_id))


def _even_out(subscribers: Sequence[Subscriber], held: dict[str, _Held]) -> None:
    """Move single partitions from a richer to a poorer subscriber of their topic, until that helps no more.

    It ends: each move makes the sum of the squares of the members' counts smaller.
    """
    counts = {member_id: sum(map(len, topics.values())) for member_id, topics in held.items()}
    by_topic = _subscribers_by_topic(subscribers)
    moved = True
    while moved:
        moved = False
        for topic, member_ids in by_topic.items():
            if len(member_ids) > 1 and _even_out_topic(topic, member_ids, held, counts):
                moved = True


def _even_out_topic(
    topic: bytes, member_ids: list[str], held: dict[str, _Held], counts: dict[str, int]
) -> bool:
    # Entries that no longer hold are thrown away when they come up.
    poorest = [(counts[member_id], member_id) for member_id in member_ids]
    richest = [(-counts[member_id], member_id) for member_id in member_ids if held[member_id].get(topic)]
    heapify(poorest)
    heapify(richest)
    moved = False
    while richest:
        count, rich = richest[0]
        if -count != counts[rich] or not held[rich][topic]:
            heappop(richest)
            continue
        while poorest[0][0] != counts[poorest[0][1]]:
            heappop(poorest)
        least, poor = poorest[0]
        if -count - least < 2:
            break
        partition = max(held[rich][topic])
        held[rich][topic].remove(partition)
        held[poor].setdefault(topic, set()).add(partition)
        for member_id, step in ((rich, -1), (poor, 1)):
            counts[member_id] += step
            heappush(poorest, (counts[member_id], member_id))
            heappush(richest, (-counts[member_id], member_id))
        moved = True
    return moved
