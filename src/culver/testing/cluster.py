"""Several real brokers in subprocesses that form a cluster, for tests that take them down one by one.

with Cluster(brokers=3, topics={"orders": 6}) as cluster:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
    cluster.broker(cluster.leader("orders", 0)).kill()
    cluster.wait_for_leader("orders", 0)
"""

from __future__ import annotations

import contextlib
import random
import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from culver.testing.announced_process import BrokerFailed, ForTheBlock
from culver.testing.broker import READY_TIMEOUT_SECONDS, Broker, SettingValue, setting_text

if TYPE_CHECKING:
    from culver.testing.gateway import Gateway
    from culver.wire_client import WireClient

WAIT_SECONDS = 30.0
_REPLICAS_DEFAULT = 3
_ANSWER_SECONDS = 2.0
_FIRST_PAUSE_SECONDS = 0.005
_LONGEST_PAUSE_SECONDS = 0.1
# Below the range from which the system takes ports for outgoing connections: the port of a broker that is down for a
# while must not be taken by a client of another.
_PORTS = range(15_000, 32_000)


class ClusterFailed(Exception):
    """What was waited for did not come; the message says what there was instead."""


@dataclass(frozen=True, slots=True)
class PartitionState:
    """A partition as one of the brokers sees it. `leader` is -1 while it has none."""

    topic: str
    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    in_sync: tuple[int, ...]

    @property
    def healthy(self) -> bool:
        """Led, and every replica is in sync."""
        return self.leader >= 0 and set(self.in_sync) == set(self.replicas)


