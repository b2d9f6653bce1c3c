"""The sink writes a stream exactly once, although its job is killed in the middle."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition
from killed_jobs import KILLS, finish, kill_when
from topic_records import produce

from culver.testing import Broker

TOTAL = 1_200 + 1_200 * KILLS


def read(broker: Broker, topic: str) -> list[bytes]:
    """The committed values of both partitions."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(2)])
    values, ends = [], 0
    while ends < 2:
        message = consumer.poll(10)
        assert message is not None, "the topic has an end"
        if message.error() is not None:
            ends += 1
        else:
            values.append(message.value())
    consumer.close()
    return values


@pytest.mark.timeout(200 + 200 * KILLS)
def test_a_stream_is_written_exactly_once_though_its_job_is_killed(tmp_path: Path) -> None:
    with Broker(topics={"in": 2, "out": 2}, config={"culver.flush": "os"}) as broker:
        for partition in range(2):
            numbers = range(partition, TOTAL, 2)
            produce(broker.bootstrap_servers, "in", [b"%d" % n for n in numbers], partition=partition)
        job = Path(__file__).with_name("copy_job.py")
        checkpoint = tmp_path / "checkpoint"
        command = [sys.executable, str(job), broker.bootstrap_servers, "in", "out", str(checkpoint)]
        for kill in range(KILLS):
            enough = 600 + 1_200 * kill
            kill_when(command, lambda enough=enough: len(read(broker, "out")) >= enough)
            # What is in the topic but not in Spark's books comes again. Let one more micro-batch be of that kind.
            commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
            for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
                path.unlink(missing_ok=True)
        finish(command)
        found = read(broker, "out")
        assert Counter(found) == Counter(b"%d" % number for number in range(TOTAL))
