"""A member of a consumer group whose broker assigns (KIP-848): joins, keeps up, gives up partitions, leaves."""

from __future__ import annotations

import asyncio
import base64
import random
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.group_offsets import ELSEWHERE, commit_offsets, stable_offsets
from culver.gateway.cluster.view import TopicPartition, refusal
from culver.gateway.membership.heartbeat import JOIN_EPOCH, LEAVE_EPOCH, Heartbeats
from culver.logging import get_logger
from culver.protocol.messages.consumer_group_heartbeat import Assignment, ConsumerGroupHeartbeatResponse
from culver.wire_client import Unreachable

_log = get_logger("culver.gateway.membership")

_HEARTBEAT_MAX_MS = 10_000.0
_LEAVE_MAX_MS = 2_000.0
# Whoever leaves has committed a moment ago. What happened since comes twice if the coordinator cannot be reached, which
# is no reason to keep the gateway from ending.
_LAST_COMMIT_MAX_MS = 2_000.0
_PAUSE_FIRST_S = 0.1
_PAUSE_MAX_S = 1.0
# After an answer that another try is not likely to change.
_REFUSED_PAUSE_S = 5.0
_UNSETTLED_PAUSE_S = 0.5
_COMMIT_TRIES_MAX = 5

_FENCED = frozenset((ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID))


