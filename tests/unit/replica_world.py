"""Brokers as far as replication between them goes, in one thread: virtual time, a network in memory, logs in memory."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from itertools import count
from types import SimpleNamespace
from typing import Any

from log_batches import batch, records_of

from culver.broker.dispatch import Dispatcher
from culver.broker.fetchers import Fetchers
from culver.broker.group_commit import GroupCommit
from culver.broker.partition import Partition, PartitionTable
from culver.broker.server import Server
from culver.broker.suspects import Suspects
from culver.clock import ManualClock
from culver.config import BrokerConfig, TopicConfig
from culver.core.fetch_session import FetchSessions
from culver.core.image import BrokerInfo, ClusterImage, PartitionImage, TopicImage
from culver.core.leader_state import LeaderState
from culver.errors import ErrorCode
from culver.log.partition_log import PartitionLog
from culver.testing.faults import FaultyFileSystem

SECRET = "secret"


class Scheduler:
    """Everything happens when `run` is called, in the order of its virtual time."""

    busy = False

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self._queue: list[tuple[float, int, Callable[[], object], Any]] = []
        self._numbers = count()
        self.blocking: list[Callable[[], object]] = []
        self.hold_blocking = False

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.call_later(0, callback)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Any:
        timer = SimpleNamespace(cancelled=False)
        timer.cancel = lambda: setattr(timer, "cancelled", True)
        due_ms = self.clock.monotonic_ms() + delay_ms
        heapq.heappush(self._queue, (due_ms, next(self._numbers), callback, timer))
        return timer

    def run_blocking(
        self,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], object],
        delay_ms: float = 0,
    ) -> None:
        def job() -> None:
            result = error = None
            try:
                result = work()
            except Exception as caught:  # noqa: BLE001 - handed on
                error = caught
            done(result, error)

        if self.hold_blocking:
            self.blocking.append(job)
        else:
            self.call_soon(job)

    def release_blocking(self) -> None:
        self.hold_blocking = False
        jobs, self.blocking = self.blocking, []
        for job in jobs:
            self.call_soon(job)

    def run(self, for_ms: float = 0) -> None:
        """Let so much time pass, and do what is due."""
        until_ms = self.clock.monotonic_ms() + for_ms
        while self._queue and self._queue[0][0] <= until_ms:
            due_ms, _, callback, timer = heapq.heappop(self._queue)
            if timer.cancelled:
                continue
            self._move_to(due_ms)
            callback()
        self._move_to(until_ms)

    def _move_to(self, time_ms: float) -> None:
        ahead_ms = time_ms - self.clock.monotonic_ms()
        if ahead_ms > 0:
            self.clock._monotonic_ms += ahead_ms


class Transport:
    """One end of a connection in memory."""

    def __init__(self, network: Network, peer_host: str) -> None:
        self.network = network
        self.peer_host = peer_host
        self.protocol: Any = None
        self.other: Transport
        self.closed = False
        self.sent: list[bytes] = []

    def get_extra_info(self, name: str) -> Any:
        return (self.peer_host, 1) if name == "peername" else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def write(self, data: bytes) -> None:
        if not self.closed:
            self.sent.append(bytes(data))
            self.network.scheduler.call_soon(lambda copy=bytes(data): self.other.receive(copy))

    def writelines(self, buffers: Sequence[bytes]) -> None:
        self.write(b"".join(map(bytes, buffers)))

    def receive(self, data: bytes) -> None:
        step = self.network.piece_bytes or len(data)
        for position in range(0, len(data), step):
            piece = data[position : position + step]
            while piece and not self.closed:
                room = self.protocol.get_buffer(-1)
                size = min(len(room), len(piece))
                assert size, "a protocol that reads has room"
                room[:size] = piece[:size]
                self.protocol.buffer_updated(size)
                piece = piece[size:]

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self.network.scheduler.call_soon(lambda: self.protocol.connection_lost(None))
            self.network.scheduler.call_soon(self.other.close)

    abort = close


class Network:
    """Hosts are names of listeners; whatever is not listening refuses."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.listeners: dict[str, Callable[[], Any]] = {}
        self.connections: list[Transport] = []
        self.attempts: list[tuple[str, float]] = []
        self.silent = False  # nobody answers, nobody refuses
        self.piece_bytes = 0  # at most so many bytes arrive at once

    def connect(
        self, host: str, port: int, factory: Callable[[], Any], failed: Callable[[OSError], object]
    ) -> Any:
        self.attempts.append((host, self.scheduler.clock.monotonic_ms()))

        def proceed() -> None:
            listener = self.listeners.get(host)
            if listener is None:
                failed(ConnectionRefusedError(f"nobody listens at {host}"))
                return
            here, there = Transport(self, host), Transport(self, "somewhere")
            here.other, there.other = there, here
            there.protocol, here.protocol = listener(), factory()
            self.connections.append(here)
            there.protocol.connection_made(there)
            here.protocol.connection_made(here)

        if self.silent:
            return SimpleNamespace(cancel=lambda: None)
        return self.scheduler.call_later(0, proceed)

    def cut(self) -> None:
        for transport in self.connections:
            transport.close()
        self.connections.clear()


