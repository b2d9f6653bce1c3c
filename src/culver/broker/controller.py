"""The controller: changes to topics and configurations, first in the metadata store, then in the image.

Every change goes the same way: checked against the image, written to the store by compare-and-set, and only
when the store has it shown in the image and acted upon. A crash at any moment leaves the store's word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from culver.coordination.store import Change, Conflict, Create, Delete, Entry, Put
from culver.core.image import BrokerInfo, ClusterImage, PartitionImage, TopicImage
from culver.core.names import INTERNAL_TOPICS, validate_topic_name
from culver.errors import ErrorCode, KafkaError
from culver.logging import get_logger

if TYPE_CHECKING:
    from culver.coordination.store import MetadataStore

_log = get_logger("culver.controller")

TOPICS = "/topics/"
PARTITIONS = "/partitions/"
BROKER_CONFIG = "/config/brokers/"
CLUSTER = "/cluster"

PARTITIONS_MAX = 9_999  # made by one request, as in Kafka: a typing error must not make a million directories


class TopicEntry(msgspec.Struct, frozen=True):
    """What the store holds of a topic; its partitions have entries of their own."""

    id: str
    config: dict[str, str] = {}


class PartitionEntry(msgspec.Struct, frozen=True, array_like=True):
    """What the store holds of a partition."""

    replicas: list[int]
    isr: list[int]
    leader: int
    leader_epoch: int
    partition_epoch: int = 0
    elr: list[int] = []


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic to be made, with what the request left open already filled in."""

    name: str
    topic_id: bytes
    partition_count: int
    config: Mapping[str, str] = field(default_factory=dict)


Outcome: TypeAlias = Callable[[KafkaError | None], object]
OnImage: TypeAlias = Callable[
    [ClusterImage, ClusterImage, str | None], object
]  # before, after, the topic changed


