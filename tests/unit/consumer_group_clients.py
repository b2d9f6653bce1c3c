"""A coordinator with a log in memory, and clients of both kinds that remember what they were told."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from culver.core.coordinator_effects import WRITTEN_ANYHOW, Append, Effects, Reply, RequestContext
from culver.core.group_coordinator import GroupCoordinator
from culver.core.group_settings import GroupSettings
from culver.errors import ErrorCode
from culver.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest, TopicPartitions
from culver.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from culver.protocol.messages.heartbeat import HeartbeatRequest
from culver.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from culver.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from culver.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from culver.protocol.schema import decoder, encoder

GROUP = "g"
Partition = tuple[str, int]


class TopicsInMemory:
    """Topics, each life of one with an id of its own."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.ids: dict[str, bytes] = {}
        self._lives = 0

    def set(self, name: str, count: int) -> None:
        if name not in self.counts:
            self._lives += 1
            self.ids[name] = f"{name}{self._lives}".encode().ljust(16, b".")
        self.counts[name] = count

    def delete(self, name: str) -> None:
        del self.counts[name], self.ids[name]

    def topic_id(self, name: str) -> bytes | None:
        return self.ids.get(name)

    def topic_name(self, topic_id: bytes) -> str | None:
        return next((name for name, known in self.ids.items() if known == topic_id), None)

    def partition_exists(self, name: str, partition: int) -> bool:
        return 0 <= partition < self.counts.get(name, 0)

    def partition_count(self, name: str) -> int:
        return self.counts[name]

    def names(self) -> list[str]:
        return list(self.counts)


class World:
    """Runs requests through a coordinator; its log takes records at once, later, or not at all."""

    def __init__(self, **settings: Any) -> None:
        self.settings = {
            "offsets_topic_num_partitions": 1,
            "group_initial_rebalance_delay_ms": 0,
            **settings,
        }
        self.topics = TopicsInMemory()
        self.now_ms = 1_000_000
        self.log: list[Any] = []
        self.held: list[Append] = []
        self.holding = False
        self.failing = ErrorCode.NONE
        self._ids = 0
        self.restart()

    def restart(self) -> None:
        """Another coordinator reads the log. Whatever was on its way is lost."""
        self.held, self.holding = [], False
        settings = GroupSettings(**self.settings)
        self.coordinator = GroupCoordinator(settings, self.topics, self._new_id, lambda: self.now_ms)
        self.coordinator.load_begin(0)
        for record in self.log:
            self.coordinator.replay(0, record.key, record.value)
        self.carry_out(self.coordinator.load_done(0, self.now_ms))

    def compact(self) -> None:
        """Keep the last record of each key, in place, as a cleaner does."""
        last = {record.key: position for position, record in enumerate(self.log)}
        self.log = [record for position, record in enumerate(self.log) if last[record.key] == position]

    def _new_id(self, stem: str) -> str:
        self._ids += 1
        return f"{stem}-{self._ids}"

    def ask(self, handle: str, request: Any, version: int, answered: Callable[[Any], None]) -> None:
        """`answered` is called with the response, now or later, perhaps never."""
        context = RequestContext("client", "/host", version)
        self.carry_out(getattr(self.coordinator, handle)(request, context, Answer(answered), self.now_ms))

    def carry_out(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert isinstance(effect.token, Answer)
                effect.token.give(effect.response)
            else:
                assert isinstance(effect, Append)
                if self.holding:
                    self.held.append(effect)
                else:
                    self._append(effect)

    def _append(self, append: Append) -> None:
        if self.failing is ErrorCode.NONE or self.failing in WRITTEN_ANYHOW:
            self.log += append.records
        self.carry_out(self.coordinator.append_done(append, self.failing, self.now_ms))

    def release(self) -> None:
        self.holding = False
        held, self.held = self.held, []
        for append in held:
            self._append(append)

    def advance(self, delta_ms: int) -> None:
        until_ms = self.now_ms + delta_ms
        while True:
            deadline_ms = self.coordinator.next_deadline_ms()
            if deadline_ms is None or deadline_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, int(deadline_ms))
            self.carry_out(self.coordinator.expire(self.now_ms))
        self.now_ms = until_ms

    @property
    def group(self) -> Any:
        partition = self.coordinator.partition(0)
        assert partition is not None
        return partition.consumer_groups.get(GROUP)

    def member_ids(self) -> set[str]:
        """Who is in the group, whatever its kind."""
        if self.group is not None:
            return set(self.group.members)
        classic = self.coordinator.group(GROUP)
        return set() if classic is None else set(classic.members)


