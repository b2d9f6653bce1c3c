"""Exactly once while brokers die: the transaction's coordinator, the group's, and leaders of partitions."""

from __future__ import annotations

import os
import random
import threading
from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient
from deadlines import eventually
from transactional_topics import end_offsets, fill, read_to_end, start_worker

from culver.core.coordinator_partitions import partition_for_name
from culver.core.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from culver.testing import Cluster

# Few partitions of the internal topics: they are made quickly.
PARTITIONS = 3
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "offsets.topic.num.partitions": PARTITIONS,
    "transaction.state.log.num.partitions": PARTITIONS,
}
RECORDS = 300
NAME = "copying"
LIVES_MAX = 12
DEADLINE_SECONDS = 40.0


def coordinator(cluster: Cluster, topic: str) -> int:
    """The broker that leads the partition of an internal topic which has the worker's name in it."""
    return cluster.leader(topic, partition_for_name(NAME, PARTITIONS))


@pytest.mark.skipif("CULVER_TEST_BOOTSTRAP" in os.environ, reason="the test kills brokers")
def test_killed_workers_and_killed_brokers_leave_every_record_in_the_target_once() -> None:
    chance = random.Random(5)
    with Cluster(3, {"source": 2, "target": 2}, SETTINGS) as cluster:
        bootstrap = cluster.bootstrap_servers
        values = fill(bootstrap, "source", RECORDS)
        # One after the other: a broker is killed while a worker is at work, and comes back.
        victims: list[Callable[[], int]] = [
            lambda: coordinator(cluster, TRANSACTION_STATE_TOPIC),
            lambda: coordinator(cluster, GROUP_OFFSETS_TOPIC),
            lambda: cluster.leader("target"),
        ]
        for life in range(LIVES_MAX):
            die_at = chance.randint(50, 70) if victims else 0
            worker = start_worker("confluent-kafka", bootstrap, "source", "target", NAME, life, die_at)
            watchdog = threading.Timer(DEADLINE_SECONDS, worker.kill)
            watchdog.start()
            try:
                assert worker.stdout is not None
                if victims and worker.stdout.readline() and worker.stdout.readline():
                    victim = cluster.broker(victims.pop(0)())
                    victim.kill()
                    worker.wait()
                    victim.start()
                    cluster.wait_until_in_sync("source", "target")
                worker.wait()
            finally:
                watchdog.cancel()
                watchdog.join()
                worker.kill()
                worker.communicate()
            if worker.returncode == 0:
                break
        assert worker.returncode == 0, "the work was not finished"
        assert not victims
        assert sorted(read_to_end(bootstrap, "target", "read_committed")) == values
        everything = Counter(read_to_end(bootstrap, "target", "read_uncommitted"))
        assert everything >= Counter(values)
        with AdminClient({"bootstrap.servers": bootstrap}) as admin:
            eventually(
                "nothing is left open",
                lambda: (
                    end_offsets(admin, "target", "read_committed")
                    == end_offsets(admin, "target", "read_uncommitted")
                ),
            )
