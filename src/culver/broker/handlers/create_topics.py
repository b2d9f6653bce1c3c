"""CreateTopics: make topics, each for itself. Serves versions 2 to 7.

5: flexible; the answer tells partitions and configuration. 7: topic ids.
"""

from __future__ import annotations

import uuid
from collections import Counter
from typing import TYPE_CHECKING

from culver.broker.controller import PARTITIONS_MAX, NewTopic, each
from culver.config.alter import checked_topic_overrides
from culver.core.names import CLUSTER_METADATA_TOPIC
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfigs,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node


def handle(node: Node, exchange: Exchange, request: CreateTopicsRequest) -> CreateTopicsResponse | None:
    times_named = Counter(topic.name for topic in request.topics)
    partitions = sum(_partitions_wanted(node, topic) for topic in request.topics)
    results: dict[str, CreatableTopicResult] = {}
    starts = []
    started: list[str] = []
    for asked in request.topics:
        try:
            check_count(partitions)
            if times_named[asked.name] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the topic is named more than once")
            topic = plan(node, asked)
        except KafkaError as error:
            results[asked.name] = _failed(asked.name, error)
            continue
        results[asked.name] = _made(node, topic)
        if not request.validate_only:
            started.append(asked.name)
            starts.append(lambda done, topic=topic: node.controller.create_topic(topic, done))

    def made(outcomes: list[KafkaError | None]) -> None:
        for name, error in zip(started, outcomes, strict=True):
            if error is not None:
                results[name] = _failed(name, error)
        exchange.reply(CreateTopicsResponse(topics=list(results.values())))

    if not starts:
        return CreateTopicsResponse(topics=list(results.values()))
    each(starts, made)
    return None


def _partitions_wanted(node: Node, asked: CreatableTopic) -> int:
    if asked.assignments:
        return len(asked.assignments)
    return node.config.num_partitions if asked.num_partitions == -1 else max(asked.num_partitions, 0)


def plan(node: Node, asked: CreatableTopic) -> NewTopic:
    """Check one topic's request and fill in what it leaves open."""
    if asked.name == CLUSTER_METADATA_TOPIC:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{asked.name} is a name that Kafka keeps for itself")
    node.controller.check_new_topic(asked.name)
    count = asked.num_partitions
    factor = asked.replication_factor
    if asked.assignments:
        count = _partitions_assigned(node, asked)
    else:
        if count == -1:
            count = node.config.num_partitions
        if count < 1:
            raise KafkaError(
                ErrorCode.INVALID_PARTITIONS, f"{count} partitions asked for; a topic has at least one"
            )
        if factor == -1:
            factor = node.config.default_replication_factor
        if factor < 1:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor} asked for; it is at least 1",
            )
        if factor > len(node.image.brokers):
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"replication factor {factor} asked for, but only {len(node.image.brokers)} broker(s) are registered",
            )
    config = checked_topic_overrides(node.config, {setting.name: setting.value for setting in asked.configs})
    return NewTopic(asked.name, uuid.uuid4().bytes, count, config)


def check_count(count: int) -> None:
    """Raise when a request would make too many partitions, all its topics together."""
    if count > PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{count} partitions asked for; one request makes {PARTITIONS_MAX} at most",
        )


def _partitions_assigned(node: Node, asked: CreatableTopic) -> int:
    if asked.num_partitions != -1 or asked.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "num_partitions and replication_factor must be -1 when replicas are assigned by hand",
        )
    indexes = sorted(assignment.partition_index for assignment in asked.assignments)
    if indexes != list(range(len(indexes))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered consecutively, starting with 0"
        )
    for assignment in asked.assignments:
        check_assignment(node, assignment.broker_ids)
    return len(indexes)


def check_assignment(node: Node, broker_ids: list[int]) -> None:
    """Replicas that are named by hand must be distinct brokers that exist."""
    if not broker_ids or len(set(broker_ids)) != len(broker_ids):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the replicas {broker_ids} are empty or repeat a broker"
        )
    for broker_id in broker_ids:
        if broker_id not in node.image.brokers:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"there is no broker {broker_id}")


def _made(node: Node, topic: NewTopic) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=topic.partition_count,
        replication_factor=1,
        configs=[
            CreatableTopicConfigs(
                name=setting.name,
                value=setting.value,
                read_only=setting.read_only,
                config_source=setting.source,
                is_sensitive=setting.sensitive,
            )
            for setting in node.topic_settings.described(topic.config)
        ],
    )


def _failed(name: str, error: KafkaError) -> CreatableTopicResult:
    return CreatableTopicResult(name=name, error_code=error.code, error_message=error.message, configs=[])