class GroupMember:
    """One member. `on_assigned` gets the committed offset of each new partition, None where none is committed.

    `on_revoked` is awaited before the coordinator hears that the partitions are given up, so what it commits still
    counts; when the member was fenced it is called all the same, and its commits fail. `instance_name` is what
    people see as the member's client id. All members of the gateway share one connection to each coordinator.

        joining ──answer──> member ──close()──> gone
           ^                  |
           └── partitions <── fenced
               given up

    Between heartbeats a member is a timer and nothing else. A heartbeat, and a change of the assignment, is a task
    each; neither waits for the other, so a slow `on_revoked` does not cost the membership.
    """

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
        self.member_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self.epoch = JOIN_EPOCH
        # What keeps it from being a member, such as UNSUPPORTED_VERSION: no such groups here. It keeps trying.
        self.error: KafkaError | None = None
        self._cluster = cluster
        self._on_assigned = on_assigned
        self._on_revoked = on_revoked
        self._heartbeats = Heartbeats(cluster, group, topics, rebalance_timeout_ms, client_id=instance_name)
        self._owned: dict[TopicPartition, bytes] = {}
        self._target: Assignment | None = None
        self._closing = False  # no more assignments
        self._closed = False  # no more heartbeats
        self._giving_up = False
        self._timer: asyncio.TimerHandle | None = None
        self._beating: asyncio.Task[None] | None = None
        self._beat_again = False
        self._changing: asyncio.Task[None] | None = None
        self._pause_s = _PAUSE_FIRST_S

    @property
    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are this member's now."""
        return frozenset(self._owned)

    async def start(self) -> None:
        """Begin to join. Returns at once: assignments come through `on_assigned`."""
        self._beat_now()

    async def close(self) -> None:
        """Give up all partitions, through `on_revoked`, and leave the group."""
        if self._closing:
            return
        self._closing = True
        if self._changing is not None:
            if not self._giving_up:
                self._changing.cancel()
            await asyncio.gather(self._changing, return_exceptions=True)
        # Heartbeats go on meanwhile, since what is committed here needs the epoch that they bring.
        await self._give_up(set(self._owned))
        self._closed = True
        self._stop_timer()
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        if self._heartbeats.begun:
            try:
                # It is behind a heartbeat that may be under way still: a broker answers in order.
                await self._heartbeats.send(self.member_id, LEAVE_EPOCH, {}, timeout_ms=_LEAVE_MAX_MS)
            except (Unreachable, KafkaError) as error:
                _log.info("left a group without saying so", group=self.group, reason=str(error))

    async def commit(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets: those that are read next. KafkaError when fenced or refused, or Unreachable."""
        if not offsets:
            return
        for tries_left in reversed(range(_COMMIT_TRIES_MAX)):
            epoch = self.epoch
            if epoch <= JOIN_EPOCH:
                raise KafkaError(
                    ErrorCode.UNKNOWN_MEMBER_ID, f"not a member of group {self.group} at the moment"
                )
            try:
                await commit_offsets(
                    self._cluster,
                    self.group,
                    offsets,
                    member_id=self.member_id,
                    member_epoch=epoch,
                    topic_ids={place.topic: topic_id for place, topic_id in self._owned.items()},
                    patience_ms=self._patience_ms,
                )
            except KafkaError as error:
                if error.code is not ErrorCode.STALE_MEMBER_EPOCH or not tries_left or self._closed:
                    raise
                if self.epoch == epoch:
                    # The coordinator is ahead, and the next heartbeat's answer tells by how much.
                    self._beat_now()
                    if self._beating is not None:
                        await asyncio.wait([self._beating])
            else:
                return

    def _patience_ms(self) -> float:
        return _LAST_COMMIT_MAX_MS if self._closing else self._cluster.timeout_ms

    # -- heartbeats -----------------------------------------------------------------------------------------

    def _beat_in(self, delay_s: float) -> None:
        self._stop_timer()
        if not self._closed:
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._beat_now)

    def _beat_now(self) -> None:
        self._stop_timer()
        if self._closed:
            return
        if self._beating is not None:
            self._beat_again = True
        else:
            self._beating = asyncio.create_task(self._beat())

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _beat(self) -> None:
        self._beat_again = False
        delay_s: float | None = _REFUSED_PAUSE_S
        try:
            answer = await self._heartbeats.send(
                self.member_id, self.epoch, self._owned, timeout_ms=_HEARTBEAT_MAX_MS
            )
            delay_s = self._answered(answer)
        except Unreachable as error:
            _log.info("a heartbeat failed", group=self.group, reason=str(error))
            delay_s = self._longer_pause()
        except KafkaError as error:
            delay_s = self._refused(error)
        finally:
            self._beating = None
            if delay_s is not None:
                self._beat_in(0 if self._beat_again else delay_s)

    def _answered(self, answer: ConsumerGroupHeartbeatResponse) -> float | None:
        """Take an answer: seconds until the next heartbeat, None when something else brings it about."""
        if answer.error_code:
            raise refusal(answer.error_code, f"membership in group {self.group}", answer.error_message)
        self.error = None
        self._pause_s = _PAUSE_FIRST_S
        self.member_id = answer.member_id or self.member_id
        self.epoch = answer.member_epoch
        if answer.assignment is not None:
            self._target = answer.assignment
            self._change()
        return max(answer.heartbeat_interval_ms, 1) / 1000

    def _refused(self, error: KafkaError) -> float | None:
        if error.code in ELSEWHERE:
            self._cluster.forget_coordinator(self.group)
            return self._longer_pause()
        if error.code in _FENCED:
            _log.info(
                "fenced, and joining again", group=self.group, member=self.member_id, code=error.code.name
            )
            self.epoch = JOIN_EPOCH
            self._target = None
            self._change()
            return None  # once the partitions are given up
        if self.error is None or self.error.code is not error.code:
            _log.warning("no member of a group", group=self.group, reason=str(error))
        self.error = error
        return _REFUSED_PAUSE_S

    def _longer_pause(self) -> float:
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, _PAUSE_MAX_S)
        return pause_s * random.uniform(0.5, 1.5)  # so that a thousand members do not come back at once

    # -- the assignment -------------------------------------------------------------------------------------

    def _change(self) -> None:
        if self._changing is None and not self._closing:
            self._changing = asyncio.create_task(self._follow_target())

    async def _follow_target(self) -> None:
        """Give up and take over partitions until what is owned is what is assigned; a newer assignment may come in."""
        settled = False
        try:
            while not self._closing and not await self._step():
                pass
            settled = self._target is None or _count(self._target) == len(self._owned)
        except (Unreachable, KafkaError) as error:
            _log.info("an assignment cannot be taken yet", group=self.group, reason=str(error))
        finally:
            self._changing = None
        if not settled:
            asyncio.get_running_loop().call_later(_UNSETTLED_PAUSE_S, self._change)

    async def _step(self) -> bool:
        """One step towards the target. True when there is none left to take now."""
        target = self._target
        if target is None:
            await self._give_up(set(self._owned))
            if self._target is None:
                self._beat_now()  # to join
            return self._target is None
        wanted = await self._named(target)
        # By id as well: a topic that was made again has the name of the one that was given up.
        surplus = {place for place, topic_id in self._owned.items() if wanted.get(place) != topic_id}
        if surplus:
            await self._give_up(surplus)
            self._beat_now()  # to say so: others wait for it
            return False
        missing = [place for place in wanted if place not in self._owned]
        if missing:
            offsets = await stable_offsets(self._cluster, self.group, missing)
            if self._target is not target:
                return False
            self._owned |= {place: wanted[place] for place in missing}
            self._call_assigned(offsets)
            self._beat_now()
        return self._target is target

    async def _named(self, target: Assignment) -> dict[TopicPartition, bytes]:
        """The assigned partitions and their topics' ids. A topic that is not known by name yet is left for later."""
        names = (await self._cluster.view(max_age_ms=60_000)).topic_names()
        if any(entry.topic_id not in names for entry in target.topic_partitions):
            names = (await self._cluster.view(max_age_ms=100)).topic_names()
        return {
            TopicPartition(names[entry.topic_id], partition): entry.topic_id
            for entry in target.topic_partitions
            if entry.topic_id in names
            for partition in entry.partitions
        }

    async def _give_up(self, places: set[TopicPartition]) -> None:
        if not places:
            return
        self._giving_up = True
        try:
            await self._on_revoked(places)
        except Exception:  # noqa: BLE001 - the boundary: they are given up whatever their reader says to it
            _log.exception("a reader failed when its partitions were revoked", group=self.group)
        finally:
            self._giving_up = False
        for place in places:
            self._owned.pop(place, None)

    def _call_assigned(self, offsets: dict[TopicPartition, int | None]) -> None:
        try:
            self._on_assigned(offsets)
        except Exception:  # noqa: BLE001 - the boundary: the membership goes on
            _log.exception("a reader failed when it was assigned partitions", group=self.group)


def _count(target: Assignment) -> int:
    return sum(len(entry.partitions) for entry in target.topic_partitions)
