"""`culver cluster` against real brokers, under load where partitions move."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from culver.cli.failure import ExitCode
from culver.testing import Cluster
from load import Load

TIMEOUT_SECONDS = 90
# Slow enough that a move of what the tests write does not end by itself.
SNAILS_PACE = "100"
NO_LIMIT = str(2**63 - 1)


class Shell:
    """Runs `culver cluster` against one cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self._environment = os.environ | {"CULVER_BOOTSTRAP": cluster.bootstrap_servers}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "culver", "cluster", *arguments],
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str) -> tuple[int, str, str]:
        with self.start(*arguments) as process:
            out, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        assert "Traceback" not in errors
        return process.returncode, out, errors

    def out(self, *arguments: str) -> str:
        code, out, errors = self.run(*arguments)
        assert code == ExitCode.OK, errors
        return out

    def json(self, *arguments: str) -> Any:
        return json.loads(self.out(*arguments, "-o", "json"))


def replicas(cluster: Cluster, topic: str) -> list[tuple[int, ...]]:
    return [partition.replicas for partition in cluster.partitions(topic)]


@pytest.mark.culver_cluster(brokers=3, topics={"orders": 3}, config={"min.insync.replicas": 2})
def test_status_and_reasons_follow_what_happens_to_a_broker(culver_cluster: Cluster) -> None:
    shell = Shell(culver_cluster)
    culver_cluster.wait_until_in_sync("orders")
    status = shell.json("status")
    assert [(row["broker"], row["state"], row["replicas"]) for row in status["brokers"]] == [
        (1, "up", 3),
        (2, "up", 3),
        (3, "up", 3),
    ]
    assert sum(row["leaders"] for row in status["brokers"]) == 3
    assert [row["broker"] for row in status["brokers"] if row["controller"]] == [status["controller"]]
    assert (status["offline"], status["below_min_isr"], status["under_replicated"]) == (0, 0, 0)
    assert "every partition has its leader and all its replicas in sync" in shell.out("status")
    assert shell.out("why-unhealthy").startswith("healthy: 3 brokers")

    culver_cluster.broker(3).kill()
    culver_cluster.wait_until(
        lambda: all(3 not in partition.in_sync for partition in culver_cluster.partitions("orders")),
        "broker 3 is out of sync",
    )
    status = shell.json("status")
    assert [row["state"] for row in status["brokers"]] == ["up", "up", "down"]
    assert status["under_replicated"] == 3
    assert {tuple(row["missing"]) for row in status["troubled"]} == {(3,)}
    assert "under-replicated" in shell.out("status")
    code, told, _ = shell.run("why-unhealthy")
    assert code == ExitCode.FAILED
    assert "orders-0, orders-1 and orders-2 have 2 of 3 replicas in sync; missing: broker 3 is down" in told

    culver_cluster.broker(2).kill()
    culver_cluster.wait_until(
        lambda: all(partition.in_sync == (1,) for partition in culver_cluster.partitions("orders")),
        "broker 2 is out of sync",
    )
    assert "refuse writes with acks=all: 1 of 2 replicas" in shell.run("why-unhealthy")[1]

    culver_cluster.broker(2).start()
    culver_cluster.broker(3).start()
    culver_cluster.wait_until_in_sync("orders")
    assert shell.run("why-unhealthy")[0] == ExitCode.OK


@pytest.mark.culver_cluster(brokers=3)
def test_partitions_move_under_load_and_lose_nothing(culver_cluster: Cluster, tmp_path: Path) -> None:
    shell = Shell(culver_cluster)
    culver_cluster.create_topic("orders", partitions=3, replication_factor=1)
    with Load(culver_cluster, "orders") as load:
        shell.out("reassign", "--topic", "orders", "--to", "1,2")
        assert replicas(culver_cluster, "orders") == [(1, 2), (2, 1), (1, 2)]
        plan = [{"topic": "orders", "partition": index, "replicas": [3, 2]} for index in range(3)]
        (tmp_path / "plan.json").write_text(json.dumps({"version": 1, "partitions": plan}))
        dry = shell.json("reassign", str(tmp_path / "plan.json"), "--dry-run")
        assert [row["new_replicas"] for row in dry] == [[3, 2]] * 3
        assert replicas(culver_cluster, "orders")[0] == (1, 2)
        shell.out("reassign", str(tmp_path / "plan.json"), "--throttle", "20M")
        assert replicas(culver_cluster, "orders") == [(3, 2)] * 3
        culver_cluster.wait_until(
            lambda: all(partition.leader == 3 for partition in culver_cluster.partitions("orders")),
            "broker 3, the first of the new replicas, leads",
        )
    load.check()


@pytest.mark.culver_cluster(brokers=3, config={"offsets.topic.num.partitions": 3})
def test_a_broker_is_drained_and_removed_and_another_takes_its_part_under_load(
    culver_cluster: Cluster,
) -> None:
    shell = Shell(culver_cluster)
    culver_cluster.create_topic("orders", partitions=6, replication_factor=2)
    with Load(culver_cluster, "orders") as load:
        assert "broker 3 holds nothing any more; it can be stopped" in shell.out("drain", "3")
        assert all(3 not in held for held in replicas(culver_cluster, "orders"))
        code, _, errors = shell.run("drain", "3", "--remove")
        assert code == ExitCode.FAILED
        assert "is still running" in errors
        culver_cluster.broker(3).stop()
        assert "is struck off the list" in shell.out("drain", "3", "--remove")
        assert [row["broker"] for row in shell.json("status")["brokers"]] == [1, 2]

        culver_cluster.add_broker()
        shell.out("balance")
        held = [broker for each in replicas(culver_cluster, "orders") for broker in each]
        assert {broker: held.count(broker) for broker in set(held)} == {1: 4, 2: 4, 4: 4}
        culver_cluster.wait_until_in_sync("orders")
        assert "even already" in shell.run("balance")[2]
    load.check()


