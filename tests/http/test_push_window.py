"""A window never commits past a record without an acknowledgement, never overdraws credits, and forgets nothing."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.push.window import UNLIMITED, Window

ORDERS = TopicPartition("orders", 0)
LOGS = TopicPartition("logs", 0)


def window_with(offsets: dict[TopicPartition, list[int]], credits: int = 100) -> Window:
    window = Window(credits)
    for partition, sent in offsets.items():
        window.assign(partition, 0)
        window.sent(partition, sent, sent[-1] + 1)
    return window


def test_what_is_committed_waits_for_the_first_record_without_an_acknowledgement() -> None:
    window = window_with({ORDERS: [0, 1, 2]})
    assert window.to_commit() == {ORDERS: 0}
    window.acknowledge(ORDERS, 1)
    window.acknowledge(ORDERS, 2)
    assert window.to_commit() == {ORDERS: 0}
    window.acknowledge(ORDERS, 0)
    assert window.to_commit() == {ORDERS: 3}
    window.committed({ORDERS: 3})
    assert window.to_commit() == {}


def test_gaps_between_offsets_and_after_the_last_do_not_hold_a_commit_back() -> None:
    window = Window(10)
    window.assign(ORDERS, 0)
    window.sent(ORDERS, [3, 7], 12)
    window.acknowledge(ORDERS, 3)
    assert window.to_commit() == {ORDERS: 7}
    window.acknowledge(ORDERS, 7)
    assert window.to_commit() == {ORDERS: 12}


def test_a_record_takes_a_credit_until_it_is_acknowledged_or_refused() -> None:
    window = window_with({ORDERS: [0, 1, 2]}, credits=3)
    assert window.room == 0
    assert window.acknowledge(ORDERS, 1)
    assert not window.acknowledge(ORDERS, 1), "a second acknowledgement gives no second credit"
    assert window.room == 1
    assert window.refuse(ORDERS, 0, due_ms=0)
    window.grant(5)
    assert window.room == 7


def test_without_acknowledgements_credits_are_only_what_was_granted() -> None:
    window = Window(2, acknowledged_by_hand=False)
    window.assign(ORDERS, 0)
    window.sent(ORDERS, [0, 1], 2)
    assert (window.room, window.in_hand) == (0, 0)
    assert window.to_commit() == {ORDERS: 2}
    window.grant(1)
    assert window.room == 1


def test_acknowledging_up_to_a_record_means_all_that_were_sent_before_it() -> None:
    window = Window(10)
    window.assign(ORDERS, 0)
    window.assign(LOGS, 0)
    window.sent(ORDERS, [0, 1], 2)
    window.sent(LOGS, [0], 1)
    window.sent(ORDERS, [2], 3)
    assert window.acknowledge_up_to(LOGS, 0) == 3
    assert window.to_commit() == {ORDERS: 2, LOGS: 1}
    assert window.acknowledge_up_to(LOGS, 0) == 0


def test_acknowledging_below_positions_ignores_partitions_of_others() -> None:
    window = window_with({ORDERS: [0, 1, 2]})
    assert window.acknowledge_below({ORDERS: 2, LOGS: 100}) == 2
    assert window.to_commit() == {ORDERS: 2}
    assert window.acknowledge_below({ORDERS: 1}) == 0


def test_a_refused_record_is_due_after_its_delay_and_holds_the_commit_back() -> None:
    window = window_with({ORDERS: [0, 1]})
    window.refuse(ORDERS, 0, due_ms=500)
    window.acknowledge(ORDERS, 1)
    assert window.to_commit() == {ORDERS: 0}
    assert window.due(499) is None
    assert window.due(500) == (ORDERS, 0)
    assert window.sent_again(ORDERS, 0) == 2
    assert window.due(500) is None
    window.acknowledge(ORDERS, 0)
    assert window.to_commit() == {ORDERS: 2}


def test_what_was_given_up_is_not_acknowledged_any_more() -> None:
    window = window_with({ORDERS: [0, 1], LOGS: [0]}, credits=3)
    window.refuse(ORDERS, 1, due_ms=0)
    window.revoke(ORDERS)
    assert not window.acknowledge(ORDERS, 0)
    assert window.due(1) is None
    assert window.room == 2
    assert window.to_commit() == {LOGS: 0}


def test_a_seek_forgets_what_was_sent_and_commits_from_the_new_place() -> None:
    window = window_with({ORDERS: [5, 6]}, credits=2)
    window.seek(ORDERS, 1)
    assert window.room == 2
    assert window.to_commit() == {ORDERS: 1}
    window.sent(ORDERS, [1], 2)
    window.acknowledge(ORDERS, 1)
    assert window.to_commit() == {ORDERS: 2}


def test_many_refusals_that_come_to_nothing_are_not_remembered() -> None:
    window = window_with({ORDERS: list(range(10_000))}, credits=20_000)
    for offset in range(10_000):
        window.refuse(ORDERS, offset, due_ms=1e12)
        window.acknowledge(ORDERS, offset)
    assert len(window._waiting) < 100
    assert window.next_due_ms is None


class AnyOrder(RuleBasedStateMachine):
    """Everything that may happen to a window, next to a model that is slow and plain."""

    @initialize(credits=st.integers(0, 5))
    def begin(self, credits: int) -> None:
        self.window = Window(credits)
        self.granted = credits
        self.now_ms = 0
        self.sent: dict[TopicPartition, list[int]] = {}
        self.done: set[tuple[TopicPartition, int]] = set()
        self.refused: set[tuple[TopicPartition, int]] = set()

    def unacknowledged(self) -> set[tuple[TopicPartition, int]]:
        return {(place, offset) for place, sent in self.sent.items() for offset in sent} - self.done

    @rule(place=st.sampled_from([ORDERS, LOGS]), position=st.integers(0, 3))
    def assign(self, place: TopicPartition, position: int) -> None:
        if place not in self.window:
            self.window.assign(place, position)
            self.sent[place] = []

    @rule(place=st.sampled_from([ORDERS, LOGS]))
    def revoke(self, place: TopicPartition) -> None:
        self.window.revoke(place)
        self.sent.pop(place, None)
        self.done = {entry for entry in self.done if entry[0] != place}
        self.refused = {entry for entry in self.refused if entry[0] != place}

    @rule(gaps=st.lists(st.integers(0, 2), max_size=4), after=st.integers(0, 2), data=st.data())
    def send(self, gaps: list[int], after: int, data: st.DataObject) -> None:
        if not self.sent:
            return
        place = data.draw(st.sampled_from(sorted(self.sent)))
        offsets, position = [], self.window.positions[place]
        for gap in gaps[: self.window.room]:
            offsets.append(position + gap)
            position += gap + 1
        self.window.sent(place, offsets, position + after)
        self.sent[place] += offsets

    @rule(credits=st.integers(1, 3))
    def grant(self, credits: int) -> None:
        self.window.grant(credits)
        self.granted += credits

    @precondition(lambda self: self.unacknowledged())
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        entry = data.draw(st.sampled_from(sorted(self.unacknowledged())))
        assert self.window.acknowledge(*entry)
        assert not self.window.acknowledge(*entry)
        self.done.add(entry)
        self.refused.discard(entry)

    @precondition(lambda self: self.sent)
    @rule(data=st.data(), position=st.integers(0, 20))
    def acknowledge_below(self, data: st.DataObject, position: int) -> None:
        place = data.draw(st.sampled_from(sorted(self.sent)))
        below = {entry for entry in self.unacknowledged() if entry[0] == place and entry[1] < position}
        assert self.window.acknowledge_below({place: position}) == len(below)
        self.done |= below
        self.refused -= below

    @precondition(lambda self: self.unacknowledged() - self.refused)
    @rule(data=st.data(), delay_ms=st.integers(0, 5))
    def refuse(self, data: st.DataObject, delay_ms: int) -> None:
        entry = data.draw(st.sampled_from(sorted(self.unacknowledged() - self.refused)))
        assert self.window.refuse(*entry, self.now_ms + delay_ms)
        assert not self.window.refuse(*entry, self.now_ms)
        self.refused.add(entry)

    @rule(passed_ms=st.integers(0, 5))
    def send_again(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        while (due := self.window.due(self.now_ms)) is not None:
            assert due in self.refused
            assert self.window.sent_again(*due) > 1
            self.refused.discard(due)

    @rule()
    def commit(self) -> None:
        self.window.committed(self.window.to_commit())
        assert self.window.to_commit() == {}

    @invariant()
    def nothing_unacknowledged_is_committed(self) -> None:
        for place, offset in self.window.to_commit().items():
            waiting = [entry[1] for entry in self.unacknowledged() if entry[0] == place]
            assert offset == min(waiting, default=self.window.positions[place])

    @invariant()
    def credits_are_neither_lost_nor_made(self) -> None:
        in_hand = len(self.unacknowledged() - self.refused)
        assert self.window.in_hand == in_hand
        assert self.window.credits == self.granted - in_hand >= 0
        assert self.window.credits < UNLIMITED

    @invariant()
    def every_refused_record_comes_due(self) -> None:
        assert (self.window.next_due_ms is not None) == bool(self.refused)


TestAnyOrder = AnyOrder.TestCase
