"""The composition root: one broker put together from its parts, started and stopped."""

from __future__ import annotations

import asyncio
import base64
import gc
import os
import random
import resource
import signal
import socket
import sys
import uuid

import msgspec
import uvloop

from culver.broker.controller import CLUSTER, Controller
from culver.broker.dispatch import Dispatcher
from culver.broker.group_commit import GroupCommit
from culver.broker.groups import Groups
from culver.broker.housekeeping import Housekeeping
from culver.broker.partition import Partition, PartitionTable
from culver.broker.producer_ids import ProducerIds
from culver.broker.server import Server
from culver.broker.topic_settings import TopicSettings
from culver.clock import Clock, SystemClock
from culver.config import BrokerConfig, parse_address
from culver.coordination.local import LocalStore
from culver.coordination.store import Create, MetadataStore
from culver.core.fetch_session import FetchSessions
from culver.core.image import BrokerInfo, ClusterImage, TopicImage
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.filesystem import FileSystem, OsFileSystem
from culver.log.limits import LogLimits
from culver.log.store import LogStore
from culver.logging import configure_logging, get_logger
from culver.network import AsyncioNetwork, Listener, Network
from culver.scheduler import AsyncioScheduler, Scheduler

_log = get_logger("culver.node")

_SWITCH_INTERVAL_SECONDS = 0.0005
_CLOSING_THREADS = 8
METADATA_FILE = "metadata.sqlite"


class Node:
    """One broker. Handlers reach everything through it."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        clock: Clock,
        scheduler: Scheduler,
        filesystem: FileSystem,
        network: Network,
        store: MetadataStore,
    ) -> None:
        self.config = config
        self.clock = clock
        self.scheduler = scheduler
        self.filesystem = filesystem
        self.broker_id = config.broker_id
        self.data_directory = config.data_dir
        self.topic_settings = TopicSettings(config)
        self.partitions = PartitionTable()
        self.group_commit = GroupCommit(scheduler, clock.monotonic_ms)
        self.producer_ids = ProducerIds(store)
        self.controller = Controller(store, self.broker_id, self._image_changed)
        self.groups = Groups(self)
        self.dispatcher = Dispatcher(self)
        self.server = Server(config, self.dispatcher, scheduler, clock.monotonic_ms, self.after_requests)
        self.housekeeping = Housekeeping(self)
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots,
            now_ms=clock.monotonic_ms,
            new_session_id=lambda: random.randrange(1, 1 << 31),
            topic_name=self._topic_name,
        )
        self.logs: LogStore
        self._network = network
        self._store = store
        self._listener: Listener | None = None
        self._watchful_ms = config.culver_watchful_us / 1000.0
        self._watch_until_ms = 0.0
        self._watching = False

    @property
    def image(self) -> ClusterImage:
        return self.controller.image

    def _topic_name(self, topic_id: bytes) -> str | None:
        topic = self.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def after_requests(self) -> None:
        """Once after each bunch of requests: start the flushes they need, wake the fetches they feed."""
        self.group_commit.start()
        self.partitions.wake()
        if self._watchful_ms:
            self._watch()

    def _watch(self) -> None:
        """Look out for the next requests a little longer before the processor is put to sleep."""
        self._watch_until_ms = self.clock.monotonic_ms() + self._watchful_ms
        if not self._watching:
            self._watching = True
            self.scheduler.call_soon(self._look)

    def _look(self) -> None:
        if self.clock.monotonic_ms() < self._watch_until_ms and not self.scheduler.busy:
            self.scheduler.call_soon(self._look)  # the event loop asks for news before it comes back
        else:
            self._watching = False

    # -- life -------------------------------------------------------------------------------------------

    async def start(self) -> tuple[str, int]:
        """Recover, listen, and return the address that clients are told."""
        await self._recover()
        host, port = parse_address(self.config.listen)
        self._listener = await self._network.listen(host, port, self.server.new_connection)
        bound_host, bound_port = self._listener.address
        advertised_host, advertised_port = bound_host, bound_port
        if self.config.advertise is not None:
            advertised_host, advertised_port = parse_address(self.config.advertise)
        self.controller.show_broker(
            BrokerInfo(
                self.broker_id,
                advertised_host or socket_name(bound_host),
                advertised_port or bound_port,
                self.config.broker_rack,
            )
        )
        self.housekeeping.start()
        broker = self.image.brokers[self.broker_id]
        return broker.host, broker.port

    async def _recover(self) -> None:
        entries = self._store.load()
        cluster = entries.get(CLUSTER)
        cluster_id = msgspec.json.decode(cluster.value, type=str) if cluster else _new_cluster_id()
        image = self.controller.load(entries, cluster_id)
        self.config = self.config.with_dynamic({}, self.controller.broker_config)
        self.topic_settings = TopicSettings(self.config)
        configs = {name: self.topic_settings.effective(topic.config) for name, topic in image.topics.items()}
        limits = LogLimits(
            producer_id_expiration_ms=self.config.producer_id_expiration_ms,
            max_decompressed_bytes=self.config.max_decompressed_bytes,
            dedupe_buffer_bytes=self.config.log_cleaner_dedupe_buffer_size,
        )
        self.logs = LogStore.open(
            self.filesystem, self.clock, self.data_directory, configs.get, limits=limits
        )
        if cluster is None:
            await self._save_cluster_id(cluster_id)
        for name in self.logs.strays:
            _log.warning("left a directory alone that belongs to no topic", directory=name)
        for topic in image.topics.values():
            self._serve_partitions(topic)
        for partition in self.partitions.of_topic(GROUP_OFFSETS_TOPIC):
            self.groups.load(partition)

    async def _save_cluster_id(self, cluster_id: str) -> None:
        saved: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if error is None:
                saved.set_result(None)
            else:
                saved.set_exception(error)

        self._store.change([Create(CLUSTER, msgspec.json.encode(cluster_id))], done)
        await saved

    def stop_listening(self) -> None:
        """Take no more clients and no more requests; what was answered is sent."""
        self.housekeeping.stop()
        self.groups.stop()
        if self._listener is not None:
            self._listener.close()
        self.server.close()

    def close(self) -> None:
        """Flush and close the logs. Nothing runs on other threads any more."""
        self.logs.close(threads=_CLOSING_THREADS)
        self._store.close()

    # -- image ------------------------------------------------------------------------------------------

    def _image_changed(self, before: ClusterImage, after: ClusterImage, name: str | None) -> None:
        """Make the logs fit the image."""
        if name is None:
            self._broker_config_changed()
            return
        old, new = before.topics.get(name), after.topics.get(name)
        if old is not None and (new is None or new.topic_id != old.topic_id):
            self._drop_partitions(old)
        if new is not None:
            self._serve_partitions(new)
            if old is not None and old.config != new.config:
                config = self.topic_settings.effective(new.config)
                for partition in self.partitions.of_topic(name):
                    partition.log.update_config(config)

    def _broker_config_changed(self) -> None:
        if self.config.dynamic == self.controller.broker_config:
            return
        self.config = self.config.with_dynamic({}, self.controller.broker_config)
        self.topic_settings = TopicSettings(self.config)
        for topic in self.image.topics.values():
            config = self.topic_settings.effective(topic.config)
            for partition in self.partitions.of_topic(topic.name):
                partition.log.update_config(config)

    def _serve_partitions(self, topic: TopicImage) -> None:
        config = self.topic_settings.effective(topic.config)
        for image in topic.partitions:
            if self.partitions.get(topic.name, image.index) is not None:
                continue
            log = self.logs.get(topic.name, image.index)
            created = log is None
            if log is None:
                log = self.logs.create(topic.name, image.index, config)
            partition = Partition(topic.name, image.index, image.leader_epoch, log)
            log.on_roll = lambda _log, partition=partition: self.group_commit.ask(partition)
            if log.corruption is not None:
                _log.error(
                    "a partition is corrupt and not served",
                    topic=topic.name,
                    partition=image.index,
                    reason=log.corruption,
                )
            self.partitions.add(partition)
            if created and topic.name == GROUP_OFFSETS_TOPIC:
                self.groups.load(partition)

    def _drop_partitions(self, topic: TopicImage) -> None:
        for partition in self.partitions.remove_topic(topic.name):
            self.logs.delete(topic.name, partition.index)
        self.groups.topic_deleted(topic.name)
        self.housekeeping.remove_soon()
        self.partitions.wake()


def _new_cluster_id() -> str:
    """A random id in the form that Kafka's tools show: 22 characters of URL-safe base64."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).rstrip(b"=").decode()


