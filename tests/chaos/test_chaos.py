"""Chaos, the short runs: real brokers, real ZooKeeper and Kafka's own client under each main fault once; copies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from culver.testing.chaos.plan import LOCAL, Plan, TopicPlan, TransactionPlan, copying
from culver.testing.chaos.run import Run

SCHEDULE = (
    "kill leader",
    "freeze leader",
    "isolate leader",
    "kill all",
    "zookeeper killed for long",
    "store cut of controller",
    "rolling restart",
    "grow",
    "freeze coordinator",
    "shrink",
)
BOUNCES = ("kill transaction coordinator", "restart", "kill coordinator")


@pytest.mark.timeout(600)
def test_nothing_acknowledged_is_lost(capsys: pytest.CaptureFixture[str]) -> None:
    report = Run(Plan(seed=4, session_timeout_ms=3_000, schedule=SCHEDULE)).run()
    assert report.passed, f"{report.text()}\n{capsys.readouterr().out}"
    assert [fault.kind for fault in report.faults] == list(SCHEDULE)
    assert report.verdict.acknowledged > 1000
    assert report.verdict.commits > 0


@pytest.mark.timeout(300)
def test_transactions_are_whole_or_not_there(capsys: pytest.CaptureFixture[str]) -> None:
    """Tellers, two of whom share an id, and a copier, beside clients that know nothing of transactions."""
    plan = Plan(
        seed=6,
        store=LOCAL,
        records_per_second=30,
        topics=(TopicPlan("orders", 2, 3, {"min.insync.replicas": 2}),),
        schedule=("kill transaction coordinator", "freeze leader", "kill all"),
        transactions=TransactionPlan(
            tellers=1, hijackers=2, copiers=1, timeout_ms=4_000, mishap_gap_s=(0.5, 2.0)
        ),
    )
    report = Run(plan).run()
    assert report.passed, f"{report.text()}\n{capsys.readouterr().out}"
    assert [fault.kind for fault in report.faults] == list(plan.schedule)
    assert report.verdict.transactions_committed > 10
    assert report.clients is not None
    assert report.clients.killed + report.clients.frozen > 2


@pytest.mark.timeout(300)
def test_one_committed_copy_of_each(capsys: pytest.CaptureFixture[str]) -> None:
    """The short version of `make chaos ARGS='--copies 100000 --transaction 750'`."""
    plan = replace(copying(5, 3_000, 50, store=LOCAL, rate=500), schedule=BOUNCES)
    report = Run(plan).run()
    assert report.passed, f"{report.text()}\n{capsys.readouterr().out}"
    assert "3000 records, exactly one copy of 3000; missing 0, copied twice 0" in report.text()
    assert [fault.kind for fault in report.faults] == list(BOUNCES)
    assert report.clients is not None
    assert report.clients.killed > 2


@pytest.mark.timeout(300)
def test_a_loss_is_found(tmp_path: Path) -> None:
    """The only copy of a topic goes with a disk: whoever does not notice that notices nothing."""
    plan = Plan(seed=1, brokers=1, store=LOCAL, topics=(TopicPlan("alone", 1, 1),), schedule=("new disk",))
    report = Run(plan, parent=tmp_path).run()
    assert not report.passed
    assert report.verdict.lost > 0, report.text()
    assert "lost" in report.verdict.kinds()
    assert report.kept is not None
    assert (report.kept / "history.pickle").exists()
    assert "make chaos" in report.text()
