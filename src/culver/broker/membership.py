"""Membership: this broker's place in the cluster, from its registration to the day its session ends.

Joining goes in an order that keeps what the others believe true at every step:
1. wait until nobody else uses the broker id;
2. register, which begins a new broker epoch: nothing said in an earlier one counts any more;
3. if bytes may have been lost, leave the in-sync replicas of every partition that others can replace it in;
4. show up as alive, in that epoch, for as long as the session lasts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from culver.broker.administration import PartitionChange, put_partition
from culver.coordination.store import Change, Check, Conflict, Create, Delete, Put, StoreError
from culver.core import elections, entries
from culver.core.image import PartitionImage, TopicImage
from culver.logging import get_logger

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.coordination.store import MetadataStore

_log = get_logger("culver.membership")

_POLL_MS = 50.0
_RETRY_MS = 250.0
# A dead broker's entry stays until its session has timed out; a server may be slow to notice.
_PATIENCE_SESSIONS = 2.0
_PATIENCE_MIN_MS = 10_000.0
_PATIENCE_WITH_OTHERS_MS = 3_000.0
_CHANGES_MAX = 200
_TRIES_MAX = 100


class BrokerRefused(Exception):
    """The cluster does not take this broker; the message says why and what to do."""


class Membership:
    """Joins, joins again after a lost session, and leaves."""

    def __init__(self, node: Node, store: MetadataStore) -> None:
        self._node = node
        self._store = store
        self._rejoining: asyncio.Task[None] | None = None
        self._registration: entries.RegistrationEntry | None = None
        # Of the current registration; -1 while there is none.
        self.epoch = -1
        self.leaving = False
        # Until the claims to what may have been lost are given up, whichever way this broker joins.
        self._lost_bytes = False
        self._established = False  # joined for the first time

    @property
    def joined(self) -> bool:
        """Whether the others see this broker alive, in the epoch it believes to be in."""
        broker = self._node.image.brokers.get(self._node.broker_id)
        return broker is not None and broker.epoch == self.epoch and not self.leaving

    async def join(self, host: str, port: int, *, lost_bytes: bool) -> None:
        """Become part of the cluster; BrokerRefused when another broker uses the id."""
        self._registration = entries.RegistrationEntry(
            host, port, self._node.config.broker_rack, self._node.logs.directory_id
        )
        self._lost_bytes = lost_bytes
        tries_left = _TRIES_MAX
        while True:
            try:
                # The session may have been lost again by the time the answer is in.
                if await self._try_join() and self.joined:
                    self._established = True
                    return
            except StoreError as error:
                tries_left -= 1
                if not tries_left:
                    raise
                _log.warning("cannot join yet", error=str(error))
            await self.pause(_POLL_MS)

    async def _try_join(self) -> bool:
        assert self._registration is not None
        if self.joined:
            return True  # by a change of which it was not known whether it was made
        await self._wait_for_id()
        try:
            self.epoch = await self._register(self._registration)
        except Conflict:
            return False
        await self._give_up_claims()
        me = self._node.broker_id
        alive = entries.AliveEntry(self.epoch, self._registration.directory)
        try:
            await self.change(
                [
                    Create(f"{entries.BROKERS}{me}", entries.encode(alive), ephemeral=True),
                    Check(f"{entries.REGISTRATIONS}{me}", self.epoch),
                ]
            )
        except Conflict:
            return False  # another one was faster, and will be found by the next try
        _log.info("joined the cluster", broker=me, epoch=self.epoch)
        return True

    async def _wait_for_id(self) -> None:
        """An entry under this broker's id is another broker's, or that of its own last life, not yet timed out."""
        clock = self._node.clock
        session_ms = self._node.config.culver_session_timeout_ms
        begun_ms = clock.monotonic_ms()
        me = self._node.broker_id
        while (other_life := self._node.builder.alive.get(me)) is not None:
            own = other_life.directory == self._node.logs.directory_id
            patience_min_ms = _PATIENCE_MIN_MS if own else _PATIENCE_WITH_OTHERS_MS
            if clock.monotonic_ms() > begun_ms + max(_PATIENCE_SESSIONS * session_ms, patience_min_ms):
                other = self._node.image.registrations.get(me)
                where = f" at {other.host}:{other.port}" if other is not None else ""
                raise BrokerRefused(
                    f"the broker id {me} is taken by a broker that is running{where}; "
                    "start this one with another id (--broker-id), or stop that one"
                )
            await self.pause(_POLL_MS)

    async def _register(self, registration: entries.RegistrationEntry) -> int:
        """Begin a new epoch: the version that the registration has afterwards."""
        me = self._node.broker_id
        path = f"{entries.REGISTRATIONS}{me}"
        known = self._node.image.registrations.get(me)
        value = entries.encode(registration)
        if known is None:
            await self.change([Create(path, value)])
            return 0
        await self.change([Put(path, value, known.epoch)])
        return known.epoch + 1

    # -- claims -----------------------------------------------------------------------------------------

    async def _give_up_claims(self) -> None:
        """Leave the in-sync replicas of partitions whose records this broker may not have any more."""
        while True:
            changes = [
                (topic, image, after)
                for topic in self._node.image.topics.values()
                for image in topic.partitions
                if self._may_lack(topic, image) and (after := self._without_me(topic, image)) is not None
            ]
            if not changes:
                break
            if await self._make(changes):
                break
            await self.pause(_POLL_MS)
        if self._lost_bytes:
            # Otherwise every later start, however clean the stop before it, would give up its claims again.
            self._node.logs.losses_settled()
            self._lost_bytes = False
        self._replace_corrupt_logs()

    def _may_lack(self, topic: TopicImage, image: PartitionImage) -> bool:
        me = self._node.broker_id
        if me not in image.replicas or me not in (*image.isr, *image.elr):
            return False
        log = self._node.logs.get(topic.name, image.index)
        if self._lost_bytes or log is None or log.corruption is not None or log.failed is not None:
            return True
        return log.tail_cut and not self._established

    def _without_me(self, topic: TopicImage, image: PartitionImage) -> PartitionImage | None:
        me = self._node.broker_id
        if image.leader != me and not {*image.isr, *image.elr} - {me}:
            return None  # the last one stays, whatever it has
        config = self._node.topic_settings.effective(topic.config)
        return elections.leave(image, me, min_insync=config.min_insync_replicas)

    def _replace_corrupt_logs(self) -> None:
        """A log that cannot be read makes way for a copy of another replica's."""
        me = self._node.broker_id
        for (name, index), log in list(self._node.logs.logs.items()):
            image = self._node.image.partition(name, index)
            if log.corruption is None or image is None or me not in image.replicas:
                continue
            if me not in (*image.isr, *image.elr) and len(image.replicas) > 1:
                _log.error(
                    "set a corrupt log aside, to be copied anew",
                    topic=name,
                    partition=index,
                    reason=log.corruption,
                )
                self._node.logs.set_aside(name, index)

    # -- a session's end --------------------------------------------------------------------------------

    def session(self, begun: bool) -> None:
        """The store's session was lost, or another has begun."""
        if not self._established or self.leaving:
            return  # the first join goes on by itself, in the new session
        if not begun:
            _log.warning("lost the session with the metadata store: leading nothing until it is back")
            return
        if self._rejoining is None or self._rejoining.done():
            self._rejoining = asyncio.get_running_loop().create_task(self._rejoin())

    async def _rejoin(self) -> None:
        """This process has been running all the time: its logs have all that they had."""
        while not self.leaving:
            try:
                if await self._try_join() and self.joined:
                    return
            except StoreError as error:
                _log.warning("cannot join yet", error=str(error))
            except BrokerRefused as refusal:
                self._node.stop_because(refusal)
                return
            await self.pause(_RETRY_MS)

    # -- leaving ----------------------------------------------------------------------------------------

    async def leave(self) -> None:
        """Hand every leadership over that another in-sync replica can take, and be gone for the others."""
        if self._rejoining is not None:
            self._rejoining.cancel()
        if not self.joined:
            self.leaving = True
            return
        me = self._node.broker_id
        alive = set(self._node.image.brokers) - {me}
        for _ in range(5):
            changes = [
                (topic, image, after)
                for topic in self._node.image.topics.values()
                for image in topic.partitions
                if me in image.isr and len(image.replicas) > 1
                if (after := self._handed_over(topic, image, alive)) is not None
            ]
            if not changes or await self._make(changes):
                break
        self.leaving = True
        await self.change([Delete(f"{entries.BROKERS}{me}")])

    def _handed_over(
        self, topic: TopicImage, image: PartitionImage, alive: set[int]
    ) -> PartitionImage | None:
        config = self._node.topic_settings.effective(topic.config)
        return elections.hand_over(image, self._node.broker_id, alive, min_insync=config.min_insync_replicas)

    def stop(self) -> None:
        self.leaving = True
        if self._rejoining is not None:
            self._rejoining.cancel()

    # -- parts ------------------------------------------------------------------------------------------

    async def _make(self, changes: Sequence[PartitionChange]) -> bool:
        """Change partitions' entries; False when some were changed by another meanwhile."""
        made = True
        for start in range(0, len(changes), _CHANGES_MAX):
            chunk = changes[start : start + _CHANGES_MAX]
            try:
                await self.change([put_partition(change) for change in chunk])
            except Conflict:
                made = False
                for change in chunk:
                    try:
                        await self.change([put_partition(change)])
                    except Conflict:
                        continue
        return made

    async def change(self, changes: Sequence[Change]) -> None:
        """Change the store and wait for it; StoreError or Conflict when it did not work."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def done(error: BaseException | None) -> None:
            if future.done():
                return
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)

        self._store.change(changes, done)
        await future

    async def pause(self, delay_ms: float) -> None:
        """Wait, by the broker's own clock."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def over() -> None:
            if not future.done():
                future.set_result(None)

        self._node.scheduler.call_later(delay_ms, over)
        await future