@dataclass(eq=False)
class Answer:
    """The token of a request."""

    give: Callable[[Any], None]


@dataclass
class Client:
    """What both kinds have in common: `has` is what it reads at the moment."""

    name: str
    world: World
    topics: tuple[str, ...] = ("t",)
    member_id: str = ""
    epoch: int = 0
    has: set[tuple[bytes, int]] = field(default_factory=set)
    waiting: bool = False
    life: int = 0

    def abandon(self) -> None:
        self.has = set()
        self.epoch = 0
        self.waiting = False
        self.life += 1

    def unless_restarted(self, heard: Callable[[Any], None]) -> Callable[[Any], None]:
        """An answer that was meant for an earlier life of this client is nothing to it."""
        life = self.life
        return lambda response: heard(response) if self.life == life else None


@dataclass
class NewClient(Client):
    """Speaks the consumer protocol."""

    told: set[tuple[bytes, int]] = field(default_factory=set)
    pattern: str | None = None
    instance: str | None = None
    full: bool = True

    def abandon(self) -> None:
        super().abandon()
        self.told = set()
        self.full = True

    def beat(self, *, follow: bool = True, lose_answer: bool = False) -> None:
        """One heartbeat; joins if it is not in the group. It lets go of what it was told to, or not yet."""
        if self.waiting:
            return
        self.member_id = self.member_id or self.name
        if follow:
            self.has &= self.told
        full = self.full or self.epoch == 0
        request = ConsumerGroupHeartbeatRequest(
            group_id=GROUP,
            member_id=self.member_id,
            member_epoch=self.epoch,
            instance_id=self.instance,
            rebalance_timeout_ms=60_000 if full else -1,
            subscribed_topic_names=list(self.topics) if full else None,
            subscribed_topic_regex=self.pattern if full else None,
            topic_partitions=_by_topic(self.has),
        )
        self.waiting = True
        self.full = False
        heard = self._lost if lose_answer else self._heard
        version = 1
        self.world.ask("handle_consumer_group_heartbeat", request, version, self.unless_restarted(heard))

    def _lost(self, _response: Any) -> None:
        self.waiting = False
        self.full = True

    def _heard(self, response: Any) -> None:
        self.waiting = False
        if response.error_code == ErrorCode.NONE:
            assert response.member_epoch >= self.epoch, "epochs never go back"
            self.epoch = response.member_epoch
            if response.assignment is not None:
                self.told = {
                    (bytes(item.topic_id), index)
                    for item in response.assignment.topic_partitions
                    for index in item.partitions
                }
                # It may begin with what is new at once; what it loses it lets go of when it comes to it.
                self.has |= self.told
        elif response.error_code in (
            ErrorCode.FENCED_MEMBER_EPOCH,
            ErrorCode.UNKNOWN_MEMBER_ID,
            ErrorCode.GROUP_ID_NOT_FOUND,
        ):
            self.abandon()
        else:
            self.full = True

    def leave(self, epoch: int = -1) -> None:
        """With -2 for a while: a static member that is about to restart, under another id."""
        if self.epoch > 0:
            request = ConsumerGroupHeartbeatRequest(
                group_id=GROUP, member_id=self.member_id, member_epoch=epoch, instance_id=self.instance
            )
            self.abandon()
            self.world.ask("handle_consumer_group_heartbeat", request, 1, lambda _response: None)

    def restart(self) -> None:
        assert self.instance is not None
        self.leave(-2)
        self.abandon()
        self.member_id = f"{self.name}-again-{self.life}"


