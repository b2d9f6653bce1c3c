"""Positions and the names of records survive being written as text, and nothing else is taken for one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.push import positions

TOPICS = st.text(alphabet="abz019._-", min_size=1, max_size=6)
PLACES = st.builds(TopicPartition, TOPICS, st.integers(0, 12))
OFFSETS = st.integers(0, positions.OFFSET_MAX)


@given(st.dictionaries(PLACES, OFFSETS, min_size=1, max_size=20))
def test_positions_come_back_as_they_were(places: dict[TopicPartition, int]) -> None:
    assert positions.decode(positions.encode(places)) == places


@given(st.dictionaries(PLACES, OFFSETS, min_size=1, max_size=20), st.data())
def test_the_text_around_one_position_is_that_of_all(
    places: dict[TopicPartition, int], data: st.DataObject
) -> None:
    place = data.draw(st.sampled_from(sorted(places)))
    before, after = positions.around(places, place)
    assert f"{before}{places[place]}{after}" == positions.encode(places)


def test_positions_are_short_and_can_be_read() -> None:
    both = {TopicPartition("orders", 0): 17, TopicPartition("orders", 1): 4}
    assert positions.encode(both) == "orders:17,4"
    apart = {**both, TopicPartition("orders", 7): 9, TopicPartition("logs", 3): 0}
    assert positions.encode(apart) == "logs:3=0;orders:17,4,7=9"


@pytest.mark.parametrize(
    "text",
    [
        *(
            "",
            "orders",
            "orders:",
            "orders:x",
            "orders:-1",
            "orders:1,",
            ":1",
            "orders:1;",
            "orders:1;orders:2",
        ),
        *("orders:0=1,0=2", "or ders:1", "orders:=1", "orders:1=", "orders:1==2", "orders:" + "9" * 20),
        *("orders:٣", "orders:1_0", "orders:" + "1," * positions.TEXT_MAX),
    ],
)
def test_what_names_no_positions_is_refused(text: str) -> None:
    with pytest.raises(positions.BadPosition):
        positions.decode(text)


@given(PLACES, OFFSETS)
def test_the_name_of_a_record_comes_back_as_it_was(place: TopicPartition, offset: int) -> None:
    assert positions.decode_record_id(positions.record_id(place, offset)) == (place, offset)


@pytest.mark.parametrize("text", ["", "orders", "orders:0", "orders:0:", "orders::1", "orders:0:1:2", ":0:1"])
def test_what_names_no_record_is_refused(text: str) -> None:
    with pytest.raises(positions.BadPosition):
        positions.decode_record_id(text)
