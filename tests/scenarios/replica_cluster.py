"""One partition on several brokers, each a list of records and the real leader state, over a store of one entry.

Every party may be late: a broker knows the entry in the version that it has last learnt, a leader's proposal is in
flight until the store has applied or refused it, a fetch can reach the leader after its sender has died. Nothing
here decides anything that `culver.core` decides; it only carries messages and keeps logs.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from culver.core import elections
from culver.core.image import NO_LEADER, PartitionImage
from culver.core.leader_state import LeaderState


class Stored(NamedTuple):
    """A record in a log."""

    epoch: int
    value: str


class Request(NamedTuple):
    """A follower's fetch; everything in it was true when it was sent."""

    follower: int
    broker_epoch: int
    leader: int
    leader_epoch: int
    offset: int
    last_epoch: int


class Answer(NamedTuple):
    """The leader's answer: an error, where the logs part, or records and the high watermark."""

    error: str = ""
    diverging: tuple[int, int] | None = None
    records: tuple[Stored, ...] = ()
    high_watermark: int = 0


class Proposal(NamedTuple):
    """A change of the ISR on its way to the store; it holds only while these versions do."""

    expected_version: int
    after: PartitionImage
    registrations: tuple[tuple[int, int], ...]


def epoch_end(log: list[Stored], epoch: int) -> tuple[int, int]:
    """The largest epoch in the log up to this one, and where it ends; (-1, 0) if there is none."""
    end = next((offset for offset, record in enumerate(log) if record.epoch > epoch), len(log))
    return (log[end - 1].epoch if end else -1), end


@dataclass
class Replica:
    """One broker: its log, what it knows, and what it leads."""

    id: int
    view: PartitionImage
    broker_epoch: int = 0
    up: bool = True
    lost_bytes: bool = False
    log: list[Stored] = field(default_factory=list)
    high_watermark: int = 0
    state: LeaderState | None = None
    # In flight, and what the store has said to it: "", "entry" or "registration" (refused for these), "made".
    proposal: Proposal | None = None
    answer: str = ""

    def take_over(self, min_insync: int, now_ms: float) -> None:
        """Act on what is known now: lead, follow, or be no replica at all."""
        view = self.view
        minimum = elections.effective_min_insync(view, min_insync)
        if self.id not in view.replicas:
            self.log, self.high_watermark, self.state = [], 0, None
        elif view.leader != self.id:
            self.state = None
        else:
            self.state = LeaderState(
                self.id,
                view.replicas,
                view.isr,
                minimum,
                len(self.log),
                self.high_watermark,
                now_ms,
                elr=view.elr,
            )


