"""Kafka's own tools against three brokers: partitions move, leaders are elected, replicas are shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from anchors import Unavailable, kafka

from culver.testing import Cluster

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOOLS = "org.apache.kafka.tools."

Tool = Callable[..., str]


@pytest.fixture
def tool(culver_cluster: Cluster) -> Tool:
    """Runs a tool against the cluster and returns what it printed; fails when it fails."""
    try:
        kafka.jars()
    except Unavailable as reason:
        pytest.skip(str(reason))

    def run(classname: str, *arguments: str) -> str:
        result = kafka.run_tool(
            TOOLS + classname,
            "--bootstrap-server",
            culver_cluster.bootstrap_servers,
            *arguments,
            stdin="",
            timeout_seconds=120,
            check=True,
        )
        return str(result.stdout)

    return run


def test_partitions_are_reassigned_verified_and_listed(
    tool: Tool, culver_cluster: Cluster, tmp_path: Path
) -> None:
    culver_cluster.create_topic("moving", partitions=2, replication_factor=1)
    plan = {
        "version": 1,
        "partitions": [
            {"topic": "moving", "partition": 0, "replicas": [1, 2], "log_dirs": ["any", "any"]},
            {"topic": "moving", "partition": 1, "replicas": [2, 3], "log_dirs": ["any", "any"]},
        ],
    }
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    begun = tool(
        "reassign.ReassignPartitionsCommand",
        *("--reassignment-json-file", str(tmp_path / "plan.json")),
        *("--execute", "--throttle", "50000000"),
    )
    assert "Successfully started partition reassignment" in begun
    culver_cluster.wait_until(
        lambda: [each.replicas for each in culver_cluster.partitions("moving")] == [(1, 2), (2, 3)],
        "both partitions have moved",
    )
    verified = tool(
        "reassign.ReassignPartitionsCommand",
        *("--reassignment-json-file", str(tmp_path / "plan.json"), "--verify"),
    )
    assert "Reassignment of partition moving-0 is completed" in verified
    assert "Reassignment of partition moving-1 is completed" in verified
    assert "No partition reassignments found" in tool("reassign.ReassignPartitionsCommand", "--list")


def test_leaders_are_elected(tool: Tool, culver_cluster: Cluster) -> None:
    culver_cluster.create_topic("led", partitions=3, replication_factor=3)
    culver_cluster.broker(1).restart()
    culver_cluster.wait_until_in_sync("led")
    tool("LeaderElectionCommand", "--election-type", "preferred", "--all-topic-partitions")
    culver_cluster.wait_until(
        lambda: all(each.leader == each.replicas[0] for each in culver_cluster.partitions("led")),
        "the first replica leads everywhere",
    )


def test_topics_are_described_with_replicas_and_their_want(tool: Tool, culver_cluster: Cluster) -> None:
    culver_cluster.create_topic("described", replication_factor=3, config={"min.insync.replicas": 2})
    culver_cluster.wait_until_in_sync("described")
    described = tool("TopicCommand", "--describe", "--topic", "described")
    assert "ReplicationFactor: 3" in described
    assert tool("TopicCommand", "--describe", "--under-replicated-partitions").strip() == ""
    culver_cluster.broker(3).kill()
    culver_cluster.wait_until(
        lambda: 3 not in culver_cluster.partition("described").in_sync, "broker 3 is out of sync"
    )
    assert "Topic: described" in tool("TopicCommand", "--describe", "--under-replicated-partitions")
