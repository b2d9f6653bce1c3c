"""Three brokers of one kind as one cluster: Culver over a metadata store, Kafka as three KRaft nodes."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient, NewTopic

from anchors.broker_process import HOST, BrokerProcess, StartFailed, free_port, known_brokers
from anchors.culver import Culver
from anchors.kafka import Kafka, random_id, run_tool

SIZE = 3
READY_TIMEOUT_SECONDS = 90.0
POLL_SECONDS = 0.01


class Cluster(ABC):
    """A context manager: all nodes are up, and know each other, inside the block."""

    name: str

    def __init__(self) -> None:
        self.nodes: dict[int, BrokerProcess] = {}
        self._stack = ExitStack()

    @abstractmethod
    def _make(self) -> None:
        """Fill `nodes`, by broker id, without starting them."""

    def __enter__(self) -> Self:
        try:
            self._make()
            with ThreadPoolExecutor(SIZE) as pool:
                for started in [pool.submit(node.start) for node in self.nodes.values()]:
                    started.result()
            self.admin: Any = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
            self.wait(self.complete, "all brokers know each other")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        for node in self.nodes.values():
            node.kill()
            node.close()
        self._stack.close()

    @property
    def bootstrap(self) -> str:
        return ",".join(node.bootstrap for node in self.nodes.values())

    def complete(self) -> bool:
        """Whether every broker knows all of them."""
        return all(known_brokers(node.port) == SIZE for node in self.nodes.values())

    def wait(self, condition: Any, what: str, timeout_seconds: float = READY_TIMEOUT_SECONDS) -> float:
        """Poll until it holds; how long that took."""
        begun = time.perf_counter()
        while not condition():
            if time.perf_counter() - begun > timeout_seconds:
                raise StartFailed(f"{self.name}: not after {timeout_seconds:g} s: {what}")
            time.sleep(POLL_SECONDS)
        return time.perf_counter() - begun

    def create_topic(
        self, name: str, partitions: int = 1, configuration: Mapping[str, str] | None = None
    ) -> None:
        """Three replicas of each partition; returns when every one has a leader and all are in sync."""
        topic = NewTopic(name, partitions, SIZE, config=dict(configuration or {}))
        self.admin.create_topics([topic])[name].result(60)
        self.wait(lambda: self.in_sync(name) == {SIZE}, f"{name} is in sync")

    def delete_topic(self, name: str) -> None:
        self.admin.delete_topics([name])[name].result(60)

    def partitions(self, topic: str) -> list[Any]:
        described = self.admin.describe_topics(TopicCollection([topic]))[topic]
        try:
            return list(described.result(20).partitions)
        except Exception:  # noqa: BLE001 - not known yet, or its broker has just gone: asked again
            return []

    def in_sync(self, topic: str) -> set[int]:
        """How many in-sync replicas the partitions have; 0 for one without a leader."""
        return {
            len(partition.isr) if partition.leader is not None and partition.leader.id >= 0 else 0
            for partition in self.partitions(topic)
        }

    def leader(self, topic: str, partition: int = 0) -> int:
        def known() -> bool:
            found = self.partitions(topic)
            return len(found) > partition and found[partition].leader is not None

        self.wait(known, f"{topic}-{partition} has a leader")
        return int(self.partitions(topic)[partition].leader.id)


class CulverCluster(Cluster):
    """`culver serve` three times, meeting in a SQLite file or in ZooKeeper."""

    name = "Culver"

    def __init__(
        self,
        settings: Mapping[str, str] | None = None,
        *,
        directory: Path | None = None,
        zookeeper: str | None = None,
    ) -> None:
        super().__init__()
        self._settings = dict(settings or {})
        self._directory = directory
        self._zookeeper = zookeeper

    def _make(self) -> None:
        where = self._zookeeper
        for number in range(1, SIZE + 1):
            node = Culver(self._settings, directory=self._directory)
            if where is None:
                where = f"local:{node.data_dir.parent / 'metadata.sqlite'}"
            node.arguments = ["--broker-id", str(number), "--coordination", where]
            self.nodes[number] = node


class KafkaCluster(Cluster):
    """Three nodes, each broker and controller, with Kafka's defaults."""

    name = "Kafka"

    def __init__(self, settings: Mapping[str, str] | None = None, *, directory: Path | None = None) -> None:
        super().__init__()
        self._settings = dict(settings or {})
        self._directory = directory

    def _make(self) -> None:
        replicated = {
            "offsets.topic.replication.factor": "3",
            "transaction.state.log.replication.factor": "3",
            "transaction.state.log.min.isr": "2",
            "share.coordinator.state.topic.replication.factor": "3",
            "share.coordinator.state.topic.min.isr": "2",
        }
        ports = {number: free_port() for number in range(1, SIZE + 1)}
        quorum = ",".join(f"{HOST}:{port}" for port in ports.values())
        cluster_id = random_id()
        directories = {number: random_id() for number in ports}
        voters = ",".join(f"{number}@{HOST}:{port}:{directories[number]}" for number, port in ports.items())
        for number, port in ports.items():
            settings = {
                **replicated,
                "node.id": str(number),
                "controller.quorum.bootstrap.servers": quorum,
                **self._settings,
            }
            node = KafkaNode(settings, port, directory=self._directory)
            node.prepare(cluster_id, voters)
            self.nodes[number] = node


class KafkaNode(Kafka):
    """One of three: formatted with all the voters rather than alone."""

    def __init__(
        self, properties: Mapping[str, str], controller_port: int, *, directory: Path | None
    ) -> None:
        super().__init__(properties, directory=directory)
        self._controller_port = controller_port

    def prepare(self, cluster_id: str, voters: str) -> None:
        self.write_configuration()
        result = run_tool(
            "kafka.tools.StorageTool",
            "format",
            f"--cluster-id={cluster_id}",
            f"--initial-controllers={voters}",
            f"--config={self.configuration}",
            check=False,
        )
        if result.returncode != 0:
            raise StartFailed(f"Kafka's storage could not be formatted:\n{result.stdout}{result.stderr}")
