"""One classic consumer group: its members, its state, and the rules for moving between states."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypeAlias

from culver.core.coordinator_timers import Timer
from culver.core.group_parking import ParkedRequest
from culver.core.group_records import NO_TIMESTAMP, subscribed_topics
from culver.errors import ErrorCode
from culver.protocol.messages.group_state import GroupMetadataValue, MemberMetadata

Protocols: TypeAlias = tuple[tuple[str, bytes], ...]
"""What a member can do, best first: the name of each protocol and the member's metadata for it."""

CONSUMER_PROTOCOL_TYPE = "consumer"


class GroupState(Enum):
    """Where a group stands; the values are the names that clients see."""

    EMPTY = "Empty"
    PREPARING_REBALANCE = "PreparingRebalance"
    COMPLETING_REBALANCE = "CompletingRebalance"
    STABLE = "Stable"
    DEAD = "Dead"


_ALLOWED_FROM = {
    GroupState.EMPTY: {GroupState.PREPARING_REBALANCE},
    GroupState.PREPARING_REBALANCE: {
        GroupState.EMPTY,
        GroupState.COMPLETING_REBALANCE,
        GroupState.STABLE,
    },
    GroupState.COMPLETING_REBALANCE: {GroupState.PREPARING_REBALANCE},
    GroupState.STABLE: {GroupState.COMPLETING_REBALANCE},
    GroupState.DEAD: set(GroupState),
}


class Member:
    """One member of a group. It is awaiting join (or sync) while it has a parked request of that kind."""

    __slots__ = (
        "assignment",
        "client_host",
        "client_id",
        "instance_id",
        "is_new",
        "member_id",
        "parked_join",
        "parked_sync",
        "protocols",
        "rebalance_timeout_ms",
        "session_timeout_ms",
        "session_timer",
    )

    def __init__(
        self,
        member_id: str,
        instance_id: str | None,
        client_id: str,
        client_host: str,
        session_timeout_ms: int,
        rebalance_timeout_ms: int,
        protocols: Protocols,
        assignment: bytes = b"",
    ) -> None:
        self.member_id = member_id
        self.instance_id = instance_id
        self.client_id = client_id
        self.client_host = client_host
        self.session_timeout_ms = session_timeout_ms
        self.rebalance_timeout_ms = rebalance_timeout_ms
        self.protocols = protocols
        self.session_timer = Timer()
        self.assignment = assignment
        self.parked_join: ParkedRequest | None = None
        self.parked_sync: ParkedRequest | None = None
        # Has not completed a first join. It may not even know its id, so it cannot send heartbeats, and its
        # session timer runs (long) while its join is parked.
        self.is_new = False

    def metadata(self, protocol: str | None) -> bytes:
        """This member's metadata for one protocol."""
        for name, metadata in self.protocols:
            if name == protocol:
                return metadata
        return b""

    def keeps_session_while_parked(self) -> bool:
        """A member that waits for us cannot be late with its heartbeats."""
        return not self.is_new and (self.parked_join is not None or self.parked_sync is not None)


