"""Java workers that copy a topic in transactions are killed again and again: each record is there once in the end."""

from __future__ import annotations

import contextlib
import random
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import confluent_kafka
import pytest
from anchors import Unavailable, kafka

from culver.protocol.messages.find_coordinator import FindCoordinatorRequest
from culver.testing import Broker, Cluster
from raw_connection import RawConnection

pytestmark = [pytest.mark.interop, pytest.mark.timeout(400)]

PROGRAM = Path(__file__).parent / "java" / "Copier.java"
PARTITIONS = 4
SOURCE, TARGET = "source", "target"
TOPICS = {SOURCE: PARTITIONS, TARGET: PARTITIONS}
RECORDS_PER_TRANSACTION = 20
TRANSACTIONS_AT_A_TIME = 20
RECORDS_AT_A_TIME = RECORDS_PER_TRANSACTION * TRANSACTIONS_AT_A_TIME
# Where a worker says it is, and so where it is killed.
PLACES = ("sending", "sent", "offsets", "committed", "sent")
GONE = "gone"
PATIENCE_SECONDS = 120
# Dead members are noticed soon.
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 3000,
    "group.consumer.heartbeat.interval.ms": 300,
}


class Worker:
    """One copier in a JVM of its own. What it says goes to a queue, with its name."""

    def __init__(self, name: str, command: list[str], said: Queue[tuple[Worker, str]]) -> None:
        self.name = name
        self._command = command
        self._said = said
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    def start(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._listen, args=(self._process,), name=self.name)
        self._reader.start()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._said.put((self, line.strip()))
        self._said.put((self, f"{GONE} {process.pid}"))

    def kill(self) -> None:
        assert self._process is not None
        assert self._reader is not None
        self._process.kill()
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._process = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid


class Copying:
    """Some workers with one group, and what they have been given to copy."""

    def __init__(self, command: list[str], bootstrap: str, protocol: str, workers: int) -> None:
        self.bootstrap = bootstrap
        self.given: Counter[bytes] = Counter()
        self.said: Queue[tuple[Worker, str]] = Queue()
        self.workers = [
            Worker(
                name,
                [
                    *command,
                    bootstrap,
                    SOURCE,
                    TARGET,
                    "copiers",
                    name,
                    protocol,
                    str(RECORDS_PER_TRANSACTION),
                ],
                self.said,
            )
            for name in (f"copier-{number}" for number in range(workers))
        ]

    def give(self) -> None:
        """Some more to copy."""
        with confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "log_level": 0}) as producer:
            for number in range(len(self.given), len(self.given) + RECORDS_AT_A_TIME):
                producer.produce(SOURCE, b"%d" % number, b"%d" % number, partition=number % PARTITIONS)
                self.given[b"%d" % number] = 1
            assert producer.flush(60) == 0

    def wait_for(self, word: str, times: int = 1) -> Worker:
        """The worker who says it, for the last of so many times."""
        for _ in range(times):
            worker, said = self.next_word()
            while said != word:
                worker, said = self.next_word()
        return worker

    def next_word(self) -> tuple[Worker, str]:
        """What is said next; workers that were fenced or failed are started again."""
        while True:
            worker, word = self.said.get(timeout=PATIENCE_SECONDS)
            if not word.startswith(GONE):
                return worker, word
            if word == f"{GONE} {worker.pid}":
                worker.kill()
                worker.start()

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        try:
            for worker in self.workers:
                worker.start()
            yield
        finally:
            for worker in self.workers:
                if worker.pid is not None:
                    worker.kill()

    def committed_output(self) -> Counter[bytes]:
        """What a reader of committed records finds, once it has found all there must be and sees the end."""
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": "unused",
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "log_level": 0,
            }
        )
        found: Counter[bytes] = Counter()
        at_end: set[int] = set()
        try:
            consumer.assign(
                [confluent_kafka.TopicPartition(TARGET, number, 0) for number in range(PARTITIONS)]
            )
            while len(found) < len(self.given) or len(at_end) < PARTITIONS:
                message = consumer.poll(PATIENCE_SECONDS)
                assert message is not None, f"{sum(found.values())} records, and nothing more"
                error = message.error()
                if error is None:
                    found[message.value()] += 1
                    at_end.discard(message.partition())
                elif error.code() == confluent_kafka.KafkaError._PARTITION_EOF:
                    at_end.add(message.partition())
        finally:
            consumer.close()
        return found


@pytest.fixture(scope="module")
def copier(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command that runs a worker."""
    try:
        return kafka.compiled_source(PROGRAM, tmp_path_factory.mktemp("copier"))
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.fixture(scope="module")
def old_copier(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The same with a client of before Kafka 4: first generation of the protocol of transactions."""
    try:
        return kafka.compiled_source(PROGRAM, tmp_path_factory.mktemp("copier"), kafka.old_client_jars())
    except Unavailable as reason:
        pytest.skip(str(reason))


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_workers_that_are_killed_anywhere_copy_each_record_once(copier: list[str], protocol: str) -> None:
    copy_with_kills(copier, protocol)


def test_so_do_workers_of_the_first_generation(old_copier: list[str]) -> None:
    copy_with_kills(old_copier, "classic")


def copy_with_kills(command: list[str], protocol: str) -> None:
    chance = random.Random(5)
    with Broker(topics=TOPICS, config=SETTINGS) as broker:
        copying = Copying(command, broker.bootstrap_servers, protocol, 2)
        with copying.under_way():
            copying.wait_for("ready")
            for place in PLACES:
                copying.give()
                copying.wait_for("committed", chance.randrange(1, 5))
                worker = copying.wait_for(place)
                worker.kill()
                worker.start()
            copying.give()
            assert copying.committed_output() == copying.given


@pytest.mark.parametrize("victim", ["transaction coordinator", "leader"])
def test_a_worker_goes_on_when_a_broker_is_killed(copier: list[str], victim: str) -> None:
    with Cluster(brokers=3, topics=TOPICS, config=SETTINGS) as cluster:
        copying = Copying(copier, cluster.bootstrap_servers, "classic", 1)
        copying.give()
        with copying.under_way():
            copying.wait_for("committed", 3)
            killed = cluster.leader(TARGET, 1) if victim == "leader" else coordinator(cluster, "copier-0")
            cluster.broker(killed).kill()
            copying.give()
            copying.wait_for("committed", TRANSACTIONS_AT_A_TIME)
            cluster.broker(killed).start()
            copying.give()
            assert copying.committed_output() == copying.given


def coordinator(cluster: Cluster, transactional_id: str) -> int:
    host, _, port = cluster.brokers[0].bootstrap_servers.rpartition(":")
    with RawConnection((host, int(port))) as connection:
        answer = connection.call(FindCoordinatorRequest(key=transactional_id, key_type=1), 3)
    assert answer.error_code == 0
    node_id: int = answer.node_id
    return node_id
