"""AlterConfigs: all settings of topics or brokers are replaced. Serves versions 0 to 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.broker.config_resources import TOPIC, alter
from culver.config.alter import Alteration, AlterOperation
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node


def handle(node: Node, exchange: Exchange, request: AlterConfigsRequest) -> None:
    alter(node, exchange, request, _changes, _answer, replace=True)


def _changes(asked: AlterConfigsResource) -> list[Alteration]:
    if asked.resource_type == TOPIC and not asked.resource_name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the change names no topic")
    return [Alteration(config.name, AlterOperation.SET, config.value) for config in asked.configs]


def _answer(outcomes: list[tuple[AlterConfigsResource, KafkaError | None]]) -> AlterConfigsResponse:
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResourceResponse(
                error_code=0 if error is None else error.code,
                error_message=None if error is None else error.message,
                resource_type=asked.resource_type,
                resource_name=asked.resource_name,
            )
            for asked, error in outcomes
        ]
    )
