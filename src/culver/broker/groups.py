"""Groups in the broker: carries out what the group coordinator asks for, and brings it its timers and records."""

from __future__ import annotations

import uuid
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from culver.broker.controller import NewTopic, Outcome
from culver.core.group_coordinator import GroupCoordinator
from culver.core.group_effects import Append, Effects, Reply, RequestContext
from culver.core.group_settings import GroupSettings
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.errors import ErrorCode, KafkaError, MalformedRequest
from culver.log.partition_log import ColdRead
from culver.logging import get_logger
from culver.protocol.messages.join_group import JoinGroupResponse
from culver.protocol.records import Record, decode_records, encode_batch, iterate_headers

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node
    from culver.broker.partition import Partition
    from culver.scheduler import Timer

_log = get_logger("culver.groups")

_LOAD_BYTES = 1 << 20


class _Appending:
    """An append on its way to the disk, and how it ended once that is known."""

    __slots__ = ("append", "error")

    def __init__(self, append: Append) -> None:
        self.append = append
        self.error: ErrorCode | None = None


class Groups:
    """The one caller of the GroupCoordinator: appends its records, sends its replies, keeps its deadlines."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._timer: Timer | None = None
        self._timer_at_ms = 0.0
        # The coordinator hears of the appends to one partition in the order in which it asked for them.
        self._appending: dict[int, deque[_Appending]] = {}
        self._topic_wanted: list[Outcome] = []
        self._coordinator: GroupCoordinator | None = None

    @property
    def coordinator(self) -> GroupCoordinator:
        if self._coordinator is None:
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
            settings,
            _ImageTopics(self._node),
            lambda stem: f"{stem}-{uuid.uuid4()}",
            self._node.clock.now_ms,
        )

    # -- requests ---------------------------------------------------------------------------------------

    def handle(self, exchange: Exchange, method: Callable[..., Effects], request: Any) -> Any:
        """Run one request through the coordinator: its response, or None while it waits for one."""
        context = RequestContext(exchange.client_id or "", "/" + exchange.client_host, exchange.version)
        response = None
        for effect in method(request, context, exchange, self._node.clock.monotonic_ms()):
            if isinstance(effect, Reply) and effect.token is exchange:
                response = _as_of_version(exchange, effect.response)
            else:
                self._carry_out_one(effect)
        if response is None:
            exchange.on_abandon = lambda: self.coordinator.cancel(exchange)
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
        number = append.partition
        waiting = self._appending.setdefault(number, deque())
        mine = _Appending(append)
        waiting.append(mine)

        def committed(error: BaseException | None) -> None:
            mine.error = ErrorCode.NONE if error is None else ErrorCode.KAFKA_STORAGE_ERROR
            self._report(number)

        partition = self._node.partitions.get(GROUP_OFFSETS_TOPIC, number)
        now_ms = self._node.clock.now_ms()
        records = [
            Record(position, now_ms, record.key, record.value)
            for position, record in enumerate(append.records)
        ]
        try:
            if partition is None:
                raise KafkaError(ErrorCode.NOT_COORDINATOR)
            if any(len(record.value or b"") > partition.log.config.max_message_bytes for record in records):
                # A group's state is one record. What members put into it is theirs to keep within bounds.
                raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
            partition.append_internal(encode_batch(records))
        except KafkaError as error:
            mine.error = error.code
            # Not from inside the coordinator's own call: it is told when that has returned.
            self._node.scheduler.call_soon(lambda: self._report(number))
            return
        self._node.partitions.changed(partition)
        if partition.log.config.flush == "os":
            mine.error = ErrorCode.NONE
            self._node.scheduler.call_soon(lambda: self._report(number))
        else:
            self._node.group_commit.wait(partition, committed)

    def _report(self, number: int) -> None:
        waiting = self._appending[number]
        while waiting and waiting[0].error is not None:
            done = waiting.popleft()
            assert done.error is not None
            self._carry_out(
                self.coordinator.append_done(done.append, done.error, self._node.clock.monotonic_ms())
            )
        # A reply may have led to more appends, outside of any bunch of requests.
        self._node.after_requests()

    def load(self, partition: Partition) -> None:
        """Rebuild the groups of one partition of the internal topic from its records."""
        coordinator = self.coordinator
        log = partition.log
        coordinator.load_begin(partition.index)
        offset = log.start_offset
        try:
            while offset < log.end_offset:
                result = log.read(offset, _LOAD_BYTES, log.end_offset, wait=True)
                assert not isinstance(result, ColdRead)
                following = self._replay(
                    partition.index, b"".join(cast("list[bytes]", result.buffers)), offset
                )
                if following <= offset:
                    break
                offset = following
        except (KafkaError, OSError) as error:
            # The groups of this partition are lost to this start; their clients hear that it is still loading.
            _log.error("cannot load groups", partition=partition.index, error=str(error))
            return
        self._carry_out(coordinator.load_done(partition.index, self._node.clock.monotonic_ms()))
        loaded = coordinator.partition(partition.index)
        if loaded is not None and loaded.unreadable_groups:
            _log.error(
                "groups start without their members: their records cannot be read",
                partition=partition.index,
                groups=sorted(loaded.unreadable_groups),
            )

    def _replay(self, number: int, data: bytes, offset: int) -> int:
        """Replay the whole batches in `data`; the offset after the last of them."""
        following = offset
        for position, header in _whole_batches(data):
            if not header.is_control:
                for record in decode_records(data, self._node.config.max_decompressed_bytes, position):
                    if record.offset >= offset and record.key is not None:
                        try:
                            self.coordinator.replay(number, record.key, record.value)
                        except MalformedRequest as error:
                            _log.error(
                                "skipped an unreadable group record", partition=number, error=str(error)
                            )
            following = header.last_offset + 1
        return following

    # -- timers and topics ------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        deadline_ms = self.coordinator.next_deadline_ms()
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
        """Committed offsets of a topic that is gone go with it."""
        if self._coordinator is None:
            return
        now_ms = self._node.clock.monotonic_ms()
        if name == GROUP_OFFSETS_TOPIC:
            for number in range(self._coordinator.settings.offsets_topic_num_partitions):
                self._carry_out(self._coordinator.unload(number, now_ms))
            self._coordinator = None
        else:
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

        config = self._node.config
        topic = NewTopic(
            GROUP_OFFSETS_TOPIC,
            uuid.uuid4().bytes,
            config.offsets_topic_num_partitions,
            {
                "cleanup.policy": "compact",
                "compression.type": "producer",
                "segment.bytes": str(config.offsets_topic_segment_bytes),
            },
        )
        self._node.controller.create_topic(topic, made)

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


def _whole_batches(data: bytes) -> Any:
    """The batches of a read, without the last one if it was cut off."""
    try:
        yield from iterate_headers(data)
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_RECORD:
            raise


def _as_of_version(exchange: Exchange, response: Any) -> Any:
    """From version 7 on a JoinGroup that chose no protocol says null, before it the empty string."""
    if isinstance(response, JoinGroupResponse) and not response.protocol_name and exchange.version >= 7:
        response.protocol_name = None
    return response
