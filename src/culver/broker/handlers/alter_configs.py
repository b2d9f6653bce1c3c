"""AlterConfigs: all settings of topics or brokers are replaced. Serves versions 0 to 2."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from culver.broker.config_resources import TOPIC, alter_all, alteration, refuse_repeated
from culver.broker.controller import Outcome
from culver.config.alter import Alteration, AlterOperation
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.alter_configs import (
    AlterConfigsRequest,
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    AlterConfigsResponse,
)

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.broker.server import Exchange


def handle(node: Node, exchange: Exchange, request: AlterConfigsRequest) -> None:
    def done(outcomes: list[KafkaError | None]) -> None:
        responses = [_answer(asked, error) for asked, error in zip(request.resources, outcomes, strict=True)]
        exchange.reply(AlterConfigsResponse(responses=responses))

    only_once = refuse_repeated((asked.resource_type, asked.resource_name) for asked in request.resources)
    checks = [partial(_check, node, only_once, asked) for asked in request.resources]
    node.scheduler.call_soon(lambda: alter_all(checks, done, validate_only=request.validate_only))


def _check(
    node: Node, only_once: Callable[[int, str], None], asked: AlterConfigsResource
) -> Callable[[Outcome], None]:
    only_once(asked.resource_type, asked.resource_name)
    if asked.resource_type == TOPIC and not asked.resource_name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "the change names no topic")
    changes = [Alteration(config.name, AlterOperation.SET, config.value) for config in asked.configs]
    return alteration(node, asked.resource_type, asked.resource_name, changes, replace=True)


def _answer(asked: AlterConfigsResource, error: KafkaError | None) -> AlterConfigsResourceResponse:
    return AlterConfigsResourceResponse(
        error_code=0 if error is None else error.code,
        error_message=None if error is None else error.message,
        resource_type=asked.resource_type,
        resource_name=asked.resource_name,
    )
