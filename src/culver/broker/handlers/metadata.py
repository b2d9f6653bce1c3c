"""Metadata: brokers, topics and who leads their partitions. Serves versions 0 to 13.

1: null asks for all topics, empty for none. 4: the client says whether a topic may be made. 10: topic ids.
12: topics by id. 13: an error for the whole answer.
"""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

from culver.broker.controller import NewTopic, Outcome, each, is_internal
from culver.core.image import TopicImage
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.metadata import (
    MetadataRequest,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.broker.server import Exchange

NO_ID = bytes(16)


def handle(node: Node, exchange: Exchange, request: MetadataRequest) -> MetadataResponse | None:
    """Answer from the image; topics that are missing and may be made are made first."""
    asked = request.topics
    if asked is None or (exchange.version == 0 and not asked):
        return _response(node, [_describe(topic) for topic in node.image.topics.values()])
    by_id = exchange.version >= 12
    if not by_id and any(topic.topic_id != NO_ID or topic.name is None for topic in asked):
        return _response(node, [], ErrorCode.INVALID_REQUEST)
    missing = [
        topic.name
        for topic in asked
        if topic.name is not None and topic.topic_id == NO_ID and topic.name not in node.image.topics
    ]
    makeable: list[str] = []
    errors: dict[str, ErrorCode] = {}
    for name in dict.fromkeys(missing):
        try:
            node.controller.check_new_topic(name)
        except KafkaError as error:
            errors[name] = error.code
            continue
        may = request.allow_auto_topic_creation or exchange.version < 4
        if may and node.config.auto_create_topics_enable:
            makeable.append(name)
        else:
            errors[name] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def answer() -> MetadataResponse:
        topics = []
        for topic in asked:
            if topic.topic_id != NO_ID:
                image = node.image.topics_by_id.get(topic.topic_id)
                if image is None:
                    topics.append(
                        MetadataResponseTopic(
                            error_code=ErrorCode.UNKNOWN_TOPIC_ID,
                            name=None if exchange.version >= 12 else "",
                            topic_id=topic.topic_id,
                            partitions=[],
                        )
                    )
                else:
                    topics.append(_describe(image))
                continue
            name = topic.name or ""
            image = node.image.topics.get(name)
            if image is None:
                code = errors.get(name, ErrorCode.LEADER_NOT_AVAILABLE)
                topics.append(
                    MetadataResponseTopic(
                        error_code=code, name=name, is_internal=is_internal(name), partitions=[]
                    )
                )
            else:
                topics.append(_describe(image))
        return _response(node, topics)

    if not makeable:
        return answer()

    def made(outcomes: list[KafkaError | None]) -> None:
        for name, error in zip(makeable, outcomes, strict=True):
            if error is not None and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                errors[name] = error.code
        exchange.reply(answer())

    each([partial(_make, node, name) for name in makeable], made)
    return None


def _make(node: Node, name: str, done: Outcome) -> None:
    if name == GROUP_OFFSETS_TOPIC:
        node.groups.ensure_topic(done)
    else:
        node.controller.create_topic(NewTopic(name, uuid.uuid4().bytes, node.config.num_partitions), done)


def _response(
    node: Node, topics: list[MetadataResponseTopic], error: ErrorCode = ErrorCode.NONE
) -> MetadataResponse:
    image = node.image
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=broker.id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in image.brokers.values()
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
        error_code=error,
    )


def _describe(topic: TopicImage) -> MetadataResponseTopic:
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[
            MetadataResponsePartition(
                error_code=ErrorCode.NONE,
                partition_index=partition.index,
                leader_id=partition.leader,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                offline_replicas=[],
            )
            for partition in topic.partitions
        ],
    )
