"""SIGKILL in mid-write, again and again: every acknowledged record is there afterwards, in order, once."""

from __future__ import annotations

import threading
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


def committed(bootstrap: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "g"})
    try:
        [place] = consumer.committed([TopicPartition("t", 0)], timeout=20)
    finally:
        consumer.close()
    return place.offset
