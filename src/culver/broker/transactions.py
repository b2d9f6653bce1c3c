"""Transactions in the broker: carries out what the transaction coordinator asks for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from culver.broker.coordinator_runtime import CoordinatorRuntime
from culver.broker.image_topics import ImageTopics
from culver.broker.marker_sender import MarkerSender
from culver.core.coordinator_effects import Effect, RequestContext, TakeProducerId, WriteMarkers
from culver.core.names import TRANSACTION_STATE_TOPIC
from culver.core.transaction_coordinator import TransactionCoordinator
from culver.core.transaction_settings import TransactionSettings
from culver.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.broker.partition import Partition

# In which brokers ask on behalf of producers.
ADD_PARTITIONS_VERSION = 5


class Transactions(CoordinatorRuntime[TransactionCoordinator]):
    """The transactional ids whose partition of `__transaction_state` this broker leads."""

    def __init__(self, node: Node) -> None:
        super().__init__(node, TRANSACTION_STATE_TOPIC)
        self._markers = MarkerSender(node, self._markers_written, self._markers_refused)

    def _new_coordinator(self, partition_count: int) -> TransactionCoordinator:
        node = self._node
        config = node.config
        settings = TransactionSettings(
            transaction_max_timeout_ms=config.transaction_max_timeout_ms,
            transactional_id_expiration_ms=config.transactional_id_expiration_ms,
            transaction_remove_expired_transaction_cleanup_interval_ms=(
                config.transaction_remove_expired_transaction_cleanup_interval_ms
            ),
            transaction_state_log_num_partitions=partition_count,
        )
        return TransactionCoordinator(settings, ImageTopics(node), self._group_partition, node.clock.now_ms)

    def _group_partition(self, group_id: str) -> int:
        return self._node.groups.coordinator.partition_for(group_id)

    def _load_begin(self, coordinator: TransactionCoordinator, partition: Partition) -> None:
        coordinator.load_begin(partition.index, partition.leader_epoch)

    def _new_topic(self) -> tuple[int, int, dict[str, str]]:
        config = self._node.config
        settings = {
            "cleanup.policy": "compact",
            "compression.type": "uncompressed",
            "min.insync.replicas": str(config.transaction_state_log_min_isr),
            "segment.bytes": str(config.transaction_state_log_segment_bytes),
            "unclean.leader.election.enable": "false",
        }
        return (
            config.transaction_state_log_num_partitions,
            config.transaction_state_log_replication_factor,
            settings,
        )

    @property
    def open_count(self) -> int:
        """How many transactions that are coordinated here have begun and are not over."""
        return 0 if self._coordinator is None else self._coordinator.open_count

    def resigned(self, index: int) -> None:
        self._markers.drop(index)
        super().resigned(index)

    def ask(self, request: AddPartitionsToTxnRequest, answered: Callable[[Any], object]) -> None:
        """A question of this broker's own; `answered` may be called before this returns."""
        context = RequestContext("", "", ADD_PARTITIONS_VERSION)
        self._carry_out(
            self._current().handle_add_partitions_to_txn(
                request, context, answered, self._node.clock.monotonic_ms()
            )
        )

    # -- effects ----------------------------------------------------------------------------------------

    def _carry_out_other(self, effect: Effect) -> None:
        if isinstance(effect, TakeProducerId):
            taken = self._node.producer_ids.take(partial(self._taken, effect))
            if taken is not None:
                self._node.scheduler.call_soon(lambda: self._taken(effect, taken, None))
        else:
            assert isinstance(effect, WriteMarkers)
            self._markers.write(effect)

    def _taken(self, effect: TakeProducerId, producer_id: int | None, _error: BaseException | None) -> None:
        self._carry_out(
            self.coordinator.producer_id_taken(effect, producer_id, self._node.clock.monotonic_ms())
        )
        self._node.after_requests()

    def _markers_written(self, effect: WriteMarkers) -> None:
        self._carry_out(self.coordinator.markers_written(effect, self._node.clock.monotonic_ms()))
        self._node.after_requests()

    def _markers_refused(self, effect: WriteMarkers) -> None:
        self._carry_out(self.coordinator.markers_refused(effect, self._node.clock.monotonic_ms()))
        self._node.after_requests()
