"""What a leader makes of its followers' fetches: high watermark, who is in sync, and what it proposes."""

from __future__ import annotations

import pytest

from culver.core.leader_state import LeaderState

LAG_MS = 30_000


def leader(
    isr: tuple[int, ...] = (1, 2, 3),
    *,
    replicas: tuple[int, ...] = (1, 2, 3),
    min_insync: int = 1,
    end: int = 10,
    high_watermark: int = 10,
    elr: tuple[int, ...] = (),
) -> LeaderState:
    return LeaderState(1, replicas, isr, min_insync, end, high_watermark, 0, elr=elr)


def test_the_high_watermark_is_the_slowest_of_the_isr() -> None:
    state = leader(high_watermark=4)
    assert state.high_watermark(10) == 4
    state.fetched(2, 0, 10, 10, 0)
    assert state.high_watermark(10) == 4
    state.fetched(3, 0, 7, 10, 0)
    assert state.high_watermark(10) == 7


def test_followers_outside_the_isr_hold_nothing_up() -> None:
    state = leader((1, 2))
    state.fetched(2, 0, 12, 12, 0)
    assert state.high_watermark(12) == 12


def test_alone_in_sync_the_leader_s_end_counts() -> None:
    state = leader((1,))
    assert state.high_watermark(15) == 15


def test_a_follower_that_claims_more_than_the_leader_has_moves_nothing_further() -> None:
    state = leader((1, 2))
    state.fetched(2, 0, 99, 12, 0)
    assert state.high_watermark(12) == 12


def test_the_high_watermark_never_goes_back() -> None:
    state = leader((1, 2))
    state.fetched(2, 0, 12, 12, 0)
    assert state.high_watermark(12) == 12
    state.fetched(2, 1, 3, 12, 0)
    state.update((1, 2, 3), (1, 2, 3), 1, 0)
    assert state.high_watermark(12) == 12
    assert state.follower_end_offsets() == {2: 3, 3: -1}


def test_a_high_watermark_beyond_the_log_or_unknown_is_put_right() -> None:
    assert leader(end=5, high_watermark=9).high_watermark(5) == 5
    assert leader(end=5, high_watermark=-1).high_watermark(5) == 0


@pytest.mark.parametrize(("min_insync", "moves"), [(1, True), (2, True), (3, False), (9, False)])
def test_it_moves_only_while_enough_are_in_sync(min_insync: int, moves: bool) -> None:
    state = leader((1, 2), min_insync=min_insync)
    state.fetched(2, 0, 11, 11, 0)
    assert state.below_min is not moves
    assert state.high_watermark(11) == (11 if moves else 10)


def test_no_more_members_are_asked_for_than_there_are_replicas() -> None:
    state = leader((1, 2), replicas=(1, 2), min_insync=3)
    assert not state.below_min


def test_it_stands_still_while_others_are_eligible_whatever_the_minimum() -> None:
    state = leader((1,), min_insync=2, elr=(2,))
    state.set_min_insync(1)
    assert not state.below_min
    assert state.high_watermark(11) == 10
    state.update((1, 2, 3), (1,), 1, 0)
    assert state.high_watermark(11) == 11


def test_a_proposed_member_counts_for_the_high_watermark_but_not_for_the_minimum() -> None:
    state = leader((1,), min_insync=2)
    state.fetched(2, 0, 10, 10, 0)
    isr = state.to_expand(2, 0)
    assert isr == (1, 2)
    state.propose(isr)
    assert state.maximal_isr == (1, 2)
    state.fetched(2, 0, 11, 12, 0)
    assert state.high_watermark(12) == 10
    state.update((1, 2, 3), (1, 2), 2, 0)
    assert state.high_watermark(12) == 11


def test_a_member_that_is_to_leave_counts_until_the_store_has_said_so() -> None:
    state = leader((1, 2))
    state.fetched(2, 0, 10, 10, 0)
    state.propose((1,))
    assert state.maximal_isr == (1, 2)
    assert state.high_watermark(12) == 10
    state.withdraw()
    assert (state.proposed, state.high_watermark(12)) == (None, 10)
    state.propose((1,))
    state.update((1, 2, 3), (1,), 1, 0)
    assert (state.proposed, state.high_watermark(12)) == (None, 12)


def test_a_changed_setting_does_not_end_a_proposal() -> None:
    state = leader((1,))
    state.fetched(2, 0, 10, 10, 0)
    state.propose((1, 2))
    state.set_min_insync(2)
    assert state.proposed == (1, 2)