class ClassicGroup:
    """The state of one group. This class keeps the books; `Rebalance` decides when to move.

    Transitions:

    * Empty -> PreparingRebalance: a first member joins; others get some time to arrive too.
    * PreparingRebalance -> CompletingRebalance: everyone has joined, or those who have not are out of time
      and removed. The generation goes up, a protocol is chosen, the leader learns of the members.
    * PreparingRebalance -> Empty: nobody is left. The generation goes up.
    * CompletingRebalance -> Stable: the leader's assignment is in the log.
    * CompletingRebalance -> PreparingRebalance: a member joins, changes or goes before that.
    * Stable -> PreparingRebalance: a member joins, changes or goes; the leader joins again.
    * any -> Dead: the group is removed, or its partition moves to another coordinator.

    Two kinds of state. `saved` is what the log holds, and only replaying a record changes it. All the rest is
    soft: it can be ahead of the log (a rebalance under way), and after a restart it starts from `saved`.
    """

    def __init__(self, group_id: str) -> None:
        self.group_id = group_id
        self.saved: bytes | None = None
        self.state = GroupState.EMPTY
        self.previous_state = GroupState.DEAD
        self.state_timestamp_ms = NO_TIMESTAMP
        self.generation = 0
        self.protocol_type: str | None = None
        self.protocol_name: str | None = None
        self.leader_id: str | None = None
        self.members: dict[str, Member] = {}
        self.static_members: dict[str, str] = {}
        # Members that were told their id and have yet to join with it, each with its deadline.
        self.pending_joins: dict[str, Timer] = {}
        # Members of this generation that have not sent SyncGroup.
        self.pending_syncs: set[str] = set()
        self.awaiting_join_count = 0
        # Topics of all members, where they are consumers and their metadata can be read.
        self.subscribed_topics: frozenset[str] | None = None
        self.new_member_added = False
        # The generation whose assignment is on its way to the log. A leader that asks again must not put
        # a second, different assignment behind it.
        self.assignment_in_flight: int | None = None
        self.join_timer = Timer()
        self.sync_timer = Timer()
        self._protocol_counts: dict[str, int] = {}

    # --- queries ---

    @property
    def is_forgettable(self) -> bool:
        """No member, and nobody about to become one."""
        return (
            not self.members and not self.pending_joins and self.state in (GroupState.EMPTY, GroupState.DEAD)
        )

    @property
    def needs_rebalance(self) -> bool:
        """It was a consumer group when it was saved: its members have yet to join."""
        return bool(self.members) and self.leader_id is None

    @property
    def uses_consumer_protocol(self) -> bool:
        return self.protocol_type == CONSUMER_PROTOCOL_TYPE

    @property
    def rebalance_timeout_ms(self) -> int:
        """As long as the most patient member may take."""
        return max((member.rebalance_timeout_ms for member in self.members.values()), default=0)

    @property
    def all_members_joined(self) -> bool:
        return self.awaiting_join_count == len(self.members) and not self.pending_joins

    @property
    def can_rebalance(self) -> bool:
        return self.state in _ALLOWED_FROM[GroupState.PREPARING_REBALANCE]

    def check_member(self, member_id: str, instance_id: str | None) -> ErrorCode:
        """Whether a request comes from a member, and from the present self of a static one."""
        if instance_id is not None:
            owner = self.static_members.get(instance_id)
            if owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            if owner != member_id:
                return ErrorCode.FENCED_INSTANCE_ID
        return ErrorCode.NONE if member_id in self.members else ErrorCode.UNKNOWN_MEMBER_ID

    def is_subscribed_to(self, topic: str) -> bool:
        """Whether a member reads this topic; taken for granted where a consumer's metadata is unreadable."""
        if self.subscribed_topics is None:
            return self.uses_consumer_protocol
        return topic in self.subscribed_topics

    def supports_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether someone with these protocols can join without leaving the others without a common one."""
        if self.state is GroupState.EMPTY:
            return bool(protocol_type) and any(True for _ in names)
        if protocol_type != self.protocol_type:
            return False
        count = len(self.members)
        return any(self._protocol_counts.get(name, 0) == count for name in names)

    def select_protocol(self) -> str:
        """The protocol that most members like best, among those that all of them know."""
        count = len(self.members)
        candidates = {name for name, supporters in self._protocol_counts.items() if supporters == count}
        votes: dict[str, int] = {}
        for member in self.members.values():
            vote = next(name for name, _ in member.protocols if name in candidates)
            votes[vote] = votes.get(vote, 0) + 1
        return max(votes, key=votes.__getitem__)

    def to_saved_value(self, assignments: dict[str, bytes]) -> GroupMetadataValue:
        """What to write about this group, with these assignments."""
        return GroupMetadataValue(
            protocol_type=self.protocol_type or "",
            generation=self.generation,
            protocol=self.protocol_name,
            leader=self.leader_id,
            current_state_timestamp=self.state_timestamp_ms,
            members=[
                MemberMetadata(
                    member_id=member.member_id,
                    group_instance_id=member.instance_id,
                    client_id=member.client_id,
                    client_host=member.client_host,
                    rebalance_timeout=member.rebalance_timeout_ms,
                    session_timeout=member.session_timeout_ms,
                    subscription=member.metadata(self.protocol_name),
                    assignment=assignments.get(member.member_id, b""),
                )
                for member in self.members.values()
            ],
        )

    # --- soft state: who is in the group ---

    def restore(self, value: GroupMetadataValue) -> None:
        """Start from what was saved: Stable with its members, or Empty."""
        self.generation = value.generation
        self.protocol_type = value.protocol_type or None
        self.protocol_name = value.protocol
        self.state_timestamp_ms = value.current_state_timestamp
        self.state = GroupState.STABLE if value.members else GroupState.EMPTY
        for saved in value.members:
            self.add(
                Member(
                    saved.member_id,
                    saved.group_instance_id,
                    saved.client_id,
                    saved.client_host,
                    saved.session_timeout,
                    saved.session_timeout if saved.rebalance_timeout == -1 else saved.rebalance_timeout,
                    ((value.protocol or "", bytes(saved.subscription)),),
                    bytes(saved.assignment),
                )
            )
        self.leader_id = value.leader
        self.learn_subscriptions()

    def cancel_timers(self) -> None:
        """Nothing happens by itself any more: the group is about to go."""
        self.join_timer.cancel()
        self.sync_timer.cancel()
        for pending in self.pending_joins.values():
            pending.cancel()
        for member in self.members.values():
            member.session_timer.cancel()

    def add(self, member: Member, parked: ParkedRequest | None = None) -> None:
        """Take a member in. The first one sets the protocol type and leads."""
        assert member.member_id not in self.members
        if member.instance_id is not None:
            assert member.instance_id not in self.static_members
            self.static_members[member.instance_id] = member.member_id
        if self.leader_id is None:
            self.leader_id = member.member_id
        self.members[member.member_id] = member
        self._count_protocols(member.protocols, 1)
        if parked is not None:
            self.park_join(member, parked)

    def remove(self, member_id: str) -> Member | None:
        """Let a member go, pending or not. Its parked requests are the caller's business."""
        member = self.members.pop(member_id, None)
        if member is not None:
            member.session_timer.cancel()
            self._count_protocols(member.protocols, -1)
            if member.parked_join is not None:
                self.awaiting_join_count -= 1
            if member.instance_id is not None:
                del self.static_members[member.instance_id]
        if self.leader_id == member_id:
            self.leader_id = next(iter(self.members), None)
        pending = self.pending_joins.pop(member_id, None)
        if pending is not None:
            pending.cancel()
        self.pending_syncs.discard(member_id)
        return member

    def replace_static(self, old: Member, new_id: str) -> Member:
        """The same static member under a new id: it keeps its place, its assignment and its leadership."""
        assert old.instance_id is not None
        assert old.parked_join is None
        assert old.parked_sync is None
        old.session_timer.cancel()
        new = Member(
            new_id,
            old.instance_id,
            old.client_id,
            old.client_host,
            old.session_timeout_ms,
            old.rebalance_timeout_ms,
            old.protocols,
            old.assignment,
        )
        # Built anew to keep the members' order: it decides who leads next.
        self.members = {
            new_id if member is old else member_id: new if member is old else member
            for member_id, member in self.members.items()
        }
        if self.leader_id == old.member_id:
            self.leader_id = new_id
        if old.member_id in self.pending_syncs:
            self.pending_syncs.discard(old.member_id)
            self.pending_syncs.add(new_id)
        self.static_members[old.instance_id] = new_id
        return new

    def update(
        self, member: Member, protocols: Protocols, session_timeout_ms: int, rebalance_timeout_ms: int
    ) -> None:
        """What a member said when it joined again."""
        self._count_protocols(member.protocols, -1)
        member.protocols = protocols
        self._count_protocols(protocols, 1)
        member.session_timeout_ms = session_timeout_ms
        member.rebalance_timeout_ms = rebalance_timeout_ms

    def park_join(self, member: Member, parked: ParkedRequest) -> None:
        assert member.parked_join is None
        member.parked_join = parked
        self.awaiting_join_count += 1

    def unpark_join(self, member: Member) -> ParkedRequest | None:
        parked = member.parked_join
        if parked is not None:
            member.parked_join = None
            self.awaiting_join_count -= 1
        return parked

    def elect_leader_among_joined(self) -> bool:
        """See to it that the leader is someone who has joined; False if nobody has."""
        leader = self.members.get(self.leader_id) if self.leader_id is not None else None
        if leader is not None and leader.parked_join is not None:
            return True
        for member in self.members.values():
            if member.parked_join is not None:
                self.leader_id = member.member_id
                return True
        return False

    # --- soft state: transitions ---

    def transition_to(self, state: GroupState, wall_ms: int) -> None:
        assert self.state in _ALLOWED_FROM[state], f"{self.group_id}: {self.state} -> {state}"
        self.previous_state = self.state
        self.state = state
        self.state_timestamp_ms = wall_ms

    def start_next_generation(self, wall_ms: int) -> None:
        """The end of PreparingRebalance: on to CompletingRebalance, or to Empty if nobody is left."""
        self.generation += 1
        self.assignment_in_flight = None
        self.pending_syncs.clear()
        if self.members:
            self.protocol_name = self.select_protocol()
            self.learn_subscriptions()
            self.transition_to(GroupState.COMPLETING_REBALANCE, wall_ms)
        else:
            self.protocol_name = None
            self.learn_subscriptions()
            self.transition_to(GroupState.EMPTY, wall_ms)

    def learn_subscriptions(self) -> None:
        self.subscribed_topics = None
        if not self.uses_consumer_protocol:
            return
        if not self.members:
            self.subscribed_topics = frozenset()
            return
        topics: set[str] = set()
        for member in self.members.values():
            subscription = subscribed_topics(member.metadata(self.protocol_name))
            if subscription is None:
                return
            topics |= subscription
        self.subscribed_topics = frozenset(topics)

    def _count_protocols(self, protocols: Protocols, step: int) -> None:
        # A member that names a protocol twice still is one supporter.
        for name in {name for name, _ in protocols}:
            count = self._protocol_counts.get(name, 0) + step
            if count:
                self._protocol_counts[name] = count
            else:
                self._protocol_counts.pop(name, None)
