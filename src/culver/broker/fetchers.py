"""The fetchers of this broker: one for each leader that it follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.broker.fetcher import Fetcher
from culver.core.token_bucket import TokenBucket

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.broker.partition import Partition

# Leaders come and go in bunches: a fetcher without partitions keeps its connection for a moment.
_IDLE_MAX_MS = 1_000.0


class Fetchers:
    """Which leader each partition is fetched from, and how fast replicas that are behind may be fed."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._by_leader: dict[int, Fetcher] = {}
        self._of: dict[Partition, Fetcher] = {}
        self._closed = False
        # What this broker sends to followers that are not in sync, and fetches where it is not itself.
        self.outgoing_throttle = TokenBucket()
        self.incoming_throttle = TokenBucket()

    def follow(self, partition: Partition) -> None:
        """Fetch a partition from its leader from now on, in its leader epoch. Also says: look again, if it rests."""
        if self._closed or partition.leading or partition.leader < 0:
            self.unfollow(partition)
            return
        fetcher = self._by_leader.get(partition.leader)
        if fetcher is None:
            fetcher = Fetcher(self._node, partition.leader, self.incoming_throttle)
            self._by_leader[partition.leader] = fetcher
        before = self._of.get(partition)
        if before is not None and before is not fetcher:
            self.unfollow(partition)
        self._of[partition] = fetcher
        fetcher.follow(partition)

    def unfollow(self, partition: Partition) -> None:
        """Let a partition be, if it is followed. An answer that is on its way is ignored."""
        fetcher = self._of.pop(partition, None)
        if fetcher is not None:
            fetcher.unfollow(partition)
            if fetcher.idle:
                self._node.scheduler.call_later(_IDLE_MAX_MS, lambda: self._close_if_idle(fetcher))

    def _close_if_idle(self, fetcher: Fetcher) -> None:
        if fetcher.idle and self._by_leader.get(fetcher.leader_id) is fetcher:
            del self._by_leader[fetcher.leader_id]
            fetcher.close()

    def close(self) -> None:
        """Follow nothing any more."""
        self._closed = True
        for fetcher in self._by_leader.values():
            fetcher.close()
        self._by_leader.clear()
        self._of.clear()
