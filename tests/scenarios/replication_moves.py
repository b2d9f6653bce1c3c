"""Every step that can happen next in a replica cluster, and how it ends when all goes well again.

The steps are as small as they can be, so that anything can come between two of them. Bytes are lost on fewer
brokers at a time than min.insync.replicas: that is what replication promises to survive.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from replica_cluster import Answer, ReplicaCluster, Request

from culver.core import elections, reassignment
from culver.core.image import NO_LEADER, PartitionImage
from culver.errors import KafkaError

Move: TypeAlias = tuple[str | int, ...]

# What happens often in a random walk; everything else has weight 1.
WEIGHTS = {"fetch": 6, "request": 5, "serve": 5, "take": 5, "learn": 3, "append": 3, "settle": 3, "decide": 3}
WEIGHTS |= {"expand": 4, "start": 2}


@dataclass
class Play:
    """A cluster, its messages in flight, and what may still happen to it."""

    cluster: ReplicaCluster
    appends: int = 3
    crashes: int = 2
    # Of these with loss of the log's end.
    losses: int = 1
    expiries: int = 1
    # Times that a leader throws a follower out of the ISR.
    shrinks: int = 3
    # Planned changes: hand-overs, preferred elections, reassignments.
    plans: int = 1
    targets: tuple[tuple[int, ...], ...] = ()
    # The controller, or a leader, may go by another min.insync.replicas for a while.
    other_min_insync: int = 0
    # Brokers hear of every version of the entry, however late, not only of the newest.
    stale_views: bool = True
    # Fetches and their answers take time; otherwise a round trip is one step.
    late_messages: bool = True
    requests: dict[int, Request] = field(default_factory=dict)
    answers: dict[int, tuple[Request, Answer]] = field(default_factory=dict)
    # Brokers that have lost bytes and have not been in the ISR since.
    maimed: set[int] = field(default_factory=set)

    def moves(self) -> Iterator[Move]:
        cluster = self.cluster
        latest = cluster.entry.partition_epoch
        for id, replica in cluster.replicas.items():
            if replica.up:
                yield from self._leader_moves(id)
                yield from self._follower_moves(id)
                if replica.view.partition_epoch < latest:
                    yield "learn", id, latest
                    if self.stale_views and replica.view.partition_epoch + 1 < latest:
                        yield "learn", id, replica.view.partition_epoch + 1
                if self.crashes:
                    yield "crash", id, 0
                    if self.losses and replica.log and len({*self.maimed, id}) < self._copies_min():
                        yield "crash", id, 1
                        if len(replica.log) > 1:
                            yield "crash", id, len(replica.log)
                if id not in cluster.alive:
                    yield "start", id
                elif self.expiries:
                    yield "expire", id
                if self.plans and id in cluster.alive and id in cluster.entry.isr:
                    yield "hand_over", id
            elif id in cluster.alive:
                yield "expire", id
            else:
                yield "start", id
            if id in self.requests:
                yield "serve", id
            if id in self.answers:
                yield "take", id
        yield from self._controller_moves()

    def walk(self, rng: random.Random, steps: int) -> list[Move]:
        """Make so many random moves, or fewer if a promise is broken; returns the way."""
        way: list[Move] = []
        for _ in range(steps):
            moves = list(self.moves())
            if not moves or self.cluster.broken_promise():
                break
            move = rng.choices(moves, [WEIGHTS.get(str(move[0]), 1) for move in moves])[0]
            way.append(move)
            self.make(move)
        return way

    def _copies_min(self) -> int:
        """How many brokers had a record, at the least, when it was acknowledged."""
        return min(self.cluster.min_insync, self.other_min_insync or self.cluster.min_insync)

    def _leader_moves(self, id: int) -> Iterator[Move]:
        replica = self.cluster.replicas[id]
        if replica.state is None:
            return
        if self.appends:
            yield "append", id
        if replica.proposal is None:
            for member in replica.state.replicas:
                if member == id:
                    continue
                if member in replica.state.isr:
                    if self.shrinks:
                        yield "shrink", id, member
                elif replica.state.to_expand(member, self.cluster.registrations[member]) is not None:
                    yield "expand", id, member
        elif not replica.answer:
            yield "decide", id
            yield "doubt", id
        elif replica.answer == "registration":
            yield "hear", id
        elif replica.answer == "made":
            yield "doubt", id

    def _follower_moves(self, id: int) -> Iterator[Move]:
        replica = self.cluster.replicas[id]
        if replica.state is None and replica.view.leader != NO_LEADER and id in replica.view.replicas:
            if not self.late_messages:
                yield "fetch", id
            elif id not in self.requests and id not in self.answers:
                yield "request", id

    def _controller_moves(self) -> Iterator[Move]:
        cluster = self.cluster
        for other in (0, 1) if self.other_min_insync else (0,):
            minimum = self.other_min_insync if other else cluster.min_insync
            if elections.settle(cluster.entry, cluster.alive, min_insync=minimum) is not None:
                yield "settle", other
        if self.plans:
            if elections.prefer(cluster.entry, cluster.alive) is not None:
                yield ("prefer",)
            for number in range(len(self.targets)):
                yield "begin", number
            if reassignment.is_under_way(cluster.entry):
                yield ("cancel",)

    def make(self, move: Move) -> None:
        name, *arguments = move
        do: Callable[..., None] = getattr(self, f"do_{name}")
        do(*arguments)
        self.maimed -= set(self.cluster.entry.isr) - {
            id for id, replica in self.cluster.replicas.items() if replica.lost_bytes
        }

    def do_append(self, id: int) -> None:
        self.appends -= 1
        self.cluster.append(id, chr(ord("a") + self.appends))

    def do_shrink(self, id: int, member: int) -> None:
        state = self.cluster.replicas[id].state
        assert state is not None
        self.shrinks -= 1
        self.cluster.propose(id, tuple(broker for broker in state.isr if broker != member))

    def do_expand(self, id: int, member: int) -> None:
        self.cluster.expand(id, member)

    def do_decide(self, id: int) -> None:
        self.cluster.decide(id)

    def do_doubt(self, id: int) -> None:
        self.cluster.doubt(id)

    def do_hear(self, id: int) -> None:
        self.cluster.hear(id)

    def do_learn(self, id: int, version: int) -> None:
        self.cluster.learn(id, version)

    def do_fetch(self, id: int) -> None:
        self.cluster.fetch(id)

    def do_request(self, id: int) -> None:
        self.requests[id] = self.cluster.request(id)

    def do_serve(self, id: int) -> None:
        request = self.requests.pop(id)
        self.answers[id] = request, self.cluster.serve(request)

    def do_take(self, id: int) -> None:
        self.cluster.take(*self.answers.pop(id))

    def do_crash(self, id: int, lose: int) -> None:
        self.crashes -= 1
        if lose:
            self.losses -= 1
            self.maimed.add(id)
        self.cluster.crash(id, lose)

    def do_expire(self, id: int) -> None:
        if self.cluster.replicas[id].up:
            self.expiries -= 1
        self.cluster.expire(id)

    def do_start(self, id: int) -> None:
        self.cluster.start(id)

    def do_hand_over(self, id: int) -> None:
        self.plans -= 1
        self.cluster.hand_over(id)

    def do_settle(self, other: int) -> None:
        cluster = self.cluster
        minimum = self.other_min_insync if other else cluster.min_insync
        cluster.put(elections.settle(cluster.entry, cluster.alive, min_insync=minimum))

    def do_prefer(self) -> None:
        self.plans -= 1
        self.cluster.put(elections.prefer(self.cluster.entry, self.cluster.alive))

    def do_begin(self, number: int) -> None:
        self.plans -= 1
        with suppress(KafkaError):
            self.cluster.put(reassignment.begin(self.cluster.entry, self.targets[number]))

    def do_cancel(self) -> None:
        self.plans -= 1
        with suppress(KafkaError):
            self.cluster.put(reassignment.cancel(self.cluster.entry))

    def heal(self) -> str:
        """Bring everyone back, let everything settle, and say what is still wrong, or ""."""
        cluster = self.cluster
        for id in cluster.replicas:
            if not cluster.replicas[id].up or id not in cluster.alive:
                cluster.start(id)
        for _ in range(60):
            before = cluster.entry
            for id in cluster.replicas:
                cluster.learn(id)
            cluster.settle()
            leader = cluster.entry.leader
            if leader == NO_LEADER:
                return f"no leader: {cluster.entry}"
            for id in cluster.replicas:
                cluster.learn(id)
            replica = cluster.replicas[leader]
            if replica.proposal is not None:
                cluster.doubt(leader)
            for id in cluster.entry.replicas:
                if id != leader:
                    cluster.fetch(id, records_max=100)
                    if cluster.expand(leader, id) == "":
                        cluster.decide(leader)
                        cluster.learn(leader)
            logs = [cluster.replicas[id].log for id in cluster.entry.replicas]
            if (
                replace(before, partition_epoch=0) == replace(cluster.entry, partition_epoch=0)
                and set(cluster.entry.isr) == set(cluster.entry.replicas)
                and cluster.replicas[leader].high_watermark == len(cluster.replicas[leader].log)
            ):
                assert not reassignment.is_under_way(cluster.entry)
                return "" if all(log == logs[0] for log in logs) else f"logs differ: {logs}"
        return f"does not come to rest: {cluster.entry}"


def random_play(rng: random.Random) -> Play:
    """A cluster of two to four brokers with much or little trouble ahead."""
    brokers = tuple(range(1, rng.choice((2, 3, 3, 3, 4)) + 1))
    factor = rng.randint(1, min(3, len(brokers))) if rng.random() < 0.3 else min(3, len(brokers))
    min_insync = min(factor, rng.choice((1, 2, 2, 2, 3)))
    replicas = brokers[:factor]
    return Play(
        ReplicaCluster(PartitionImage(0, replicas[0], 0, replicas, replicas), brokers, min_insync),
        appends=rng.randint(2, 8),
        crashes=rng.randint(0, 8),
        losses=rng.randint(0, 4),
        expiries=rng.randint(0, 4),
        shrinks=rng.randint(0, 6),
        plans=rng.randint(0, 6),
        # As many replicas as min.insync.replicas asks for, or a record may be on fewer brokers.
        targets=tuple(
            tuple(rng.sample(brokers, rng.randint(min_insync, min(3, len(brokers))))) for _ in range(2)
        ),
        other_min_insync=rng.choice((0, 0, 1, 2, 3)),
        stale_views=rng.random() < 0.5,
        late_messages=rng.random() < 0.6,
    )
