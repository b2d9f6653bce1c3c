"""The composition root: one broker put together from its parts, started and stopped."""

from __future__ import annotations

import asyncio
import base64
import socket
import uuid
from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from culver.broker.administration import Administration
from culver.broker.controller import Controller
from culver.broker.coordinator_runtime import CoordinatorRuntime
from culver.broker.dispatch import Dispatcher
from culver.broker.fetchers import Fetchers
from culver.broker.group_commit import GroupCommit
from culver.broker.groups import Groups
from culver.broker.housekeeping import Housekeeping
from culver.broker.membership import BrokerRefused, Membership
from culver.broker.partition import Partition, PartitionTable
from culver.broker.peers import Peers
from culver.broker.producer_ids import ProducerIds
from culver.broker.replication import Replication
from culver.broker.server import Server
from culver.broker.suspects import Suspects
from culver.broker.telemetry import Telemetry
from culver.broker.topic_settings import TopicSettings
from culver.broker.transactions import Transactions
from culver.broker.verification import Verification
from culver.config import BrokerConfig, parse_address
from culver.coordination.store import Conflict, Create, Event, MetadataStore
from culver.core import entries
from culver.core.fetch_session import FetchSessions
from culver.core.image import ClusterImage
from culver.core.image_builder import ImageBuilder, ImageChange
from culver.core.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from culver.errors import ErrorCode
from culver.log.identity import DataDirectoryOfAnother, DirectoryIdentity
from culver.log.limits import LogLimits
from culver.log.store import LogStore
from culver.logging import get_logger

if TYPE_CHECKING:
    from culver.broker.connection import Connection
    from culver.clock import Clock
    from culver.filesystem import FileSystem
    from culver.network import Listener, Network
    from culver.scheduler import Scheduler

_log = get_logger("culver.node")

