"""Resources that have settings, topics and brokers: found by name, and their settings replaced."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from culver.broker.administration import Outcome, each
from culver.config.alter import Alteration, alter_broker, alter_topic
from culver.core.image import TopicImage
from culver.core.names import validate_topic_name
from culver.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

TOPIC = 2
BROKER = 4


def topic_named(node: Node, name: str) -> TopicImage:
    validate_topic_name(name)
    topic = node.image.topics.get(name)
    if topic is None:
        raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {name}")
    return topic


def check_broker_name(node: Node, name: str) -> None:
    """A broker is named by its number; the empty name means all of them."""
    if name and not name.isdecimal():
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"a broker is named by its number, not {name!r}")
    if name and int(name) != node.broker_id:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"this is broker {node.broker_id}; ask broker {name} for its settings"
        )


def alteration(
    node: Node, kind: int, name: str, changes: Iterable[Alteration], *, replace: bool
) -> Callable[[Outcome], None]:
    """Check a change of one resource's settings and return what carries it out; KafkaError if it cannot be done.

    With `replace` the settings that are not named go back to their defaults.
    """
    settings: Mapping[str, str]
    if kind == TOPIC:
        topic = topic_named(node, name)
        settings = alter_topic(node.config, {} if replace else topic.config, changes)
        return lambda done: node.administration.set_topic_config(name, settings, done)
    if kind == BROKER:
        check_broker_name(node, name)
        broker_id = node.broker_id if name else None
        now = node.config.dynamic if name else node.config.dynamic_default
        settings = alter_broker(node.config, {} if replace else now, changes)
        return lambda done: node.administration.set_broker_config(broker_id, settings, done)
    raise KafkaError(ErrorCode.INVALID_REQUEST, f"resources of type {kind} have no settings here")


def alter(
    node: Node,
    exchange: Exchange,
    request: Any,
    changes_of: Callable[[Any], list[Alteration]],
    answer: Callable[[list[tuple[Any, KafkaError | None]]], object],
    *,
    replace: bool,
) -> None:
    """Check every resource, change those that pass unless told only to check, and answer for each."""
    times_named = Counter((asked.resource_type, asked.resource_name) for asked in request.resources)
    outcomes: list[KafkaError | None] = [None] * len(request.resources)
    starts: list[Callable[[Outcome], None]] = []
    positions: list[int] = []
    for position, asked in enumerate(request.resources):
        try:
            if times_named[asked.resource_type, asked.resource_name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST,
                    f"{asked.resource_name!r} is named more than once in the request",
                )
            start = alteration(
                node, asked.resource_type, asked.resource_name, changes_of(asked), replace=replace
            )
        except KafkaError as error:
            # A traceback would tie the error to this frame, and the frame holds all of them: a cycle.
            outcomes[position] = error.with_traceback(None)
            continue
        if not request.validate_only:
            starts.append(start)
            positions.append(position)

    def changed(results: list[KafkaError | None]) -> None:
        for position, result in zip(positions, results, strict=True):
            outcomes[position] = result
        exchange.reply(answer(list(zip(request.resources, outcomes, strict=True))))

    # Not before the request has been put in its place among those of its connection.
    node.scheduler.call_soon(lambda: each(starts, changed))
