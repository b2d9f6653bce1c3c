"""The core of webhooks: order by key, concurrency, retries, dead letters and commits, under whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from webhook_records import record

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.reading.record import Record
from culver.gateway.webhooks.ordering import Call, Limits, Ordering, Verdict
from culver.gateway.webhooks.patience import FAILING_MAX, Patience, pause_ms
from culver.gateway.webhooks.subscription import Retry
from culver.gateway.webhooks.window import size_bytes

ORDERS = TopicPartition("orders", 0)
PAYMENTS = TopicPartition("payments", 3)
LIMITS = Limits(batch=1, call_max_bytes=10_000, concurrency=4, window_records=8, held_max_bytes=10_000)
RETRY = Retry(tries=3, first_ms=100, max_ms=1000)


def ordering(retry: Retry = RETRY, **limits: int) -> Ordering:
    values = {name: getattr(LIMITS, name) for name in LIMITS.__slots__}
    made = Ordering(Limits(**{**values, **limits}), retry)
    made.assign(ORDERS, 0)
    return made


def give(to: Ordering, *keys: bytes | None, place: TopicPartition = ORDERS, offset: int = 0) -> None:
    records = [record(place, offset + index, key) for index, key in enumerate(keys)]
    to.add(place, records, offset + len(keys))


def offsets(calls: list[Call]) -> list[list[int]]:
    return [[each.offset for each in call.records] for call in calls]


def test_a_key_waits_for_the_record_before_it_and_others_do_not() -> None:
    core = ordering()
    give(core, b"a", b"a", b"b", None, None)
    first = core.start(0)
    assert offsets(first) == [[0], [2], [3]]
    assert core.start(0) == []
    core.acknowledged(first[0])
    assert offsets(core.start(0)) == [[1]]
    core.acknowledged(first[2])
    assert offsets(core.start(0)) == [[4]]


def test_a_record_that_is_read_while_its_key_is_out_waits() -> None:
    core = ordering()
    give(core, b"a")
    (first,) = core.start(0)
    give(core, b"a", b"b", offset=1)
    assert offsets(core.start(0)) == [[2]]
    core.acknowledged(first)
    assert offsets(core.start(0)) == [[1]]


def test_a_commit_never_passes_a_record_that_is_not_acknowledged() -> None:
    core = ordering()
    give(core, b"a", b"b", b"c")
    first, second, third = core.start(0)
    core.acknowledged(second)
    core.acknowledged(third)
    assert core.positions() == {ORDERS: 0}
    core.acknowledged(first)
    assert core.positions() == {ORDERS: 3}


def test_offsets_without_records_are_committed_over() -> None:
    core = ordering()
    core.add(ORDERS, [record(ORDERS, 5, b"a"), record(ORDERS, 9, b"b")], 12)
    first, second = core.start(0)
    core.acknowledged(first)
    assert core.positions() == {ORDERS: 9}
    core.acknowledged(second)
    assert core.positions() == {ORDERS: 12}


def test_no_more_calls_at_once_than_allowed() -> None:
    core = ordering(concurrency=2)
    give(core, b"a", b"b", b"c")
    calls = core.start(0)
    assert len(calls) == 2
    assert core.wake_at_ms(0) is None
    core.failed(calls[0], 0, 1.0)
    # The place of a call that waits for its next try is free for others.
    assert offsets(core.start(0)) == [[2]]


def test_a_call_takes_records_of_many_keys_in_the_order_of_their_offsets() -> None:
    core = ordering(batch=4)
    give(core, b"a", b"b", b"a", b"c", b"b")
    calls = core.start(0)
    # c is free, and goes out at the same time.
    assert offsets(calls) == [[0, 1, 2, 4], [3]]


def test_a_call_stays_within_its_bytes_unless_one_record_is_larger() -> None:
    core = ordering(batch=10, call_max_bytes=1000)
    large = [record(ORDERS, offset, b"k", b"x" * 400) for offset in range(3)]
    core.add(ORDERS, [*large, record(ORDERS, 3, b"k", b"x" * 5000)], 4)
    seen = []
    while calls := core.start(0):
        seen += offsets(calls)
        core.acknowledged(calls[0])
    assert seen == [[0], [1], [2], [3]]


def test_a_failed_call_is_tried_again_later_with_the_same_records() -> None:
    core = ordering(batch=2)
    give(core, b"a", b"a", b"a")
    (call,) = core.start(0)
    assert core.failed(call, 1000, 0.5) is Verdict.RETRIED
    assert core.start(1049) == []
    assert core.wake_at_ms(1000) == 1050
    assert core.start(1050) == [call]
    assert offsets([call]) == [[0, 1]]


def test_a_record_that_failed_for_the_last_time_holds_its_key_until_it_is_buried() -> None:
    core = ordering(Retry(tries=2, first_ms=1, max_ms=1))
    give(core, b"a", b"a")
    (call,) = core.start(0)
    assert core.failed(call, 0, 1.0) is Verdict.RETRIED
    assert core.start(1) == [call]
    assert core.failed(call, 1, 1.0) is Verdict.DEAD
    assert core.start(100) == []
    assert core.positions() == {ORDERS: 0}
    core.buried(call)
    assert core.positions() == {ORDERS: 1}
    assert offsets(core.start(100)) == [[1]]


def test_a_call_of_several_that_fails_for_good_is_taken_apart_and_the_order_kept() -> None:
    core = ordering(Retry(tries=1), batch=3)
    give(core, b"a", b"b", b"a")
    (call,) = core.start(0)
    assert offsets([call]) == [[0, 1, 2]]
    assert core.failed(call, 0, 0.0) is Verdict.TAKEN_APART
    alone = core.start(0)
    assert offsets(alone) == [[0], [1]]
    assert core.failed(alone[0], 0, 0.0) is Verdict.DEAD
    core.buried(alone[0])
    assert offsets(core.start(0)) == [[2]]


def test_zero_tries_are_endless() -> None:
    core = ordering(Retry(tries=0, first_ms=1, max_ms=1))
    give(core, b"a")
    (call,) = core.start(0)
    for now_ms in range(1000):
        assert core.failed(call, now_ms, 0.0) is Verdict.RETRIED
        assert core.start(now_ms) == [call]


def test_a_failure_that_is_not_the_receivers_fault_is_never_the_last() -> None:
    core = ordering(Retry(tries=1, first_ms=1, max_ms=1))
    give(core, b"a")
    (call,) = core.start(0)
    assert core.failed(call, 0, 0.0, can_be_last=False) is Verdict.RETRIED
    assert core.start(0) == [call]
    assert core.failed(call, 0, 0.0) is Verdict.DEAD


def test_a_poisoned_key_stops_the_reading_and_keeps_the_memory_bounded() -> None:
    core = ordering(window_records=4)
    give(core, b"poison", b"b", b"c", b"d")
    poison, *rest = core.start(0)
    core.failed(poison, 0, 1.0)
    for call in rest:
        core.acknowledged(call)
    # Three are acknowledged, but must be remembered behind the one that is not.
    assert core.room(ORDERS) is None
    (again,) = core.start(1000)
    core.acknowledged(again)
    room = core.room(ORDERS)
    assert room is not None
    assert room.records == 4


def test_a_full_memory_leaves_every_partition_its_one_record() -> None:
    core = ordering(held_max_bytes=100)
    core.assign(PAYMENTS, 0)
    give(core, b"a")
    assert core.room(ORDERS) is None
    room = core.room(PAYMENTS)
    assert room is not None
    assert (room.records, room.bytes) == (1, 1)


def test_partitions_take_turns() -> None:
    core = ordering(concurrency=2)
    core.assign(PAYMENTS, 0)
    give(core, b"a", b"b", b"c")
    give(core, b"x", place=PAYMENTS)
    assert {call.window.partition for call in core.start(0)} == {ORDERS, PAYMENTS}


def test_a_partition_that_went_to_another_gateway_is_forgotten() -> None:
    core = ordering()
    give(core, b"a", b"b")
    first, second = core.start(0)
    core.hold(ORDERS)
    core.acknowledged(first)
    assert core.positions() == {ORDERS: 1}
    core.revoke(ORDERS)
    assert core.failed(second, 0, 0.0) is Verdict.MOOT
    core.assign(ORDERS, 1)
    assert core.positions() == {ORDERS: 1}
    assert core.start(10_000) == []


def test_calls_that_wait_go_with_their_partition() -> None:
    core = ordering()
    give(core, b"a")
    (call,) = core.start(0)
    assert core.failed(call, 0, 0.5) is Verdict.RETRIED
    core.revoke(ORDERS)
    assert core.wake_at_ms(0) is None, "its records would be kept until then"


def test_pauses_double_up_to_the_longest_and_are_random_below() -> None:
    retry = Retry(first_ms=100, max_ms=1000)
    assert [pause_ms(retry, failures, 1.0) for failures in (1, 2, 3, 4, 5, 5000)] == [
        100,
        200,
        400,
        800,
        1000,
        1000,
    ]
    assert pause_ms(retry, 5, 0.25) == 250
    assert pause_ms(retry, 5, 0.0) == 0


@pytest.mark.parametrize(("asked_ms", "due_ms"), [(500, 500), (60_000, 1000), (0, 0), (-5, 0)])
def test_a_receiver_that_asks_for_a_pause_gets_it_within_bounds(asked_ms: float, due_ms: float) -> None:
    core = ordering()
    give(core, b"a", b"b", b"c", b"d", b"e")
    calls = core.start(0)
    core.failed(calls[0], 0, 0.0, retry_after_ms=asked_ms)
    if due_ms:
        assert core.start(due_ms - 1) == []
        assert core.wake_at_ms(due_ms - 1) == due_ms
    # Records that have not been tried wait as well.
    assert len(core.start(due_ms)) == 1


def test_a_receiver_that_is_down_is_not_given_record_after_record() -> None:
    core = ordering(Retry(tries=100, first_ms=1000, max_ms=1000), window_records=1000, concurrency=8)
    give(core, *(str(number).encode() for number in range(200)))
    tried: set[int] = set()
    for now_ms in range(0, 10_000, 10):
        for call in core.start(now_ms):
            tried.add(call.records[0].offset)
            core.failed(call, now_ms, 0.9)
    # Without patience all 200 would have been tried, and lost a try, in the first seconds.
    assert FAILING_MAX <= len(tried) < 30
    (probe, *_) = core.start(20_000)
    core.acknowledged(probe)
    assert len(core.start(20_000)) == 8 - core.in_flight or core.in_flight == 8


def test_one_record_that_fails_for_ever_does_not_make_a_receiver_count_as_down() -> None:
    patience = Patience(RETRY)
    poison = object()
    for failure in range(1, 100):
        patience.failed(poison, failure, 0, 1.0, None)
    assert not patience.down


class Webhook(RuleBasedStateMachine):
    """Any interleaving of reading, calls, failures, dead letters, crashes and moves of partitions."""

    def __init__(self) -> None:
        super().__init__()
        self.limits = Limits(
            batch=3, call_max_bytes=1200, concurrency=3, window_records=6, held_max_bytes=2500
        )
        self.retry = Retry(tries=2, first_ms=10, max_ms=40)
        self.log: dict[TopicPartition, list[Record]] = {ORDERS: [], PAYMENTS: []}
        self.committed = {ORDERS: 0, PAYMENTS: 0}
        # Acknowledged by the receiver or buried, at least once.
        self.handled: set[tuple[TopicPartition, int]] = set()
        self.now_ms = 0.0
        self.begin()

    def begin(self) -> None:
        self.core = Ordering(self.limits, self.retry)
        self.calls: list[Call] = []
        self.dead: list[Call] = []
        self.read_to: dict[TopicPartition, int] = {}
        # Handled since this gateway has the partition: what it may build on.
        self.handled_here: set[tuple[TopicPartition, int]] = set()
        for place in self.log:
            self.assign(place)

    def assign(self, place: TopicPartition) -> None:
        self.core.assign(place, self.committed[place])
        self.read_to[place] = self.committed[place]

    @rule(
        place=st.sampled_from([ORDERS, PAYMENTS]),
        key=st.sampled_from([b"a", b"b", None]),
        size=st.integers(0, 900),
        gap=st.integers(0, 2),
    )
    def write(self, place: TopicPartition, key: bytes | None, size: int, gap: int) -> None:
        offset = self.log[place][-1].offset + 1 + gap if self.log[place] else gap
        self.log[place].append(record(place, offset, key, b"x" * size))

    @rule(place=st.sampled_from([ORDERS, PAYMENTS]))
    def read(self, place: TopicPartition) -> None:
        room = self.core.room(place)
        if room is None:
            return
        found: list[Record] = []
        bytes_left = room.bytes
        for each in self.log[place]:
            if each.offset >= self.read_to[place] and len(found) < room.records:
                if found and size_bytes(each) > bytes_left:
                    break
                found.append(each)
                bytes_left -= size_bytes(each)
        if found:
            self.read_to[place] = found[-1].offset + 1
            self.core.add(place, found, self.read_to[place])

    @rule(passed_ms=st.integers(0, 50))
    def start(self, passed_ms: int) -> None:
        self.now_ms += passed_ms
        for call in self.core.start(self.now_ms):
            self.calls.append(call)
            for each in call.records:
                self.check_order(call, each)

    def check_order(self, call: Call, sent: Record) -> None:
        place = call.window.partition
        earlier = [
            each.offset for each in self.log[place] if each.key == sent.key and each.offset < sent.offset
        ]
        together = [each.offset for each in call.records]
        assert together == sorted(together)
        for offset in earlier:
            done = offset < self.committed[place] or (place, offset) in self.handled_here
            assert done or offset in together, "a record overtook one of its own key"

    @precondition(lambda self: self.calls)
    @rule(data=st.data(), asked_ms=st.one_of(st.none(), st.integers(0, 100)), chance=st.floats(0, 0.99))
    def fail(self, data: st.DataObject, asked_ms: float | None, chance: float) -> None:
        call = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        verdict = self.core.failed(call, self.now_ms, chance, retry_after_ms=asked_ms)
        if verdict is Verdict.DEAD:
            self.dead.append(call)

    @precondition(lambda self: self.calls)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        call = self.calls.pop(data.draw(st.integers(0, len(self.calls) - 1)))
        self.settle(call)
        self.core.acknowledged(call)

    @precondition(lambda self: self.dead)
    @rule()
    def bury(self) -> None:
        call = self.dead.pop(0)
        self.settle(call)
        self.core.buried(call)

    def settle(self, call: Call) -> None:
        places = {(call.window.partition, each.offset) for each in call.records}
        self.handled |= places
        if not call.window.revoked:
            self.handled_here |= places

    @rule()
    def commit(self) -> None:
        self.committed.update(self.core.positions())

    @rule(place=st.sampled_from([ORDERS, PAYMENTS]))
    def move_away_and_back(self, place: TopicPartition) -> None:
        self.core.hold(place)
        started = self.core.start(self.now_ms)
        assert all(call.window.partition != place for call in started)
        self.committed[place] = self.core.positions()[place]
        self.core.revoke(place)
        self.dead = [call for call in self.dead if not call.window.revoked]
        self.handled_here = {(other, offset) for other, offset in self.handled_here if other != place}
        self.calls += started
        self.assign(place)

    @rule()
    def crash(self) -> None:
        self.begin()

    @invariant()
    def the_limits_hold(self) -> None:
        assert self.core.in_flight <= self.limits.concurrency
        lanes = [
            (call.window.partition, key)
            for call in self.calls
            if not call.window.revoked
            for key in {each.key for each in call.records}
        ]
        assert len(lanes) == len(set(lanes))
        for window in self.core._windows.values():
            assert window.held_records <= self.limits.window_records

    @invariant()
    def nothing_is_committed_that_was_not_handled(self) -> None:
        for place, position in [*self.core.positions().items(), *self.committed.items()]:
            for each in self.log[place]:
                assert each.offset >= position or (place, each.offset) in self.handled

    def teardown(self) -> None:
        """From wherever it stands, everything is handled in the end."""
        for _ in range(10_000):
            for place in self.log:
                self.read(place)
            self.start(50)
            while self.calls:
                call = self.calls.pop()
                self.settle(call)
                self.core.acknowledged(call)
            while self.dead:
                self.bury()
            everything = {(place, each.offset) for place, log in self.log.items() for each in log}
            if everything <= self.handled and not self.core.waiting:
                break
        assert everything <= self.handled
        assert self.core.positions() == self.read_to
        assert self.core._held_bytes == 0


TestWebhook = Webhook.TestCase
TestWebhook.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)