class Replication:
    """What the broker does with the news of followers and leaders, and a record of it."""

    def __init__(self, node: ReplicaNode) -> None:
        self._node = node
        self.fetched: list[tuple[Partition, int, int, int]] = []
        self.failed: list[Partition] = []

    def follower_fetched(self, partition: Partition, broker_id: int, broker_epoch: int, offset: int) -> None:
        self.fetched.append((partition, broker_id, broker_epoch, offset))
        state, log = partition.state, partition.log
        assert state is not None
        state.fetched(broker_id, broker_epoch, offset, log.end_offset, self._node.clock.monotonic_ms())
        self.advance(partition)

    def advance(self, partition: Partition) -> None:
        state, log = partition.state, partition.log
        assert state is not None
        high_watermark = state.high_watermark(log.end_offset)
        if high_watermark > log.high_watermark:
            log.high_watermark = high_watermark
            self._node.partitions.changed(partition)

    def followed(self, partition: Partition, leader_high_watermark: int, leader_start_offset: int) -> None:
        log = partition.log
        if leader_start_offset > log.start_offset:
            log.start_at(leader_start_offset)
        if min(leader_high_watermark, log.end_offset) > log.high_watermark:
            log.high_watermark = min(leader_high_watermark, log.end_offset)
            self._node.partitions.changed(partition)

    def log_failed(self, partition: Partition) -> None:
        self.failed.append(partition)
        self._node.fetchers.unfollow(partition)


class ReplicaNode:
    """One broker."""

    def __init__(self, world: ReplicaWorld, broker_id: int) -> None:
        self.world = world
        self.broker_id = broker_id
        self.broker_epoch = 1
        self.cluster_secret = SECRET
        self.sole_connections: dict[tuple[int, str], Any] = {}
        self.config = world.config
        self.clock = world.clock
        self.scheduler = world.scheduler
        self.network = world.network
        self.filesystem = FaultyFileSystem()
        self.partitions = PartitionTable()
        self.replication = Replication(self)
        self.group_commit = GroupCommit(self.scheduler, self.clock.monotonic_ms, self.replication.log_failed)
        self.suspects = Suspects(self)  # type: ignore[arg-type]
        self.fetchers = Fetchers(self)  # type: ignore[arg-type]
        self.dispatcher = Dispatcher(self)  # type: ignore[arg-type]
        self.server = Server(
            self.config, self.dispatcher, self.scheduler, self.clock.monotonic_ms, self.after_requests
        )
        self.server._sweep_timer.cancel()
        session_ids = count(1)
        self.fetch_sessions = FetchSessions(
            100,
            now_ms=self.clock.monotonic_ms,
            new_session_id=lambda: next(session_ids),
            topic_name=lambda topic_id: self.image.topics_by_id[topic_id].name,
        )
        self.listen()

    @property
    def image(self) -> ClusterImage:
        return self.world.image

    def listen(self) -> None:
        self.world.network.listeners[f"host{self.broker_id}"] = self.server.new_connection

    def after_requests(self) -> None:
        self.group_commit.start()
        self.partitions.wake()

    def partition_error(self, topic: str, index: int) -> ErrorCode:
        known = self.image.partition(topic, index) is not None
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def hold(self, topic: TopicImage, index: int, **settings: Any) -> Partition:
        log = PartitionLog.create(
            self.filesystem, self.clock, f"/data/{topic.name}-{index}", TopicConfig(**settings)
        )
        log.high_watermark = 0
        partition = Partition(topic.name, index, topic.topic_id, log)
        self.partitions.add(partition)
        return partition

    def partition(self, topic: str = "t", index: int = 0) -> Partition:
        found = self.partitions.get(topic, index)
        assert found is not None
        return found

    def append(self, *values: bytes, topic: str = "t", index: int = 0, **fields: Any) -> None:
        """As a leader, what a producer sent."""
        partition = self.partition(topic, index)
        partition.append(batch(*values, **fields))
        self.replication.advance(partition)
        self.partitions.appended(partition)
        self.after_requests()

    def values(self, topic: str = "t", index: int = 0) -> list[bytes | None]:
        return [record.value for record in records_of(self.partition(topic, index).log)]


