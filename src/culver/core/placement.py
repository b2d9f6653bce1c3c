"""On which brokers replicas live: for new partitions, to empty a broker, and to even out the load.

The wishes, in this order: the replicas of a partition are in as many racks as there are; every broker has about as
many replicas as the next, also of each topic; and about as many preferred leaders (the first of a partition's list).
Plans move as few replicas as they can, since each move copies a partition.
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
    load = _Load(assignment)
    after = {key: list(replicas) for key, replicas in sorted(assignment.items())}
    without_leader = set()
    for key, replicas in sorted(assignment.items()):
        stay = [broker for broker in replicas if broker not in leaving]
        if len(stay) == len(replicas):
            continue
        if len({*homes, *stay}) < len(replicas):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{key[0]}-{key[1]} has {len(replicas)} replicas; without "
                f"{', '.join(f'broker {broker}' for broker in sorted(leaving))} there are not enough brokers for them",
            )
        while len(stay) < len(replicas):
            home = load.best_home(key, homes, stay, racks)
            stay.append(home)
            load.add(key, home)
        if replicas[0] in leaving:
            leader = min(stay, key=lambda broker: (broker not in alive, load.leaders[broker]))
            stay.remove(leader)
            stay.insert(0, leader)
            load.leaders[leader] += 1
            without_leader.add(key)
        after[key] = stay
    _even_leaders(after, homes, without_leader)
    return _changes(assignment, after)


def balance(
    assignment: Assignment, brokers: Sequence[BrokerInfo], alive: Collection[int]
) -> dict[PartitionKey, tuple[int, ...]]:
    """What to reassign so that racks are respected, and replicas and leaders are even among the living.

    Replicas on dead brokers stay where they are. Entries whose order alone changes copy nothing.
    """
    racks = _racks(brokers)
    homes = sorted(broker.id for broker in brokers if broker.id in alive)
    current = {key: list(replicas) for key, replicas in sorted(assignment.items())}
    load = _Load(current)
    _spread_over_racks(current, homes, racks, load)
    _even_replicas(current, homes, racks, load)
    _even_leaders(current, homes, current)
    return _changes(assignment, current)


def _changes(
    before: Assignment, after: Mapping[PartitionKey, Sequence[int]]
) -> dict[PartitionKey, tuple[int, ...]]:
    return {key: tuple(replicas) for key, replicas in after.items() if tuple(replicas) != before[key]}


class _Load:
    """What each broker has to carry."""

    def __init__(self, assignment: Mapping[PartitionKey, Sequence[int]]) -> None:
        self.replicas: Counter[int] = Counter()
        self.leaders: Counter[int] = Counter()
        # By broker and topic; dictionaries, since their order is the same every time.
        self.held: dict[int, dict[str, dict[PartitionKey, None]]] = {}
        for key, replicas in assignment.items():
            for broker in replicas:
                self.add(key, broker)
            self.leaders[replicas[0]] += 1

    def add(self, key: PartitionKey, broker: int) -> None:
        self.replicas[broker] += 1
        self.held.setdefault(broker, {}).setdefault(key[0], {})[key] = None

    def remove(self, key: PartitionKey, broker: int) -> None:
        self.replicas[broker] -= 1
        del self.held[broker][key[0]][key]

    def of_topic(self, broker: int, topic: str) -> int:
        return len(self.held.get(broker, {}).get(topic, ()))

    def best_home(
        self, key: PartitionKey, homes: Iterable[int], replicas: Collection[int], racks: Mapping[int, str]
    ) -> int:
        """Where one more replica of a partition is best kept."""
        return min(
            (broker for broker in homes if broker not in replicas),
            key=lambda broker: (
                _crowd(broker, replicas, racks),
                self.replicas[broker],
                self.of_topic(broker, key[0]),
                broker,
            ),
        )


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


def _spread_over_racks(
    current: Mapping[PartitionKey, list[int]], homes: Sequence[int], racks: Mapping[int, str], load: _Load
) -> None:
    """Move replicas that share a rack although another rack has fewer of the partition."""
    for key, replicas in current.items():
        for position in range(len(replicas) - 1, -1, -1):
            broker = replicas[position]
            if broker not in homes or set(homes) <= set(replicas):
                continue
            others = replicas[:position] + replicas[position + 1 :]
            home = load.best_home(key, homes, replicas, racks)
            if _crowd(home, others, racks) < _crowd(broker, others, racks):
                replicas[position] = home
                load.remove(key, broker)
                load.add(key, home)


def _even_replicas(
    current: Mapping[PartitionKey, list[int]], homes: Sequence[int], racks: Mapping[int, str], load: _Load
) -> None:
    """Move replicas from full brokers to empty ones until no move that respects the racks helps."""
    # Pairs between which nothing could be moved. That rarely changes, and to see it takes a look at everything.
    hopeless: set[tuple[int, int]] = set()
    moved = False
    while True:
        move = _helpful_move(current, homes, racks, load, hopeless)
        if move is not None:
            key, full, empty = move
            replicas = current[key]
            replicas[replicas.index(full)] = empty
            load.remove(key, full)
            load.add(key, empty)
            moved = True
        elif hopeless and moved:
            hopeless.clear()
            moved = False
        else:
            return


def _helpful_move(
    current: Mapping[PartitionKey, list[int]],
    homes: Sequence[int],
    racks: Mapping[int, str],
    load: _Load,
    hopeless: set[tuple[int, int]],
) -> tuple[PartitionKey, int, int] | None:
    """A partition, the fullest broker that can give it away, and the emptiest that can take it."""
    by_load = sorted(homes, key=lambda broker: (load.replicas[broker], broker))
    for full in reversed(by_load):
        for empty in by_load:
            if load.replicas[full] - load.replicas[empty] < 2:
                break
            if (full, empty) not in hopeless:
                key = _movable(current, racks, load, full, empty)
                if key is not None:
                    return key, full, empty
                hopeless.add((full, empty))
    return None


def _movable(
    current: Mapping[PartitionKey, list[int]], racks: Mapping[int, str], load: _Load, full: int, empty: int
) -> PartitionKey | None:
    """A partition that can go from one to the other, of the topic that is the most uneven between the two."""
    held = load.held[full]
    for topic in sorted(held, key=lambda topic: load.of_topic(empty, topic) - len(held[topic])):
        for key in held[topic]:
            if empty in current[key]:
                continue
            others = [broker for broker in current[key] if broker != full]
            if _crowd(empty, others, racks) <= _crowd(full, others, racks):
                return key
    return None


def _even_leaders(
    current: Mapping[PartitionKey, list[int]], homes: Sequence[int], movable: Collection[PartitionKey]
) -> None:
    """Swap preferred leaders with other replicas, in chains where no single swap helps, until leaders are even."""
    led: dict[int, dict[PartitionKey, None]] = {broker: {} for broker in homes}
    for key, replicas in current.items():
        if replicas[0] in led:
            led[replicas[0]][key] = None
    while (chain := _leader_chain(current, led, movable)) is not None:
        for key, giver, taker in chain:
            replicas = current[key]
            position = replicas.index(taker)
            replicas[0], replicas[position] = replicas[position], replicas[0]
            del led[giver][key]
            led[taker][key] = None


def _leader_chain(
    current: Mapping[PartitionKey, list[int]],
    led: Mapping[int, Mapping[PartitionKey, None]],
    movable: Collection[PartitionKey],
) -> list[tuple[PartitionKey, int, int]] | None:
    """The shortest way to take one leadership from a broker and give one to another that leads two fewer or less.

    Each step hands one partition on, so that those in between keep their number.
    """
    fewest = min(map(len, led.values()), default=0)
    for giver in sorted(led, key=lambda broker: (-len(led[broker]), broker)):
        if len(led[giver]) - fewest < 2:
            return None
        came_by: dict[int, tuple[PartitionKey, int, int]] = {}
        queue = deque([giver])
        while queue:
            broker = queue.popleft()
            if len(led[giver]) - len(led[broker]) >= 2:
                chain = []
                while broker != giver:
                    chain.append(came_by[broker])
                    broker = came_by[broker][1]
                return chain[::-1]
            for key in led[broker]:
                if key not in movable:
                    continue
                for taker in current[key][1:]:
                    if taker in led and taker != giver and taker not in came_by:
                        came_by[taker] = (key, broker, taker)
                        queue.append(taker)
    return None