_CLOSING_THREADS = 8
_HAND_OVER_MAX_SECONDS = 10.0
_SETTLED_POLL_MS = 2.0
_SETTLED_MAX_MS = 3_000.0


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
        random: Random | None = None,
    ) -> None:
        self.config = config
        self.clock = clock
        self.scheduler = scheduler
        self.filesystem = filesystem
        self.network = network
        self.store = store
        self.random = random or Random()
        self.broker_id = config.broker_id
        self.data_directory = config.data_dir
        self.builder = ImageBuilder()
        self.topic_settings = TopicSettings(config)
        self.partitions = PartitionTable()
        self.group_commit = GroupCommit(scheduler, clock.monotonic_ms, self._flush_failed)
        self.producer_ids = ProducerIds(store)
        self.membership = Membership(self, store)
        self.administration = Administration(self, store)
        self.controller = Controller(self, store)
        self.suspects = Suspects(self)
        self.fetchers = Fetchers(self)
        self.replication = Replication(self)
        self.peers = Peers(self)
        # Answers come in the order of the questions. One that waits for markers must not be in the way of markers.
        self.marker_peers = Peers(self, sole_purpose="markers")
        # Connections of other brokers of which there may be one only, by broker and purpose.
        self.sole_connections: dict[tuple[int, str], Connection] = {}
        self.groups = Groups(self)
        self.transactions = Transactions(self)
        self.verification = Verification(self)
        # By the internal topic in which each keeps its state.
        self.coordinators: dict[str, CoordinatorRuntime[Any]] = {
            GROUP_OFFSETS_TOPIC: self.groups,
            TRANSACTION_STATE_TOPIC: self.transactions,
        }
        self.dispatcher = Dispatcher(self)
        self.server = Server(config, self.dispatcher, scheduler, clock.monotonic_ms, self.after_requests)
        self.housekeeping = Housekeeping(self)
        self.telemetry = Telemetry(self)
        self.fetch_sessions = FetchSessions(
            config.max_incremental_fetch_session_cache_slots,
            now_ms=clock.monotonic_ms,
            new_session_id=lambda: self.random.randrange(1, 1 << 31),
            topic_name=self._topic_name,
        )
        self.logs: LogStore
        # Why the broker cannot go on, and whom to tell.
        self.refused: BrokerRefused | None = None
        self.on_refused: Callable[[], object] | None = None
        self._listener: Listener | None = None
        self._serving = False
        self._watchful_ms = config.culver_watchful_us / 1000.0
        self._watch_until_ms = 0.0
        self._watching = False

    # -- what handlers ask ------------------------------------------------------------------------------

    @property
    def image(self) -> ClusterImage:
        return self.builder.image

    @property
    def joined(self) -> bool:
        return self.membership.joined

    @property
    def broker_epoch(self) -> int:
        return self.membership.epoch

    @property
    def cluster_secret(self) -> str:
        """By which the brokers of the cluster know each other."""
        assert self.builder.cluster is not None
        return self.builder.cluster.secret

    @property
    def lease_holds(self) -> bool:
        """Whether nobody else can have been told that this broker is dead."""
        return self.clock.monotonic_ms() < self.store.lease_until_ms

    def new_uuid(self) -> bytes:
        return uuid.UUID(bytes=self.random.randbytes(16), version=4).bytes

    def partition_error(self, topic: str, index: int) -> ErrorCode:
        """What to say of a partition that this broker does not hold."""
        if self.image.partition(topic, index) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return ErrorCode.NOT_LEADER_OR_FOLLOWER

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
        """Recover, listen, join the cluster, and return the address that clients are told."""
        self.builder.apply(self.store.open(self._events, self._session).items())
        if self.builder.cluster is None:
            self._refuse_emptied_store()
            await self._found_cluster()
        self._configure()
        self._open_logs()
        host, port = await self._listen()
        await self.membership.join(host, port, lost_bytes=self.logs.lost_bytes_possible)
        self._serving = True
        self.replication.start()
        self.controller.image_changed(ImageChange(self.image, self.image, brokers=True))
        self.housekeeping.start()
        self.telemetry.start()
        await self._settled()
        return host, port

    def _refuse_emptied_store(self) -> None:
        """A store without a cluster is a new one, or one that has lost its data; old logs tell which."""
        known = DirectoryIdentity(self.filesystem, self.data_directory, was_clean=True).known
        if known is not None:
            raise DataDirectoryOfAnother(
                f"the data directory {self.data_directory} belongs to cluster {known.cluster_id}, but the metadata "
                f"store ({self.config.culver_coordination}) is empty. Bring the store's data back, or point this "
                "broker at the right store; to begin anew, give it another directory"
            )

    async def _found_cluster(self) -> None:
        """The first broker gives the cluster its id and secret."""
        cluster = entries.ClusterEntry(
            id=base64.urlsafe_b64encode(self.new_uuid()).rstrip(b"=").decode(),  # as Kafka's tools show it
            secret=self.random.randbytes(32).hex(),
        )
        try:
            await self.membership.change([Create(entries.CLUSTER, entries.encode(cluster))])
        except Conflict:
            _log.info("another broker founded the cluster at the same time")
        while self.builder.cluster is None:  # its event may come after the refusal
            await self.membership.pause(_SETTLED_POLL_MS)

    def _open_logs(self) -> None:
        image = self.image
        configs = {name: self.topic_settings.effective(topic.config) for name, topic in image.topics.items()}
        ids = {name: topic.topic_id for name, topic in image.topics.items()}
        limits = LogLimits(
            producer_id_expiration_ms=self.config.producer_id_expiration_ms,
            max_decompressed_bytes=self.config.max_decompressed_bytes,
            dedupe_buffer_bytes=self.config.log_cleaner_dedupe_buffer_size,
        )
        self.logs = LogStore.open(
            self.filesystem, self.clock, self.data_directory, configs.get, limits=limits, topic_id_of=ids.get
        )
        self.logs.claim(image.cluster_id, self.broker_id)
        for name in self.logs.strays:
            _log.warning("left a directory alone that belongs to no topic", directory=name)

    async def _listen(self) -> tuple[str, int]:
        host, port = parse_address(self.config.listen)
        self._listener = await self.network.listen(host, port, self.server.new_connection)
        bound_host, bound_port = self._listener.address
        if self.config.advertise is not None:
            host, port = parse_address(self.config.advertise)
            return host or socket_name(bound_host), port or bound_port
        return socket_name(bound_host), bound_port

    async def _settled(self) -> None:
        """Wait a moment until there is a controller, its first elections, if it is this broker, are over, and what this
        broker coordinates is loaded.

        A broker that says it is ready should be; but it must not wait for others that may never come.
        """
        deadline_ms = self.clock.monotonic_ms() + _SETTLED_MAX_MS
        while (
            self.image.controller_id == -1
            or (self.image.controller_id == self.broker_id and not self.controller.idle)
            or any(coordinator.loading for coordinator in self.coordinators.values())
        ):
            if self.clock.monotonic_ms() > deadline_ms:
                break
            await self.membership.pause(_SETTLED_POLL_MS)

    async def hand_over(self) -> None:
        """Before a stop: let other in-sync replicas lead, so that clients wait for nothing."""
        self.housekeeping.stop()
        self.controller.stop()
        if self.config.controlled_shutdown_enable:
            try:
                await asyncio.wait_for(self.membership.leave(), _HAND_OVER_MAX_SECONDS)
            except Exception as error:  # noqa: BLE001 - a stop is not put off because others cannot be told
                _log.warning("stops without having handed everything over", error=str(error) or "timeout")

    def stop_listening(self) -> None:
        """Take no more clients and no more requests; what was answered is sent."""
        self.housekeeping.stop()
        self.telemetry.stop()
        self.controller.stop()
        self.membership.stop()
        self.fetchers.close()
        self.replication.stop()
        for coordinator in self.coordinators.values():
            coordinator.stop()
        self.peers.close()
        self.marker_peers.close()
        if self._listener is not None:
            self._listener.close()
        self.server.close()

    def close(self) -> None:
        """Flush and close the logs. Nothing runs on other threads any more."""
        self.logs.close(threads=_CLOSING_THREADS)
        self.store.close()

    def stop_because(self, refusal: BrokerRefused) -> None:
        """The cluster does not take this broker any more: end the process, and say why."""
        _log.error("cannot go on", reason=str(refusal))
        self.refused = refusal
        if self.on_refused is not None:
            self.on_refused()

    # -- the store's news -------------------------------------------------------------------------------

    def _events(self, events: Sequence[Event]) -> None:
        if self.refused is not None:
            return
        known = self.builder.cluster
        for path, entry in events if known is not None else ():
            if path == entries.CLUSTER and (
                entry is None or entries.decode(entry.value, entries.ClusterEntry) != known
            ):
                # Whoever emptied or replaced the store has not told us to delete every log.
                self.stop_because(
                    BrokerRefused(
                        f"the metadata store does not know the cluster {self.image.cluster_id} any more: its data "
                        "was removed or replaced. The logs of this broker stay as they are; bring the store's data "
                        "back, then start it again"
                    )
                )
                return
        change = self.builder.apply(events)
        self.telemetry.image_changed(change)
        if not self._serving:
            return
        if change.settings:
            self._configure()
            self.replication.reconfigure()
        self.replication.apply(change)
        self.controller.image_changed(change)
        self.suspects.image_changed(change)
        self.groups.image_changed(change)
        if change.brokers:
            self.peers.image_changed()
            self.marker_peers.image_changed()

    def _session(self, begun: bool) -> None:
        if not begun:
            # Everything that was tied to the session is gone, whether or not its events come.
            gone: list[Event] = [(f"{entries.BROKERS}{self.broker_id}", None)]
            if self.image.controller_id == self.broker_id:
                gone.append((entries.CONTROLLER, None))
            self._events(gone)
        self.membership.session(begun)

    def _configure(self) -> None:
        """Take up settings that were made while running."""
        own = self.builder.broker_settings.get(self.broker_id, {})
        default = self.builder.broker_settings.get(None, {})
        if self.config.dynamic != own or self.config.dynamic_default != default:
            self.config = self.config.with_dynamic(default, own)
        self.topic_settings = TopicSettings(self.config)

    def _flush_failed(self, partition: Partition) -> None:
        self.replication.log_failed(partition)


def socket_name(bound_host: str) -> str:
    """What to tell clients when the broker listens on all addresses and no other was given."""
    return bound_host if bound_host not in ("", "0.0.0.0", "::") else socket.gethostname()
