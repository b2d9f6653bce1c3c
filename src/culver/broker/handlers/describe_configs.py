"""DescribeConfigs: settings of topics and brokers, with where each value comes from. Serves versions 1 to 4.

1: sources and synonyms. 3: types and documentation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.broker.config_resources import BROKER, TOPIC, check_broker_name, topic_named
from culver.config.describe import ConfigEntry, ConfigSource, describe_broker, describe_topic
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
    DescribeConfigsSynonym,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node


def handle(node: Node, exchange: Exchange, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[_describe(node, request, resource) for resource in request.resources]
    )


def _describe(
    node: Node, request: DescribeConfigsRequest, resource: DescribeConfigsResource
) -> DescribeConfigsResult:
    result = DescribeConfigsResult(
        error_message="",
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
        configs=[],
    )
    # An empty list of names means all, as null does.
    names = resource.configuration_keys or None
    try:
        if resource.resource_type == TOPIC:
            entries = describe_topic(node.config, topic_named(node, resource.resource_name).config, names)
        elif resource.resource_type == BROKER:
            check_broker_name(node, resource.resource_name)
            if resource.resource_name:
                entries = describe_broker(node.config, names)
            else:
                # The empty name is not a broker but what was set for all of them while they ran.
                for_all = node.config.with_dynamic(node.config.dynamic_default, {})
                entries = [
                    entry
                    for entry in describe_broker(for_all, names)
                    if entry.source == ConfigSource.DYNAMIC_DEFAULT_BROKER
                ]
        else:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"resources of type {resource.resource_type} have no settings here"
            )
    except KafkaError as error:
        result.error_code, result.error_message = error.code, error.message
        return result
    result.configs = [_entry(entry, request) for entry in entries]
    return result


def _entry(entry: ConfigEntry, request: DescribeConfigsRequest) -> DescribeConfigsResourceResult:
    return DescribeConfigsResourceResult(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsSynonym(name=synonym.name, value=synonym.value, source=synonym.source)
            for synonym in entry.synonyms
        ]
        if request.include_synonyms
        else [],
        config_type=entry.type,
        documentation=entry.documentation if request.include_documentation else None,
    )
