"""CreatePartitions: give topics more partitions. Serves versions 0 to 3.

2: flexible. 3: may be throttled.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from culver.broker.administration import each
from culver.broker.handlers.create_topics import check_count, new_replicas
from culver.core import reassignment
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
    CreatePartitionsTopicResult,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node


def handle(
    node: Node, exchange: Exchange, request: CreatePartitionsRequest
) -> CreatePartitionsResponse | None:
    new_partitions = sum(
        max(0, topic.count - len(node.image.topics[topic.name].partitions))
        for topic in request.topics
        if topic.name in node.image.topics
    )
    twice = {name for name, count in Counter(topic.name for topic in request.topics).items() if count > 1}
    results: dict[str, CreatePartitionsTopicResult] = {}
    starts = []
    started: list[str] = []
    for asked in request.topics:
        result = results[asked.name] = CreatePartitionsTopicResult(name=asked.name)
        try:
            if asked.name in twice:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the topic is named more than once")
            check_count(new_partitions)
            replicas = _plan(node, asked)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        if not request.validate_only:
            started.append(asked.name)
            starts.append(
                lambda done, name=asked.name, replicas=replicas: node.administration.create_partitions(
                    name, replicas, done
                )
            )

    def made(outcomes: list[KafkaError | None]) -> None:
        for name, error in zip(started, outcomes, strict=True):
            if error is not None:
                results[name].error_code, results[name].error_message = error.code, error.message
        exchange.reply(CreatePartitionsResponse(results=list(results.values())))

    if not starts:
        return CreatePartitionsResponse(results=list(results.values()))
    each(starts, made)
    return None


def _plan(node: Node, asked: CreatePartitionsTopic) -> list[tuple[int, ...]]:
    """Check one topic's request; the replicas of each partition to be added."""
    topic = node.image.topics.get(asked.name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    current = len(topic.partitions)
    if asked.count == current:
        raise KafkaError(ErrorCode.INVALID_PARTITIONS, f"{asked.name} has {current} partition(s) as it is")
    if asked.count < current:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"{asked.name} has {current} partition(s); their number can grow, not shrink to {asked.count}",
        )
    if asked.name == GROUP_OFFSETS_TOPIC:
        raise KafkaError(
            ErrorCode.INVALID_PARTITIONS,
            f"groups are found in {asked.name} by the number of its partitions, which cannot change",
        )
    factor = len(reassignment.target(topic.partitions[0]))
    if asked.assignments is not None:
        if len(asked.assignments) != asked.count - current:
            raise KafkaError(
                ErrorCode.INVALID_REPLICA_ASSIGNMENT,
                f"{asked.count - current} new partition(s) need as many assignments, not {len(asked.assignments)}",
            )
        return [new_replicas(node, assignment.broker_ids, factor) for assignment in asked.assignments]
    return node.administration.place(asked.count - current, factor, current)
