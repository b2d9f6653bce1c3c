"""The simulator has teeth: it finds bugs that are put into the broker on purpose, within a few seeds."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from culver.testing.simulation import bugs
from culver.testing.simulation.cluster import ClusterShape
from culver.testing.simulation.nemesis import FaultPlan
from culver.testing.simulation.plan import Plan, TopicPlan
from culver.testing.simulation.planting import bug
from culver.testing.simulation.run import run_seed


@dataclass(frozen=True)
class Hunt:
    """The kind of run in which a bug shows soon, and what it shows as."""

    shows_as: set[str]
    faults: tuple[str, ...] = ("kill", "pause", "isolate")
    brokers: int = 3
    factor: int = 3
    session_timeout_ms: int = 600
    gap_ms: tuple[int, int] = (200, 1_200)
    lasts_ms: tuple[int, int] = (200, 2_500)
    members: int = 0
    slow_network: bool = False
    seeds: int = 20
    config: tuple[tuple[str, str], ...] = (("min.insync.replicas", "2"),)

    def plan(self) -> Plan:
        return Plan(
            cluster=ClusterShape(self.brokers, self.session_timeout_ms, death_seen_at_once=True),
            topics=(TopicPlan("a", 2, self.factor, dict(self.config)),),
            faults=FaultPlan(self.faults, gap_ms=self.gap_ms, lasts_ms=self.lasts_ms),
            producers=2,
            in_flight=3,
            weak_producers=False,
            members=self.members,
            chaos_seconds=15.0,
            recovery_seconds=20.0,
            slow_network=self.slow_network,
        )


HUNTS = {
    "truncate to the high watermark": Hunt({"lost", "changed"}),
    "acknowledge before the in-sync replicas have it": Hunt({"lost"}),
    "skip the epoch check": Hunt({"lost", "changed", "replicas differ"}),
    "acknowledge after a failed fsync": Hunt(
        {"lost"}, ("disk error", "kill"), brokers=1, factor=1, config=(("min.insync.replicas", "1"),)
    ),
    "stay in sync after losing bytes": Hunt(
        {"lost", "changed"}, ("power", "kill all"), gap_ms=(50, 500), lasts_ms=(50, 1_500)
    ),
    "elect from outside the in-sync replicas": Hunt({"lost", "changed"}),
    "forget producers at a failover": Hunt({"duplicate", "order"}, ("kill", "stop", "reset")),
    "show what is not committed": Hunt({"changed", "complaint"}),
    "wait only for the old in-sync replicas": Hunt(
        {"lost", "changed"},
        ("cut store", "cut store", "pause", "kill", "cut brokers", "cut one way"),
        session_timeout_ms=1_000,
        gap_ms=(50, 500),
        lasts_ms=(300, 3_000),
        slow_network=True,
        config=(("min.insync.replicas", "1"),),
        # The store has to make a change that the leader does not hear of, while the new member falls behind.
        seeds=150,
    ),
    "answer commits before they are replicated": Hunt({"commit lost"}, members=2, slow_network=True),
}


def test_every_bug_is_hunted() -> None:
    assert list(HUNTS) == bugs.NAMES


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", bugs.NAMES)
def test_a_bug_is_found(name: str) -> None:
    hunt = HUNTS[name]
    seen: set[str] = set()
    for seed in range(1, hunt.seeds + 1):
        with bug(name):
            seen |= run_seed(seed, hunt.plan()).verdict.kinds()
        if seen & hunt.shows_as:
            return
    pytest.fail(f"not found in {hunt.seeds} seeds; seen: {sorted(seen)}")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", bugs.NAMES)
def test_without_the_bug_the_same_run_is_fine(name: str) -> None:
    result = run_seed(1, HUNTS[name].plan())
    assert result.passed, result.report()
