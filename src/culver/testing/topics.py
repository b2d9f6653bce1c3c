"""Create topics over one blocking connection, so that importing `culver.testing` needs no Kafka client."""

from __future__ import annotations

from collections.abc import Mapping

from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from culver.wire_client import WireClient

_TIMEOUT_SECONDS = 30.0


def create_topics(
    bootstrap_servers: str,
    partitions_by_topic: Mapping[str, int],
    config: Mapping[str, str] | None = None,
    *,
    replication_factor: int | None = None,
) -> None:
    """Create all the topics in one request; the first refusal is raised as KafkaError."""
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=-1 if replication_factor is None else replication_factor,
                assignments=[],
                configs=[
                    CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()
                ],
            )
            for name, partitions in partitions_by_topic.items()
        ],
        timeout_ms=int(_TIMEOUT_SECONDS * 1000),
        validate_only=False,
    )
    with WireClient(bootstrap_servers, _TIMEOUT_SECONDS) as client:
        response = client.ask_once(request, CreateTopicsResponse)
    for topic in response.topics:
        if topic.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(topic.error_code), f"topic {topic.name}: {topic.error_message}")
