"""On which brokers replicas live: for new partitions, to empty a broker, and to even out the load.

Three wishes, in this order: the replicas of a partition are in as many racks as there are; every broker has about
as many replicas as the next; and about as many preferred leaders (the first of a partition's list). Plans move as
few replicas as they can, since each move copies a partition.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import TypeAlias

from culver.core.image import BrokerInfo
from culver.errors import ErrorCode, KafkaError

PartitionKey: TypeAlias = tuple[str, int]
Assignment: TypeAlias = Mapping[PartitionKey, tuple[int, ...]]


def place(
    brokers: Sequence[BrokerInfo], alive: Collection[int], partition_count: int, factor: int, *, first: int
) -> list[tuple[int, ...]]:
    """Replicas for new partitions, the first of which starts at position `first` of the ring of brokers.

    Leaders go round the ring, in which racks take turns. Followers come from racks not used yet, then from where
    there is least, then from further along the ring; each time round a little further, so that a dead broker's
    leaderships fall to all others. Brokers that are not alive are used only when the living are too few.
    """
    if not 0 < factor <= len(brokers):
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {factor} asks for as many brokers; there are {len(brokers)}",
        )
    racks = _racks(brokers)
    ring = _ring(broker for broker in brokers if broker.id in alive)
    reserve = _ring(broker for broker in brokers if broker.id not in alive)
    if not ring:
        ring, reserve = reserve, []
    load: Counter[int] = Counter()
    placed = []
    for index in range(first, first + partition_count):
        round_number, start = divmod(index, len(ring))
        others = [ring[(start + 1 + step) % len(ring)] for step in range(len(ring) - 1)]
        if others:
            turn = round_number % len(others)
            others = others[turn:] + others[:turn]
        replicas = [ring[start]]
        _fill(replicas, others, min(factor, len(ring)), racks, load)
        _fill(replicas, reserve, factor, racks, load)
        load.update(replicas)
        placed.append(tuple(replicas))
    return placed


def drain(
    assignment: Assignment, brokers: Sequence[BrokerInfo], alive: Collection[int], leaving: Collection[int]
) -> dict[PartitionKey, tuple[int, ...]]:
    """What to reassign so that nothing is left on the leaving brokers. Only they are relieved of anything."""
    racks = _racks(brokers)
    homes = sorted(broker.id for broker in brokers if broker.id in alive and broker.id not in leaving)
    load = Counter(dict.fromkeys(homes, 0))
    leads = Counter(dict.fromkeys(homes, 0))
    for replicas in assignment.values():
        load.update(replicas)
        leads.update(replicas[:1])
    plan = {}
    for key, replicas in sorted(assignment.items()):
        if not any(broker in leaving for broker in replicas):
            continue
        if len(replicas) > len({*homes, *replicas} - set(leaving)):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{key[0]}-{key[1]} has {len(replicas)} replicas; without brokers {sorted(leaving)} there are "
                f"not enough for them",
            )
        stay = [broker for broker in replicas if broker not in leaving]
        for _ in range(len(replicas) - len(stay)):
            stay.append(_best_home(homes, stay, racks, load))
            load[stay[-1]] += 1
        if replicas[0] in leaving:
            leader = min(stay, key=lambda broker: (leads[broker], broker not in alive, stay.index(broker)))
            stay.remove(leader)
            stay.insert(0, leader)
            leads[leader] += 1
        plan[key] = tuple(stay)
    return plan


def balance(
    assignment: Assignment, brokers: Sequence[BrokerInfo], alive: Collection[int]
) -> dict[PartitionKey, tuple[int, ...]]:
    """What to reassign so that racks are respected, and replicas and leaders are even among the living.

    Replicas on dead brokers stay where they are. Entries whose order alone changes copy nothing.
    """
    racks = _racks(brokers)
    homes = sorted(broker.id for broker in brokers if broker.id in alive)
    current = {key: list(replicas) for key, replicas in sorted(assignment.items())}
    if homes:
        load = Counter(dict.fromkeys(homes, 0))
        for replicas in current.values():
            load.update(broker for broker in replicas if broker in load)
        _spread_over_racks(current, homes, racks, load)
        _even_replicas(current, homes, racks, load)
        _even_leaders(current, homes)
    return {key: tuple(replicas) for key, replicas in current.items() if tuple(replicas) != assignment[key]}


def _racks(brokers: Iterable[BrokerInfo]) -> dict[int, str]:
    """The rack of each broker; one without a rack is a rack of its own."""
    return {broker.id: f"rack {broker.rack}" if broker.rack else f"broker {broker.id}" for broker in brokers}


def _ring(brokers: Iterable[BrokerInfo]) -> list[int]:
    """Brokers in order, racks taking turns."""
    by_rack: dict[str, list[int]] = {}
    ordered = sorted(brokers, key=lambda broker: broker.id)
    racks = _racks(ordered)
    for broker in ordered:
        by_rack.setdefault(racks[broker.id], []).append(broker.id)
    rows = zip_longest(*by_rack.values())
    return [broker for row in rows for broker in row if broker is not None]


def _crowd(broker: int, others: Iterable[int], racks: Mapping[int, str]) -> int:
    """How many of the others are in this broker's rack."""
    rack = racks.get(broker)
    return sum(racks.get(other) == rack for other in others)


