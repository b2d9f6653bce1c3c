"""DeleteTopics: remove topics and all they hold. Serves versions 1 to 6.

4: flexible. 5: error texts. 6: topics by name or id.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from culver.broker.administration import each
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.delete_topics import (
    DeletableTopicResult,
    DeleteTopicsRequest,
    DeleteTopicsResponse,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

NO_ID = bytes(16)


def handle(node: Node, exchange: Exchange, request: DeleteTopicsRequest) -> DeleteTopicsResponse | None:
    asked: list[tuple[str | None, bytes]]
    if exchange.version >= 6:
        asked = [(topic.name, topic.topic_id) for topic in request.topics]
    else:
        asked = [(name, NO_ID) for name in request.topic_names]
    times_asked = Counter(_identity(node, name, topic_id) for name, topic_id in asked)
    results: list[DeletableTopicResult] = []
    starts = []
    started: list[DeletableTopicResult] = []
    for name, topic_id in {_identity(node, *one): one for one in asked}.values():
        result = DeletableTopicResult(name=name, topic_id=topic_id)
        results.append(result)
        try:
            if not node.config.delete_topic_enable:
                raise KafkaError(
                    ErrorCode.TOPIC_DELETION_DISABLED, "set delete.topic.enable=true to allow it"
                )
            if times_asked[_identity(node, name, topic_id)] > 1:
                raise KafkaError(ErrorCode.INVALID_REQUEST, "the topic is named more than once")
            result.name, result.topic_id = _resolve(node, name, topic_id)
        except KafkaError as error:
            result.error_code, result.error_message = error.code, error.message
            continue
        started.append(result)
        starts.append(lambda done, name=result.name: node.administration.delete_topic(name, done))

    def deleted(outcomes: list[KafkaError | None]) -> None:
        for result, error in zip(started, outcomes, strict=True):
            if error is not None:
                result.error_code, result.error_message = error.code, error.message
        exchange.reply(DeleteTopicsResponse(responses=results))

    if not starts:
        return DeleteTopicsResponse(responses=results)
    each(starts, deleted)
    return None


def _identity(node: Node, name: str | None, topic_id: bytes) -> tuple[str | None, bytes]:
    """What tells whether two entries mean the same topic, be it by its name or by its id."""
    if name is None and topic_id in node.image.topics_by_id:
        return node.image.topics_by_id[topic_id].name, NO_ID
    return name, topic_id


def _resolve(node: Node, name: str | None, topic_id: bytes) -> tuple[str, bytes]:
    if topic_id != NO_ID:
        if name is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "a topic is named by its name or its id, not by both")
        image = node.image.topics_by_id.get(topic_id)
        if image is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_ID)
    else:
        if name is None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, "an entry names no topic, neither by name nor by id")
        image = node.image.topics.get(name)
        if image is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    return image.name, image.topic_id
