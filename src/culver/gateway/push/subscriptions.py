"""All push subscribers of this gateway: how many there may be, what they share, and who is called what."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

from culver.gateway.admission import Busy
from culver.gateway.cluster.cluster import Cluster, Unreachable
from culver.gateway.cluster.view import ClusterView
from culver.gateway.errors import HttpError, Problem
from culver.gateway.push.assignment import AllPartitions, GroupPartitions
from culver.gateway.push.encoding import Encodings
from culver.gateway.push.notices import Subscribed
from culver.gateway.push.subscription import Receiver, Subscription
from culver.gateway.push.wish import AUTO, EXPLICIT, Wish
from culver.gateway.reading.partition_reader import Readers

# How soon a subscriber on its own gets partitions that were added to its topics.
_NEW_PARTITIONS_SECONDS = 2.0


class OpenSubscription:
    """A subscription together with where its partitions come from."""

    def __init__(self, subscription: Subscription, assignment: AllPartitions | GroupPartitions) -> None:
        self.subscription = subscription
        self.assignment = assignment

    async def start(self) -> None:
        """Begin to send: first of all what the subscriber is called."""
        wish = self.subscription.wish
        how = EXPLICIT if wish.acknowledged_by_hand else AUTO
        self.subscription.notify(
            Subscribed(self.subscription.name, wish.topics, wish.group, wish.credits, how)
        )
        await self.assignment.start()


class Subscriptions:
    """The subscribers that are connected now. Ends them all when `stopping` is set."""

    def __init__(
        self,
        cluster: Cluster,
        readers: Readers,
        stopping: asyncio.Event,
        *,
        subscribers_max: int,
        buffer_bytes: int,
    ) -> None:
        self._cluster = cluster
        self._readers = readers
        self._stopping = stopping
        self._subscribers_max = subscribers_max
        self._buffer_bytes = buffer_bytes
        self._encodings = Encodings()
        self._open: dict[str, OpenSubscription] = {}
        self._tasks: list[asyncio.Task[None]] = []
        # Those whose receiver is gone and who are still leaving their group.
        self._closing: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._tasks = [
            asyncio.create_task(self._end_all()),
            asyncio.create_task(self._look_for_new_partitions()),
        ]

    async def close(self) -> None:
        """After all connections have ended."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, *self._closing, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Subscription]:
        return iter([each.subscription for each in self._open.values()])

    def get(self, name: str) -> OpenSubscription:
        """HttpError(404) for a subscription that is not connected to this gateway."""
        if name not in self._open:
            raise HttpError(Problem.NOT_FOUND, f"no subscription {name[:80]!r} is connected to this gateway")
        return self._open[name]

    @asynccontextmanager
    async def open(self, wish: Wish, receiver: Receiver) -> AsyncIterator[OpenSubscription]:
        """A subscription for the time of the block. HttpError, KafkaError or Unreachable before anything is sent."""
        if len(self._open) >= self._subscribers_max:
            raise Busy(f"{self._subscribers_max} push subscribers are connected; this gateway takes no more")
        if self._stopping.is_set():
            raise HttpError(Problem.UNAVAILABLE, "the gateway is stopping")
        subscription = Subscription(
            secrets.token_urlsafe(12),
            wish,
            receiver,
            cluster=self._cluster,
            readers=self._readers,
            encodings=self._encodings,
            buffer_bytes=self._buffer_bytes,
        )
        assignment: AllPartitions | GroupPartitions
        if wish.group is None:
            assignment = AllPartitions(self._cluster, subscription)
        else:
            assignment = GroupPartitions(self._cluster, subscription, wish.group)
        opened = OpenSubscription(subscription, assignment)
        self._open[subscription.name] = opened
        try:
            await assignment.prepare(await self._view_with(wish.topics))
            yield opened
        finally:
            self._open.pop(subscription.name, None)
            # A task of its own: the partitions must go to others even if the request is cancelled meanwhile.
            closing = asyncio.create_task(assignment.close())
            self._closing.add(closing)
            closing.add_done_callback(self._closing.discard)
            await asyncio.shield(closing)

    async def _view_with(self, topics: tuple[str, ...]) -> ClusterView:
        """A view of the cluster that is new enough to know topics which have just been made."""
        view = await self._cluster.view()
        if all(topic in view.topics for topic in topics):
            return view
        return await self._cluster.view(max_age_ms=0)

    async def _end_all(self) -> None:
        await self._stopping.wait()
        for subscription in self:
            subscription.end(None)

    async def _look_for_new_partitions(self) -> None:
        while True:
            await asyncio.sleep(_NEW_PARTITIONS_SECONDS)
            if not self._open:
                continue
            try:
                view = await self._cluster.view(max_age_ms=_NEW_PARTITIONS_SECONDS * 1000)
            except Unreachable:
                continue
            for each in list(self._open.values()):
                each.assignment.keep_up(view)
