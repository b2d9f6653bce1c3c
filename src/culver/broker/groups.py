"""Groups in the broker: carries out what the group coordinator asks for, and tells it what became of topics."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from culver.broker.coordinator_loading import Load
from culver.broker.coordinator_runtime import CoordinatorRuntime
from culver.broker.image_topics import ImageTopics
from culver.core.coordinator_effects import Marker
from culver.core.group_coordinator import GroupCoordinator
from culver.core.group_settings import GroupSettings
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.errors import ErrorCode
from culver.logging import get_logger
from culver.protocol.messages.join_group import JoinGroupResponse

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node
    from culver.broker.partition import Partition
    from culver.core.image import TopicImage
    from culver.core.image_builder import ImageChange

_log = get_logger("culver.groups")


class Groups(CoordinatorRuntime[GroupCoordinator]):
    """The groups whose partition of `__consumer_offsets` this broker leads."""

    def __init__(self, node: Node) -> None:
        super().__init__(node, GROUP_OFFSETS_TOPIC)

    def _new_coordinator(self, partition_count: int) -> GroupCoordinator:
        config = self._node.config
        settings = GroupSettings(
            group_min_session_timeout_ms=config.group_min_session_timeout_ms,
            group_max_session_timeout_ms=config.group_max_session_timeout_ms,
            group_initial_rebalance_delay_ms=config.group_initial_rebalance_delay_ms,
            group_max_size=config.group_max_size,
            group_consumer_session_timeout_ms=config.group_consumer_session_timeout_ms,
            group_consumer_heartbeat_interval_ms=config.group_consumer_heartbeat_interval_ms,
            group_consumer_max_size=config.group_consumer_max_size,
            group_consumer_assignors=config.group_consumer_assignors,
            group_consumer_migration_policy=config.group_consumer_migration_policy,
            message_max_bytes=config.message_max_bytes,
            offset_metadata_max_bytes=config.offset_metadata_max_bytes,
            offsets_retention_ms=config.offsets_retention_minutes * 60_000,
            offsets_retention_check_interval_ms=config.offsets_retention_check_interval_ms,
            offsets_topic_num_partitions=partition_count,
        )
        return GroupCoordinator(
            settings, ImageTopics(self._node), self._new_member_id, self._node.clock.now_ms
        )

    def _new_member_id(self, stem: str) -> str:
        return f"{stem}-{uuid.UUID(bytes=self._node.new_uuid())}"

    def _load_begin(self, coordinator: GroupCoordinator, partition: Partition) -> None:
        coordinator.load_begin(partition.index)

    def _new_topic(self) -> tuple[int, int, dict[str, str]]:
        config = self._node.config
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "producer",
            "segment.bytes": str(config.offsets_topic_segment_bytes),
        }
        return config.offsets_topic_num_partitions, config.offsets_topic_replication_factor, settings

    def _after_load(self, load: Load) -> None:
        index = load.partition.index
        loaded = self.coordinator.partition(index)
        if loaded is not None and loaded.unreadable_groups:
            _log.error(
                "groups start without their members: their records cannot be read",
                partition=index,
                groups=sorted(loaded.unreadable_groups),
            )
        if load.deleted_topics:
            self._carry_out(
                self.coordinator.on_topics_deleted(load.deleted_topics, self._node.clock.monotonic_ms())
            )

    def write_marker(self, index: int, marker: Marker, done: Callable[[ErrorCode], object]) -> None:
        """End a producer's transaction in one partition: the offsets that it committed count from now on, or never."""

        def finish(error: ErrorCode, _now_ms: float, _out: Any) -> None:
            done(error)

        self._carry_out(self._current().write_marker(index, marker, finish))

    @property
    def count(self) -> int:
        """How many groups are coordinated here."""
        return 0 if self._coordinator is None else self._coordinator.group_count

    def image_changed(self, change: ImageChange) -> None:
        """Groups whose broker assigns follow the topics that they read."""
        if self._coordinator is None:
            return
        before, after = change.before.topics, change.after.topics
        changed = [name for name in change.topics if _shape(before.get(name)) != _shape(after.get(name))]
        if changed:
            self._coordinator.on_topics_changed(changed)

    def topic_deleted(self, name: str) -> None:
        """Committed offsets of a topic that is gone go with it, in the groups that are led here."""
        super().topic_deleted(name)
        if self._coordinator is not None and name != GROUP_OFFSETS_TOPIC:
            self._loader.topic_deleted(name)
            now_ms = self._node.clock.monotonic_ms()
            self._carry_out(self._coordinator.on_topics_deleted([name], now_ms))
            self._node.after_requests()

    def _as_of_version(self, exchange: Exchange, response: Any) -> Any:
        """From version 7 on a JoinGroup that chose no protocol says null, before it the empty string."""
        if isinstance(response, JoinGroupResponse) and not response.protocol_name and exchange.version >= 7:
            response.protocol_name = None
        return response


def _shape(topic: TopicImage | None) -> tuple[bytes, int] | None:
    return None if topic is None else (topic.topic_id, len(topic.partitions))
