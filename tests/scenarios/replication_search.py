"""All states of a small replica cluster, breadth first: copies of them, and what makes two of them the same."""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import TypeVar

from replica_cluster import Replica, ReplicaCluster
from replication_moves import Move, Play

from culver.core.image import PartitionImage
from culver.core.leader_state import LeaderState

T = TypeVar("T")


@dataclass
class Found:
    """The outcome of a search: how much was seen, and the shortest way to the first thing that is wrong."""

    states: int
    depth: int
    wrong: str = ""
    way: tuple[Move, ...] = ()


def search(start: Play, states_max: int, wrong: Callable[[Play], str]) -> Found:
    """Make every move in every state until nothing new is found, or there are too many states."""
    seen = {fingerprint(start)}
    layer: list[tuple[Play, tuple[Move, ...]]] = [(start, ())]
    depth = 0
    while layer:
        below = []
        for play, way in layer:
            for move in play.moves():
                after = clone(play)
                after.make(move)
                mark = fingerprint(after)
                if mark in seen:
                    continue
                seen.add(mark)
                if trouble := wrong(after):
                    return Found(len(seen), depth + 1, trouble, (*way, move))
                if len(seen) >= states_max:
                    return Found(len(seen), depth)
                below.append((after, (*way, move)))
        layer = below
        depth += 1
    return Found(len(seen), depth)


def clone(play: Play) -> Play:
    """A copy that shares only what never changes. By hand, since all the time of a search goes here."""
    after = _shallow(play)
    after.requests, after.answers, after.maimed = dict(play.requests), dict(play.answers), set(play.maimed)
    cluster = after.cluster = _shallow(play.cluster)
    cluster.alive = set(cluster.alive)
    cluster.registrations = dict(cluster.registrations)
    cluster.acknowledged = list(cluster.acknowledged)
    cluster.versions = list(cluster.versions)
    cluster.replicas = {id: _clone_replica(replica) for id, replica in cluster.replicas.items()}
    return after


def _shallow(thing: T) -> T:
    after = object.__new__(type(thing))
    after.__dict__.update(thing.__dict__)
    return after


def _clone_replica(replica: Replica) -> Replica:
    after = _shallow(replica)
    after.log = list(replica.log)
    if replica.state is not None:
        state = after.state = copy.copy(replica.state)
        state._followers = {id: copy.copy(follower) for id, follower in state._followers.items()}
        state._regate()
    return after


def fingerprint(play: Play) -> Hashable:
    """The same for states with the same future. Versions and broker epochs count only as current or not."""
    cluster = play.cluster
    return (
        _bare(cluster.entry),
        frozenset(cluster.alive),
        frozenset(play.maimed),
        tuple(cluster.acknowledged),
        (play.appends, play.crashes, play.losses, play.shrinks, play.expiries, play.plans),
        tuple(_replica_mark(cluster, replica) for replica in cluster.replicas.values()),
        tuple(
            (request, cluster.registrations[id] == request.broker_epoch)
            for id, request in sorted(play.requests.items())
        ),
        tuple(sorted(play.answers.items(), key=lambda item: item[0])),
    )


# Entries are shared by thousands of states; each is compared with the others once.
_numbers: dict[PartitionImage, int] = {}
_known: dict[int, tuple[PartitionImage, int]] = {}


def _bare(partition: PartitionImage) -> int:
    """A number for the entry without its version."""
    known = _known.get(id(partition))
    if known is None:
        number = _numbers.setdefault(replace(partition, partition_epoch=0), len(_numbers))
        # Kept, so that no other entry can get its address.
        known = _known[id(partition)] = partition, number
    return known[1]


def _replica_mark(cluster: ReplicaCluster, replica: Replica) -> Hashable:
    """Everything that a broker has and knows."""
    version = cluster.entry.partition_epoch
    proposal = replica.proposal
    return (
        replica.up,
        replica.lost_bytes,
        tuple(replica.log),
        replica.high_watermark,
        replica.view.partition_epoch == version,
        _bare(replica.view),
        replica.answer,
        None if replica.state is None else _state_mark(cluster, replica.state),
        None
        if proposal is None
        else (
            proposal.expected_version == version,
            _bare(proposal.after),
            tuple(cluster.registrations[id] == epoch for id, epoch in proposal.registrations),
        ),
    )


def _state_mark(cluster: ReplicaCluster, state: LeaderState) -> Hashable:
    return (
        state.proposed,
        state.epoch_start_offset,
        tuple(
            (id, follower.end_offset, follower.broker_epoch == cluster.registrations[id])
            for id, follower in state._followers.items()
        ),
    )
