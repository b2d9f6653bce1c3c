"""`culver cluster` without brokers: what it finds wrong with a cluster, what it takes, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from culver.cli import health
from culver.cli.failure import ExitCode
from culver.cli.health import Trouble
from culver.cli.main import run
from culver.core.image import BrokerInfo, ClusterImage, PartitionImage, TopicImage

NOBODY = "127.0.0.1:1"


def image(*partitions: PartitionImage, up: tuple[int, ...] = (1, 2, 3), controller: int = 1) -> ClusterImage:
    registrations = {id: BrokerInfo(id, f"host{id}", 9092, f"rack{id}") for id in (1, 2, 3)}
    return ClusterImage(
        "cluster",
        controller_id=controller,
        brokers={id: registrations[id] for id in up},
        registrations=registrations,
    ).with_topic(TopicImage("orders", bytes(16), partitions))


def partition(
    index: int = 0,
    leader: int = 1,
    replicas: tuple[int, ...] = (1, 2, 3),
    isr: tuple[int, ...] = (1, 2, 3),
    elr: tuple[int, ...] = (),
    adding: tuple[int, ...] = (),
) -> PartitionImage:
    return PartitionImage(index, leader, 0, replicas, isr, elr, adding=adding)


def troubles(image: ClusterImage, min_insync: int = 2) -> list[tuple[Trouble, tuple[int, ...]]]:
    return [(each.trouble, each.missing) for each in health.sick_partitions(image, {"orders": min_insync})]


def told(image: ClusterImage, min_insync: int = 2, **behind: int) -> list[str]:
    lags = {(int(name.removeprefix("broker")), ("orders", 0)): lag for name, lag in behind.items()}
    found = health.findings(image, {"orders": min_insync}, lags)
    return [f"{finding.what}. {finding.advice}." for finding in found]


def test_a_cluster_in_which_all_replicas_are_in_sync_is_healthy() -> None:
    assert troubles(image(partition())) == []
    assert told(image(partition())) == []


def test_each_partition_has_its_worst_trouble_and_the_replicas_it_lacks() -> None:
    assert troubles(image(partition(isr=(1, 2)))) == [(Trouble.UNDER_REPLICATED, (3,))]
    assert troubles(image(partition(isr=(1,)))) == [(Trouble.BELOW_MIN_ISR, (2, 3))]
    assert troubles(image(partition(leader=-1, isr=(3,)), up=(1, 2))) == [(Trouble.OFFLINE, (3,))]
    # A leader that has just died: nobody has been elected yet.
    assert troubles(image(partition(leader=3), up=(1, 2))) == [(Trouble.OFFLINE, (3,))]


def test_more_in_sync_replicas_than_there_are_replicas_cannot_be_demanded() -> None:
    assert troubles(image(partition(replicas=(1,), isr=(1,))), min_insync=2) == []


def test_a_replica_that_is_only_being_added_is_not_missing() -> None:
    assert troubles(image(partition(replicas=(1, 2, 3), isr=(1, 2), adding=(3,)))) == []


def test_a_partition_without_a_leader_names_the_broker_that_has_its_records() -> None:
    (offline, dead) = told(image(partition(leader=-1, isr=(3,)), up=(1, 2)))
    assert offline.startswith("orders-0 has no leader, so nothing can be written or read: broker 3, ")
    assert "start broker 3 again: it alone has every acknowledged record" in offline
    assert "elect-leaders --unclean --topic orders --partition 0` lets brokers 1 and 2 lead" in offline
    assert dead.startswith("broker 3 (host3:9092, rack rack3) is down; it holds 1 replica.")


def test_the_eligible_replicas_outside_the_isr_count_too() -> None:
    (offline, *_) = told(image(partition(leader=-1, isr=(3,), elr=(2,)), up=(1,)))
    assert "start brokers 3 and 2 again: each of them has every acknowledged record" in offline


def test_a_refused_write_names_the_setting_and_the_missing_replicas() -> None:
    (below, *_) = told(image(partition(isr=(1,)), up=(1, 2)), broker2=1234)
    assert below.startswith(
        "orders-0 refuses writes with acks=all: 1 of 2 replicas that min.insync.replicas demands"
    )
    assert "missing: broker 2 is up and catching up (1,234 records to go), broker 3 is down" in below
    assert "start broker 3 again" in below


def test_partitions_with_the_same_trouble_are_told_together() -> None:
    sick = [partition(index, isr=(1, 2)) for index in range(5)]
    (all_of_them, _) = told(image(*sick, up=(1, 2)))
    assert all_of_them.startswith(
        "orders-0, orders-1, orders-2 and 2 more partitions have 2 of 3 replicas in sync;"
    )


def test_a_living_replica_that_lags_needs_only_time() -> None:
    (lagging,) = told(image(partition(isr=(1, 2))))
    assert "missing: broker 3 is up and catching up" in lagging
    assert "wait: it comes back by itself" in lagging


def test_a_dead_broker_that_holds_nothing_can_be_struck_off() -> None:
    (dead,) = told(image(partition(replicas=(1, 2), isr=(1, 2)), up=(1, 2)))
    assert "it holds nothing" in dead
    assert "culver cluster drain 3 --remove" in dead


def test_no_controller_is_worth_a_word() -> None:
    (nobody,) = told(image(partition(), controller=-1))
    assert nobody.startswith("no broker is the controller")


def test_brokers_are_shown_with_what_they_lead_and_hold() -> None:
    shown = image(partition(0), partition(1, leader=2, replicas=(2, 3, 1), isr=(2, 1)), up=(1, 2))
    rows = {row["broker"]: row for row in health.broker_rows(shown, {1: 100}, shown.registrations.values())}
    assert (rows[1]["leaders"], rows[1]["replicas"], rows[1]["out_of_sync"]) == (1, 2, 0)
    assert (rows[1]["controller"], rows[1]["bytes"], rows[1]["state"]) == (True, 100, "up")
    assert (rows[3]["leaders"], rows[3]["replicas"], rows[3]["out_of_sync"]) == (0, 2, 1)
    assert (rows[3]["bytes"], rows[3]["state"]) == (None, "down")


# --- what is refused before anything is asked ---


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["reassign"], "nothing to move"),
        (["reassign", "--topic", "a"], "--topic needs either --to or --cancel"),
        (["reassign", "--to", "1"], "need a --topic"),
        (["reassign", "--topic", "a", "--to", "1,x"], "is no list of broker ids"),
        (["reassign", "--topic", "a", "--to", "1,1"], "names a broker twice"),
        (["reassign", "--topic", "a", "--to", "1", "--throttle", "fast"], "is no number of bytes"),
        (["balance", "--throttle", "1M", "--no-wait"], "cannot go with --no-wait"),
        (["elect-leaders", "--partition", "1"], "--partition needs a --topic"),
        (["drain", "first"], "'first' is not a valid integer"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_told_at_once(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert run(["cluster", *arguments, "-b", NOBODY]) == ExitCode.USAGE
    assert complaint in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"partitions": 3}',
        '{"partitions": [{"topic": "a"}]}',
        '{"partitions": [{"topic": "a", "partition": "x", "replicas": [1]}]}',
        json.dumps({"partitions": [{"topic": "a", "partition": 0, "replicas": [1]}] * 2}),
    ],
)
def test_a_file_that_is_no_plan_is_refused_with_how_one_looks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    (tmp_path / "plan.json").write_text(content)
    assert run(["cluster", "reassign", str(tmp_path / "plan.json"), "-b", NOBODY]) == ExitCode.USAGE
    complaint = capsys.readouterr().err
    assert "plan.json is no plan: " in complaint
    assert '"replicas": [1, 2, 3]' in complaint


def test_no_broker_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["status"], ["why-unhealthy"], ["balance"], ["drain", "1"], ["elect-leaders"]):
        assert run(["cluster", *command, "-b", NOBODY]) == ExitCode.UNREACHABLE
        assert f"cannot reach a broker at {NOBODY}" in capsys.readouterr().err
