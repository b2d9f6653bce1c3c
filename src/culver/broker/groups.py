"""Groups in the broker: carries out what the group coordinator asks for, and brings it its timers and records."""

from __future__ import annotations

import uuid
from collections import deque
from typing import TYPE_CHECKING, Any

from culver.broker.administration import NewTopic, Outcome
from culver.broker.group_loading import GroupLoader, Load
from culver.core.group_coordinator import GroupCoordinator
from culver.core.coordinator_effects import Append, Effects, Reply, RequestContext
from culver.core.group_settings import GroupSettings
from culver.core.image import BrokerInfo
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.errors import ErrorCode, KafkaError
from culver.logging import get_logger
from culver.protocol.messages.join_group import JoinGroupResponse
from culver.protocol.records import Record, encode_batch

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node
    from culver.broker.partition import Partition
    from culver.scheduler import Timer

_log = get_logger("culver.groups")

# How long a client waits at most for its group's records to reach the other replicas.
_COMMIT_TIMEOUT_MS = 5_000


class _Appending:
    """An append on its way to disk and replicas, and how it ended once that is known."""

    __slots__ = ("append", "error")

    def __init__(self, append: Append) -> None:
        self.append = append
        self.error: ErrorCode | None = None


class Groups:
    """The one caller of the GroupCoordinator: appends its records, sends its replies, keeps its deadlines.

    Groups live where their partition of the internal topic is led. When this broker becomes its leader they are
    read back from its log; when it ceases to be, they are dropped, and whoever waits is sent to look elsewhere.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._timer: Timer | None = None
        self._timer_at_ms = 0.0
        # The coordinator hears of the appends to one partition in the order in which it asked for them.
        self._appending: dict[int, deque[_Appending]] = {}
        self._loader = GroupLoader(node, self._replay, self._loaded)
        self._topic_wanted: list[Outcome] = []
        self._coordinator: GroupCoordinator | None = None
        self._topic_id: bytes | None = None  # of the internal topic that the coordinator was made for

    @property
    def coordinator(self) -> GroupCoordinator:
        topic = self._node.image.topics.get(GROUP_OFFSETS_TOPIC)
        topic_id = None if topic is None else topic.topic_id
        if self._coordinator is None or topic_id != self._topic_id:
            # Another topic may have another number of partitions, and then groups live elsewhere in it.
            self._drop_all()
            self._topic_id = topic_id
            self._coordinator = self._new_coordinator()
        return self._coordinator

    def _new_coordinator(self) -> GroupCoordinator:
        config = self._node.config
        topic = self._node.image.topics.get(GROUP_OFFSETS_TOPIC)
        settings = GroupSettings(
            group_min_session_timeout_ms=config.group_min_session_timeout_ms,
            group_max_session_timeout_ms=config.group_max_session_timeout_ms,
            group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            group_max_size=config.group_max_size,
            message_max_bytes=config.message_max_bytes,
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
            # A topic that exists keeps its shape: the setting only counts when it is made.
            offsets_topic_num_partitions=len(topic.partitions)
            if topic
            else config.offsets_topic_num_partitions,
        )
        return GroupCoordinator(
            settings, _ImageTopics(self._node), self._new_member_id, self._node.clock.now_ms
        )

    def _new_member_id(self, stem: str) -> str:
        return f"{stem}-{uuid.UUID(bytes=self._node.new_uuid())}"

    def coordinator_of(self, group_id: str) -> BrokerInfo | None:
        """The living broker that leads a group's partition."""
        image = self._node.image
        partition = image.partition(GROUP_OFFSETS_TOPIC, self.coordinator.partition_for(group_id))
        return None if partition is None else image.brokers.get(partition.leader)

    # -- requests ---------------------------------------------------------------------------------------

    def handle(self, exchange: Exchange, method: str, request: Any) -> Any:
        """Run one request through the coordinator: its response, or None while it waits for one."""
        context = RequestContext(exchange.client_id or "", "/" + exchange.client_host, exchange.version)
        coordinator = self.coordinator
        if not self._node.lease_holds:
            # Another broker may coordinate the groups by now, and know better. One without any sends all away.
            coordinator = self._new_coordinator()
        response = None
        for effect in getattr(coordinator, method)(
            request, context, exchange, self._node.clock.monotonic_ms()
        ):
            if isinstance(effect, Reply) and effect.token is exchange:
                response = _as_of_version(exchange, effect.response)
            else:
                self._carry_out_one(effect)
        if response is None:
            exchange.on_abandon = lambda: coordinator.cancel(exchange)
        self._set_timer()
        return response

    def _carry_out(self, effects: Effects) -> None:
        for effect in effects:
            self._carry_out_one(effect)
        self._set_timer()

    def _carry_out_one(self, effect: Reply | Append) -> None:
        if isinstance(effect, Reply):
            exchange: Any = effect.token
            exchange.reply(_as_of_version(exchange, effect.response))
        else:
            self._append(effect)

    # -- records ----------------------------------------------------------------------------------------

    def _append(self, append: Append) -> None:
        # A partition that is led anew gets a queue of its own: what is still on its way from before is nobody's.
        waiting = self._appending.setdefault(append.partition, deque())
        mine = _Appending(append)
        waiting.append(mine)
        inside = True

        def committed(error: ErrorCode) -> None:
            mine.error = error
            if inside:
                # Not from inside the coordinator's own call: it is told when that has returned.
                self._node.scheduler.call_soon(lambda: self._report(waiting))
            else:
                self._report(waiting)

        try:
            partition = self._node.partitions.get(GROUP_OFFSETS_TOPIC, append.partition)
            if partition is None or partition.state is None or not self._node.lease_holds:
                raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
            self._write(partition, append)
        except KafkaError as error:
            committed(error.code)
        else:
            self._node.replication.commit(partition, partition.log.end_offset, _COMMIT_TIMEOUT_MS, committed)
        inside = False

    def _write(self, partition: Partition, append: Append) -> None:
        assert partition.state is not None
        if partition.state.below_min:
            raise KafkaError(ErrorCode.NOT_ENOUGH_REPLICAS)
        now_ms = self._node.clock.now_ms()
        records = [
            Record(position, now_ms, record.key, record.value)
            for position, record in enumerate(append.records)
        ]
        if any(len(record.value or b"") > partition.log.config.max_message_bytes for record in records):
            # A group's state is one record. What members put into it is theirs to keep within bounds.
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        try:
            partition.append_internal(encode_batch(records))
        except KafkaError:
            if partition.log.failed is not None:
                self._node.replication.log_failed(partition)
            raise
        if partition.replicated:
            self._node.replication.appended(partition)
        else:
            self._node.partitions.changed(partition)

    def _report(self, waiting: deque[_Appending]) -> None:
        while waiting and waiting[0].error is not None:
            done = waiting.popleft()
            assert done.error is not None
            self._carry_out(
                self.coordinator.append_done(done.append, done.error, self._node.clock.monotonic_ms())
            )
        # A reply may have led to more appends, outside of any bunch of requests.
        self._node.after_requests()

    # -- coming and going -------------------------------------------------------------------------------

    @property
    def loading(self) -> bool:
        """Whether groups are still being read back."""
        return self._loader.busy

    def became_leader(self, partition: Partition) -> None:
        """Rebuild the groups of one partition of the internal topic from its records."""
        coordinator = self.coordinator
        if coordinator.partition(partition.index) is not None:
            # Led before, in an earlier epoch, and perhaps not all the time: the log says what counts.
            self.resigned(partition.index)
        coordinator.load_begin(partition.index)
        self._loader.begin(partition)

    def resigned(self, index: int) -> None:
        """Another broker leads the partition now, or none: its groups are no longer to be found here."""
        self._loader.stop(index)
        self._appending.pop(index, None)
        if self._coordinator is not None:
            self._carry_out(self._coordinator.unload(index, self._node.clock.monotonic_ms()))

    def _replay(self, number: int, key: bytes, value: bytes | None) -> None:
        self.coordinator.replay(number, key, value)

    def _loaded(self, load: Load) -> None:
        index, now_ms = load.partition.index, self._node.clock.monotonic_ms()
        self._carry_out(self.coordinator.load_done(index, now_ms))
        loaded = self.coordinator.partition(index)
        if loaded is not None and loaded.unreadable_groups:
            _log.error(
                "groups start without their members: their records cannot be read",
                partition=index,
                groups=sorted(loaded.unreadable_groups),
            )
        if load.deleted_topics:
            self._carry_out(self.coordinator.on_topics_deleted(load.deleted_topics, now_ms))
        self._node.after_requests()

    def _drop_all(self) -> None:
        coordinator, self._coordinator = self._coordinator, None
        if coordinator is None:
            return
        for index in range(coordinator.settings.offsets_topic_num_partitions):
            self._loader.stop(index)
            self._appending.pop(index, None)
            for effect in coordinator.unload(index, self._node.clock.monotonic_ms()):
                self._carry_out_one(effect)

    # -- timers and topics ------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._coordinator is None:
            return
        deadline_ms = self._coordinator.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_at_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        delay_ms = max(deadline_ms - self._node.clock.monotonic_ms(), 0.0)
        self._timer = self._node.scheduler.call_later(delay_ms, self._due)

    def _due(self) -> None:
        self._timer = None
        self._carry_out(self.coordinator.expire(self._node.clock.monotonic_ms()))
        self._node.after_requests()

    def topic_deleted(self, name: str) -> None:
        """Committed offsets of a topic that is gone go with it, in the groups that are led here."""
        if self._coordinator is None:
            return
        if name == GROUP_OFFSETS_TOPIC:
            self._drop_all()
        else:
            self._loader.topic_deleted(name)
            now_ms = self._node.clock.monotonic_ms()
            self._carry_out(self._coordinator.on_topics_deleted([name], now_ms))
        self._node.after_requests()

    def ensure_topic(self, done: Outcome) -> None:
        """Make the internal topic if it is not there; many may ask at the same time."""
        if GROUP_OFFSETS_TOPIC in self._node.image.topics:
            done(None)
            return
        self._topic_wanted.append(done)
        if len(self._topic_wanted) > 1:
            return

        def made(error: KafkaError | None) -> None:
            wanted, self._topic_wanted = self._topic_wanted, []
            for one in wanted:
                one(error)

        node = self._node
        count = node.config.offsets_topic_num_partitions
        factor = min(node.config.offsets_topic_replication_factor, len(node.image.registrations))
        try:
            replicas = node.administration.place(count, factor)
        except KafkaError as error:
            made(error)
            return
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(node.config.offsets_topic_segment_bytes),
        }
        topic = NewTopic(GROUP_OFFSETS_TOPIC, node.new_uuid(), replicas, settings)
        node.administration.create_topic(topic, made)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()


class _ImageTopics:
    """What the coordinator may know of topics, from the newest image."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self._node.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def topic_id(self, name: str) -> bytes | None:
        topic = self._node.image.topics.get(name)
        return None if topic is None else topic.topic_id

    def partition_exists(self, name: str, partition: int) -> bool:
        return self._node.image.partition(name, partition) is not None


def _as_of_version(exchange: Exchange, response: Any) -> Any:
    """From version 7 on a JoinGroup that chose no protocol says null, before it the empty string."""
    if isinstance(response, JoinGroupResponse) and not response.protocol_name and exchange.version >= 7:
        response.protocol_name = None
    return response
