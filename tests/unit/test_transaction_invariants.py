"""What must hold for transactions whatever producers, the clock, the log and crashes do, in any order."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule
from transaction_model import IDS, Identity, TransactionModel

NAMES = st.sampled_from(IDS)
RECENT = st.sampled_from([0, 0, 0, 0, 1, 2, 5])
TIMEOUTS = st.sampled_from([1_000, 10_000])
OUTCOMES = st.sampled_from(
    ["written"] * 6 + ["refused", "late", "lost leadership", "lost leadership, written"]
)


class Transactions(RuleBasedStateMachine):
    """Producers that share transactional ids, in both protocols, some of them long replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.world = TransactionModel()

    def _one_of(self, recent: int) -> Identity:
        identities = self.world.identities
        return identities[max(len(identities) - 1 - recent, 0)]

    @rule(name=NAMES, timeout_ms=TIMEOUTS)
    def a_new_producer(self, name: str, timeout_ms: int) -> None:
        self.world.init(name, None, timeout_ms)

    @precondition(lambda self: self.world.identities)
    @rule(recent=RECENT, timeout_ms=TIMEOUTS)
    def a_producer_begins_anew(self, recent: int, timeout_ms: int) -> None:
        identity = self._one_of(recent)
        self.world.init(identity.transactional_id, identity, timeout_ms)

    @precondition(lambda self: self.world.identities)
    @rule(
        recent=RECENT,
        topic=st.sampled_from("ab"),
        indexes=st.lists(st.integers(0, 2), min_size=1, max_size=2, unique=True),
        version=st.sampled_from([3, 5]),
        verify=st.sampled_from([False, False, False, True]),
    )
    def partitions(self, recent: int, topic: str, indexes: list[int], version: int, verify: bool) -> None:
        self.world.add(self._one_of(recent), topic, indexes, version, verify)

    @precondition(lambda self: self.world.identities)
    @rule(recent=RECENT, committed=st.booleans(), version=st.sampled_from([4, 5]))
    def the_end(self, recent: int, committed: bool, version: int) -> None:
        self.world.end(self._one_of(recent), committed, version)

    @precondition(lambda self: self.world.replaced)
    @rule(
        recent=RECENT,
        what=st.sampled_from(["add", "verify", "commit", "abort", "init"]),
        is_old=st.booleans(),
    )
    def a_replaced_producer_comes_back(self, recent: int, what: str, is_old: bool) -> None:
        replaced = self.world.replaced
        identity = replaced[max(len(replaced) - 1 - recent, 0)]
        if what == "init":
            self.world.init(identity.transactional_id, identity, 10_000)
        elif what in ("commit", "abort"):
            self.world.end(identity, what == "commit", 4 if is_old else 5)
        else:
            self.world.add(identity, "a", [0], 3 if is_old else 5, verify=what == "verify")

    @precondition(lambda self: self.world.held)
    @rule(outcome=OUTCOMES)
    def the_log_answers(self, outcome: str) -> None:
        self.world.answer_append(outcome)

    @precondition(lambda self: self.world.markers)
    @rule(index=st.integers(0, 3), reached=st.sampled_from([1, 100, 100]))
    def markers(self, index: int, reached: int) -> None:
        self.world.write_markers(index % len(self.world.markers), reached)

    @precondition(lambda self: self.world.asked_ids)
    @rule(there_is_one=st.sampled_from([True, True, True, False]))
    def a_producer_id(self, there_is_one: bool) -> None:
        self.world.give_id(there_is_one=there_is_one)

    @precondition(lambda self: self.world.busy)
    @rule()
    def all_goes_well(self) -> None:
        self.world.go_on(20)

    @precondition(lambda self: self.world.identities)
    @rule(recent=RECENT, committed=st.booleans(), version=st.sampled_from([4, 5]))
    def a_transaction(self, recent: int, committed: bool, version: int) -> None:
        identity = self._one_of(recent)
        self.world.add(identity, "a", [0, 1], 3 if version == 4 else 5, verify=False)
        self.world.go_on(1)
        self.world.end(identity, committed, version)

    @rule(delta_ms=st.sampled_from([100, 100, 600, 600, 1_100, 6_000, 7_200_000]))
    def time_passes(self, delta_ms: int) -> None:
        self.world.advance(delta_ms)

    @precondition(lambda self: self.world.unanswered)
    @rule(recent=RECENT)
    def a_client_goes(self, recent: int) -> None:
        tokens = list(self.world.unanswered)
        self.world.cancel(tokens[recent % len(tokens)])

    @precondition(lambda self: self.world.busy)
    @rule(taken=st.integers(0, 3), kept=st.integers(0, 4), orderly=st.booleans())
    def another_coordinator(self, taken: int, kept: int, orderly: bool) -> None:
        self.world.crash(taken, kept, orderly=orderly)

    def teardown(self) -> None:
        self.world.settle()


TestTransactions = Transactions.TestCase
TestTransactions.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
