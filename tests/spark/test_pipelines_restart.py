"""The logs pipeline is killed in the middle; started again, it leaves no line out and takes none twice."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from killed_jobs import KILLS, finish, kill_when
from topic_records import produce

from culver.pipelines.log_store.errors import StoreNotFound
from culver.pipelines.log_store.store import LogStore
from culver.testing import Broker

TOTAL = 1_500 + 1_500 * KILLS


def stored(path: Path) -> int:
    """How many lines there are, while the job writes."""
    try:
        return LogStore(str(path), create=False).state().rows
    except StoreNotFound:
        return 0


@pytest.mark.timeout(200 + 200 * KILLS)
def test_logs_takes_every_line_once_though_it_is_killed(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with Broker(topics={"lines": 2}, config={"culver.flush": "os"}) as broker:
        for partition in range(2):
            numbers = range(partition, TOTAL, 2)
            values = [b'{"level":"info","service":"api","msg":"line %d"}' % number for number in numbers]
            produce(broker.bootstrap_servers, "lines", values, partition=partition)
        command = [sys.executable, "-m", "culver.pipelines.submit", "logs", "--master", "local[2]", "--once"]
        command += ["--bootstrap", broker.bootstrap_servers, "--topics", "lines", "--store", str(store)]
        # Small batches, so that there are many moments to be killed at.
        command += ["--records-per-batch-max", "250", "--compact-files", "4"]
        for kill in range(KILLS):
            enough = 750 + 1_500 * kill
            kill_when(command, lambda enough=enough: stored(store) >= enough)
            assert stored(store) < TOTAL
        output = finish(command)
    events = LogStore(str(store), create=False).search(limit=2 * TOTAL)
    assert Counter(events["message"].to_pylist()) == Counter(f"line {number}" for number in range(TOTAL))
    assert f"stored_lines={TOTAL}" in output
