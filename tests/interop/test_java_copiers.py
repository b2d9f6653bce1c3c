"""Java workers that copy a topic in transactions are killed again and again: each record is there once in the end."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from queue import Queue

import confluent_kafka
import pytest
from anchors import Unavailable, kafka
from confluent_kafka import ConsumerGroupTopicPartitions
from confluent_kafka.admin import AdminClient

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
PATIENCE_SECONDS = 120
# Dead members are noticed soon.
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "group.consumer.session.timeout.ms": 3000,
    "group.consumer.heartbeat.interval.ms": 300,
}


class Worker:
    """One copier in a JVM of its own. What it says goes to a queue; it goes on when it is told to."""

    def __init__(self, name: str, command: list[str], said: Queue[tuple[Worker, str]]) -> None:
        self.name = name
        self._command = command
        self._said = said
        self._free = False
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def process(self) -> subprocess.Popen[str]:
        assert self._process is not None
        return self._process

    @property
    def running(self) -> bool:
        return self._process is not None

    def start(self) -> None:
        self._process = subprocess.Popen(
            self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._reader = threading.Thread(target=self._listen, args=(self._process,), name=self.name)
        self._reader.start()
        if self._free:
            self.free()

    def _listen(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self._said.put((self, line.strip()))

    def go_on(self, order: str = "") -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{order}\n")

    def free(self) -> None:
        """From now on it waits for nobody."""
        self._free = True
        self.go_on("free")

    def freeze(self) -> None:
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        process, self._process = self.process, None
        process.kill()
        process.wait()
        assert self._reader is not None
        self._reader.join()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class Copying:
    """Some workers with one group, and what they have been given to copy."""

    def __init__(self, command: list[str], bootstrap: str, protocol: str, workers: int) -> None:
        self.bootstrap = bootstrap
        self.given: Counter[bytes] = Counter()
        self.said: Queue[tuple[Worker, str]] = Queue()
        self.held: Worker | None = None  # and waits to be told to go on
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
        """The worker who says it, for the last of so many times. It waits there; until the next call, if not longer."""
        while True:
            if self.held is not None:
                self.held.go_on()
            self.held, said = self.said.get(timeout=PATIENCE_SECONDS)
            times -= said == word
            if times == 0:
                return self.held

    def free(self) -> None:
        self.held = None
        for worker in self.workers:
            worker.free()

    @contextlib.contextmanager
    def under_way(self) -> Iterator[None]:
        try:
            for worker in self.workers:
                worker.start()
            yield
        finally:
            for worker in self.workers:
                if worker.running:
                    worker.kill()

    def wait_until_read(self) -> None:
        """Until the group has committed the offsets behind all that was given."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        everything = [ConsumerGroupTopicPartitions("copiers")]
        with AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}) as admin:
            while True:
                committed = admin.list_consumer_group_offsets(everything)["copiers"].result().topic_partitions
                read = sum(max(partition.offset, 0) for partition in committed)
                if read == len(self.given):
                    return
                assert time.monotonic() < deadline, f"{read} of {len(self.given)} have been read"
                time.sleep(0.1)

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
                copying.held = None
                worker.start()
            copying.free()
            copying.give()
            assert copying.committed_output() == copying.given


@pytest.mark.parametrize("place", ["sent", "offsets"])
def test_a_worker_that_was_taken_for_dead_does_no_harm_when_it_comes_back(
    copier: list[str], place: str
) -> None:
    """Frozen before its offsets are in the transaction, its member is; behind that, its transaction."""
    with Broker(topics=TOPICS, config=SETTINGS) as broker:
        copying = Copying(copier, broker.bootstrap_servers, "classic", 2)
        with copying.under_way():
            copying.wait_for("ready", 2)
            copying.give()
            frozen = copying.wait_for(place)
            frozen.freeze()
            copying.free()
            copying.give()
            copying.wait_until_read()
            frozen.thaw()
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
            copying.free()
            copying.give()
            assert copying.committed_output() == copying.given


def coordinator(cluster: Cluster, transactional_id: str) -> int:
    host, _, port = cluster.brokers[0].bootstrap_servers.rpartition(":")
    with RawConnection((host, int(port))) as connection:
        answer = connection.call(FindCoordinatorRequest(key=transactional_id, key_type=1), 3)
    assert answer.error_code == 0
    node_id: int = answer.node_id
    return node_id
