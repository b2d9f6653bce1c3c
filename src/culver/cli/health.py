"""What is wrong with a cluster, in one sentence each, and what to do about it. Pure: an image in, findings out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from culver.cli.output import counted
from culver.core import reassignment
from culver.core.image import NO_LEADER, BrokerInfo, ClusterImage, PartitionImage
from culver.core.placement import PartitionKey

_NAMED_MAX = 3


class Trouble(StrEnum):
    """What a partition can suffer from; the worst first."""

    OFFLINE = "offline"
    BELOW_MIN_ISR = "below min ISR"
    UNDER_REPLICATED = "under-replicated"


@dataclass(frozen=True, slots=True)
class SickPartition:
    """A partition that is not as it should be, and the replicas that are missing from the in-sync ones."""

    key: PartitionKey
    image: PartitionImage
    trouble: Trouble
    missing: tuple[int, ...]
    min_insync: int


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem: what is the matter, with which partitions, and what to do."""

    what: str
    advice: str
    partitions: tuple[PartitionKey, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "what": self.what,
            "advice": self.advice,
            "partitions": [{"topic": topic, "partition": index} for topic, index in self.partitions],
        }


def partitions(image: ClusterImage) -> Iterator[tuple[PartitionKey, PartitionImage]]:
    """Every partition of every topic, in order."""
    for name, topic in sorted(image.topics.items()):
        for partition in topic.partitions:
            yield (name, partition.index), partition


def sick_partitions(image: ClusterImage, min_insync: Mapping[str, int]) -> list[SickPartition]:
    """The partitions that lack something, each with its worst trouble."""
    found = []
    for key, partition in partitions(image):
        # Replicas that are only just being added are no loss yet.
        expected = reassignment.original(partition)
        missing = tuple(broker for broker in expected if broker not in partition.isr)
        wanted = min(min_insync.get(key[0], 1), len(expected))
        if partition.leader == NO_LEADER or partition.leader not in image.brokers:
            missing = tuple(broker for broker in expected if broker not in image.brokers) or missing
            found.append(SickPartition(key, partition, Trouble.OFFLINE, missing, wanted))
        elif len(partition.isr) < wanted:
            found.append(SickPartition(key, partition, Trouble.BELOW_MIN_ISR, missing, wanted))
        elif missing:
            found.append(SickPartition(key, partition, Trouble.UNDER_REPLICATED, missing, wanted))
    return found


def findings(
    image: ClusterImage, min_insync: Mapping[str, int], behind: Mapping[tuple[int, PartitionKey], int]
) -> list[Finding]:
    """Every problem, the worst first; partitions that suffer from the same thing are told together.

    `behind` holds how many records a living replica knows it lacks.
    """
    sick = sick_partitions(image, min_insync)
    found = []
    if image.controller_id == NO_LEADER:
        found.append(
            Finding(
                "no broker is the controller, so no leader can be elected",
                "the brokers elect one by themselves once they reach the metadata store: look at their logs",
            )
        )
    for trouble, explain in (
        (Trouble.OFFLINE, _explain_offline),
        (Trouble.BELOW_MIN_ISR, _explain_below_min),
        (Trouble.UNDER_REPLICATED, _explain_under_replicated),
    ):
        alike: dict[tuple[object, ...], list[SickPartition]] = {}
        for each in sick:
            if each.trouble is trouble:
                counts = (len(each.image.replicas), len(each.image.isr), each.min_insync)
                # Who was in sync last matters only where nobody leads.
                last = frozenset((*each.image.isr, *each.image.elr)) if trouble is Trouble.OFFLINE else None
                cause = (frozenset(each.missing), counts, last)
                alike.setdefault(cause, []).append(each)
        found += [explain(image, group, behind) for group in alike.values()]
    return found + list(_dead_brokers(image))


Behind = Mapping[tuple[int, PartitionKey], int]


def _explain_offline(image: ClusterImage, group: Sequence[SickPartition], behind: Behind) -> Finding:
    first = group[0]
    eligible = [*first.image.isr, *(broker for broker in first.image.elr if broker not in first.image.isr)]
    others = [broker for broker in first.image.replicas if broker in image.brokers]
    keys = tuple(each.key for each in group)
    advice = f"start {_brokers(eligible)} again: {_only(eligible)} has every acknowledged record"
    if any(broker in image.brokers for broker in eligible):
        advice = "a leader is being elected; if this stays so, the controller's log says why"
    elif others:
        topic, index = first.key
        advice += (
            f"; if {_its(eligible)} disk is lost for good, "
            f"`culver cluster elect-leaders --unclean --topic {topic} --partition {index}` lets {_brokers(others)} "
            f"lead without the records that were there alone"
        )
    what = (
        f"{_names(keys)} {_have(keys)} no leader, so nothing can be written or read: "
        f"{_brokers(eligible)}, {_who(eligible)} in sync last, {_state(image, eligible)}"
    )
    return Finding(what, advice, keys)


def _explain_below_min(image: ClusterImage, group: Sequence[SickPartition], behind: Behind) -> Finding:
    first = group[0]
    keys = tuple(each.key for each in group)
    what = (
        f"{_names(keys)} {_refuse(keys)} writes with acks=all: {len(first.image.isr)} of {first.min_insync} "
        f"replicas that min.insync.replicas demands are in sync; {_missing(image, group, behind)}"
    )
    return Finding(what, _missing_advice(image, first.missing), keys)


