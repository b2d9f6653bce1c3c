"""CreateTopics: make topics, each for itself. Serves versions 2 to 7.

5: flexible; the answer tells partitions and configuration. 7: topic ids.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from culver.broker.administration import PARTITIONS_MAX, NewTopic, each
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
            starts.append(lambda done, topic=topic: node.administration.create_topic(topic, done))

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
    node.administration.check_new_topic(asked.name)
    replicas = _assigned_by_hand(node, asked) if asked.assignments else _placed(node, asked)
    config = checked_topic_overrides(node.config, {setting.name: setting.value for setting in asked.configs})
    return NewTopic(asked.name, node.new_uuid(), replicas, config)


def _placed(node: Node, asked: CreatableTopic) -> list[tuple[int, ...]]:
    count = node.config.num_partitions if asked.num_partitions == -1 else asked.num_partitions
    if count < 1:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS, f"{count} partitions asked for; a topic has at least one"
        )
    factor = asked.replication_factor
    if factor == -1:
        factor = default_factor(node)
    if factor < 1:
        raise KafkaError(
            ErrorCode.INVALID_REPLICATION_FACTOR,
            f"replication factor {factor} asked for; it is at least 1",
        )
    return node.administration.place(count, factor)


def default_factor(node: Node) -> int:
    """How many replicas a topic gets that does not say: as the setting has it, or as many as there are brokers."""
    return min(node.config.default_replication_factor, len(node.image.registrations))


def check_count(count: int) -> None:
    """Raise when a request would make too many partitions, all its topics together."""
    if count > PARTITIONS_MAX:
        raise KafkaError(
            ErrorCode.POLICY_VIOLATION,
            f"{count} partitions asked for; one request makes {PARTITIONS_MAX} at most",
        )


def _assigned_by_hand(node: Node, asked: CreatableTopic) -> list[tuple[int, ...]]:
    if asked.num_partitions != -1 or asked.replication_factor != -1:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST,
            "num_partitions and replication_factor must be -1 when replicas are assigned by hand",
        )
    assignments = sorted(asked.assignments, key=lambda assignment: assignment.partition_index)
    if [assignment.partition_index for assignment in assignments] != list(range(len(assignments))):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, "partitions must be numbered consecutively, starting with 0"
        )
    factor = len(assignments[0].broker_ids)
    return [new_replicas(node, assignment.broker_ids, factor) for assignment in assignments]


def new_replicas(node: Node, broker_ids: list[int], factor: int) -> tuple[int, ...]:
    """A new partition's replicas, named by hand: as many as the others have, and one that can lead."""
    replicas = check_assignment(node, broker_ids)
    if len(replicas) != factor:
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            f"{len(replicas)} replica(s) named, but the other partitions of the topic have {factor}",
        )
    if node.image.brokers.keys().isdisjoint(replicas):
        raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"none of the brokers {broker_ids} is running")
    return replicas


def check_assignment(node: Node, broker_ids: list[int]) -> tuple[int, ...]:
    """Replicas that are named by hand must be distinct brokers that exist."""
    if not broker_ids or len(set(broker_ids)) != len(broker_ids):
        raise KafkaError(
            ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"the replicas {broker_ids} are empty or repeat a broker"
        )
    for broker_id in broker_ids:
        if broker_id not in node.image.registrations:
            raise KafkaError(ErrorCode.INVALID_REPLICA_ASSIGNMENT, f"there is no broker {broker_id}")
    return tuple(broker_ids)


def _made(node: Node, topic: NewTopic) -> CreatableTopicResult:
    return CreatableTopicResult(
        name=topic.name,
        topic_id=topic.topic_id,
        error_code=ErrorCode.NONE,
        error_message=None,
        num_partitions=len(topic.replicas),
        replication_factor=len(topic.replicas[0]),
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
