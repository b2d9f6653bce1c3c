"""Events: what changes of the cluster image mean to a person, the last thousand of them, and how many concern a broker.

Every broker sees every change, so any one that lives can tell the story, also of brokers that are gone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from culver.core.broker_report import ClusterEvent
from culver.core.image import NO_LEADER, BrokerInfo, PartitionImage, TopicImage
from culver.core.image_builder import NO_CONTROLLER, ImageChange

EVENTS_MAX = 1_000
# More events of a kind than this in one change of the image are summed up: a broker that dies may lead thousands of
# partitions, and what happened before it died should still be there to be read.
_ONE_BY_ONE_MAX = 50


class Happening(NamedTuple):
    """An event that has no number and no time yet."""

    kind: str
    text: str
    key: str
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None


class PartitionDifference(NamedTuple):
    """One partition that was there before a change and after it, and is different."""

    topic: TopicImage
    before: PartitionImage
    after: PartitionImage

    @property
    def name(self) -> str:
        return f"{self.topic.name}-{self.after.index}"

    @property
    def key(self) -> str:
        """Names this state of this partition: its epoch grows with every change of the entry."""
        return f"{self.topic.topic_id.hex()}-{self.after.index}@{self.after.partition_epoch}"

    @property
    def elected(self) -> bool:
        return self.after.leader != NO_LEADER and self.before.leader_epoch != self.after.leader_epoch

    @property
    def left(self) -> list[int]:
        """Who is in sync no more."""
        return sorted(set(self.before.isr) - set(self.after.isr))

    @property
    def joined(self) -> list[int]:
        return sorted(set(self.after.isr) - set(self.before.isr))


class ClusterEvents:
    """Takes note of each change of the image; `log_failed` is the one thing that the image does not say."""

    def __init__(self, broker_id: int) -> None:
        self._broker_id = broker_id
        self._ring: deque[ClusterEvent] = deque(maxlen=EVENTS_MAX)
        self._failed_logs: set[str] = set()
        self.last_number = 0
        # Of partitions that this broker leads after the change: so the sum over brokers counts each once.
        self.isr_shrinks = 0
        self.isr_expansions = 0
        self.elections = 0

    def image_changed(self, change: ImageChange, at_ms: int) -> None:
        differences = list(_partition_differences(change))
        for difference in differences:
            if difference.after.leader == self._broker_id:
                self.elections += difference.elected
                self.isr_shrinks += bool(difference.left)
                self.isr_expansions += bool(difference.joined)
        self._note(_broker_events(change), at_ms)
        self._note(_topic_events(change), at_ms)
        self._note(_elections(differences), at_ms)
        self._note(_isr_changes(differences), at_ms)
        self._note(_reassignments(differences), at_ms)

    def log_failed(self, topic: str, topic_id: bytes, partition: int, why: str, at_ms: int) -> None:
        """A log of this broker cannot be written any more. May be told again and again."""
        text = f"the log of {topic}-{partition} on broker {self._broker_id} has failed: {why}"
        key = f"log_failed:{self._broker_id}:{topic_id.hex()}-{partition}"
        if key not in self._failed_logs:
            self._failed_logs.add(key)
            self._note([Happening("log_failed", text, key, topic, partition, self._broker_id)], at_ms)

    def since(self, number: int) -> list[ClusterEvent]:
        """Those after the one with that number that are still known, oldest first."""
        wanted = self.last_number - max(number, 0)
        return list(self._ring)[-wanted:] if wanted > 0 else []

    def _note(self, happenings: Iterable[Happening], at_ms: int) -> None:
        for happening in _summed_up(list(happenings)):
            self.last_number += 1
            self._ring.append(ClusterEvent(self.last_number, at_ms, *happening))


def _summed_up(happenings: list[Happening]) -> list[Happening]:
    if len(happenings) <= _ONE_BY_ONE_MAX:
        return happenings
    shown, rest = happenings[:_ONE_BY_ONE_MAX], happenings[_ONE_BY_ONE_MAX:]
    kind = rest[0].kind
    topics = len({happening.topic for happening in rest})
    text = f"and {len(rest)} more of {topics} topics: {rest[0].text}, ..."
    return [*shown, Happening(kind, text, f"more:{rest[0].key}")]


def _partition_differences(change: ImageChange) -> Iterator[PartitionDifference]:
    for name in change.topics:
        before, after = change.before.topics.get(name), change.after.topics.get(name)
        if before is None or after is None or before.topic_id != after.topic_id:
            continue
        for old, new in zip(before.partitions, after.partitions, strict=False):
            if old is not new and old != new:
                yield PartitionDifference(after, old, new)


def _broker_events(change: ImageChange) -> Iterator[Happening]:
    if change.brokers:
        before, after = change.before.brokers, change.after.brokers
        for number in sorted({*before, *after}):
            old, new = before.get(number), after.get(number)
            if old is not None and (new is None or new.epoch != old.epoch):
                yield _broker_event("broker_down", f"broker {number} is gone", old)
            if new is not None and (old is None or new.epoch != old.epoch):
                yield _broker_event("broker_up", f"broker {number} has joined, at {new.host}:{new.port}", new)
    holder = change.after.controller_id
    if holder not in (change.before.controller_id, NO_CONTROLLER):
        yield Happening(
            "controller", f"broker {holder} is the controller now", f"controller:{holder}", broker=holder
        )


def _broker_event(kind: str, text: str, broker: BrokerInfo) -> Happening:
    return Happening(kind, text, f"{kind}:{broker.id}@{broker.epoch}", broker=broker.id)


def _topic_events(change: ImageChange) -> Iterator[Happening]:
    for name in change.topics:
        before, after = change.before.topics.get(name), change.after.topics.get(name)
        replaced = before is None or after is None or before.topic_id != after.topic_id
        if before is not None and replaced:
            yield Happening(
                "topic_deleted", f"topic {name} was deleted", f"deleted:{before.topic_id.hex()}", name
            )
        if after is None:
            continue
        key = after.topic_id.hex()
        if before is None or replaced:
            count = len(after.partitions)
            copies = len(after.partitions[0].replicas) if after.partitions else 0
            text = f"topic {name} was created: {count} partition{'s' * (count != 1)}, replication factor {copies}"
            yield Happening("topic_created", text, f"created:{key}", name)
            continue
        if len(before.partitions) != len(after.partitions):
            text = f"topic {name} has {len(after.partitions)} partitions now, {len(before.partitions)} before"
            yield Happening("partitions_added", text, f"partitions:{key}:{len(after.partitions)}", name)
        if before.config != after.config:
            names = sorted(
                setting
                for setting in {*before.config, *after.config}
                if before.config.get(setting) != after.config.get(setting)
            )
            text = f"settings of topic {name} were changed: {', '.join(names)}"
            yield Happening("topic_settings", text, f"settings:{key}@{after.version}", name)


def _elections(differences: Iterable[PartitionDifference]) -> Iterator[Happening]:
    for difference in differences:
        before, after = difference.before, difference.after
        if before.leader == after.leader and before.leader_epoch == after.leader_epoch:
            continue
        if after.leader == NO_LEADER:
            text = f"{difference.name} has no leader, broker {before.leader} was it"
        elif before.leader == after.leader:
            text = f"broker {after.leader} leads {difference.name} again, epoch {after.leader_epoch}"
        else:
            was = "nobody" if before.leader == NO_LEADER else f"broker {before.leader}"
            text = f"broker {after.leader} leads {difference.name}, epoch {after.leader_epoch}; {was} before"
        kind = "leaderless" if after.leader == NO_LEADER else "election"
        yield _partition_event(kind, text, difference, broker=after.leader)


def _isr_changes(differences: Iterable[PartitionDifference]) -> Iterator[Happening]:
    for difference in differences:
        left, joined = difference.left, difference.joined
        if not left and not joined:
            continue
        what = [f"{word} {_numbers(who)}" for word, who in (("lost", left), ("gained", joined)) if who]
        text = (
            f"in-sync replicas of {difference.name}: {_numbers(difference.before.isr)} -> "
            f"{_numbers(difference.after.isr)} ({', '.join(what)})"
        )
        yield _partition_event("isr", text, difference, broker=difference.after.leader)


def _reassignments(differences: Iterable[PartitionDifference]) -> Iterator[Happening]:
    for difference in differences:
        before, after = difference.before, difference.after
        if (before.adding, before.removing) == (after.adding, after.removing):
            continue
        if after.adding or after.removing:
            text = (
                f"{difference.name} is being moved: comes to {_numbers(after.adding)}, "
                f"goes from {_numbers(after.removing)}"
            )
        else:
            text = f"{difference.name} has been moved, it is on {_numbers(after.replicas)}"
        yield _partition_event("reassignment", text, difference)


def _partition_event(
    kind: str, text: str, difference: PartitionDifference, broker: int = NO_LEADER
) -> Happening:
    return Happening(
        kind,
        text,
        f"{kind}:{difference.key}",
        difference.topic.name,
        difference.after.index,
        None if broker == NO_LEADER else broker,
    )


def _numbers(brokers: Iterable[int]) -> str:
    return ",".join(map(str, brokers)) or "none"
