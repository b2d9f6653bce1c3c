"""A simulated cluster: machines with real brokers that can be started, stopped, frozen, killed and unplugged."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from culver.broker.membership import BrokerRefused
from culver.broker.node import Node
from culver.config import BrokerConfig
from culver.coordination.store import StoreError
from culver.log.store import DataDirectoryLocked
from culver.testing.simulation.disk import DATA_DIRECTORY, SimulatedDisk
from culver.testing.simulation.late_peers import LatePeers
from culver.testing.simulation.loop import Process, World
from culver.testing.simulation.network import SimulatedNetwork
from culver.testing.simulation.scheduler import SimulatedClock, SimulatedScheduler
from culver.testing.simulation.store import SimulatedStore
from culver.testing.simulation.store_server import StoreServer

PORT = 9092


@dataclass(frozen=True)
class ClusterShape:
    """What a cluster is made of; the same for all its brokers."""

    brokers: int = 3
    session_timeout_ms: int = 1_000
    # Settings of all brokers, over the short timeouts that every simulation has.
    settings: Mapping[str, str] = field(default_factory=dict)
    # The store is on the brokers' machine and sees a dead process at once, as the local one does.
    death_seen_at_once: bool = False
    # The share of markers and questions between brokers that arrive after their senders have given them up.
    late_peer_share: float = 0.0

    @property
    def default_min_insync(self) -> int:
        """For topics that do not say otherwise, the one with committed offsets among them."""
        return min(2, self.brokers)


_SHORT_TIMES = {
    "replica.lag.time.max.ms": "2000",
    "replica.fetch.wait.max.ms": "300",
    "replica.fetch.backoff.ms": "100",
    "replica.socket.timeout.ms": "1500",
    "leader.imbalance.check.interval.seconds": "10",
    "log.flush.offset.checkpoint.interval.ms": "5000",
    "group.initial.rebalance.delay.ms": "200",
    "group.min.session.timeout.ms": "1000",
    "offsets.topic.num.partitions": "2",
    "transaction.state.log.num.partitions": "2",
    "auto.create.topics.enable": "false",
}


class SimulatedBroker:
    """One machine, and the broker that runs on it now and then."""

    def __init__(self, cluster: SimulatedCluster, broker_id: int) -> None:
        world = cluster.world
        self.cluster = cluster
        self.id = broker_id
        self.host = f"broker-{broker_id}"
        self._random = world.random(self.host)
        self.clock = SimulatedClock(world, self._random)
        self.disk = SimulatedDisk(self.clock, world.random(f"disk-{broker_id}"))
        self.process: Process | None = None
        self.node: Node | None = None
        self._store: SimulatedStore | None = None
        self._life = 0
        # Nobody starts it again by itself.
        self.held_down = False
        self.ready = False
        self.stopping = False
        self.powered = True

    @property
    def up(self) -> bool:
        """Whether there is a process, ready or not."""
        return self.process is not None

    @property
    def has_failed_logs(self) -> bool:
        """Whether a log of its broker was given up after a disk error."""
        node = self.node
        return node is not None and any(
            partition.log.failed is not None or partition.log.corruption is not None
            for partition in node.partitions
        )

    # -- starting ---------------------------------------------------------------------------------------

    def start(self) -> None:
        assert self.process is None
        cluster, world = self.cluster, self.cluster.world
        if not self.powered:
            self.powered = True
            cluster.network.host_up(self.host)
        self._life += 1
        name = f"broker-{self.id}" if self._life == 1 else f"broker-{self.id}.{self._life}"
        process = self.process = Process(world, name, self.host)
        scheduler = SimulatedScheduler(process, world.random(f"threads/{name}"))
        self._store = SimulatedStore(
            cluster.store,
            cluster.network,
            process,
            self.clock,
            cluster.shape.session_timeout_ms,
            world.random(f"session/{name}"),
        )
        self.node = Node(
            cluster.config_of(self),
            clock=self.clock,
            scheduler=scheduler,
            filesystem=self.disk,
            network=cluster.network.of(process),
            store=self._store,
            random=world.random(f"node/{name}"),
        )
        if cluster.shape.late_peer_share:
            for which in ("peers", "marker_peers"):
                late = LatePeers(self.node, world.random(f"{which}/{name}"), cluster.shape.late_peer_share)
                setattr(self.node, which, late)
        self.node.on_refused = lambda: process.soon(self._exit, process, "refused")
        process.remains += [self.node, scheduler]
        self.ready = self.stopping = False
        world.trace.note(f"{name} starts")
        process.start(self._run(process, self.node))

    async def _run(self, process: Process, node: Node) -> None:
        try:
            await node.start()
        except (StoreError, BrokerRefused, OSError, DataDirectoryLocked) as error:
            self._exit(process, f"{type(error).__name__}: {error}")
            return
        if process is self.process:
            self.ready = True
            self.cluster.world.trace.note("is ready")

    def _exit(self, process: Process, reason: str) -> None:
        """The process ends by itself."""
        if process is self.process:
            self.cluster.world.trace.note(f"exits: {reason}")
            self.crash()
            self.start_later()

    def start_later(self) -> None:
        """What a supervisor does about a broker that is not there."""
        delay_us = self._random.randrange(100_000, 1_500_000)

        def start() -> None:
            if self.process is None and not self.held_down:
                self.start()

        self.cluster.world.after(delay_us, None, start)

    # -- ending -----------------------------------------------------------------------------------------

    def crash(self, *, power_cut: bool = False) -> None:
        """The process is killed; with a power cut the machine goes down with it, and what it had not synced."""
        process = self._end(silently=power_cut)
        self.cluster.world.trace.note(f"{process.name} {'loses power' if power_cut else 'is killed'}")
        if power_cut:
            self.powered = False
            self.cluster.network.host_down(self.host)
            self.disk.power_cut()
        else:
            self.disk.process_died()

    def _end(self, *, silently: bool) -> Process:
        process = self.process
        assert process is not None
        assert self._store is not None
        process.kill()
        self._store.process_died(self.cluster.shape.death_seen_at_once)
        self.cluster.network.process_died(process, silently)
        self.process = self.node = self._store = None
        self.ready = False
        return process

    def stop(self) -> None:
        """A clean stop: hand over, close, and be gone."""
        assert self.process is not None
        self.stopping = True
        self.process.start(self._stop(self.process))

    async def _stop(self, process: Process) -> None:
        node, store = self.node, self._store
        assert node is not None
        assert store is not None
        self.cluster.world.trace.note("stops")
        await node.hand_over()
        node.stop_listening()
        process.loop.call_soon(self._close, process, node)

    def _close(self, process: Process, node: Node) -> None:
        if process is self.process:
            # As Node.close, on one thread.
            node.logs.close()
            node.store.close()
            self._end(silently=False)
            self.disk.process_died()
            self.cluster.world.trace.note("has stopped")
            if not self.held_down:
                self.start_later()


class SimulatedCluster:
    """All machines, the metadata store, and the network between them."""

    def __init__(self, world: World, shape: ClusterShape) -> None:
        self.world = world
        self.shape = shape
        self.network = SimulatedNetwork(world)
        self.store = StoreServer(world)
        self.brokers = {number: SimulatedBroker(self, number) for number in range(1, shape.brokers + 1)}

    @property
    def bootstrap(self) -> list[tuple[str, int]]:
        return [(broker.host, PORT) for broker in self.brokers.values()]

    def config_of(self, broker: SimulatedBroker) -> BrokerConfig:
        factor = min(3, self.shape.brokers)
        return BrokerConfig.from_text(
            {
                **_SHORT_TIMES,
                "offsets.topic.replication.factor": str(factor),
                "transaction.state.log.replication.factor": str(factor),
                "transaction.state.log.min.isr": str(self.shape.default_min_insync),
                "min.insync.replicas": str(self.shape.default_min_insync),
                **self.shape.settings,
                "node.id": str(broker.id),
                "listen": f"{broker.host}:{PORT}",
                "data.dir": DATA_DIRECTORY,
                "broker.rack": f"rack-{broker.id}",
                "culver.session.timeout.ms": str(self.shape.session_timeout_ms),
            }
        )

    def start(self) -> None:
        for broker in self.brokers.values():
            broker.start()

    def run(self, until: Callable[[], bool], seconds: float) -> bool:
        """Let time pass until the condition holds, at most so long; whether it holds."""
        return self.world.run(until, self.world.now_us + round(seconds * 1e6))
