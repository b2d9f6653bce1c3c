"""The webhooks of this gateway: keeps what runs in step with what is stored, and makes the changes clients ask for."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import Any

import msgspec

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.groups import delete_group
from culver.gateway.cluster.offsets import EARLIEST, LATEST
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.errors import HttpError, Problem
from culver.gateway.private_topics import refuse_private
from culver.gateway.producing import Producing
from culver.gateway.reading.partition_reader import Readers
from culver.gateway.webhooks.delivery import Delivery
from culver.gateway.webhooks.payload import sample
from culver.gateway.webhooks.posting import Poster
from culver.gateway.webhooks.status import Status, lags
from culver.gateway.webhooks.store import Store
from culver.gateway.webhooks.subscription import Start, Subscription, Wanted, default_group, merged
from culver.gateway.webhooks.target_check import TargetRefused, allowance_of, check_target
from culver.logging import get_logger
from culver.wire_client import Unreachable

_log = get_logger("culver.gateway.webhooks")

# Until the members of a deleted webhook's group have left, in all gateways, the group cannot be deleted.
_GROUP_DELETION_TRIES = 20
_RETRY_SECONDS = 1.0
_FORMER_SECONDS = 10.0
_FORMER_PAUSE_SECONDS = 0.1


class Tested(msgspec.Struct, kw_only=True):
    """What came of a call that was made as a test."""

    acknowledged: bool
    status: int | None
    error: str
    duration_ms: int


class Webhooks:
    """All webhooks. Runs from start() to close()."""

    def __init__(
        self, cluster: Cluster, readers: Readers, producing: Producing, *, allow_private: str
    ) -> None:
        self._cluster = cluster
        self._readers = readers
        self._producing = producing
        self._allowance = allowance_of(allow_private)
        self._store = Store(cluster, readers, producing, self._changed)
        self._deliveries: dict[str, Delivery] = {}
        # Webhooks that are being started or stopped, one task each: a receiver that hangs delays only its own.
        self._settling: dict[str, asyncio.Task[None]] = {}
        self._background: set[asyncio.Task[None]] = set()
        self._closing = False

    async def start(self) -> None:
        """Begin. Succeeds even if no broker is up yet."""
        await self._store.start()

    async def close(self) -> None:
        """Stop them all: what is acknowledged is committed, and the groups are left."""
        self._closing = True
        await self._store.close()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for name in list(self._deliveries):
            self._changed(name)
        await asyncio.gather(*self._settling.values())

    # --- looking ---

    async def all(self) -> list[Subscription]:
        """All webhooks, by name."""
        await self._store.ready()
        return self._store.all()

    async def get(self, name: str) -> Subscription:
        await self._store.ready()
        return self._existing(name)

    async def statuses(self, subscriptions: list[Subscription]) -> list[Status]:
        """How each is doing here, with its lag in the cluster."""
        try:
            found = await lags(self._cluster, subscriptions)
        except (KafkaError, Unreachable) as error:
            _log.info("lag of webhooks is not known", error=str(error))
            found = {}
        statuses = []
        for each in subscriptions:
            delivery = self._deliveries.get(each.name)
            status = Status() if delivery is None else delivery.status
            status.lag = found.get(each.name)
            statuses.append(status)
        return statuses

    def counts(self) -> dict[str, tuple[int, int, int]]:
        """Of each that runs here: records delivered, calls that failed, dead letters."""
        statuses = {name: delivery.status for name, delivery in self._deliveries.items()}
        return {
            name: (status.records_delivered, status.calls_failed, status.dead_letters)
            for name, status in statuses.items()
        }

    # --- changing ---

    async def create(self, wanted: Wanted) -> Subscription:
        """A new webhook. HttpError 409 when there is one of that name."""
        if wanted.name is msgspec.UNSET:
            raise HttpError(Problem.INVALID_VALUE, "a webhook needs a name")
        await self._store.catch_up()
        if self._store.get(wanted.name) is not None:
            raise HttpError(Problem.CONFLICT, f"there is a webhook {wanted.name} already")
        return await self._put(wanted.name, wanted, None)

    async def replace(self, name: str, wanted: Wanted) -> Subscription:
        """Change a webhook. HttpError 404 when there is none."""
        if wanted.name is not msgspec.UNSET and wanted.name != name:
            raise HttpError(Problem.INVALID_VALUE, "a webhook cannot be renamed: make another")
        await self._store.catch_up()
        return await self._put(name, wanted, self._existing(name))

    async def remove(self, name: str) -> None:
        """Delete a webhook, and its group unless that was named by hand."""
        await self._store.catch_up()
        existing = self._existing(name)
        await self._store.remove(name)
        if existing.group == default_group(name):
            self._run(self._delete_group(name, existing.group))

    async def pause(self, name: str, because: str | None = None) -> Subscription:
        return await self._set_paused(name, True, because)

    async def resume(self, name: str) -> Subscription:
        return await self._set_paused(name, False, None)

    async def test(self, name: str) -> Tested:
        """Send a record that nobody wrote to the receiver, once."""
        subscription = await self.get(name)
        poster = Poster(subscription, self._allowance)
        began = time.monotonic()
        try:
            outcome = await poster.post([sample(subscription, _now_ms())])
        finally:
            await poster.close()
        return Tested(
            acknowledged=outcome.acknowledged,
            status=outcome.status,
            error=outcome.error,
            duration_ms=round((time.monotonic() - began) * 1000),
        )

    def _existing(self, name: str) -> Subscription:
        found = self._store.get(name)
        if found is None:
            raise HttpError(Problem.NOT_FOUND, f"there is no webhook {name}")
        return found

    async def _put(self, name: str, wanted: Wanted, existing: Subscription | None) -> Subscription:
        for topic in wanted.topics:
            refuse_private(topic)
        try:
            # What is wrong in itself is told before anybody is asked.
            merged(name, wanted, existing, now_ms=0, starts={})
            await check_target(wanted.url, self._allowance)
        except TargetRefused as error:
            raise HttpError(Problem.UNPROCESSABLE, str(error)) from None
        except ValueError as error:
            raise HttpError(Problem.INVALID_VALUE, str(error)) from None
        kept = existing.starts if existing is not None else {}
        starts = {topic: kept[topic] for topic in wanted.topics if topic in kept}
        new = [topic for topic in wanted.topics if topic not in starts]
        starts |= await self._starts(new, EARLIEST if wanted.from_ == "earliest" else LATEST)
        subscription = merged(name, wanted, existing, now_ms=_now_ms(), starts=starts)
        if existing is None and subscription.group == default_group(name):
            await self._forget_former(name, subscription.group)
        await self._store.put(subscription)
        return subscription

    async def _starts(self, topics: Iterable[str], where: int) -> dict[str, Start]:
        """Where topics begin for a webhook that is given them now. KafkaError when there is no such topic."""
        view = await self._cluster.view(max_age_ms=0)
        starts: dict[str, Start] = {}
        for name in topics:
            topic = view.topics.get(name)
            if topic is None:
                raise HttpError(Problem.TOPIC_NOT_FOUND, f"there is no topic {name}")
            places = [TopicPartition(name, each.index) for each in topic.partitions]
            found = await self._cluster.list_offsets(dict.fromkeys(places, where), committed=True)
            offsets = []
            for place in places:
                answer = found[place]
                if isinstance(answer, KafkaError):
                    raise answer
                offsets.append(answer.offset)
            starts[name] = Start(topic.topic_id.hex(), tuple(offsets))
        return starts

    async def _set_paused(self, name: str, paused: bool, because: str | None) -> Subscription:
        await self._store.catch_up()
        existing = self._existing(name)
        if existing.paused == paused:
            return existing
        changed = msgspec.structs.replace(
            existing, paused=paused, paused_because=because, changed_ms=_now_ms()
        )
        await self._store.put(changed)
        return changed

    # --- running ---

    def _changed(self, name: str) -> None:
        """The webhook is to be something else than before: see to it, in a task of its own."""
        if name not in self._settling:
            self._settling[name] = asyncio.create_task(self._settle(name))

    async def _settle(self, name: str) -> None:
        try:
            while True:
                wanted = None if self._closing else self._store.get(name)
                if wanted is not None and wanted.paused:
                    wanted = None
                running = self._deliveries.get(name)
                if (None if running is None else running.subscription) == wanted:
                    break
                if running is not None:
                    await running.close()
                    del self._deliveries[name]
                elif wanted is not None:
                    self._deliveries[name] = await self._started(wanted)
        except Exception:  # noqa: BLE001 - the boundary: the other webhooks go on
            _log.exception("webhook cannot be run", webhook=name)
        finally:
            del self._settling[name]

    async def _started(self, subscription: Subscription) -> Delivery:
        delivery = Delivery(
            subscription,
            self._cluster,
            self._readers,
            self._producing,
            self._allowance,
            on_gone=lambda reason: self._run(self._pause_gone(subscription, reason)),
        )
        await delivery.start()
        return delivery

    async def _pause_gone(self, subscription: Subscription, reason: str) -> None:
        """The receiver has said that it does not want to be called again."""
        _log.warning("webhook is paused: its receiver is gone", webhook=subscription.name, reason=reason)
        while self._store.get(subscription.name) == subscription:
            try:
                await self.pause(subscription.name, f"the receiver is gone: {reason}")
            except (KafkaError, Unreachable, HttpError) as error:
                _log.warning("webhook cannot be paused", webhook=subscription.name, error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)

    async def _delete_group(self, name: str, group: str) -> None:
        for _ in range(_GROUP_DELETION_TRIES):
            if self._store.get(name) is not None:
                return  # made again meanwhile
            try:
                if await self._is_deleted(group):
                    return
            except (KafkaError, Unreachable) as error:
                _log.debug("group of a webhook cannot be deleted yet", group=group, error=str(error))
            await asyncio.sleep(_RETRY_SECONDS)

    async def _forget_former(self, name: str, group: str) -> None:
        """How far a deleted webhook of the same name had come says nothing of a new one. HttpError 409, KafkaError."""
        deadline = time.monotonic() + _FORMER_SECONDS
        while not await self._is_deleted(group):
            if time.monotonic() > deadline:
                raise HttpError(
                    Problem.CONFLICT,
                    f"group {group} still has members: a former webhook {name} has not ended everywhere; try again, "
                    "or name another group",
                )
            await asyncio.sleep(_FORMER_PAUSE_SECONDS)

    async def _is_deleted(self, group: str) -> bool:
        """Delete a group; False while it has members. KafkaError, Unreachable."""
        try:
            await delete_group(self._cluster, group)
        except KafkaError as error:
            if error.code is ErrorCode.NON_EMPTY_GROUP:
                return False
            if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
                raise
        return True

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._background.add(task)
        task.add_done_callback(self._background.discard)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