@dataclass
class ReplicaCluster:
    """See the module's text. Methods return "" or the reason why not."""

    entry: PartitionImage
    brokers: tuple[int, ...]
    min_insync: int = 1

    def __post_init__(self) -> None:
        self.now_ms = 0.0
        self.versions = [self.entry]
        self.replicas = {broker: Replica(broker, self.entry) for broker in self.brokers}
        self.registrations = dict.fromkeys(self.brokers, 0)
        self.alive = set(self.brokers)
        # What a high watermark has passed, by offset: never to be lost.
        self.acknowledged: list[Stored] = []
        for replica in self.replicas.values():
            replica.take_over(self.min_insync, self.now_ms)

    def clone(self) -> ReplicaCluster:
        return copy.deepcopy(self)

    # --- the store ---

    def put(self, after: PartitionImage | None) -> str:
        """A change by whoever has just read the entry."""
        if after is None:
            return "nothing to change"
        assert after.partition_epoch == self.entry.partition_epoch
        self.entry = replace(after, partition_epoch=after.partition_epoch + 1)
        self.versions.append(self.entry)
        return ""

    def settle(self, alive: set[int] | None = None, unclean: bool = False) -> str:
        among = self.alive if alive is None else alive
        return self.put(
            elections.settle(self.entry, among, min_insync=self.min_insync, unclean_allowed=unclean)
        )

    def learn(self, broker: int, version: int | None = None) -> None:
        """A broker hears of the entry in this version, or the newest."""
        replica = self.replicas[broker]
        before, view = replica.view, self.entry if version is None else self.versions[version]
        if not replica.up or view.partition_epoch <= before.partition_epoch:
            return
        replica.view = view
        if replica.state is not None and (view.leader, view.leader_epoch) == (broker, before.leader_epoch):
            minimum = elections.effective_min_insync(view, self.min_insync)
            replica.state.update(view.replicas, view.isr, minimum, self.now_ms, elr=view.elr)
        else:
            replica.take_over(self.min_insync, self.now_ms)
        replica.proposal, replica.answer = None, ""
        self._advance(replica)

    # --- the leader ---

    def append(self, broker: int, *values: str) -> str:
        replica = self.replicas[broker]
        if replica.state is None:
            return "NOT_LEADER_OR_FOLLOWER"
        replica.log += [Stored(replica.view.leader_epoch, value) for value in values]
        self._advance(replica)
        return ""

    def propose(self, broker: int, isr: tuple[int, ...]) -> str:
        """Send a change of the ISR to the store."""
        replica = self.replicas[broker]
        state = replica.state
        if state is None or replica.proposal is not None:
            return "cannot now"
        after = elections.with_isr(replica.view, isr, min_insync=self.min_insync)
        if after is None:
            return "nothing to change"
        added = [member for member in isr if member not in state.isr]
        state.propose(isr)
        epochs = tuple((member, state._followers[member].broker_epoch) for member in added)
        replica.proposal = Proposal(replica.view.partition_epoch, after, epochs)
        return ""

    def expand(self, broker: int, follower: int, alive_epoch: int | None = None) -> str:
        """Propose to take a follower in, if it has caught up."""
        state = self.replicas[broker].state
        if state is None:
            return "NOT_LEADER_OR_FOLLOWER"
        known = self.registrations[follower] if alive_epoch is None else alive_epoch
        isr = state.to_expand(follower, known)
        return "not caught up" if isr is None else self.propose(broker, isr)

    def decide(self, broker: int) -> str:
        """The store applies or refuses what a broker has in flight; the broker has yet to hear of it."""
        replica = self.replicas[broker]
        assert replica.proposal is not None
        expected, after, registrations = replica.proposal
        if self.entry.partition_epoch != expected:
            replica.answer = "entry"
        elif any(self.registrations[member] != epoch for member, epoch in registrations):
            replica.answer = "registration"
        else:
            self.put(after)
            replica.answer = "made"
        return replica.answer

    def hear(self, broker: int) -> None:
        """The store's answer reaches the leader. All but one of them tell it to wait for the entry."""
        replica = self.replicas[broker]
        if replica.answer == "registration":
            assert replica.state is not None
            replica.state.withdraw()
            replica.proposal, replica.answer = None, ""
            self._advance(replica)

    def doubt(self, broker: int) -> None:
        """The store's answer is lost: the leader puts the entry as it knows it, and so learns how it stands."""
        replica = self.replicas[broker]
        if self.entry.partition_epoch == replica.view.partition_epoch:
            self.put(replica.view)
        self.learn(broker)

    # --- the follower ---

    def request(self, broker: int) -> Request:
        replica = self.replicas[broker]
        view, log = replica.view, replica.log
        last_epoch = log[-1].epoch if log else -1
        return Request(broker, replica.broker_epoch, view.leader, view.leader_epoch, len(log), last_epoch)

    def serve(self, request: Request, records_max: int = 1) -> Answer:
        """What the leader answers; epochs are compared before anything is believed (KIP-320)."""
        leader = self.replicas.get(request.leader)
        if leader is None or not leader.up:
            return Answer("cannot be reached")
        if leader.view.leader_epoch < request.leader_epoch:
            return Answer("UNKNOWN_LEADER_EPOCH")
        if leader.view.leader_epoch > request.leader_epoch:
            return Answer("FENCED_LEADER_EPOCH")
        if leader.state is None:
            return Answer("NOT_LEADER_OR_FOLLOWER")
        if request.last_epoch >= 0:
            epoch, end = epoch_end(leader.log, request.last_epoch)
            if epoch < request.last_epoch or end < request.offset:
                return Answer(diverging=(epoch, end))
        end_offset = len(leader.log)
        if request.offset > end_offset:
            return Answer("OFFSET_OUT_OF_RANGE")
        leader.state.fetched(request.follower, request.broker_epoch, request.offset, end_offset, self.now_ms)
        self._advance(leader)
        records = tuple(leader.log[request.offset : request.offset + records_max])
        return Answer(records=records, high_watermark=leader.high_watermark)

    def take(self, request: Request, answer: Answer) -> str:
        """The answer reaches the follower, if it still is the one that asked."""
        replica = self.replicas[request.follower]
        current = replica.up and self.request(request.follower) == request
        if not current or answer.error or replica.state is not None:
            return answer.error or "no longer asked for"
        if answer.diverging is not None:
            epoch, end = answer.diverging
            del replica.log[min(end, epoch_end(replica.log, epoch)[1]) :]
            replica.high_watermark = min(replica.high_watermark, len(replica.log))
            return f"truncated to {len(replica.log)}"
        replica.log += answer.records
        replica.high_watermark = max(replica.high_watermark, min(answer.high_watermark, len(replica.log)))
        return ""

    def fetch(self, broker: int, records_max: int = 1) -> str:
        """A whole round trip."""
        request = self.request(broker)
        return self.take(request, self.serve(request, records_max))

    # --- life and death ---

    def crash(self, broker: int, lose: int = 0) -> None:
        """The process dies; with `lose`, so many of its last records had not reached the disk."""
        replica = self.replicas[broker]
        if lose:
            del replica.log[max(0, len(replica.log) - lose) :]
            replica.lost_bytes = True
            replica.high_watermark = min(replica.high_watermark, len(replica.log))
        self._stop(replica)

    def _stop(self, replica: Replica) -> None:
        replica.up, replica.state, replica.proposal, replica.answer = False, None, None, ""

    def expire(self, broker: int) -> None:
        """The store gives a broker up for dead, whether it is or not."""
        self.alive.discard(broker)

    def start(self, broker: int) -> None:
        """Begin a new life: a new epoch, out of ISR and ELR if bytes may be lost, and only then alive."""
        replica = self.replicas[broker]
        self._stop(replica)
        self.registrations[broker] += 1
        if replica.lost_bytes:
            self.put(elections.leave(self.entry, broker, min_insync=self.min_insync))
        replica.up, replica.lost_bytes = True, False
        replica.broker_epoch = self.registrations[broker]
        self.alive.add(broker)
        replica.view = self.entry
        replica.take_over(self.min_insync, self.now_ms)
        self._advance(replica)

    def hand_over(self, broker: int) -> str:
        return self.put(elections.hand_over(self.entry, broker, self.alive, min_insync=self.min_insync))

    # --- the promise ---

    def _advance(self, leader: Replica) -> None:
        """Move the high watermark as far as it goes, and hold the leader to every record below it."""
        if leader.state is None:
            return
        leader.high_watermark = leader.state.high_watermark(len(leader.log))
        for offset in range(len(self.acknowledged), leader.high_watermark):
            self.acknowledged.append(leader.log[offset])

    def broken_promise(self) -> str:
        """What is wrong with the world, or "": someone electable, or leading, lacks an acknowledged record."""
        count = len(self.acknowledged)
        for replica in self.replicas.values():
            # A deposed leader may still believe in itself, but then its epoch is old and it acknowledges nothing.
            leads = replica.state is not None and replica.view.leader_epoch == self.entry.leader_epoch
            member = replica.id in self.alive and replica.id in (*self.entry.isr, *self.entry.elr)
            if (leads or (member and not replica.lost_bytes)) and replica.log[:count] != self.acknowledged:
                return f"{replica.id} lacks what was acknowledged: {replica.log} but {self.acknowledged}"
            if (
                replica.state is not None
                and replica.log[: replica.high_watermark] != (self.acknowledged[: replica.high_watermark])
            ):
                return f"{replica.id} shows something else than was acknowledged"
        if not self.entry.isr or not set(self.entry.isr + self.entry.elr) <= set(self.entry.replicas):
            return f"not a sensible entry: {self.entry}"
        if set(self.entry.isr) & set(self.entry.elr):
            return f"both in sync and merely eligible: {self.entry}"
        if self.entry.leader != NO_LEADER and self.entry.leader not in self.entry.isr:
            return f"leads without being in sync: {self.entry}"
        return ""