def _explain_under_replicated(image: ClusterImage, group: Sequence[SickPartition], behind: Behind) -> Finding:
    first = group[0]
    keys = tuple(each.key for each in group)
    expected = len(reassignment.original(first.image))
    what = (
        f"{_names(keys)} {_have(keys)} {len(first.image.isr)} of {expected} replicas in sync; "
        f"{_missing(image, group, behind)}"
    )
    return Finding(what, _missing_advice(image, first.missing), keys)


def _missing(image: ClusterImage, group: Sequence[SickPartition], behind: Behind) -> str:
    """Which replicas are missing, and how each of them is."""
    words = []
    for broker in group[0].missing:
        if broker not in image.brokers:
            words.append(f"broker {broker} is down")
            continue
        lags = [behind[broker, each.key] for each in group if (broker, each.key) in behind]
        lag = f" ({sum(lags):,} records to go)" if any(lags) else ""
        words.append(f"broker {broker} is up and catching up{lag}")
    return "missing: " + ", ".join(words)


def _missing_advice(image: ClusterImage, missing: Iterable[int]) -> str:
    down = [broker for broker in missing if broker not in image.brokers]
    if down:
        return (
            f"start {_brokers(down)} again, what it missed is copied by itself; if it is gone for good, "
            f"`culver cluster drain {down[0]} --remove` puts its replicas elsewhere"
        )
    return (
        "wait: it comes back by itself; if not, look at its log, its disk, and "
        "whether follower.replication.throttled.rate is set"
    )


def _dead_brokers(image: ClusterImage) -> Iterator[Finding]:
    for broker in sorted(image.registrations.values(), key=lambda broker: broker.id):
        if broker.id in image.brokers:
            continue
        held = tuple(key for key, partition in partitions(image) if broker.id in partition.replicas)
        where = f"{broker.host}:{broker.port}" + (f", rack {broker.rack}" if broker.rack else "")
        if held:
            what = f"broker {broker.id} ({where}) is down; it holds {counted(len(held), 'replica')}"
            advice = "start it again"
        else:
            what = f"broker {broker.id} ({where}) is down; it holds nothing"
            advice = f"start it again, or strike it off: `culver cluster drain {broker.id} --remove`"
        yield Finding(what, advice, held)


def broker_rows(
    image: ClusterImage, sizes: Mapping[int, int], brokers: Iterable[BrokerInfo]
) -> list[dict[str, Any]]:
    """One row for each broker: how it is, what it leads and holds."""
    leaders: dict[int, int] = {}
    preferred: dict[int, int] = {}
    replicas: dict[int, int] = {}
    out_of_sync: dict[int, int] = {}
    for _, partition in partitions(image):
        leaders[partition.leader] = leaders.get(partition.leader, 0) + 1
        first = reassignment.target(partition)[0]
        preferred[first] = preferred.get(first, 0) + 1
        for broker in partition.replicas:
            replicas[broker] = replicas.get(broker, 0) + 1
            if broker not in partition.isr:
                out_of_sync[broker] = out_of_sync.get(broker, 0) + 1
    return [
        {
            "broker": broker.id,
            "address": f"{broker.host}:{broker.port}",
            "rack": broker.rack,
            "state": "up" if broker.id in image.brokers else "down",
            "controller": broker.id == image.controller_id,
            "leaders": leaders.get(broker.id, 0),
            "preferred": preferred.get(broker.id, 0),
            "replicas": replicas.get(broker.id, 0),
            "out_of_sync": out_of_sync.get(broker.id, 0),
            "bytes": sizes.get(broker.id),
        }
        for broker in sorted(brokers, key=lambda broker: broker.id)
    ]


# --- words ---


def _names(keys: Sequence[PartitionKey]) -> str:
    named = [f"{topic}-{index}" for topic, index in keys[:_NAMED_MAX]]
    if len(keys) > _NAMED_MAX:
        return f"{', '.join(named)} and {len(keys) - _NAMED_MAX} more partitions"
    return _and(named)


def _and(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def _have(keys: Sequence[PartitionKey]) -> str:
    return "has" if len(keys) == 1 else "have"


def _refuse(keys: Sequence[PartitionKey]) -> str:
    return "refuses" if len(keys) == 1 else "refuse"


def _brokers(ids: Sequence[int]) -> str:
    if not ids:
        return "no broker"
    return ("broker " if len(ids) == 1 else "brokers ") + _and([str(broker) for broker in ids])


def _who(ids: Sequence[int]) -> str:
    return "which was" if len(ids) == 1 else "which were"


def _state(image: ClusterImage, ids: Sequence[int]) -> str:
    down = [broker for broker in ids if broker not in image.brokers]
    verb = "is" if len(ids) == 1 else "are"
    return f"{verb} down" if len(down) == len(ids) else f"{verb} not all down: an election is due"


def _only(ids: Sequence[int]) -> str:
    return "it alone" if len(ids) == 1 else "each of them"


def _its(ids: Sequence[int]) -> str:
    return "its" if len(ids) == 1 else "their"
