"""The heartbeats of one member: each says only what has changed since the last that was answered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import TopicPartition
from culver.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)

JOIN_EPOCH = 0
LEAVE_EPOCH = -1


class Heartbeats:
    """What is sent, and what of it the coordinator knows."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Sequence[str],
        rebalance_timeout_ms: int,
        *,
        client_id: str,
    ) -> None:
        self.begun = False
        self._cluster = cluster
        self._group = group
        self._topics = list(topics)
        self._rebalance_timeout_ms = rebalance_timeout_ms
        self._client_id = client_id
        self._known: dict[bytes, list[int]] | None = None

    async def send(
        self, member_id: str, epoch: int, owned: Mapping[TopicPartition, bytes], *, timeout_ms: float
    ) -> ConsumerGroupHeartbeatResponse:
        """One heartbeat, and its answer. Raises Unreachable, KafkaError(UNSUPPORTED_VERSION)."""
        self.begun = True
        partitions = _by_topic_id(owned) if epoch > JOIN_EPOCH else {}
        request = ConsumerGroupHeartbeatRequest(group_id=self._group, member_id=member_id, member_epoch=epoch)
        # After one that was not answered, or refused, nobody knows what the coordinator knows: all is said again.
        if epoch >= JOIN_EPOCH and (self._known is None or epoch == JOIN_EPOCH):
            request.rebalance_timeout_ms = self._rebalance_timeout_ms
            request.subscribed_topic_names = self._topics
        if epoch >= JOIN_EPOCH and (self._known != partitions or epoch == JOIN_EPOCH):
            request.topic_partitions = [
                TopicPartitions(topic_id=topic_id, partitions=some) for topic_id, some in partitions.items()
            ]
        self._known = None
        answer = await self._cluster.ask_coordinator(
            self._group,
            request,
            ConsumerGroupHeartbeatResponse,
            timeout_ms=timeout_ms,
            client_id=self._client_id,
        )
        if not answer.error_code:
            self._known = partitions
        return answer


def _by_topic_id(owned: Mapping[TopicPartition, bytes]) -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for place, topic_id in sorted(owned.items()):
        found.setdefault(topic_id, []).append(place.partition)
    return found
