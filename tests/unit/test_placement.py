"""Where replicas go: racks first, then evenness, and plans that move little."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culver.core.image import BrokerInfo
from culver.core.placement import PartitionKey, balance, drain, place
from culver.errors import ErrorCode, KafkaError

Replicas = Mapping[PartitionKey, tuple[int, ...]]


def brokers(*racks: str | None) -> list[BrokerInfo]:
    return [BrokerInfo(number, "host", 9092, rack) for number, rack in enumerate(racks)]


def spread(counts: Mapping[int, int], homes: Iterable[int]) -> int:
    numbers = [counts[broker] for broker in homes]
    return max(numbers) - min(numbers)


def replica_counts(assignment: Iterable[tuple[int, ...]]) -> Counter[int]:
    return Counter(broker for replicas in assignment for broker in replicas)


def leader_counts(assignment: Iterable[tuple[int, ...]]) -> Counter[int]:
    return Counter(replicas[0] for replicas in assignment)


def crowding(replicas: tuple[int, ...], known: list[BrokerInfo]) -> list[int]:
    """How many replicas are in each rack that has some; a broker without a rack is one of its own."""
    racks = {broker.id: broker.rack or broker.id for broker in known}
    return sorted(Counter(racks[broker] for broker in replicas).values(), reverse=True)


def best_crowding(factor: int, known: list[BrokerInfo]) -> list[int]:
    """The same for replicas put in one rack after the other."""
    sizes = list(Counter(broker.rack or broker.id for broker in known).values())
    filled = [0] * len(sizes)
    for _ in range(factor):
        rack = min((rack for rack in range(len(sizes)) if filled[rack] < sizes[rack]), key=filled.__getitem__)
        filled[rack] += 1
    return sorted((count for count in filled if count), reverse=True)


def applied(before: Replicas, plan: Replicas) -> dict[PartitionKey, tuple[int, ...]]:
    return {**before, **plan}


def moves(before: Replicas, plan: Replicas) -> int:
    """How many replicas are copied."""
    return sum(len(set(replicas) - set(before[key])) for key, replicas in plan.items())


# --- new partitions ---


def test_leaders_go_round_and_followers_shift_each_time_round() -> None:
    assert place(brokers(None, None, None), {0, 1, 2}, 6, 2, first=0) == [
        (0, 1),
        (1, 2),
        (2, 0),
        (0, 2),
        (1, 0),
        (2, 1),
    ]


def test_where_it_begins_is_the_caller_s_choice() -> None:
    known = brokers(None, None, None)
    assert place(known, {0, 1, 2}, 2, 2, first=4) == place(known, {0, 1, 2}, 6, 2, first=0)[4:]


def test_racks_take_turns() -> None:
    known = brokers("a", "a", "b", "b", "c", "c")
    assert place(known, set(range(6)), 3, 3, first=0) == [(0, 2, 4), (2, 1, 5), (4, 3, 1)]


def test_the_dead_are_used_only_when_the_living_are_too_few_and_never_lead() -> None:
    known = brokers(None, None, None, None)
    assert all(3 not in replicas for replicas in place(known, {0, 1, 2}, 8, 3, first=0))
    placed = place(known, {0, 1}, 4, 3, first=0)
    assert all(replicas[0] in {0, 1} and {0, 1} < set(replicas) for replicas in placed)
    assert place(known, set(), 1, 2, first=0) == [(0, 1)]


@pytest.mark.parametrize("factor", [0, -1, 4])
def test_a_factor_that_cannot_be_met_is_refused(factor: int) -> None:
    with pytest.raises(KafkaError) as refused:
        place(brokers(None, None, None), {0, 1, 2}, 1, factor, first=0)
    assert refused.value.code is ErrorCode.INVALID_REPLICATION_FACTOR


clusters = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=9).map(
    lambda racks: brokers(*racks)
)


@given(clusters, st.data())
def test_new_partitions_are_spread_over_brokers_and_racks(
    known: list[BrokerInfo], data: st.DataObject
) -> None:
    factor = data.draw(st.integers(1, len(known)))
    count = data.draw(st.integers(1, 40))
    everyone = {broker.id for broker in known}
    placed = place(known, everyone, count, factor, first=data.draw(st.integers(0, 100)))
    assert len(placed) == count
    assert spread(leader_counts(placed), everyone) <= 1
    for replicas in placed:
        assert len(set(replicas)) == factor
        assert crowding(replicas, known) == best_crowding(factor, known)


@given(st.integers(1, 4), st.integers(1, 4), st.data())
def test_replicas_are_even_where_racks_are_of_one_size(racks: int, size: int, data: st.DataObject) -> None:
    known = brokers(*(f"rack-{number % racks}" for number in range(racks * size)))
    everyone = set(range(len(known)))
    factor = data.draw(st.integers(1, len(known)))
    placed = place(known, everyone, data.draw(st.integers(1, 60)), factor, first=0)
    assert spread(replica_counts(placed), everyone) <= 2


# --- plans ---


@st.composite
def assignments(draw: st.DrawFn) -> tuple[list[BrokerInfo], Replicas]:
    known = draw(clusters)
    numbers = [broker.id for broker in known]
    held = {}
    for topic in ("t", "u"):
        factor = draw(st.integers(1, min(3, len(known))))
        for index in range(draw(st.integers(0, 8))):
            held[topic, index] = tuple(draw(st.permutations(numbers))[:factor])
    return known, held


def test_a_new_broker_gets_its_share_and_nothing_else_moves() -> None:
    known = brokers(None, None, None, None)
    before = {
        (topic, index): replicas
        for topic in ("t", "u")
        for index, replicas in enumerate(place(known[:3], {0, 1, 2}, 12, 2, first=0))
    }
    plan = balance(before, known, {0, 1, 2, 3})
    after = applied(before, plan)
    assert replica_counts(after.values()) == {0: 12, 1: 12, 2: 12, 3: 12}
    assert leader_counts(after.values()) == {0: 6, 1: 6, 2: 6, 3: 6}
    assert moves(before, plan) == 12
    # Of both topics as many.
    assert Counter(topic for (topic, _), replicas in after.items() if 3 in replicas) == {"t": 6, "u": 6}


def test_what_is_even_stays() -> None:
    known = brokers("a", "b", "c")
    before = {("t", index): replicas for index, replicas in enumerate(place(known, {0, 1, 2}, 9, 2, first=0))}
    assert balance(before, known, {0, 1, 2}) == {}


def test_leaders_are_evened_out_in_chains_without_copying() -> None:
    before = {("t", 0): (0, 1), ("t", 1): (0, 1), ("t", 2): (1, 2), ("t", 3): (1, 2), ("u", 0): (0, 1)}
    before |= {("u", 1): (2, 0)}
    known = brokers(None, None, None)
    plan = balance(before, known, {0, 1, 2})
    assert spread(leader_counts(applied(before, plan).values()), range(3)) == 0


def test_replicas_that_share_a_rack_are_parted() -> None:
    known = brokers("a", "a", "b", "b")
    plan = balance({("t", 0): (0, 1), ("t", 1): (2, 3)}, known, {0, 1, 2, 3})
    assert all(crowding(replicas, known) == [1, 1] for replicas in plan.values())
    assert len(plan) == 2


def test_replicas_on_dead_brokers_stay() -> None:
    known = brokers(None, None, None)
    before = {("t", index): (2, 0) for index in range(4)}
    plan = balance(before, known, {0, 1})
    after = applied(before, plan)
    assert all(2 in replicas for replicas in after.values())
    assert replica_counts(after.values()) == {2: 4, 0: 2, 1: 2}


@given(assignments(), st.data())
def test_a_balanced_cluster_is_balanced(case: tuple[list[BrokerInfo], Replicas], data: st.DataObject) -> None:
    known, before = case
    alive = {broker.id for broker in known if data.draw(st.booleans())}
    plan = balance(before, known, alive)
    after = applied(before, plan)
    for key, replicas in plan.items():
        assert len(set(replicas)) == len(before[key]) == len(replicas)
        assert set(replicas) - set(before[key]) <= alive
        assert set(before[key]) - set(replicas) <= alive
        assert len(crowding(replicas, known)) >= len(crowding(before[key], known))
        if alive == {broker.id for broker in known}:
            assert crowding(replicas, known) == best_crowding(len(replicas), known)
    leaders = leader_counts(after.values())
    for replicas in after.values():
        for other in set(replicas) & alive:
            assert replicas[0] not in alive or leaders[replicas[0]] - leaders[other] < 2
    if all(broker.rack is None for broker in known) and alive:
        assert spread(replica_counts(after.values()), alive) <= 1
    # A balanced cluster is left alone.
    assert balance(after, known, alive) == {}


@given(st.integers(1, 6), st.lists(st.integers(0, 5), max_size=30))
def test_no_more_is_moved_than_must_be(count: int, places: list[int]) -> None:
    known = brokers(*[None] * count)
    before = {("t", index): (broker % count,) for index, broker in enumerate(places)}
    plan = balance(before, known, set(range(count)))
    held = sorted(
        (Counter(broker % count for broker in places) + Counter())[broker] for broker in range(count)
    )
    least, rest = divmod(len(places), count)
    wanted = sorted([least] * (count - rest) + [least + 1] * rest)
    assert moves(before, plan) == sum(max(0, has - wants) for has, wants in zip(held, wanted, strict=True))


@given(assignments(), st.data())
def test_a_drained_broker_is_empty_and_nobody_else_is_bothered(
    case: tuple[list[BrokerInfo], Replicas], data: st.DataObject
) -> None:
    known, before = case
    leaving = {data.draw(st.sampled_from(known)).id}
    alive = {broker.id for broker in known}
    if any(len(replicas) > len(known) - 1 for replicas in before.values() if leaving & set(replicas)):
        with pytest.raises(KafkaError):
            drain(before, known, alive, leaving)
        return
    plan = drain(before, known, alive, leaving)
    assert plan.keys() == {key for key, replicas in before.items() if leaving & set(replicas)}
    for key, replicas in plan.items():
        assert not leaving & set(replicas)
        assert len(set(replicas)) == len(replicas) == len(before[key])
        assert set(before[key]) - leaving <= set(replicas)
        if before[key][0] not in leaving:
            assert replicas[0] == before[key][0]


def test_a_drained_broker_s_replicas_and_leaderships_go_to_where_there_is_least() -> None:
    known = brokers("a", "b", "c", "a")
    before = {
        ("t", index): replicas for index, replicas in enumerate(place(known, set(range(4)), 12, 2, first=0))
    }
    after = applied(before, drain(before, known, {0, 1, 2, 3}, {3}))
    assert spread(leader_counts(after.values()), (0, 1, 2)) <= 1
    assert all(crowding(replicas, known) == [1, 1] for replicas in after.values())


def test_a_dead_broker_can_be_drained_and_the_dead_take_nothing() -> None:
    known = brokers(None, None, None, None)
    before = {("t", 0): (0, 1), ("t", 1): (2, 0)}
    plan = drain(before, known, {1, 2}, {0})
    assert plan == {("t", 0): (1, 2), ("t", 1): (2, 1)}