def test_only_one_proposal_at_a_time() -> None:
    state = leader()
    state.propose((1, 2))
    assert state.to_shrink(99, 1e9, LAG_MS) is None
    assert state.to_expand(3, 0) is None
    with pytest.raises(AssertionError):
        state.propose((1,))


def test_one_that_fell_behind_since_is_not_proposed() -> None:
    state = leader((1,))
    state.fetched(2, 0, 10, 10, 0)
    isr = state.to_expand(2, 0)
    state.high_watermark(11)
    assert isr is not None
    with pytest.raises(AssertionError):
        state.propose(isr)


# --- expanding ---


def test_a_follower_joins_when_it_has_what_was_acknowledged_in_this_epoch_and_before() -> None:
    state = leader((1, 2), end=10, high_watermark=4)
    assert state.epoch_start_offset == 10
    state.fetched(3, 0, 9, 10, 0)
    assert state.to_expand(3, 0) is None  # earlier leaders may have acknowledged the record at 9
    state.fetched(3, 0, 10, 12, 0)
    assert state.to_expand(3, 0) == (1, 2, 3)
    state.fetched(2, 0, 12, 12, 0)
    assert state.high_watermark(12) == 12
    assert state.to_expand(3, 0) is None


def test_a_member_a_stranger_and_a_silent_one_do_not_join() -> None:
    state = leader((1, 2))
    state.fetched(2, 0, 10, 10, 0)
    state.fetched(7, 0, 10, 10, 0)
    assert [state.to_expand(broker, 0) for broker in (1, 2, 3, 7)] == [None] * 4


def test_only_a_fetch_of_the_life_that_the_store_knows_of_counts() -> None:
    state = leader((1, 2))
    state.fetched(3, 4, 10, 10, 0)
    assert state.to_expand(3, 5) is None
    state.fetched(3, 5, 2, 10, 0)
    state.fetched(3, 4, 10, 10, 0)  # late, of the former life
    assert state.follower_end_offsets()[3] == 2
    assert state.to_expand(3, 5) is None
    state.fetched(3, 5, 10, 10, 0)
    assert state.to_expand(3, 5) == (1, 2, 3)


# --- shrinking ---


def test_a_new_leader_gives_everyone_the_whole_time() -> None:
    state = leader()
    assert state.to_shrink(10, LAG_MS, LAG_MS) is None
    assert state.to_shrink(10, LAG_MS + 1, LAG_MS) == (1,)


def test_a_follower_at_the_end_is_in_sync_however_silent() -> None:
    state = leader((1, 2))
    state.fetched(2, 0, 10, 10, 5)
    assert state.to_shrink(10, 10 * LAG_MS, LAG_MS) is None
    assert state.to_shrink(11, 10 * LAG_MS, LAG_MS) == (1,)


def test_one_that_is_always_a_little_behind_keeps_up() -> None:
    state = leader((1, 2))
    for step in range(20):
        state.fetched(2, 0, 10 + step, 11 + step, step * 20_000)
        assert state.to_shrink(11 + step, step * 20_000, LAG_MS) is None


def test_one_that_falls_further_behind_goes_though_it_fetches() -> None:
    state = leader((1, 2))
    for step in range(1, 4):
        state.fetched(2, 0, 10 + step, 100 * step, step * 10_000)
        assert state.to_shrink(100 * step, step * 10_000, LAG_MS) is None
    state.fetched(2, 0, 14, 400, 40_000)
    assert state.to_shrink(400, 40_000, LAG_MS) == (1,)


def test_one_that_comes_back_from_a_restart_has_to_catch_up_within_the_time() -> None:
    state = leader((1, 2))
    state.fetched(2, 0, 10, 10, 1_000)
    state.fetched(2, 1, 3, 20, 20_000)
    assert state.to_shrink(20, 31_000, LAG_MS) is None
    assert state.to_shrink(20, 31_001, LAG_MS) == (1,)


def test_one_that_joins_has_the_whole_time_again() -> None:
    state = leader((1,))
    state.update((1, 2, 3), (1, 2), 1, 50_000)
    assert state.to_shrink(99, 50_000 + LAG_MS, LAG_MS) is None
    assert state.to_shrink(99, 50_001 + LAG_MS, LAG_MS) == (1,)


def test_an_update_keeps_what_is_known_and_forgets_who_is_gone() -> None:
    state = leader()
    state.fetched(2, 0, 9, 10, 0)
    state.fetched(3, 0, 8, 10, 0)
    state.update((1, 2, 4), (1, 2), 1, 0)
    assert state.follower_end_offsets() == {2: 9, 4: -1}
    state.fetched(3, 0, 10, 10, 0)
    assert state.follower_end_offsets() == {2: 9, 4: -1}
