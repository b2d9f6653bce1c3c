"""What coordinators may know of topics, from the newest cluster image."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from culver.broker.node import Node


class ImageTopics:
    """Answers from the image as it is at the moment of the question."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def topic_name(self, topic_id: bytes) -> str | None:
        topic = self._node.image.topics_by_id.get(topic_id)
        return None if topic is None else topic.name

    def topic_id(self, name: str) -> bytes | None:
        topic = self._node.image.topics.get(name)
        return None if topic is None else topic.topic_id

    def partition_exists(self, name: str, partition: int) -> bool:
        return self._node.image.partition(name, partition) is not None

    def partition_count(self, name: str) -> int:
        return len(self._node.image.topics[name].partitions)

    def names(self) -> Iterable[str]:
        return self._node.image.topics
