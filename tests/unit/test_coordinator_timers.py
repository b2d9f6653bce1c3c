"""The timer queue: it fires on time, once, and moving a timer costs no heap entry."""

from __future__ import annotations

from functools import partial

from hypothesis import given
from hypothesis import strategies as st

from culver.core.coordinator_effects import Effects
from culver.core.coordinator_timers import Timer, TimerQueue


def test_a_timer_fires_once_when_its_time_has_come() -> None:
    queue, timer, fired = TimerQueue(), Timer(), []
    queue.schedule(timer, 10, lambda now_ms, out: fired.append(now_ms))
    queue.expire(9, [])
    assert (fired, queue.next_deadline_ms()) == ([], 10)
    queue.expire(12, [])
    queue.expire(99, [])
    assert (fired, queue.next_deadline_ms()) == ([12], None)


def test_a_timer_that_is_moved_a_million_times_is_one_heap_entry() -> None:
    queue, timer, fired = TimerQueue(), Timer(), []
    queue.schedule(timer, 10, lambda now_ms, out: fired.append(now_ms))
    for deadline_ms in range(11, 1_000):
        queue.move(timer, deadline_ms)
    assert len(queue._heap) == 1
    queue.expire(998, [])
    assert fired == []
    queue.expire(999, [])
    assert fired == [999]


def test_a_cancelled_timer_does_not_fire_and_can_be_set_again() -> None:
    queue, timer, fired = TimerQueue(), Timer(), []
    queue.schedule(timer, 10, lambda now_ms, out: fired.append(now_ms))
    timer.cancel()
    assert queue.next_deadline_ms() is None
    queue.expire(20, [])
    queue.move(timer, 30)
    queue.expire(30, [])
    assert fired == [30]


def test_a_timer_may_be_set_again_while_it_fires() -> None:
    queue, timer, fired = TimerQueue(), Timer(), []

    def fire(now_ms: float, out: Effects) -> None:
        fired.append(now_ms)
        if len(fired) < 3:
            queue.move(timer, now_ms + 10)

    queue.schedule(timer, 10, fire)
    for now_ms in (10, 20, 30, 40):
        queue.expire(now_ms, [])
    assert fired == [10, 20, 30]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(-5, 40) | st.none()), max_size=60))
def test_timers_fire_as_if_each_were_looked_at_every_millisecond(steps: list[tuple[int, int | None]]) -> None:
    """Against a model: steps set timer i to now + d, cancel it (None), with a millisecond between them."""
    queue = TimerQueue()
    timers = [Timer() for _ in range(4)]
    fired: list[tuple[int, int]] = []
    expected: list[tuple[int, int]] = []
    deadlines: dict[int, int] = {}

    def fire(index: int, now_ms: float, out: Effects) -> None:
        fired.append((int(now_ms), index))

    for now_ms, (index, delta) in enumerate(steps + [(0, None)] * 60, 1):
        if delta is None:
            timers[index].cancel()
            deadlines.pop(index, None)
        else:
            deadlines[index] = now_ms - 1 + delta
            queue.schedule(timers[index], deadlines[index], partial(fire, index))
        queue.expire(now_ms, [])
        for i in sorted(i for i, deadline in deadlines.items() if deadline <= now_ms):
            expected.append((now_ms, i))
            del deadlines[i]
        due = queue.next_deadline_ms()
        assert due is None or due > now_ms
        assert (due is None) == (not deadlines)
    assert sorted(fired) == sorted(expected)
