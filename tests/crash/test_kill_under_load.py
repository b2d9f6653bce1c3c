"""SIGKILL in mid-write, again and again: every acknowledged record is there afterwards, in order, once."""

from __future__ import annotations

import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka import KafkaException, TopicPartition
from workload import Writer, check, eventually, read_all

from culver.testing import Broker

PARTITIONS = 4
KILLS = 5
RECORDS_BETWEEN_KILLS = 3000


@pytest.mark.parametrize(
    ("settings", "once"),
    [
        pytest.param({"enable.idempotence": True}, True, id="idempotent"),
        pytest.param({"enable.idempotence": True, "compression.type": "lz4"}, True, id="idempotent, lz4"),
        pytest.param({"acks": "1"}, False, id="acks=1"),
    ],
)
def test_no_acknowledged_record_is_lost(settings: dict[str, Any], once: bool) -> None:
    # Small segments, so that some kills fall into a roll.
    topic_config = {"segment.bytes": 1_048_576}
    with Broker() as broker:
        broker.create_topic("t", PARTITIONS, topic_config)
        with Writer(broker.bootstrap_servers, "t", PARTITIONS, settings) as writer:
            for _ in range(KILLS):
                writer.wait_for_progress(RECORDS_BETWEEN_KILLS)
                broker.kill()
                broker.start()
            writer.wait_for_progress(RECORDS_BETWEEN_KILLS)
        assert writer.acknowledged_count > (KILLS + 1) * RECORDS_BETWEEN_KILLS
        check(writer, read_all(broker.bootstrap_servers, "t", range(PARTITIONS)), once=once)
        # And it all survives a crash with nothing going on.
        broker.kill()
        broker.start()
        check(writer, read_all(broker.bootstrap_servers, "t", range(PARTITIONS)), once=once)


def test_committed_offsets_never_go_back() -> None:
    """A thread commits 1, 2, 3, ... while the broker is killed: what was acknowledged is there."""
    with Broker(topics={"t": 1}) as broker:
        acknowledged = [0]
        attempted = [0]
        stopping = threading.Event()

        def commit_on_and_on() -> None:
            consumer = confluent_kafka.Consumer(
                {
                    "bootstrap.servers": broker.bootstrap_servers,
                    "group.id": "g",
                    "enable.auto.commit": False,
                    "reconnect.backoff.max.ms": 100,
                    "log_level": 0,
                }
            )
            try:
                while not stopping.is_set():
                    attempted[0] += 1
                    try:
                        consumer.commit(offsets=[TopicPartition("t", 0, attempted[0])], asynchronous=False)
                    except KafkaException:
                        continue  # it may or may not have been written
                    acknowledged[0] = attempted[0]
            finally:
                consumer.close()

        thread = threading.Thread(target=commit_on_and_on, name="committer")
        thread.start()
        try:
            for _ in range(KILLS):
                goal = acknowledged[0] + 100
                eventually("100 more commits", lambda goal=goal: acknowledged[0] >= goal)  # type: ignore[misc]
                broker.kill()
                known = acknowledged[0]
                broker.start()
                found = committed(broker.bootstrap_servers)
                assert known <= found <= attempted[0]
        finally:
            stopping.set()
            thread.join()
        assert committed(broker.bootstrap_servers) >= acknowledged[0]


def test_a_group_skips_nothing_while_the_broker_is_killed() -> None:
    """Two members read and commit all the while: every record is delivered at least once."""
    config = {"group.initial.rebalance.delay.ms": 0}
    with Broker(topics={"t": PARTITIONS}, config=config) as broker:
        seen: list[set[int]] = [set() for _ in range(PARTITIONS)]
        stopping = threading.Event()

        def consume_on_and_on() -> None:
            consumer = confluent_kafka.Consumer(
                {
                    "bootstrap.servers": broker.bootstrap_servers,
                    "group.id": "g",
                    "auto.offset.reset": "earliest",
                    "auto.commit.interval.ms": 50,
                    "heartbeat.interval.ms": 100,
                    "reconnect.backoff.max.ms": 100,
                    "log_level": 0,
                }
            )
            try:
                consumer.subscribe(["t"])
                while not stopping.is_set():
                    for message in consumer.consume(1000, timeout=0.1):
                        if message.error() is None:
                            partition, offset = message.partition(), message.offset()
                            assert partition is not None
                            assert offset is not None
                            seen[partition].add(offset)
            finally:
                consumer.close()

        with ThreadPoolExecutor(2) as threads:
            members = [threads.submit(consume_on_and_on) for _ in range(2)]
            try:
                with Writer(
                    broker.bootstrap_servers, "t", PARTITIONS, {"enable.idempotence": True}
                ) as writer:
                    for _ in range(3):
                        writer.wait_for_progress(RECORDS_BETWEEN_KILLS)
                        broker.kill()
                        broker.start()
                    writer.wait_for_progress(RECORDS_BETWEEN_KILLS)
                assert not writer.errors, writer.errors[:3]
                written = [set(acknowledged.values()) for acknowledged in writer.acknowledged]
                eventually("all delivered", lambda: all(map(set.issuperset, seen, written)))
            finally:
                stopping.set()
            for member in members:
                member.result()


def test_killed_again_while_it_recovers() -> None:
    """Recovery itself may be cut off at any point, as often as it likes."""
    with Broker() as broker:
        broker.create_topic("t", PARTITIONS, {"segment.bytes": 1_048_576})
        with Writer(broker.bootstrap_servers, "t", PARTITIONS, {"enable.idempotence": True}) as writer:
            writer.wait_for_progress(10 * RECORDS_BETWEEN_KILLS)
            broker.kill()
            command = [sys.executable, "-m", "culver", "serve", "--no-http", "--listen", "127.0.0.1:0"]
            command += ["--data-dir", str(broker.data_dir)]
            for life_ms in range(40, 400, 40):
                with subprocess.Popen(
                    command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                ) as process:
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(life_ms / 1000)
                    process.kill()
            broker.start()
            writer.wait_for_progress(RECORDS_BETWEEN_KILLS)
        check(writer, read_all(broker.bootstrap_servers, "t", range(PARTITIONS)), once=True)


def committed(bootstrap: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    try:
        [place] = consumer.committed([TopicPartition("t", 0)], timeout=20)
    finally:
        consumer.close()
    return place.offset
