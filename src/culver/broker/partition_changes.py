"""Changes of many partitions' entries, each planned on the newest image and tried again when someone was faster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from culver.broker.administration import PartitionChange
from culver.core.image import PartitionImage, TopicImage
from culver.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from culver.broker.node import Node

_TRIES_MAX = 5
_TRY_AGAIN_MS = 50.0

# What a partition shall become, None to leave it as it is; KafkaError when it cannot be done.
Plan: TypeAlias = Callable[[TopicImage, PartitionImage], PartitionImage | None]
# Topic and index of a partition, and what to do with it.
Task: TypeAlias = tuple[str, int, Plan]
Outcomes: TypeAlias = list[KafkaError | None]


def change_each(node: Node, tasks: Sequence[Task], done: Callable[[Outcomes], object]) -> None:
    """Carry out every task, and call `done` with their outcomes in order once the last is through."""
    outcomes: Outcomes = [None] * len(tasks)
    _round(node, tasks, list(range(len(tasks))), 1, outcomes, done)


def _round(
    node: Node,
    tasks: Sequence[Task],
    positions: list[int],
    tries: int,
    outcomes: Outcomes,
    done: Callable[[Outcomes], object],
) -> None:
    changes: list[PartitionChange] = []
    changing: list[int] = []
    for position in positions:
        outcomes[position] = None
        try:
            change = _planned(node, *tasks[position])
        except KafkaError as error:
            # A traceback would tie the error to this frame, and the frame holds all of them: a cycle.
            outcomes[position] = error.with_traceback(None)
            continue
        if change is not None:
            changes.append(change)
            changing.append(position)

    def changed(results: Outcomes) -> None:
        again = []
        for position, error in zip(changing, results, strict=True):
            outcomes[position] = error
            if error is not None and error.code is ErrorCode.REASSIGNMENT_IN_PROGRESS and tries < _TRIES_MAX:
                again.append(position)
        if again:
            # What the other has written is on its way to this broker's image.
            node.scheduler.call_later(
                _TRY_AGAIN_MS, partial(_round, node, tasks, again, tries + 1, outcomes, done)
            )
        else:
            done(outcomes)

    node.administration.change_partitions(changes, changed)


def _planned(node: Node, topic_name: str, index: int, plan: Plan) -> PartitionChange | None:
    topic = node.image.topics.get(topic_name)
    before = None if topic is None else topic.partition(index)
    if topic is None or before is None:
        raise KafkaError(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no partition {index} of a topic {topic_name}"
        )
    after = plan(topic, before)
    return None if after is None or after == before else (topic, before, after)
