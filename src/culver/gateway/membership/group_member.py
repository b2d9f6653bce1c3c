"""A member of a consumer group whose broker assigns (KIP-848): joins, keeps up, gives up partitions, leaves."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import TopicPartition


class GroupMember:
    """One member. `on_assigned` gets the committed offset of each new partition, None where none is committed.

    `on_revoked` is awaited before the coordinator hears that the partitions are given up, so what it commits still
    counts; when the member was fenced it is called all the same, and its commits fail. `instance_name` is what
    people see as the member's client id. All members of the gateway share one connection to each coordinator.
    """

    error: KafkaError | None
    """What keeps it from being a member, such as UNSUPPORTED_VERSION: no such groups here. It keeps trying."""

    def __init__(
        self,
        cluster: Cluster,
        group: str,
        topics: Sequence[str],
        *,
        instance_name: str,
        on_assigned: Callable[[dict[TopicPartition, int | None]], object],
        on_revoked: Callable[[set[TopicPartition]], Awaitable[object]],
        rebalance_timeout_ms: int = 60_000,
    ) -> None:
        self.group = group
        self.error = None
        self.member_id = ""
        self.epoch = 0

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are this member's now."""
        return frozenset()

    async def start(self) -> None:
        """Begin to join. Returns at once: assignments come through `on_assigned`."""

    async def close(self) -> None:
        """Give up all partitions, through `on_revoked`, and leave the group."""

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets: those that are read next. KafkaError when fenced or refused, or Unreachable."""
