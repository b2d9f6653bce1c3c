"""Changes that people ask for: topics, partitions, settings, brokers that leave.

Any broker makes them: each is checked against the image, written to the metadata store by compare-and-set, and acted
upon by every broker when the store reports it. A crash at any moment leaves the store's word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from culver.coordination.store import Change, Conflict, Create, Delete, Put
from culver.core import entries
from culver.core.image import NO_LEADER, PartitionImage, TopicImage
from culver.core.names import INTERNAL_TOPICS, validate_topic_name
from culver.core.placement import place
from culver.errors import ErrorCode, KafkaError
from culver.logging import get_logger

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.coordination.store import MetadataStore

_log = get_logger("culver.administration")

PARTITIONS_MAX = 9_999  # made by one request, as in Kafka: a typing error must not make a million directories
_CHANGES_MAX = 1_000  # in one transaction of the store; ZooKeeper takes a megabyte

Outcome: TypeAlias = Callable[[KafkaError | None], object]
# A partition as it is and as it shall be.
PartitionChange: TypeAlias = tuple[TopicImage, PartitionImage, PartitionImage]


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be made, with what the request left open already filled in; `replicas` has one item per partition."""

    name: str
    topic_id: bytes
    replicas: Sequence[tuple[int, ...]]
    config: Mapping[str, str] = field(default_factory=dict)


