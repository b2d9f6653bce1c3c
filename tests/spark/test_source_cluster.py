"""On a real Spark cluster: tasks on several workers, and a driver that is killed and started again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from standalone_cluster import standalone_cluster
from topic_records import produce

from culver.testing import Broker
from culver.testing.pytest_plugin import TopicFactory

JOB = Path(__file__).parent / "streaming_job.py"
JOB_SECONDS = 200


@pytest.mark.timeout(400)
def test_a_driver_killed_between_batches_loses_and_doubles_nothing(
    culver_broker: Broker, culver_topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic = culver_topic_factory(partitions=2)
    values = [b"%04d" % number for number in range(400)]
    for partition in (0, 1):
        produce(culver_broker.bootstrap_servers, topic, values[partition::2], partition=partition)
    with standalone_cluster(tmp_path, workers=2) as master:
        command = [sys.executable, str(JOB), master, culver_broker.bootstrap_servers, topic, str(tmp_path)]
        log = tmp_path / "first.log"
        with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as first:
            try:
                wait_for_batches(tmp_path / "checkpoint" / "commits", 2, first, log)
            finally:
                first.kill()
        done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_SECONDS)
        assert done.returncode == 0, done.stderr[-4000:]
        found = json.loads(done.stdout.splitlines()[-1])
    assert found["values"] == [value.decode() for value in values]
    assert len(found["workers"]) == 2


def wait_for_batches(commits: Path, count: int, job: subprocess.Popen[bytes], log: Path) -> None:
    """Until the job has committed as many batches; it has eight more to go then."""
    deadline = time.monotonic() + JOB_SECONDS
    while not commits.is_dir() or sum(path.name.isdigit() for path in commits.iterdir()) < count:
        assert job.poll() is None, log.read_text()[-4000:]
        assert time.monotonic() < deadline
        time.sleep(0.02)