@dataclass
class ClassicClient(Client):
    """Speaks the classic protocol, the eager way: it gives up everything before it joins."""

    synced: bool = False
    in_group: bool = False

    def abandon(self) -> None:
        super().abandon()
        self.member_id = ""
        self.synced = False
        self.in_group = False

    def beat(self, *, follow: bool = True, lose_answer: bool = False) -> None:
        """Whatever is next: a heartbeat, a join or a sync."""
        if self.waiting:
            return
        if self.in_group and self.synced:
            request = HeartbeatRequest(
                group_id=GROUP, generation_id=self.epoch, member_id=self.member_id, group_instance_id=None
            )
            self.waiting = True
            self.world.ask("handle_heartbeat", request, 4, self.unless_restarted(self._heard))
        elif follow:
            self._join()

    def _heard(self, response: Any) -> None:
        self.waiting = False
        if response.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            self.synced = False
        elif response.error_code in (ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID):
            self.abandon()

    def _join(self) -> None:
        self.has = set()
        subscription = ConsumerProtocolSubscription(topics=list(self.topics))
        metadata = b"\x00\x01" + b"".join(encoder(ConsumerProtocolSubscription, 1)(subscription))
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=45_000,
            rebalance_timeout_ms=60_000,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        self.waiting = True
        self.world.ask("handle_join_group", request, 9, self.unless_restarted(self._joined))

    def _joined(self, response: Any) -> None:
        self.waiting = False
        if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = response.member_id
        elif response.error_code == ErrorCode.NONE:
            self.member_id = response.member_id
            self.epoch = response.generation_id
            self.in_group = True
            self._sync(response)
        elif response.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.abandon()

    def _sync(self, joined: Any) -> None:
        assignments = []
        if joined.leader == self.member_id:
            assignments = self._assign([member.member_id for member in joined.members])
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.epoch,
            member_id=self.member_id,
            group_instance_id=None,
            protocol_type="consumer",
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        self.waiting = True
        self.world.ask("handle_sync_group", request, 5, self.unless_restarted(self._assigned))

    def _assign(self, member_ids: list[str]) -> list[SyncGroupRequestAssignment]:
        topics = self.world.topics
        shares: dict[str, list[TopicPartition]] = {member_id: [] for member_id in member_ids}
        partitions = [
            (topic, index) for topic in sorted(self.topics) for index in range(topics.counts.get(topic, 0))
        ]
        for position, (topic, index) in enumerate(partitions):
            shares[member_ids[position % len(member_ids)]].append(
                TopicPartition(topic=topic, partitions=[index])
            )
        return [
            SyncGroupRequestAssignment(
                member_id=member_id,
                assignment=b"\x00\x01"
                + b"".join(
                    encoder(ConsumerProtocolAssignment, 1)(
                        ConsumerProtocolAssignment(assigned_partitions=share, user_data=None)
                    )
                ),
            )
            for member_id, share in shares.items()
        ]

    def _assigned(self, response: Any) -> None:
        self.waiting = False
        if response.error_code == ErrorCode.NONE:
            self.synced = True
            self.has = set()
            if response.assignment:
                value, _ = decoder(ConsumerProtocolAssignment, 1)(response.assignment, 2)
                for item in value.assigned_partitions:
                    topic_id = self.world.topics.topic_id(item.topic)
                    if topic_id is not None:
                        self.has |= {(topic_id, index) for index in item.partitions}
        elif response.error_code in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION):
            self.abandon()

    def leave(self) -> None:
        if self.in_group:
            members = [MemberIdentity(member_id=self.member_id)]
            request = LeaveGroupRequest(group_id=GROUP, member_id=self.member_id, members=members)
            self.abandon()
            self.world.ask("handle_leave_group", request, 5, lambda _response: None)


def _by_topic(partitions: set[tuple[bytes, int]]) -> list[TopicPartitions]:
    topics: dict[bytes, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return [TopicPartitions(topic_id=topic, partitions=indexes) for topic, indexes in topics.items()]