def _fill(
    replicas: list[int],
    candidates: Iterable[int],
    factor: int,
    racks: Mapping[int, str],
    load: Mapping[int, int],
) -> None:
    """Add candidates until there are `factor` replicas; of equals the first."""
    remaining = list(candidates)
    while len(replicas) < factor and remaining:
        best = min(remaining, key=lambda broker: (_crowd(broker, replicas, racks), load[broker]))
        remaining.remove(best)
        replicas.append(best)


def _best_home(
    homes: Iterable[int], replicas: Collection[int], racks: Mapping[int, str], load: Mapping[int, int]
) -> int:
    return min(
        (broker for broker in homes if broker not in replicas),
        key=lambda broker: (_crowd(broker, replicas, racks), load[broker], broker),
    )


def _spread_over_racks(
    current: Mapping[PartitionKey, list[int]],
    homes: Sequence[int],
    racks: Mapping[int, str],
    load: Counter[int],
) -> None:
    """Move replicas that share a rack although another rack has fewer of the partition."""
    for replicas in current.values():
        for position in range(len(replicas) - 1, -1, -1):
            broker = replicas[position]
            others = replicas[:position] + replicas[position + 1 :]
            if broker not in load or all(home in replicas for home in homes):
                continue
            home = _best_home(homes, replicas, racks, load)
            if _crowd(home, others, racks) < _crowd(broker, others, racks):
                replicas[position] = home
                load[broker] -= 1
                load[home] += 1


def _even_replicas(
    current: Mapping[PartitionKey, list[int]],
    homes: Sequence[int],
    racks: Mapping[int, str],
    load: Counter[int],
) -> None:
    """Move replicas from full brokers to empty ones until no move that respects the racks helps."""
    on: dict[int, set[PartitionKey]] = {broker: set() for broker in homes}
    for key, replicas in current.items():
        for broker in replicas:
            if broker in on:
                on[broker].add(key)
    while (move := _helpful_move(current, homes, racks, load, on)) is not None:
        key, full, empty = move
        replicas = current[key]
        replicas[replicas.index(full)] = empty
        on[full].remove(key)
        on[empty].add(key)
        load[full] -= 1
        load[empty] += 1


def _helpful_move(
    current: Mapping[PartitionKey, list[int]],
    homes: Sequence[int],
    racks: Mapping[int, str],
    load: Mapping[int, int],
    on: Mapping[int, set[PartitionKey]],
) -> tuple[PartitionKey, int, int] | None:
    """A partition, the fullest broker that can give it away, and the emptiest that can take it."""
    by_load = sorted(homes, key=lambda broker: (load[broker], broker))
    for full in reversed(by_load):
        for empty in by_load:
            if load[full] - load[empty] < 2:
                break
            for key in sorted(on[full] - on[empty]):
                others = [broker for broker in current[key] if broker != full]
                if _crowd(empty, others, racks) <= _crowd(full, others, racks):
                    return key, full, empty
    return None


def _even_leaders(current: Mapping[PartitionKey, list[int]], homes: Sequence[int]) -> None:
    """Swap preferred leaders with other replicas, in chains where no single swap helps, until leaders are even."""
    leads: dict[int, set[PartitionKey]] = {broker: set() for broker in homes}
    for key, replicas in current.items():
        if replicas[0] in leads:
            leads[replicas[0]].add(key)
    while (chain := _leader_chain(current, homes, leads)) is not None:
        for key, giver, taker in chain:
            replicas = current[key]
            position = replicas.index(taker)
            replicas[0], replicas[position] = replicas[position], replicas[0]
            leads[giver].remove(key)
            leads[taker].add(key)


def _leader_chain(
    current: Mapping[PartitionKey, list[int]], homes: Sequence[int], leads: Mapping[int, set[PartitionKey]]
) -> list[tuple[PartitionKey, int, int]] | None:
    """The shortest way to take one leadership from a broker and give one to another that leads two fewer or less.

    Each step hands one partition on, so that those in between keep their number.
    """
    for giver in sorted(homes, key=lambda broker: (-len(leads[broker]), broker)):
        came_by: dict[int, tuple[PartitionKey, int, int]] = {}
        queue = deque([giver])
        while queue:
            broker = queue.popleft()
            if len(leads[giver]) - len(leads[broker]) >= 2:
                chain = []
                while broker != giver:
                    chain.append(came_by[broker])
                    broker = came_by[broker][1]
                return chain[::-1]
            for key in sorted(leads[broker]):
                for taker in current[key][1:]:
                    if taker in leads and taker != giver and taker not in came_by:
                        came_by[taker] = (key, broker, taker)
                        queue.append(taker)
    return None