class Controller:
    """Owns the image; handlers read it, and only `_show` replaces it."""

    def __init__(self, store: MetadataStore, broker_id: int, on_image: OnImage) -> None:
        self._store = store
        self._broker_id = broker_id
        self._on_image = on_image
        self.image = ClusterImage(cluster_id="")
        self.broker_config: dict[str, str] = {}

    # -- start ------------------------------------------------------------------------------------------

    def load(self, entries: Mapping[str, Entry], cluster_id: str) -> ClusterImage:
        """The image as the store has it."""
        image = ClusterImage(cluster_id=cluster_id, controller_id=self._broker_id)
        partitions: dict[str, list[tuple[int, PartitionImage]]] = {}
        decode = msgspec.json.Decoder(PartitionEntry).decode
        for path, entry in entries.items():
            if path.startswith(PARTITIONS):
                topic, _, number = path[len(PARTITIONS) :].rpartition("/")
                index = int(number)
                partitions.setdefault(topic, []).append((index, _partition_image(index, decode(entry.value))))
        topics = []
        for path, entry in entries.items():
            if path.startswith(TOPICS):
                name = path[len(TOPICS) :]
                topic_entry = msgspec.json.decode(entry.value, type=TopicEntry)
                ordered = tuple(partition for _, partition in sorted(partitions.get(name, ())))
                topics.append(TopicImage(name, bytes.fromhex(topic_entry.id), ordered, topic_entry.config))
        for path, entry in entries.items():
            if path.startswith(BROKER_CONFIG):
                self.broker_config = msgspec.json.decode(entry.value, type=dict[str, str])
        self.image = image.with_topics(topics)
        return self.image

    def show_broker(self, broker: BrokerInfo) -> None:
        """Put this broker, at the address that it listens on, into the image."""
        self._show(self.image.with_broker(broker), None)

    # -- topics -----------------------------------------------------------------------------------------

    def create_topic(self, topic: NewTopic, done: Outcome) -> None:
        """Make a topic; `done` is called when clients can use it."""
        partitions = [self._new_partition(index) for index in range(topic.partition_count)]
        entry = TopicEntry(topic.topic_id.hex(), dict(topic.config))
        changes: list[Change] = [Create(TOPICS + topic.name, msgspec.json.encode(entry))]
        changes += [_create_partition(topic.name, partition) for partition in partitions]
        image = TopicImage(topic.name, topic.topic_id, tuple(partitions), dict(topic.config))

        def stored(error: BaseException | None) -> None:
            if isinstance(error, Conflict):
                done(KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"a topic {topic.name} already exists"))
            elif error is not None:
                done(_store_failed(error))
            else:
                done(self._try_show(self.image.with_topic(image), topic.name))

        self._store.change(changes, stored)

    def check_new_topic(self, name: str) -> None:
        """Raise when no topic of this name can be made."""
        validate_topic_name(name)
        if name in self.image.topics:
            raise KafkaError(ErrorCode.TOPIC_ALREADY_EXISTS, f"a topic {name} already exists")
        other = self.image.colliding_topic(name)
        if other is not None:
            raise KafkaError(
                ErrorCode.INVALID_TOPIC_EXCEPTION,
                f"{name} and the topic {other} differ only by '.' and '_', which metrics cannot tell apart",
            )

    def delete_topic(self, name: str, done: Outcome) -> None:
        """Remove a topic and everything in it."""
        topic = self.image.topics.get(name)
        if topic is None:
            done(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            return
        changes: list[Change] = [Delete(TOPICS + name)]
        changes += [Delete(f"{PARTITIONS}{name}/{partition.index}") for partition in topic.partitions]

        def stored(error: BaseException | None) -> None:
            if isinstance(error, Conflict):
                done(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            elif error is not None:
                done(_store_failed(error))
            else:
                done(self._try_show(self.image.without_topic(name), name))

        self._store.change(changes, stored)

    def create_partitions(self, name: str, count: int, done: Outcome) -> None:
        """Give a topic partitions up to `count` in all."""
        topic = self.image.topics[name]
        added = [self._new_partition(index) for index in range(len(topic.partitions), count)]

        def stored(error: BaseException | None) -> None:
            current = self.image.topics.get(name)
            if isinstance(error, Conflict) or current is None:
                done(
                    KafkaError(
                        ErrorCode.REASSIGNMENT_IN_PROGRESS, f"someone else is changing the topic {name}"
                    )
                )
            elif error is not None:
                done(_store_failed(error))
            else:
                done(self._try_show(self.image.with_topic(current.with_partitions(added)), name))

        self._store.change([_create_partition(name, partition) for partition in added], stored)

    def set_topic_config(self, name: str, config: Mapping[str, str], done: Outcome) -> None:
        """Replace all that is set on a topic."""
        topic = self.image.topics[name]
        value = msgspec.json.encode(TopicEntry(topic.topic_id.hex(), dict(config)))

        def stored(error: BaseException | None) -> None:
            current = self.image.topics.get(name)
            if error is None and current is not None:
                done(self._try_show(self.image.with_topic(current.with_config(config)), name))
            elif current is None or isinstance(error, Conflict):
                done(KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION))
            else:
                assert error is not None
                done(_store_failed(error))

        self._store.change([Put(TOPICS + name, value)], stored)

    def set_broker_config(self, config: Mapping[str, str], done: Outcome) -> None:
        """Replace the settings of this broker that were set while it ran."""
        path = f"{BROKER_CONFIG}{self._broker_id}"
        value = msgspec.json.encode(dict(config))

        def stored(error: BaseException | None) -> None:
            if isinstance(error, Conflict):  # the first setting ever: make the entry
                self._store.change([Create(path, value)], shown)
            else:
                shown(error)

        def shown(error: BaseException | None) -> None:
            if error is not None:
                done(_store_failed(error))
                return
            self.broker_config = dict(config)
            done(self._try_show(self.image, None))

        self._store.change([Put(path, value)], stored)

    # -- parts ------------------------------------------------------------------------------------------

    def _new_partition(self, index: int) -> PartitionImage:
        replicas = (self._broker_id,)
        return PartitionImage(index, self._broker_id, 0, replicas, replicas)

    def _try_show(self, image: ClusterImage, topic: str | None) -> KafkaError | None:
        try:
            self._show(image, topic)
        except OSError as error:
            _log.error("a change could not be carried out on disk", error=str(error))
            return KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR, f"the change is recorded but not yet on disk: {error}"
            )
        return None

    def _show(self, image: ClusterImage, topic: str | None) -> None:
        before, self.image = self.image, image
        self._on_image(before, image, topic)


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS


def _store_failed(error: BaseException) -> KafkaError:
    _log.error("the metadata store refused a change", error=str(error))
    return KafkaError(ErrorCode.UNKNOWN_SERVER_ERROR, f"the metadata store refused the change: {error}")


def _create_partition(topic: str, partition: PartitionImage) -> Create:
    entry = PartitionEntry(
        list(partition.replicas),
        list(partition.isr),
        partition.leader,
        partition.leader_epoch,
        partition.partition_epoch,
        list(partition.elr),
    )
    return Create(f"{PARTITIONS}{topic}/{partition.index}", msgspec.json.encode(entry))


def _partition_image(index: int, entry: PartitionEntry) -> PartitionImage:
    return PartitionImage(
        index,
        entry.leader,
        entry.leader_epoch,
        tuple(entry.replicas),
        tuple(entry.isr),
        tuple(entry.elr),
        entry.partition_epoch,
    )


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
