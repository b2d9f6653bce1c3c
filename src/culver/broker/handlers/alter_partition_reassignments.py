"""AlterPartitionReassignments: begin moving partitions to other brokers, or give it up. Serves versions 0 to 1.

1: the client may forbid that a partition gets more or fewer replicas.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from culver.broker.handlers.create_topics import check_assignment
from culver.broker.partition_changes import Task, change_each
from culver.core import reassignment
from culver.core.image import PartitionImage, TopicImage
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignablePartitionResponse,
    ReassignableTopicResponse,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node


def handle(node: Node, exchange: Exchange, request: AlterPartitionReassignmentsRequest) -> None:
    """Answered when the change is recorded; how the move goes is for ListPartitionReassignments to say."""
    asked = [(topic.name, partition) for topic in request.topics for partition in topic.partitions]
    times_named = Counter((name, partition.partition_index) for name, partition in asked)

    def plan(
        name: str, partition: ReassignablePartition, topic: TopicImage, before: PartitionImage
    ) -> PartitionImage | None:
        if times_named[name, partition.partition_index] > 1:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "the partition is named more than once")
        if partition.replicas is None:
            return _cancelled(before)
        target = check_assignment(node, partition.replicas)
        factor = len(reassignment.target(before))
        if not request.allow_replication_factor_change and len(target) != factor:
            raise KafkaError(
                ErrorCode.INVALID_REPLICATION_FACTOR,
                f"{len(target)} replica(s) asked for, but the partition has {factor} and shall keep as many",
            )
        return reassignment.begin(before, target)

    tasks: list[Task] = [
        (name, partition.partition_index, partial(plan, name, partition)) for name, partition in asked
    ]

    def changed(outcomes: list[KafkaError | None]) -> None:
        remaining = iter(outcomes)
        exchange.reply(
            AlterPartitionReassignmentsResponse(
                allow_replication_factor_change=request.allow_replication_factor_change,
                error_message=None,
                responses=[
                    ReassignableTopicResponse(
                        name=topic.name,
                        partitions=[
                            _result(partition.partition_index, next(remaining))
                            for partition in topic.partitions
                        ],
                    )
                    for topic in request.topics
                ],
            )
        )

    # Not before the request has been put in its place among those of its connection.
    node.scheduler.call_soon(lambda: change_each(node, tasks, changed))


def _cancelled(before: PartitionImage) -> PartitionImage | None:
    if not reassignment.is_under_way(before):
        raise KafkaError(ErrorCode.NO_REASSIGNMENT_IN_PROGRESS)
    return reassignment.cancel(before)


def _result(index: int, error: KafkaError | None) -> ReassignablePartitionResponse:
    return ReassignablePartitionResponse(
        partition_index=index,
        error_code=ErrorCode.NONE if error is None else error.code,
        error_message=None if error is None else error.message,
    )