class Administration:
    """Writes to the store; what comes of it is seen in the image, which is up to date when `done` is called."""

    def __init__(self, node: Node, store: MetadataStore) -> None:
        self._node = node
        self._store = store

    # -- topics -----------------------------------------------------------------------------------------

    def check_new_topic(self, name: str) -> None:
        """Raise when no topic of this name can be made."""
        validate_topic_name(name)
        image = self._node.image
        if name in image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"a topic {name} already exists")
        other = image.colliding_topic(name)
        if other is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{name} and the topic {other} differ only by '.' and '_', which metrics cannot tell apart",
            )

    def place(self, partition_count: int, factor: int, first_partition: int = 0) -> list[tuple[int, ...]]:
        """Replicas for new partitions, on different racks where there are several."""
        image = self._node.image
        known = list(image.registrations.values())
        if factor > len(known):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor} asked for, but only {len(known)} broker(s) are registered",
            )
        # Topics begin at different brokers and with different followers, or topics of one partition would all be
        # held by the same ones.
        ways = len(known) * max(len(known) - 1, 1)
        first = (self._node.random.randrange(ways) if first_partition == 0 else 0) + first_partition
        return place(known, set(image.brokers), partition_count, factor, first=first)

    def create_topic(self, topic: NewTopic, done: Outcome) -> None:
        """Make a topic; `done` is called when clients of this broker can use it."""
        partitions = [self._new_partition(index, replicas) for index, replicas in enumerate(topic.replicas)]
        entry = entries.TopicEntry(topic.topic_id.hex(), len(partitions), dict(topic.config))
        changes: list[Change] = [_create_partition(topic.topic_id, partition) for partition in partitions]
        # The topic's own entry comes last: nobody sees a topic with half its partitions.
        changes.append(Create(entries.TOPICS + topic.name, entries.encode(entry)))

        def stored(error: BaseException | None) -> None:
            if isinstance(error, Conflict):
                done(KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"a topic {topic.name} already exists"))
            else:
                done(_outcome(error))

        self._in_chunks(changes, stored)

    def delete_topic(self, name: str, done: Outcome) -> None:
        """Remove a topic and everything in it."""
        topic = self._node.image.topics.get(name)
        if topic is None:
            done(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        changes: list[Change] = [Delete(entries.TOPICS + name, topic.version)]
        changes += [
            Delete(entries.partition_path(topic.topic_id, partition.index)) for partition in topic.partitions
        ]

        def stored(error: BaseException | None) -> None:
            if isinstance(error, Conflict):
                done(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                done(_outcome(error))

        self._in_chunks(changes, stored)

    def create_partitions(self, name: str, replicas: Sequence[tuple[int, ...]], done: Outcome) -> None:
        """Give a topic more partitions, held by these replicas."""
        topic = self._node.image.topics[name]
        count = len(topic.partitions)
        added = [self._new_partition(count + number, each) for number, each in enumerate(replicas)]
        entry = entries.TopicEntry(topic.topic_id.hex(), count + len(added), dict(topic.config))
        changes: list[Change] = [_create_partition(topic.topic_id, partition) for partition in added]
        changes.append(Put(entries.TOPICS + name, entries.encode(entry), topic.version))

        def stored(error: BaseException | None) -> None:
            if isinstance(error, Conflict):
                done(
                    KafkaError(
                        ErrorCode.REASSIGNMENT_IN_PROGRESS, f"someone else is changing the topic {name}"
                    )
                )
            else:
                done(_outcome(error))

        self._in_chunks(changes, stored)

    def set_topic_config(self, name: str, config: Mapping[str, str], done: Outcome) -> None:
        """Replace all that is set on a topic."""
        topic = self._node.image.topics[name]
        entry = entries.TopicEntry(topic.topic_id.hex(), len(topic.partitions), dict(config))

        def stored(error: BaseException | None) -> None:
            current = self._node.image.topics.get(name)
            if not isinstance(error, Conflict):
                done(_outcome(error))
            elif current is None or current.topic_id != topic.topic_id:
                done(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            elif current.version != topic.version:
                self.set_topic_config(
                    name, config, done
                )  # partitions were added meanwhile, or it was set twice
            else:
                done(_outcome(error))

        self._store.change([Put(entries.TOPICS + name, entries.encode(entry), topic.version)], stored)

    # -- brokers ----------------------------------------------------------------------------------------

    def set_broker_config(self, broker_id: int | None, config: Mapping[str, str], done: Outcome) -> None:
        """Replace the settings made while running, of one broker or (None) for all of them."""
        path = entries.DEFAULT_BROKER_CONFIG if broker_id is None else f"{entries.BROKER_CONFIG}{broker_id}"
        value = entries.encode(dict(config))

        def stored(error: BaseException | None) -> None:
            if isinstance(error, Conflict):  # the first setting ever: make the entry
                self._store.change([Create(path, value)], lambda error: done(_outcome(error)))
            else:
                done(_outcome(error))

        self._store.change([Put(path, value)], stored)

    def remove_broker(self, broker_id: int, done: Outcome) -> None:
        """Let a broker that is gone for good belong to the cluster no more."""
        image = self._node.image
        registration = image.registrations.get(broker_id)
        if registration is None:
            done(KafkaError(ErrorCode.BROKER_ID_NOT_REGISTERED, f"there is no broker {broker_id}"))
            return
        holds = sum(
            broker_id in partition.replicas
            for topic in image.topics.values()
            for partition in topic.partitions
        )
        if broker_id in image.brokers or holds:
            reason = "it is running" if broker_id in image.brokers else f"it holds {holds} partition(s)"
            done(
                KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"broker {broker_id} cannot be removed: {reason}; drain it, stop it, then remove it",
                )
            )
            return
        path = f"{entries.REGISTRATIONS}{broker_id}"
        self._store.change([Delete(path, registration.epoch)], lambda error: done(_outcome(error)))

    # -- partitions -------------------------------------------------------------------------------------

    def change_partitions(
        self, changes: Sequence[PartitionChange], done: Callable[[list[KafkaError | None]], object]
    ) -> None:
        """Change partitions' entries, each by itself and only if nobody else has since they were read."""

        def start_of(change: PartitionChange) -> Callable[[Outcome], None]:
            return lambda done: self._store.change([put_partition(change)], lambda error: done(told(error)))

        def told(error: BaseException | None) -> KafkaError | None:
            if isinstance(error, Conflict):
                return KafkaError(
                    ErrorCode.REASSIGNMENT_IN_PROGRESS, "the partition has just been changed; try again"
                )
            return _outcome(error)

        each([start_of(change) for change in changes], done)

    def _new_partition(self, index: int, replicas: tuple[int, ...]) -> PartitionImage:
        living = tuple(replica for replica in replicas if replica in self._node.image.brokers)
        # With none alive the first is waited for: it is the only one that may be in sync with nothing.
        isr = living or replicas[:1]
        leader = living[0] if living else NO_LEADER
        return PartitionImage(index, leader, 0, replicas, isr)

    def _in_chunks(self, changes: list[Change], done: Callable[[BaseException | None], object]) -> None:
        head, rest = changes[:_CHANGES_MAX], changes[_CHANGES_MAX:]
        if not rest:
            self._store.change(head, done)
            return

        def stored(error: BaseException | None) -> None:
            if error is None:
                self._in_chunks(rest, done)
            else:
                done(error)

        self._store.change(head, stored)


def put_partition(change: PartitionChange) -> Put:
    """The compare-and-set that makes a partition's entry what it shall be."""
    topic, before, after = change
    path = entries.partition_path(topic.topic_id, before.index)
    return Put(path, entries.partition_value(after), before.partition_epoch)


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


def _outcome(error: BaseException | None) -> KafkaError | None:
    if error is None:
        return None
    # Out of reach: an operator sees that elsewhere, and the client may ask again.
    _log.warning("a change of the metadata may not have been made", error=str(error))
    return KafkaError(
        ErrorCode.REQUEST_TIMED_OUT, f"it is not known whether the metadata store made the change: {error}"
    )


def _create_partition(topic_id: bytes, partition: PartitionImage) -> Create:
    return Create(entries.partition_path(topic_id, partition.index), entries.partition_value(partition))


def each(
    items: Sequence[Callable[[Outcome], None]], done: Callable[[list[KafkaError | None]], object]
) -> None:
    """Start all the changes, and call `done` with their outcomes in order once the last is through."""
    outcomes: list[KafkaError | None] = [None] * len(items)
    left = len(items)
    if not left:
        done(outcomes)
        return

    def outcome_of(position: int) -> Outcome:
        def one(error: KafkaError | None) -> None:
            nonlocal left
            outcomes[position] = error
            left -= 1
            if left == 0:
                done(outcomes)

        return one

    for position, start in enumerate(items):
        start(outcome_of(position))
