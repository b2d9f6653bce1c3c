"""ElectLeaders: let preferred replicas lead, or any living one where nothing else helps. Serves versions 0 to 2.

1: elections may be unclean; an error for the whole answer. 2: flexible.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from culver.broker.partition_changes import change_each
from culver.core import elections, reassignment
from culver.core.image import NO_LEADER, PartitionImage, TopicImage
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.elect_leaders import (
    ElectLeadersRequest,
    ElectLeadersResponse,
    PartitionResult,
    ReplicaElectionResult,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

PREFERRED = 0
UNCLEAN = 1

_PLANS: dict[int, Callable[[Node, TopicImage, PartitionImage], PartitionImage]]


def handle(node: Node, exchange: Exchange, request: ElectLeadersRequest) -> ElectLeadersResponse | None:
    plan = _PLANS.get(request.election_type)
    if plan is None:
        return _refused(request)
    everywhere = request.topic_partitions is None
    asked = (
        [
            (topic.name, partition.index)
            for topic in node.image.topics.values()
            for partition in topic.partitions
        ]
        if request.topic_partitions is None
        else [(topic.topic, index) for topic in request.topic_partitions for index in topic.partitions]
    )
    asked = list(dict.fromkeys(asked))
    topics = node.image.topics if everywhere else [topic.topic for topic in request.topic_partitions or ()]

    def elected(outcomes: list[KafkaError | None]) -> None:
        by_topic: dict[str, list[PartitionResult]] = {topic: [] for topic in topics}
        for (topic, index), error in zip(asked, outcomes, strict=True):
            if everywhere and error is not None and error.code is ErrorCode.ELECTION_NOT_NEEDED:
                continue  # of all the cluster's partitions, those are of interest where something was to be done
            by_topic[topic].append(
                PartitionResult(
                    partition_id=index,
                    error_code=ErrorCode.NONE if error is None else error.code,
                    error_message=None if error is None else error.message,
                )
            )
        exchange.reply(
            ElectLeadersResponse(
                replica_election_results=[
                    ReplicaElectionResult(topic=topic, partition_result=results)
                    for topic, results in by_topic.items()
                ]
            )
        )

    tasks = [(topic, index, partial(plan, node)) for topic, index in asked]
    # Not before the request has been put in its place among those of its connection.
    node.scheduler.call_soon(lambda: change_each(node, tasks, elected))
    return None


def _refused(request: ElectLeadersRequest) -> ElectLeadersResponse:
    return ElectLeadersResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        replica_election_results=[
            ReplicaElectionResult(
                topic=topic.topic,
                partition_result=[
                    PartitionResult(
                        partition_id=index,
                        error_code=ErrorCode.INVALID_REQUEST,
                        error_message=f"there is no election of type {request.election_type}",
                    )
                    for index in topic.partitions
                ],
            )
            for topic in request.topic_partitions or ()
        ],
    )


def _preferred(node: Node, topic: TopicImage, before: PartitionImage) -> PartitionImage:
    alive = set(node.image.brokers)
    preferred = reassignment.target(before)[0]
    if before.leader == preferred:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
    after = elections.prefer(before, alive)
    if after is None:
        raise KafkaError(
            ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
            f"broker {preferred} is not running, or not in sync",
        )
    return after


def _unclean(node: Node, topic: TopicImage, before: PartitionImage) -> PartitionImage:
    alive = set(node.image.brokers)
    if before.leader != NO_LEADER and before.leader in alive:
        raise KafkaError(ErrorCode.ELECTION_NOT_NEEDED)
    min_insync = node.topic_settings.effective(topic.config).min_insync_replicas
    after = elections.elect_unclean(before, alive, min_insync)
    if after is None or after.leader == NO_LEADER:
        raise KafkaError(
            ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
            f"none of the brokers {list(before.replicas)} is running",
        )
    return after


_PLANS = {PREFERRED: _preferred, UNCLEAN: _unclean}
