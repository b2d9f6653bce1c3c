"""The simulator has teeth for transactions, too: it finds bugs put into them on purpose, within a few seeds."""

from __future__ import annotations

from dataclasses import replace

import pytest

from culver.testing.simulation import transactional_bugs
from culver.testing.simulation.cluster import ClusterShape
from culver.testing.simulation.nemesis import FaultPlan
from culver.testing.simulation.plan import Plan, TopicPlan
from culver.testing.simulation.planting import bug
from culver.testing.simulation.run import run_seed
from culver.testing.simulation.transactional_load import COPY_TOPIC, SOURCE_TOPIC, TransactionPlan

_CONFIG = {"min.insync.replicas": "2"}

# Everything at once: hijacked ids, a pipeline, clients that crash and freeze, requests that come late.
BUSY = Plan(
    cluster=ClusterShape(3, session_timeout_ms=600, death_seen_at_once=True),
    topics=tuple(
        TopicPlan(name, count, 3, _CONFIG) for name, count in (("a", 2), (SOURCE_TOPIC, 1), (COPY_TOPIC, 1))
    ),
    faults=FaultPlan(
        ("kill", "pause", "reset", "move coordinator"), gap_ms=(200, 1_500), lasts_ms=(200, 2_500)
    ),
    producers=1,
    in_flight=1,
    weak_producers=False,
    consumers=0,
    members=0,
    chaos_seconds=15.0,
    recovery_seconds=20.0,
    transactions=TransactionPlan(
        tellers=3,
        hijacked=1,
        copiers=1,
        mishap_gap_ms=(500, 5_000),
        late_share=0.03,
        timeouts_ms=(2_000,),
    ),
)
# Brokers whose words to each other arrive after they have been said again, and the next transaction has begun.
OUT_OF_TOUCH = replace(
    BUSY,
    cluster=replace(BUSY.cluster, late_peer_share=0.05),
    topics=(TopicPlan("a", 1, 3, _CONFIG),),
    faults=FaultPlan(("elect", "move"), gap_ms=(500, 1_500)),
    producers=0,
    chaos_seconds=12.0,
    transactions=TransactionPlan(generations=(2,), tellers=3, mishap_gap_ms=None, timeouts_ms=(6_000,)),
)
# Producers of the older generation, two of which have the same id, and many requests that come late.
LATE = replace(
    BUSY,
    topics=(TopicPlan("a", 2, 3, _CONFIG),),
    faults=FaultPlan(("reset",), gap_ms=(500, 1_500)),
    producers=0,
    chaos_seconds=12.0,
    transactions=TransactionPlan(
        generations=(1,), tellers=3, hijacked=1, mishap_gap_ms=None, late_share=0.1, timeouts_ms=(1_500,)
    ),
)

# Many short transactions on a slow network, and coordinators that disappear all the time.
HASTY = replace(
    BUSY,
    topics=(TopicPlan("a", 2, 3, _CONFIG),),
    faults=FaultPlan(("kill", "isolate", "pause"), gap_ms=(100, 700), lasts_ms=(300, 1_500)),
    slow_network=True,
    producers=0,
    chaos_seconds=12.0,
    transactions=TransactionPlan(
        tellers=6, mishap_gap_ms=(500, 3_000), timeouts_ms=(1_500,), pause_ms=(1, 100)
    ),
)

HUNTS = {
    "send markers before the end is durable": (HASTY, {"torn", "aborted read", "no progress"}),
    "answer EndTxn before the end is durable": (HASTY, {"transaction lost", "torn"}),
    "say of every partition that it is in the transaction": (LATE, {"aborted read", "hanging", "torn"}),
    "show what is not stable": (BUSY, {"aborted read"}),
    "leave out the aborted transactions": (BUSY, {"aborted read"}),
    "let offsets count before their transaction is committed": (BUSY, {"commit invented", "not copied"}),
    "keep the epoch of a producer that begins anew": (LATE, {"aborted read", "torn", "lost"}),
    "end transactions for producers that were replaced": (LATE, {"aborted read", "torn"}),
    "write markers of any epoch": (OUT_OF_TOUCH, {"transaction lost", "torn", "aborted read"}),
    "forget at a move which markers are to be sent": (BUSY, {"no progress"}),
    "let transactions stay open for ever": (BUSY, {"hanging", "no progress"}),
    "forget at a failover which transactions are open": (BUSY, {"aborted read"}),
}
SEEDS = 60


def test_every_bug_is_hunted() -> None:
    assert list(HUNTS) == transactional_bugs.NAMES


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", transactional_bugs.NAMES)
def test_a_bug_is_found(name: str) -> None:
    plan, shows_as = HUNTS[name]
    seen: set[str] = set()
    for seed in range(1, SEEDS + 1):
        with bug(name):
            seen |= run_seed(seed, plan).verdict.kinds()
        if seen & shows_as:
            return
    pytest.fail(f"not found in {SEEDS} seeds; seen: {sorted(seen)}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "plan", [BUSY, OUT_OF_TOUCH, LATE, HASTY], ids=["busy", "out of touch", "late", "hasty"]
)
def test_without_a_bug_the_same_runs_are_fine(plan: Plan) -> None:
    result = run_seed(1, plan)
    assert result.passed, result.report()
    assert result.verdict.transactions_committed > 10
