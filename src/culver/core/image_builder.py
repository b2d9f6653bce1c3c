"""Builds the cluster image from the metadata store's entries, and says what each bunch of changes has changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from culver.core import entries
from culver.core.image import BrokerInfo, ClusterImage, PartitionImage, TopicImage

NO_CONTROLLER = -1


class Versioned(Protocol):
    """An entry of the store: a value, and how often it has been changed."""

    @property
    def value(self) -> bytes: ...

    @property
    def version(self) -> int: ...


@dataclass(frozen=True, slots=True)
class ImageChange:
    """The image before and after a bunch of changes, and where they differ."""

    before: ClusterImage
    after: ClusterImage
    # Names of topics that are new, changed or gone.
    topics: tuple[str, ...] = ()
    # Who is alive, or where.
    brokers: bool = False
    controller: bool = False
    settings: bool = False


class ImageBuilder:
    """Holds the entries that the image is made of. A topic is shown once all its partitions are there."""

    def __init__(self) -> None:
        self.image = ClusterImage(cluster_id="")
        self.cluster: entries.ClusterEntry | None = None
        # The version of /controller-epoch; -1 before the first controller.
        self.controller_epoch = -1
        # Settings made while running, by broker; under None those for all of them.
        self.broker_settings: dict[int | None, Mapping[str, str]] = {}
        # Whose session holds the entry that says it is alive, whether it is registered or not.
        self.alive: dict[int, entries.AliveEntry] = {}
        self._topics: dict[str, tuple[entries.TopicEntry, int]] = {}
        self._names: dict[str, str] = {}
        self._partitions: dict[str, dict[int, PartitionImage]] = {}
        self._registrations: dict[int, BrokerInfo] = {}

    def apply(self, events: Iterable[tuple[str, Versioned | None]]) -> ImageChange:
        """Take note of entries that were made or changed (or, with None, removed)."""
        before = self.image
        topics: dict[str, None] = {}
        brokers = controller = settings = False
        for path, entry in events:
            if path.startswith(entries.PARTITIONS):
                self._partition(path, entry, topics)
            elif path.startswith(entries.TOPICS):
                self._topic(path[len(entries.TOPICS) :], entry, topics)
            elif path.startswith((entries.BROKERS, entries.REGISTRATIONS)):
                self._broker(path, entry)
                brokers = True
            elif path == entries.CONTROLLER:
                holder = -1 if entry is None else entries.decode(entry.value, entries.ControllerEntry).broker
                self.image = self.image.with_controller(holder)
                controller = True
            elif path == entries.CONTROLLER_EPOCH:
                self.controller_epoch = -1 if entry is None else entry.version
            elif path.startswith(entries.CONFIG):
                self._settings(path, entry)
                settings = True
            elif path == entries.CLUSTER and entry is not None:
                self.cluster = entries.decode(entry.value, entries.ClusterEntry)
                self.image = replace(self.image, cluster_id=self.cluster.id)
        if topics:
            self._show_topics(topics)
        if brokers:
            self._show_brokers()
        return ImageChange(before, self.image, tuple(topics), brokers, controller, settings)

    def _partition(self, path: str, entry: Versioned | None, topics: dict[str, None]) -> None:
        topic_id, _, number = path[len(entries.PARTITIONS) :].rpartition("-")
        index = int(number)
        if entry is None:
            siblings = self._partitions.get(topic_id)
            if siblings is not None:
                siblings.pop(index, None)
                if not siblings:
                    del self._partitions[topic_id]
        else:
            image = entries.partition_image(index, entry.value, entry.version)
            self._partitions.setdefault(topic_id, {})[index] = image
        name = self._names.get(topic_id)
        if name is not None:
            topics[name] = None

    def _topic(self, name: str, entry: Versioned | None, topics: dict[str, None]) -> None:
        old = self._topics.pop(name, None)
        if old is not None:
            self._names.pop(old[0].id, None)
        if entry is not None:
            topic = entries.decode(entry.value, entries.TopicEntry)
            self._topics[name] = (topic, entry.version)
            self._names[topic.id] = name
        topics[name] = None

    def _show_topics(self, names: Iterable[str]) -> None:
        shown, gone = [], []
        for name in names:
            found = self._topics.get(name)
            if found is None:
                gone.append(name)
                continue
            entry, version = found
            partitions = self._partitions.get(entry.id, {})
            try:
                ordered = tuple([partitions[index] for index in range(entry.partitions)])
            except KeyError:
                gone.append(name)  # not all there yet, or on its way out
                continue
            shown.append(TopicImage(name, bytes.fromhex(entry.id), ordered, entry.config, version))
        if gone:
            self.image = self.image.without_topics(gone)
        if shown:
            self.image = self.image.with_topics(shown)

    def _broker(self, path: str, entry: Versioned | None) -> None:
        broker_id = int(path.rpartition("/")[2])
        if path.startswith(entries.BROKERS):
            if entry is None:
                self.alive.pop(broker_id, None)
            else:
                self.alive[broker_id] = entries.decode(entry.value, entries.AliveEntry)
        elif entry is None:
            self._registrations.pop(broker_id, None)
        else:
            found = entries.decode(entry.value, entries.RegistrationEntry)
            self._registrations[broker_id] = BrokerInfo(
                broker_id, found.host, found.port, found.rack, entry.version
            )

    def _show_brokers(self) -> None:
        # In the order of their numbers, whatever the order in which they came.
        registrations = {number: self._registrations[number] for number in sorted(self._registrations)}
        living = {
            number: info
            for number, info in registrations.items()
            # A registration of another epoch is of a broker that is just starting again.
            if number in self.alive and self.alive[number].epoch == info.epoch
        }
        self.image = replace(self.image, registrations=registrations, brokers=living)

    def _settings(self, path: str, entry: Versioned | None) -> None:
        name = path[len(entries.BROKER_CONFIG) :]
        broker = None if path == entries.DEFAULT_BROKER_CONFIG else int(name)
        if entry is None:
            self.broker_settings.pop(broker, None)
        else:
            self.broker_settings[broker] = entries.decode(entry.value, dict[str, str])