def socket_name(bound_host: str) -> str:
    """What to tell clients when the broker listens on all addresses and no other was given."""
    return bound_host if bound_host not in ("", "0.0.0.0", "::") else socket.gethostname()


def serve(config: BrokerConfig) -> int:
    """Run a broker until SIGTERM or SIGINT; the exit code. OSError when it cannot listen or use its directory."""
    configure_logging(config.log_level, config.log_format)
    _raise_open_files_limit()
    # A thread that comes back from an fsync must not wait five milliseconds (Python's default) for its turn.
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))


async def _serve(config: BrokerConfig) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    filesystem = OsFileSystem()
    filesystem.make_directory(config.data_dir)
    scheduler = AsyncioScheduler(loop)
    store = LocalStore(os.path.join(config.data_dir, METADATA_FILE), scheduler)
    node = Node(
        config,
        clock=SystemClock(),
        scheduler=scheduler,
        filesystem=filesystem,
        network=AsyncioNetwork(loop),
        store=store,
    )
    try:
        host, port = await node.start()
    except BaseException:
        scheduler.close()
        store.close()
        raise
    gc.freeze()  # what is there now stays: no collection needs to look at it again
    # Requests and responses hold no cycles: looking for some after every 700 objects, as is the default, makes a
    # request with tens of thousands of elements take three times as long, and the others wait.
    gc.set_threshold(20_000, 50, 100)
    print(f"ready {_join(host, port)} broker={node.broker_id} data={config.data_dir}", flush=True)
    await stopping.wait()
    node.stop_listening()
    await asyncio.sleep(0)  # let the loop send what was written last
    scheduler.close()
    node.close()
    return 0


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _raise_open_files_limit() -> None:
    """A partition keeps a file open, a client a socket: take all that the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
