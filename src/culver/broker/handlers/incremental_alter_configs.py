"""IncrementalAlterConfigs: single settings are set, deleted, appended to or subtracted from. Versions 0 to 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.broker.config_resources import alter
from culver.config.alter import Alteration
from culver.errors import KafkaError
from culver.protocol.messages.incremental_alter_configs import (
    AlterConfigsResource,
    AlterConfigsResourceResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node


def handle(node: Node, exchange: Exchange, request: IncrementalAlterConfigsRequest) -> None:
    alter(node, exchange, request, _changes, _answer, replace=False)


def _changes(asked: AlterConfigsResource) -> list[Alteration]:
    return [Alteration(config.name, config.config_operation, config.value) for config in asked.configs]


def _answer(
    outcomes: list[tuple[AlterConfigsResource, KafkaError | None]],
) -> IncrementalAlterConfigsResponse:
    return IncrementalAlterConfigsResponse(
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
