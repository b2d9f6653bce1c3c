"""As much of a broker as handlers need that only look at the cluster's image or change the metadata store."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any

from culver.broker.administration import Administration
from culver.broker.groups import Groups
from culver.broker.partition import PartitionTable
from culver.broker.suspects import Suspects
from culver.broker.topic_settings import TopicSettings
from culver.clock import ManualClock
from culver.config import BrokerConfig
from culver.coordination.store import Change, Check, Conflict, Create, Done, Entry, Put
from culver.core import entries
from culver.core.image import ClusterImage, PartitionImage
from culver.core.image_builder import ImageBuilder
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.errors import ErrorCode


class DictStore:
    """A metadata store in a dictionary. Reports come at once, or with `lagging` only when asked for."""

    lease_until_ms = float("inf")

    def __init__(self, builder: ImageBuilder) -> None:
        self.entries: dict[str, Entry] = {}
        self.lagging = False
        self._builder = builder
        self._unreported: list[tuple[str, Entry | None]] = []

    def change(self, changes: Sequence[Change], done: Done) -> None:
        for change in changes:
            known = self.entries.get(change.path)
            if isinstance(change, Create) == (known is not None):
                done(Conflict(change.path, "is there" if known else "is missing"))
                return
            if not isinstance(change, Create) and change.expected_version is not None:
                assert known is not None
                if known.version != change.expected_version:
                    done(Conflict(change.path, "has another version"))
                    return
        for change in changes:
            if isinstance(change, Create | Put):
                known = self.entries.get(change.path)
                self.entries[change.path] = Entry(change.value, 0 if known is None else known.version + 1)
            elif not isinstance(change, Check):
                del self.entries[change.path]
            self._unreported.append((change.path, self.entries.get(change.path)))
        if not self.lagging:
            self.report()
        done(None)

    def report(self) -> None:
        events, self._unreported = self._unreported, []
        self._builder.apply(events)


class Steps:
    """A scheduler that runs when it is told to."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.waiting.append(callback)

    def call_later(self, _delay_ms: float, callback: Callable[[], object]) -> Any:
        self.waiting.append(callback)
        return SimpleNamespace(cancel=lambda: None)

    def run(self) -> None:
        while self.waiting:
            self.waiting.pop(0)()


class ClusterNode:
    """Broker 1 of a cluster in which brokers 1 to `registered` are registered, and those in `alive` run."""

    def __init__(self, registered: int = 3, alive: Sequence[int] = (1, 2, 3), **config: Any) -> None:
        self.config = BrokerConfig(**config)
        self.broker_id = 1
        self.clock = ManualClock(0)
        self.scheduler = Steps()
        self.random = Random(1)
        self.builder = ImageBuilder()
        self.store = DictStore(self.builder)
        self.topic_settings = TopicSettings(self.config)
        self.partitions = PartitionTable()
        self.administration = Administration(self, self.store)  # type: ignore[arg-type]
        self.groups = Groups(self)  # type: ignore[arg-type]
        self.coordinators = {GROUP_OFFSETS_TOPIC: self.groups}
        self.suspects = Suspects(self)  # type: ignore[arg-type]
        self.lease_holds = True
        for number in range(1, registered + 1):
            entry = entries.RegistrationEntry("host", 9000 + number, f"rack{number}")
            self.put(f"{entries.REGISTRATIONS}{number}", entries.encode(entry))
        self.let_live(*alive)
        self.put(entries.CONTROLLER, entries.encode(entries.ControllerEntry(2)))
        self.put(entries.CLUSTER, entries.encode(entries.ClusterEntry("cluster", "secret")))

    @property
    def image(self) -> ClusterImage:
        return self.builder.image

    def new_uuid(self) -> bytes:
        return self.random.randbytes(16)

    def after_requests(self) -> None: ...

    def partition_error(self, topic: str, index: int) -> ErrorCode:
        known = self.image.partition(topic, index) is not None
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if known else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def put(self, path: str, value: bytes) -> None:
        change = Put(path, value) if path in self.store.entries else Create(path, value)
        self.store.change([change], lambda error: None)

    def let_live(self, *brokers: int) -> None:
        for number, info in self.image.registrations.items():
            path = f"{entries.BROKERS}{number}"
            if number in brokers:
                self.put(path, entries.encode(entries.AliveEntry(info.epoch)))
            elif path in self.store.entries:
                del self.store.entries[path]
                self.builder.apply([(path, None)])

    def make_topic(self, name: str, *partitions: PartitionImage) -> None:
        topic_id = self.new_uuid()
        for partition in partitions:
            self.put(entries.partition_path(topic_id, partition.index), entries.partition_value(partition))
        self.put(entries.TOPICS + name, entries.encode(entries.TopicEntry(topic_id.hex(), len(partitions))))

    def put_partition(self, name: str, partition: PartitionImage) -> None:
        """Someone changes a partition's entry."""
        topic = self.image.topics[name]
        self.put(entries.partition_path(topic.topic_id, partition.index), entries.partition_value(partition))

    def partition(self, name: str, index: int = 0) -> PartitionImage:
        found = self.image.partition(name, index)
        assert found is not None
        return found

    def ask(self, handler: Any, request: Any, version: int) -> Any:
        """The response of a handler, at once or after a while."""
        exchange = Exchange(version)
        response = handler.handle(self, exchange, request)
        if response is None:
            self.scheduler.run()
            response = exchange.response
        assert response is not None
        return response


class Exchange:
    """A request that may be answered later."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.connection = SimpleNamespace(
            peer_broker=None, asked_for_leaders=False, asked_for_coordinators=None
        )
        self.response: Any = None

    def reply(self, response: Any) -> None:
        assert self.response is None
        self.response = response