class ReplicaWorld:
    """Brokers 1 to `brokers`. Who leads is what `lead` says, and everyone knows it at once."""

    def __init__(self, brokers: int = 2, **settings: Any) -> None:
        self.config = BrokerConfig(**settings)
        self.clock = ManualClock()
        self.scheduler = Scheduler(self.clock)
        self.network = Network(self.scheduler)
        self.image = ClusterImage(
            "cluster",
            brokers={
                number: BrokerInfo(number, f"host{number}", 9092, f"rack{number}", epoch=1)
                for number in range(1, brokers + 1)
            },
        )
        self.nodes = {number: ReplicaNode(self, number) for number in range(1, brokers + 1)}

    def __getitem__(self, broker_id: int) -> ReplicaNode:
        return self.nodes[broker_id]

    def run(self, for_ms: float = 0) -> None:
        self.scheduler.run(for_ms)

    def make_topic(self, name: str = "t", partitions: int = 1, leader: int = 1, **settings: Any) -> None:
        everyone = tuple(self.nodes)
        topic = TopicImage(
            name,
            name.encode().ljust(16, b"."),
            tuple(PartitionImage(index, -1, -1, everyone, everyone) for index in range(partitions)),
        )
        self.image = self.image.with_topic(topic)
        for node in self.nodes.values():
            for index in range(partitions):
                node.hold(topic, index, **settings)
        for index in range(partitions):
            self.lead(leader, name, index)

    def lead(
        self,
        leader: int,
        topic: str = "t",
        index: int = 0,
        *,
        epoch: int | None = None,
        isr: tuple[int, ...] | None = None,
        follow: bool = True,
    ) -> None:
        """Let a broker lead a partition, in the next epoch unless another is given, and the others follow it."""
        image = self.image.topics[topic]
        old = image.partitions[index]
        epoch = old.leader_epoch + 1 if epoch is None else epoch
        new = PartitionImage(index, leader, epoch, old.replicas, isr or old.replicas)
        self.image = self.image.with_topic(image.with_partitions((new,)))
        for node in self.nodes.values():
            partition = node.partition(topic, index)
            partition.leader, partition.leader_epoch, partition.replicated = leader, epoch, True
            partition.state = None
            if node.broker_id == leader:
                node.fetchers.unfollow(partition)
                log = partition.log
                log.begin_epoch(epoch)
                partition.state = LeaderState(
                    leader, new.replicas, new.isr, 1, log.end_offset, log.high_watermark, 0.0
                )
            elif follow:
                node.fetchers.follow(partition)
            node.partitions.changed(partition)
            node.partitions.appended(partition)
            node.after_requests()

    def close(self) -> None:
        for node in self.nodes.values():
            node.fetchers.close()


def content(log: PartitionLog) -> bytes:
    """The bytes of its only segment with something in it, or of all of them."""
    fs: Any = log._fs
    return b"".join(fs.read(segment.path) for segment in log._segments.items)


def in_agreement(world: ReplicaWorld, topic: str = "t", index: int = 0) -> bool:
    logs = [node.partition(topic, index).log for node in world.nodes.values()]
    return len({(content(log), log.end_offset, log.latest_epoch) for log in logs}) == 1


def sent_requests(world: ReplicaWorld) -> int:
    return sum(len(transport.sent) for transport in world.network.connections)


def cuts_of(log: PartitionLog) -> list[int]:
    """Where a log is cut off from now on."""
    cuts: list[int] = []
    original = log.truncate_to

    def truncate_to(offset: int) -> None:
        cuts.append(offset)
        original(offset)

    log.truncate_to = truncate_to  # type: ignore[method-assign]
    return cuts


def unplug(world: ReplicaWorld) -> None:
    world.network.listeners.clear()
    world.network.cut()
    world.run()


def plug_in(world: ReplicaWorld) -> None:
    for node in world.nodes.values():
        node.listen()
    world.run(3000)
