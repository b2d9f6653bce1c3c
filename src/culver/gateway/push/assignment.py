"""Which partitions a subscriber is sent: all of its topics, or what its group assigns to it.

A subscriber on its own has every partition, also those that are added later, and stores nothing. One with a group is
a member like any other: its partitions come and go with the other members, and what it acknowledges is committed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster, Unreachable
from culver.gateway.cluster.view import ClusterView, TopicPartition
from culver.gateway.membership.group_member import GroupMember
from culver.gateway.problems import http_error
from culver.gateway.push.notices import Assigned, Revoked, places
from culver.gateway.push.starting import Start, start_positions
from culver.gateway.push.subscription import Subscription
from culver.logging import get_logger

_log = get_logger("culver.gateway.push")

# Acknowledgements that come close together are committed together.
_COMMIT_INTERVAL_SECONDS = 0.1
_RETRY_SECONDS = 0.5
# How often a member that cannot join is looked at.
_HEALTH_SECONDS = 1.0


def partitions_of(view: ClusterView, topics: tuple[str, ...]) -> set[TopicPartition]:
    """All partitions of the topics. KafkaError when there is no such topic."""
    found: set[TopicPartition] = set()
    for topic in topics:
        if topic not in view.topics:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {topic}")
        found |= {TopicPartition(topic, partition.index) for partition in view.topics[topic].partitions}
    return found


class AllPartitions:
    """For a subscriber on its own: every partition of its topics."""

    def __init__(self, cluster: Cluster, subscription: Subscription) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._has_started = False
        self._known: set[TopicPartition] = set()
        self._begin: dict[TopicPartition, int] = {}

    async def prepare(self, view: ClusterView) -> None:
        """Find out where to begin: what is written from now on is sent. KafkaError, Unreachable."""
        wish = self._subscription.wish
        self._known = partitions_of(view, wish.topics)
        self._begin = await start_positions(self._cluster, self._known, wish.start)

    async def start(self) -> None:
        self._has_started = True
        self._feed(self._begin)

    def keep_up(self, view: ClusterView) -> None:
        """Send partitions too that have come since: from their beginning, as all of it is new."""
        if not self._has_started:
            return
        wished = self._subscription.wish.topics
        found = partitions_of(view, tuple(topic for topic in wished if topic in view.topics))
        # Of a topic that was deleted, and may be made again.
        gone = {place for place in self._known - found if not self._subscription.is_feeding(place)}
        self._subscription.forget(gone)
        self._known -= gone
        if new := found - self._known:
            self._known |= new
            self._feed(dict.fromkeys(new, 0))

    def _feed(self, positions: Mapping[TopicPartition, int]) -> None:
        self._subscription.notify(Assigned(places(positions.items())))
        for partition, position in positions.items():
            self._subscription.feed(partition, position)

    async def commit(self) -> None:
        """Nothing is stored for it."""

    async def close(self) -> None:
        await self._subscription.close()


class GroupPartitions:
    """For a subscriber with a group: what the coordinator assigns to it."""

    def __init__(self, cluster: Cluster, subscription: Subscription, group: str) -> None:
        self._cluster = cluster
        self._subscription = subscription
        self._window = subscription.window
        self._acknowledged = dict(subscription.wish.acknowledged)
        # Assigned, and not taken away since: some of them are still being looked up.
        self._mine: set[TopicPartition] = set()
        self._progress = asyncio.Event()
        self._committing = asyncio.Lock()
        self._member = GroupMember(
            cluster,
            group,
            subscription.wish.topics,
            instance_name=f"culver-push-{subscription.name}",
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
        )

    async def prepare(self, view: ClusterView) -> None:
        """See that the topics exist. KafkaError."""
        partitions_of(view, self._subscription.wish.topics)

    async def start(self) -> None:
        self._subscription.on_progress = self._progress.set
        self._subscription.run(self._commit_in_time)
        await self._member.start()

    def keep_up(self, view: ClusterView) -> None:
        """With new partitions: the coordinator sees to that."""

    # --- partitions come and go ---

    def _on_assigned(self, committed: dict[TopicPartition, int | None]) -> None:
        self._mine |= committed.keys()
        self._subscription.run(self._begin, committed)

    async def _begin(self, committed: Mapping[TopicPartition, int | None]) -> None:
        known = {partition: offset for partition, offset in committed.items() if offset is not None}
        for partition in committed:
            # An earlier connection had these records, and the id that it ended with acknowledges them.
            had = self._acknowledged.pop(partition, None)
            if had is not None and had > known.get(partition, -1):
                known[partition] = had
        start = Start(
            self._subscription.wish.start.timestamp, {**self._subscription.wish.start.positions, **known}
        )
        while True:
            try:
                positions = await start_positions(self._cluster, committed, start)
                break
            except (KafkaError, Unreachable) as error:
                _log.warning("no start yet", group=self._member.group, error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
        mine = {
            place: at for place, at in positions.items() if place in self._mine and place not in self._window
        }
        if mine:
            self._subscription.notify(Assigned(places(mine.items())))
        for partition, position in mine.items():
            self._subscription.feed(partition, position, committed[partition])
        # Where a group begins is stored before anything is acknowledged: otherwise a subscriber that comes again
        # would begin at a later end, and what it had not acknowledged would be lost.
        self._progress.set()

    async def _on_revoked(self, partitions: set[TopicPartition]) -> None:
        self._mine -= partitions
        self._subscription.stop_feeding(partitions)
        try:
            await self.commit()
        except (KafkaError, Unreachable) as error:
            # Whoever gets the partitions is sent again what could not be committed.
            _log.info("commit failed", group=self._member.group, error=str(error))
        positions = self._window.positions
        self._subscription.forget(partitions)
        gone = [(place, positions[place]) for place in partitions if place in positions]
        if gone:
            self._subscription.notify(Revoked(places(gone)))

    # --- commits ---

    async def commit(self) -> None:
        """Store what is acknowledged and not stored yet. KafkaError, Unreachable."""
        async with self._committing:
            offsets = self._window.to_commit()
            if offsets:
                await self._member.commit(offsets)
                self._window.committed(offsets)

    async def _commit_in_time(self) -> None:
        while True:
            try:
                async with asyncio.timeout(_HEALTH_SECONDS):
                    await self._progress.wait()
                self._progress.clear()
                await self.commit()
            except TimeoutError:
                self._check_member()
                continue
            except (KafkaError, Unreachable) as error:
                # Fenced members lose their partitions and with them what was to be committed; all else comes again.
                _log.info("commit failed", group=self._member.group, error=str(error))
                self._progress.set()
                await asyncio.sleep(_RETRY_SECONDS)
            await asyncio.sleep(_COMMIT_INTERVAL_SECONDS)

    def _check_member(self) -> None:
        error = self._member.error
        if error is not None and not error.retriable:
            self._subscription.end(http_error(error))

    async def close(self) -> None:
        """Commit, leave the group, and end."""
        try:
            await self._member.close()
        finally:
            await self._subscription.close()