@pytest.mark.culver_cluster(brokers=2)
def test_a_move_is_called_off_and_its_throttle_goes_with_the_command(culver_cluster: Cluster) -> None:
    shell = Shell(culver_cluster)
    culver_cluster.create_topic("orders", replication_factor=1)
    with Load(culver_cluster, "orders") as load:
        here = culver_cluster.leader("orders")
        there = 3 - here
        move = ["reassign", "--topic", "orders", "--to", str(there)]
        with shell.start(*move, "--throttle", SNAILS_PACE) as process:
            culver_cluster.wait_until(lambda: shell.json("status")["moving"], "the move is under way")
            assert throttle(culver_cluster, there) == SNAILS_PACE
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == ExitCode.INTERRUPTED
        assert "not waiting any more; the moves go on" in errors
        assert throttle(culver_cluster, there) == NO_LIMIT
        # It may be done before the next word arrives: either way nothing is left under way.
        shell.out("reassign", "--cancel")
        assert shell.json("status")["moving"] == []
        assert "nothing is moving" in shell.out("reassign", "--cancel")
    load.check()


def throttle(cluster: Cluster, broker: int) -> str:
    """The rate that holds on a broker at the moment."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
    (future,) = admin.describe_configs([ConfigResource(ResourceType.BROKER, str(broker))]).values()
    return str(future.result(TIMEOUT_SECONDS)["follower.replication.throttled.rate"].value)


@pytest.mark.culver_cluster(brokers=3, topics={"orders": 6})
def test_leaders_go_back_to_where_they_belong(culver_cluster: Cluster) -> None:
    shell = Shell(culver_cluster)
    culver_cluster.broker(1).restart()
    culver_cluster.wait_until_in_sync("orders")
    assert "handed over" in shell.out("elect-leaders")
    culver_cluster.wait_until(
        lambda: all(each.leader == each.replicas[0] for each in culver_cluster.partitions("orders")),
        "the first replica leads everywhere",
    )
    assert "0 leaderships handed over" in shell.out("elect-leaders")


@pytest.mark.culver_cluster(brokers=2)
def test_a_partition_whose_records_are_gone_is_led_again_only_on_demand(culver_cluster: Cluster) -> None:
    shell = Shell(culver_cluster)
    culver_cluster.create_topic("orders", replication_factor=2)
    culver_cluster.wait_until_in_sync("orders")
    first = culver_cluster.leader("orders")
    second = 3 - first
    culver_cluster.broker(second).kill()
    culver_cluster.wait_until(
        lambda: culver_cluster.partition("orders").in_sync == (first,), f"only broker {first} is in sync"
    )
    culver_cluster.broker(first).kill()
    culver_cluster.broker(second).start()
    culver_cluster.wait_until(lambda: culver_cluster.leader("orders") == -1, "nobody leads")
    code, told, _ = shell.run("why-unhealthy")
    assert code == ExitCode.FAILED
    assert f"start broker {first} again: it alone has every acknowledged record" in told
    unclean = ["elect-leaders", "--unclean", "--topic", "orders", "--partition", "0"]
    assert shell.run(*unclean)[0] == ExitCode.USAGE  # nobody to ask, and no --yes
    assert "1 leadership handed over" in shell.out(*unclean, "--yes")
    assert culver_cluster.wait_for_leader("orders") == second


@pytest.mark.culver_cluster(brokers=1, topics={"orders": 2})
def test_what_is_not_there_is_told(culver_cluster: Cluster) -> None:
    shell = Shell(culver_cluster)
    for arguments, complaint in (
        (["drain", "7"], "there is no broker 7, only 1"),
        (["reassign", "--topic", "nothing", "--to", "1"], "topic nothing does not exist"),
        (
            ["reassign", "--topic", "orders", "--partition", "9", "--to", "1"],
            "has no partition 9, only 0 to 1",
        ),
    ):
        code, _, errors = shell.run(*arguments)
        assert (code, complaint in errors) == (ExitCode.NOT_FOUND, True)
    code, _, errors = shell.run("reassign", "--topic", "orders", "--to", "8")
    assert code == ExitCode.FAILED
    assert errors.startswith("culver: refused: orders-0: ")
    code, _, errors = shell.run("drain", "1")
    assert code == ExitCode.FAILED
    assert "broker 1 cannot be drained: " in errors


@pytest.mark.culver_cluster(brokers=2)
def test_a_broker_with_the_only_copy_is_not_drained_when_it_is_dead(culver_cluster: Cluster) -> None:
    shell = Shell(culver_cluster)
    culver_cluster.create_topic("orders", partitions=2, replication_factor=1)
    culver_cluster.broker(2).kill()
    culver_cluster.wait_until(
        lambda: any(partition.leader == -1 for partition in culver_cluster.partitions("orders")),
        "broker 2 is missed",
    )
    code, _, errors = shell.run("drain", "2")
    assert code == ExitCode.FAILED
    assert "1 partition cannot be copied for want of a leader: orders-" in errors


@pytest.mark.culver_cluster(brokers=3, topics={"orders": 1})
def test_a_broker_that_does_not_answer_is_passed_over(culver_cluster: Cluster) -> None:
    culver_cluster.broker(1).suspend()
    culver_cluster.wait_for_leader("orders", other_than=1)
    assert [row["state"] for row in Shell(culver_cluster).json("status", "--timeout", "6")["brokers"]] == [
        "down",
        "up",
        "up",
    ]
