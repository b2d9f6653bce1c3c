"""Metadata: brokers, topics and who leads their partitions. Serves versions 0 to 13.

1: null asks for all topics, empty for none. 4: the client says whether a topic may be made. 10: topic ids.
12: topics by id. 13: an error for the whole answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from culver.broker.administration import PARTITIONS_MAX, NewTopic, Outcome, each, is_internal
from culver.broker.handlers.create_topics import default_factor
from culver.core import authorized_operations
from culver.core.image import NO_LEADER, BrokerInfo, PartitionImage, TopicImage
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.metadata import (
    MetadataRequest,
    MetadataRequestTopic,
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

NO_ID = bytes(16)


def handle(node: Node, exchange: Exchange, request: MetadataRequest) -> MetadataResponse | None:
    """Answer from the image; topics that are missing and may be made are made first."""
    describe = partial(_describe, node, exchange.version)
    if request.topics is None or (exchange.version == 0 and not request.topics):
        return _response(node, request, [describe(topic) for topic in node.image.topics.values()])
    by_id = exchange.version >= 12
    if any(topic.name is None if topic.topic_id == NO_ID else not by_id for topic in request.topics):
        return _refused(request.topics)
    asked = _each_once(node, request.topics)
    missing = [
        topic.name
        for topic in asked
        if topic.name is not None and topic.topic_id == NO_ID and topic.name not in node.image.topics
    ]
    makeable: list[str] = []
    errors: dict[str, ErrorCode] = {}
    for name in dict.fromkeys(missing):
        try:
            node.administration.check_new_topic(name)
        except KafkaError as error:
            errors[name] = error.code
            continue
        may = request.allow_auto_topic_creation or exchange.version < 4
        if len(makeable) * node.config.num_partitions > PARTITIONS_MAX:
            errors[name] = ErrorCode.POLICY_VIOLATION
        elif may and node.config.auto_create_topics_enable:
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
                    topics.append(describe(image))
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
                topics.append(describe(image))
        return _response(node, request, topics)

    def leaders() -> set[int]:
        images = [
            node.image.topics.get(topic.name or "")
            if topic.topic_id == NO_ID
            else node.image.topics_by_id.get(topic.topic_id)
            for topic in asked
        ]
        return {partition.leader for image in images if image is not None for partition in image.partitions}

    if not makeable:
        again = exchange.connection.asked_for_leaders
        exchange.connection.asked_for_leaders = True
        if node.suspects.wait(leaders, lambda: exchange.reply(answer()), again=again):
            return None  # the client has lost one of them: it shall hear of the next, not be sent back
        return answer()

    def made(outcomes: list[KafkaError | None]) -> None:
        for name, error in zip(makeable, outcomes, strict=True):
            if error is not None and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
                errors[name] = error.code
        exchange.reply(answer())

    each([partial(_make, node, name) for name in makeable], made)
    return None


def _make(node: Node, name: str, done: Outcome) -> None:
    coordinator = node.coordinators.get(name)
    if coordinator is not None:
        coordinator.ensure_topic(done)
    else:
        try:
            replicas = node.administration.place(node.config.num_partitions, default_factor(node))
        except KafkaError as error:
            done(error)
            return
        node.administration.create_topic(NewTopic(name, node.new_uuid(), replicas), done)


def _each_once(node: Node, asked: list[MetadataRequestTopic]) -> list[MetadataRequestTopic]:
    """A topic that is named twice, or both by id and by name, is described once."""
    topics_by_id = node.image.topics_by_id
    once: dict[str | bytes, MetadataRequestTopic] = {}
    for topic in asked:
        key: str | bytes = topic.name or topic.topic_id
        if topic.topic_id in topics_by_id:
            key = topics_by_id[topic.topic_id].name
        once.setdefault(key, topic)
    return list(once.values())


def _refused(asked: list[MetadataRequestTopic]) -> MetadataResponse:
    """Topics by id are for versions from 12 on, and each needs an id or a name."""
    return MetadataResponse(
        brokers=[],
        topics=[
            MetadataResponseTopic(
                error_code=ErrorCode.INVALID_REQUEST,
                name=topic.name or "",
                topic_id=topic.topic_id,
                partitions=[],
            )
            for topic in asked
        ],
        error_code=ErrorCode.INVALID_REQUEST,
    )


def _response(node: Node, request: MetadataRequest, topics: list[MetadataResponseTopic]) -> MetadataResponse:
    image = node.image
    if request.include_topic_authorized_operations:
        for topic in topics:
            if not topic.error_code:
                topic.topic_authorized_operations = authorized_operations.ON_TOPIC
    return MetadataResponse(
        brokers=[
            MetadataResponseBroker(node_id=broker.id, host=broker.host, port=broker.port, rack=broker.rack)
            for broker in node.suspects.listed()
        ],
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        topics=topics,
        cluster_authorized_operations=authorized_operations.ON_CLUSTER
        if request.include_cluster_authorized_operations
        else authorized_operations.NOT_ASKED,
    )


def _describe(node: Node, version: int, topic: TopicImage) -> MetadataResponseTopic:
    alive = node.image.brokers
    return MetadataResponseTopic(
        error_code=ErrorCode.NONE,
        name=topic.name,
        topic_id=topic.topic_id,
        is_internal=is_internal(topic.name),
        partitions=[_describe_partition(alive, version, partition) for partition in topic.partitions],
    )


def _describe_partition(
    alive: Mapping[int, BrokerInfo], version: int, partition: PartitionImage
) -> MetadataResponsePartition:
    described = MetadataResponsePartition(
        error_code=ErrorCode.NONE,
        partition_index=partition.index,
        leader_id=partition.leader,
        leader_epoch=partition.leader_epoch,
        replica_nodes=list(partition.replicas),
        isr_nodes=list(partition.isr),
        offline_replicas=[replica for replica in partition.replicas if replica not in alive],
    )
    if version == 0 and described.offline_replicas:
        # The first clients look up every replica they are told of.
        described.error_code = ErrorCode.REPLICA_NOT_AVAILABLE
        described.replica_nodes = [replica for replica in partition.replicas if replica in alive]
        described.isr_nodes = [replica for replica in partition.isr if replica in alive]
    if partition.leader not in alive:
        described.error_code = ErrorCode.LEADER_NOT_AVAILABLE
        described.leader_id = NO_LEADER
    return described
