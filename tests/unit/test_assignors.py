"""What assignors promise: every partition to one subscriber, evenly, and few moves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from culver.core.assignors import ASSIGNORS, Assignment, Subscriber

Counts = dict[bytes, int]

few = settings(max_examples=25)

counts = st.dictionaries(st.sampled_from([b"a", b"b", b"c", b"d"]), st.integers(1, 7), min_size=1)
names = st.lists(st.text("mno", min_size=1, max_size=3), min_size=1, max_size=6, unique=True)


@st.composite
def groups(draw: st.DrawFn, alike: bool | None = None) -> tuple[list[Subscriber], Counts]:
    """Members with subscriptions of their own (or all the same), some of whom have something already."""
    topics = draw(counts)
    everything = frozenset(topics)
    left = [(topic, index) for topic, count in topics.items() for index in range(count + 1)]
    same = draw(st.booleans()) if alike is None else alike
    members = []
    for name in draw(names):
        wanted = everything if same else draw(st.frozensets(st.sampled_from(sorted(topics))))
        held: dict[bytes, set[int]] = {}
        for topic, index in draw(st.lists(st.sampled_from(left), unique=True)) if left else ():
            held.setdefault(topic, set()).add(index)
            left.remove((topic, index))
        members.append(
            Subscriber(
                name,
                draw(st.none() | st.just(f"i-{name}")),
                wanted,
                {topic: frozenset(indexes) for topic, indexes in held.items()},
            )
        )
    return members, topics


def pairs(assignment: Assignment) -> set[tuple[bytes, int]]:
    return {(topic, index) for topic, indexes in assignment.items() for index in indexes}


@few
@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_that_someone_wants_goes_to_one_who_wants_it(
    group: tuple[list[Subscriber], Counts], assignor: str
) -> None:
    members, topics = group
    result = ASSIGNORS[assignor](members, topics)
    assert set(result) == {member.member_id for member in members}
    given_out = Counter(pair for assignment in result.values() for pair in pairs(assignment))
    wanted = {topic for member in members for topic in member.topics}
    assert given_out == Counter((topic, index) for topic in wanted for index in range(topics[topic]))
    for member in members:
        assert set(result[member.member_id]) <= member.topics
        assert all(result[member.member_id].values()), "no empty sets"


@few
@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_the_order_of_members_plays_no_role(group: tuple[list[Subscriber], Counts], assignor: str) -> None:
    members, topics = group
    assert ASSIGNORS[assignor](members, topics) == ASSIGNORS[assignor](members[::-1], topics)


@few
@given(groups(alike=True))
def test_members_that_want_the_same_get_the_same_number(group: tuple[list[Subscriber], Counts]) -> None:
    members, topics = group
    sizes = [len(pairs(assignment)) for assignment in ASSIGNORS["uniform"](members, topics).values()]
    assert max(sizes) - min(sizes) <= 1


@few
@given(groups())
def test_no_single_move_makes_two_members_more_equal(group: tuple[list[Subscriber], Counts]) -> None:
    members, topics = group
    result = ASSIGNORS["uniform"](members, topics)
    wants = {member.member_id: member.topics for member in members}
    for assignment in result.values():
        for poor, other in result.items():
            if len(pairs(assignment)) - len(pairs(other)) >= 2:
                assert not set(assignment) & wants[poor]


@few
@given(groups())
def test_a_settled_assignment_stays(group: tuple[list[Subscriber], Counts]) -> None:
    members, topics = group
    once = ASSIGNORS["uniform"](members, topics)
    again = [member._replace(held=once[member.member_id]) for member in members]
    assert ASSIGNORS["uniform"](again, topics) == once


@few
@given(groups(alike=True))
def test_only_as_much_moves_as_must(group: tuple[list[Subscriber], Counts]) -> None:
    members, topics = group
    result = ASSIGNORS["uniform"](members, topics)
    total = sum(topics.values())
    share, larger = divmod(total, len(members))
    valid = {(topic, index) for topic, count in topics.items() for index in range(count)}
    had = {member.member_id: pairs(member.held) & valid for member in members}
    kept = sum(len(had[name] & pairs(assignment)) for name, assignment in result.items())
    # The most that any even assignment could leave in place.
    sizes = sorted((len(partitions) for partitions in had.values()), reverse=True)
    best = sum(min(size, share + (place < larger)) for place, size in enumerate(sizes))
    assert kept == best


def test_ranges_are_contiguous_and_static_members_come_first() -> None:
    nothing: Assignment = {}
    topics = frozenset({b"a", b"b"})
    members = [
        Subscriber("z", "first", topics, nothing),
        Subscriber("a", None, topics, nothing),
        Subscriber("b", None, frozenset({b"a"}), nothing),
    ]
    assert ASSIGNORS["range"](members, {b"a": 7, b"b": 2}) == {
        "z": {b"a": frozenset({0, 1, 2}), b"b": frozenset({0})},
        "a": {b"a": frozenset({3, 4}), b"b": frozenset({1})},
        "b": {b"a": frozenset({5, 6})},
    }


def test_the_partitions_of_a_topic_spread_over_the_members() -> None:
    topics = frozenset({b"a", b"b"})
    members = [Subscriber(name, None, topics, {}) for name in "mn"]
    assert ASSIGNORS["uniform"](members, {b"a": 2, b"b": 2}) == {
        "m": {b"a": frozenset({0}), b"b": frozenset({0})},
        "n": {b"a": frozenset({1}), b"b": frozenset({1})},
    }


def test_nobody_and_nothing() -> None:
    for assign in ASSIGNORS.values():
        assert assign([], {}) == {}
        assert assign([Subscriber("m", None, frozenset(), {})], {}) == {"m": {}}