class Cluster(ForTheBlock):
    """Brokers 1 to N on free ports with one metadata store; everything is gone afterwards.

    `topics` maps names to partition counts; they get three replicas, or as many as there are brokers. `config`
    holds settings for all brokers. `coordination` is "local" for a file that only this cluster uses, or the address
    of a ZooKeeper ensemble, `zookeeper://HOST:PORT/PATH`. `racks` names one rack per broker. `http` starts one gateway
    in front of them all: True on a free port, or an address.
    """

    def __init__(
        self,
        brokers: int = 3,
        topics: Mapping[str, int] | None = None,
        config: Mapping[str, SettingValue] | None = None,
        *,
        coordination: str = "local",
        racks: Sequence[str | None] | None = None,
        http: bool | str = False,
        environment: Mapping[str, str] | None = None,
        ready_timeout_s: float = READY_TIMEOUT_SECONDS,
    ) -> None:
        if racks is not None and len(racks) != brokers:
            raise ValueError(f"{len(racks)} racks for {brokers} brokers: name one for each")
        self.brokers: list[Broker] = []
        self._count = brokers
        self._topics = dict(topics or {})
        self._config = {"default.replication.factor": min(_REPLICAS_DEFAULT, brokers), **(config or {})}
        self._coordination = coordination
        self._racks = racks
        self._http = http
        self.gateway: Gateway | None = None
        self._environment = dict(environment or {})
        self._ready_timeout_s = ready_timeout_s
        self._workspace: Path | None = None

    # --- what a test asks for ---

    @property
    def bootstrap_servers(self) -> str:
        """The addresses of all brokers, those that are down too, to give to a Kafka client."""
        if not self.brokers:
            raise BrokerFailed(
                "the cluster has not been started: use `with Cluster() as cluster`, or call start()"
            )
        return ",".join(broker.bootstrap_servers for broker in self.brokers)

    @property
    def http_url(self) -> str:
        """The address of the gateway, `http://host:port`. Needs `http`."""
        if self.gateway is None:
            raise BrokerFailed("there is no HTTP: start the cluster with http=True")
        return self.gateway.url

    def broker(self, broker_id: int) -> Broker:
        """The broker with this id; `brokers[0]` has id 1."""
        for broker in self.brokers:
            if broker.broker_id == broker_id:
                return broker
        raise KeyError(f"there is no broker {broker_id}")

    @property
    def running(self) -> list[Broker]:
        """The brokers that are alive and not suspended."""
        return [broker for broker in self.brokers if broker.running and not broker.suspended]

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        replication_factor: int | None = None,
        config: Mapping[str, SettingValue] | None = None,
    ) -> None:
        """Create a topic and wait until every running broker knows it; KafkaError when it is refused."""
        # Imported late: the codecs are no concern of a pytest run that starts no broker.
        from culver.testing.topics import create_topics

        settings = {key: setting_text(value) for key, value in (config or {}).items()}
        create_topics(
            self._any().bootstrap_servers, {name: partitions}, settings, replication_factor=replication_factor
        )
        self._wait_until_known({name: partitions})

    def partitions(self, topic: str, broker: Broker | None = None) -> list[PartitionState]:
        """The topic's partitions as this broker sees them, or the first that is running. KafkaError: no such topic."""
        from culver.errors import ErrorCode, KafkaError
        from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=False)
        with self._connected(broker) as client:
            (found,) = client.ask_once(request, MetadataResponse).topics
        if found.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(found.error_code), f"topic {topic}")
        return [
            PartitionState(
                topic,
                each.partition_index,
                each.leader_id,
                each.leader_epoch,
                tuple(each.replica_nodes),
                tuple(each.isr_nodes),
            )
            for each in sorted(found.partitions, key=lambda each: each.partition_index)
        ]

    def partition(self, topic: str, index: int = 0) -> PartitionState:
        """One partition as the first running broker sees it."""
        return self.partitions(topic)[index]

    def leader(self, topic: str, partition: int = 0) -> int:
        """The id of the partition's leader, -1 while it has none."""
        return self.partition(topic, partition).leader

    def controller(self) -> int:
        """The id of the broker that elects leaders, -1 while there is none."""
        from culver.protocol.messages.metadata import MetadataRequest, MetadataResponse

        with self._connected(None) as client:
            return client.ask_once(MetadataRequest(topics=[]), MetadataResponse).controller_id

    # --- waiting ---

    def wait_until(
        self, condition: Callable[[], object], what: str | Callable[[], str], timeout_s: float = WAIT_SECONDS
    ) -> None:
        """Wait until the condition holds; ClusterFailed says `what` was waited for.

        A broker that cannot be asked just now, or has not heard of the topic yet, is no failure but a reason to
        ask again.
        """
        from culver.errors import KafkaError
        from culver.wire_client import Unreachable

        deadline = time.monotonic() + timeout_s
        pause_s = _FIRST_PAUSE_SECONDS
        trouble = ""
        while True:
            try:
                if condition():
                    return
                trouble = ""
            except (KafkaError, Unreachable) as error:
                trouble = f" ({error})"
            if time.monotonic() > deadline:
                text = what if isinstance(what, str) else what()
                raise ClusterFailed(self._with_logs(f"after {timeout_s:g} s still not: {text}{trouble}"))
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_SECONDS)

    def wait_until_in_sync(self, *topics: str, timeout_s: float = WAIT_SECONDS) -> None:
        """Wait until every partition of the topics has a leader and all its replicas are in sync."""
        self.wait_until(
            lambda: all(each.healthy for topic in topics for each in self.partitions(topic)),
            lambda: "all replicas in sync: " + "; ".join(map(self._shown, topics)),
            timeout_s,
        )

    def wait_for_leader(
        self,
        topic: str,
        partition: int = 0,
        *,
        other_than: int | None = None,
        timeout_s: float = WAIT_SECONDS,
    ) -> int:
        """Wait until the partition is led, by a running broker other than this one; returns its id."""

        def led() -> bool:
            leader = self.leader(topic, partition)
            return leader != other_than and any(broker.broker_id == leader for broker in self.running)

        self.wait_until(led, f"partition {partition} of {topic} has a running leader", timeout_s)
        return self.leader(topic, partition)

    def _wait_until_known(self, topics: Mapping[str, int]) -> None:
        def known() -> bool:
            states = [self.partitions(topic, broker) for topic in topics for broker in self.running]
            counts = [topics[topic] for topic in topics for _ in self.running]
            return all(
                len(found) == count and all(each.leader >= 0 for each in found)
                for found, count in zip(states, counts, strict=True)
            )

        self.wait_until(known, f"every broker knows {', '.join(topics)}")

    # --- its life ---

    def start(self) -> Cluster:
        """Start all brokers side by side and create the topics. A failure leaves nothing running."""
        if self.brokers:
            raise BrokerFailed("the cluster has already been started")
        self._workspace = Path(tempfile.mkdtemp(prefix="culver-test-cluster-"))
        racks = self._racks or [None] * self._count
        try:
            self.brokers = [self._new_broker(number, rack) for number, rack in enumerate(racks, start=1)]
            for broker in self.brokers:
                broker.launch()
            for broker in self.brokers:
                broker.wait_until_ready()
            self._wait_until_joined()
            if self._topics:
                from culver.testing.topics import create_topics

                create_topics(self._any().bootstrap_servers, self._topics)
                self._wait_until_known(self._topics)
            if self._http:
                self.gateway = self._new_gateway()
        except BaseException:
            for broker in self.brokers:
                broker.kill()
            with contextlib.suppress(BrokerFailed):
                self.close()
            raise
        return self

    def add_broker(self, rack: str | None = None) -> Broker:
        """Start one more broker, with the next id. It holds nothing until partitions are moved onto it."""
        broker = self._new_broker(max(broker.broker_id for broker in self.brokers) + 1, rack)
        broker.start()
        self.brokers.append(broker)
        self._wait_until_joined()
        return broker

    def close(self) -> None:
        """Stop all brokers side by side, insist that they end well, and remove what they left on the disk."""
        brokers, self.brokers = self.brokers, []
        failures = []
        if self.gateway is not None:
            try:
                self.gateway.close()
            except BrokerFailed as failure:
                failures.append(str(failure))
            self.gateway = None
        for broker in brokers:
            broker.begin_to_stop()
        for broker in brokers:
            try:
                broker.close()
            except BrokerFailed as failure:
                failures.append(f"broker {broker.broker_id}: {failure}")
        if self._workspace is not None:
            shutil.rmtree(self._workspace, ignore_errors=True)
            self._workspace = None
        if failures:
            raise BrokerFailed("\n".join(failures))

    def _new_broker(self, broker_id: int, rack: str | None) -> Broker:
        assert self._workspace is not None
        coordination = self._coordination
        if coordination == "local":
            coordination = f"local:{self._workspace / 'metadata.sqlite'}"
        return Broker(
            config=self._config,
            listen=f"127.0.0.1:{free_port()}",
            broker_id=broker_id,
            coordination=coordination,
            rack=rack,
            environment=self._environment,
            ready_timeout_s=self._ready_timeout_s,
        )

    def _new_gateway(self) -> Gateway:
        from culver.testing.gateway import Gateway

        http = self._http if isinstance(self._http, str) else "127.0.0.1:0"
        return Gateway(self.bootstrap_servers, http=http, environment=self._environment).start()

    def _wait_until_joined(self) -> None:
        """Until every running broker knows of every other and of a controller."""
        from culver.protocol.messages.metadata import MetadataRequest, MetadataResponse

        expected = {broker.broker_id for broker in self.running}

        def joined() -> bool:
            for broker in self.running:
                with self._connected(broker) as client:
                    answer = client.ask_once(MetadataRequest(topics=[]), MetadataResponse)
                if answer.controller_id < 0 or not expected <= {each.node_id for each in answer.brokers}:
                    return False
            return True

        self.wait_until(joined, "all brokers know one another")

    # --- asking ---

    def _any(self) -> Broker:
        if not self.running:
            raise ClusterFailed("no broker is running: there is nobody to ask")
        return self.running[0]

    @contextlib.contextmanager
    def _connected(self, broker: Broker | None) -> Iterator[WireClient]:
        from culver.wire_client import WireClient

        with WireClient((broker or self._any()).bootstrap_servers, _ANSWER_SECONDS) as client:
            yield client

    def _shown(self, topic: str) -> str:
        return "; ".join(
            f"{topic}-{each.index}: leader {each.leader}, in sync {each.in_sync} of {each.replicas}"
            for each in self.partitions(topic)
        )

    def _with_logs(self, message: str) -> str:
        logs = [
            f"--- broker {broker.broker_id} ---\n{broker.log_text.strip()}"
            for broker in self.brokers
            if broker.log_text.strip()
        ]
        return "\n".join([message, *logs])


def free_port() -> int:
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
