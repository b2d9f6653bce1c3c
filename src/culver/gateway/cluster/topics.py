"""Topics, asked about and changed: created, deleted, configured, given partitions, cut at their beginning."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import ClusterView, TopicPartition, refusal
from culver.protocol.messages.create_partitions import (
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from culver.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from culver.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from culver.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from culver.protocol.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from culver.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from culver.protocol.schema import ZERO_UUID
from culver.wire_client import Unreachable

# Changes have a connection of their own: one that takes its time must not hold up questions.
_CHANGES = "changes"
_SET = 0
_DELETE = 1
_DELETE_BY_STATE_SINCE_VERSION = 6
_LOOKS_MAX = 40
_LOOK_PAUSE_S = 0.05


class ResourceKind(IntEnum):
    """What has a configuration."""

    TOPIC = 2
    BROKER = 4


class ConfigResource(NamedTuple):
    """One topic, or one broker (its id as text)."""

    kind: ResourceKind
    name: str


class ConfigSource(IntEnum):
    """Where a value comes from."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting. `value` is None when it has none, or when it is not for everyone's eyes (`sensitive`)."""

    name: str
    value: str | None
    source: int
    read_only: bool
    sensitive: bool
    documentation: str


async def create_topic(
    cluster: Cluster,
    name: str,
    *,
    partitions: int = -1,
    replication_factor: int = -1,
    configs: Mapping[str, str] | None = None,
    validate_only: bool = False,
) -> None:
    """Create a topic; -1 takes the cluster's default. KafkaError when refused."""
    topic = CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replication_factor,
        assignments=[],
        configs=[CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()],
    )
    request = CreateTopicsRequest(
        topics=[topic], timeout_ms=_broker_timeout_ms(cluster), validate_only=validate_only
    )
    answer = await cluster.ask(request, CreateTopicsResponse, purpose=_CHANGES, once=True)
    for result in answer.topics:
        if result.error_code:
            raise refusal(result.error_code, f"topic {name}", result.error_message)
    if not validate_only:
        await _until_seen(cluster, lambda view: name in view.topics)


async def delete_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, KafkaError | None]:
    """Delete topics: what stood in the way of each, None where nothing did."""
    request = DeleteTopicsRequest(
        topics=[DeleteTopicState(name=name, topic_id=ZERO_UUID) for name in names],
        timeout_ms=_broker_timeout_ms(cluster),
    )
    answer = await cluster.ask(
        request,
        DeleteTopicsResponse,
        least_version=_DELETE_BY_STATE_SINCE_VERSION,
        purpose=_CHANGES,
        once=True,
    )
    results = {
        result.name or "": refusal(result.error_code, f"topic {result.name}", result.error_message)
        if result.error_code
        else None
        for result in answer.responses
    }
    gone = {name for name, refused in results.items() if refused is None}
    await _until_seen(cluster, lambda view: gone.isdisjoint(view.topics))
    return results


async def create_partitions(cluster: Cluster, topic: str, total: int) -> None:
    """Give a topic more partitions, so that there are `total`. KafkaError when refused."""
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=topic, count=total, assignments=None)],
        timeout_ms=_broker_timeout_ms(cluster),
        validate_only=False,
    )
    answer = await cluster.ask(request, CreatePartitionsResponse, purpose=_CHANGES, once=True)
    for result in answer.results:
        if result.error_code:
            raise refusal(result.error_code, f"partitions of topic {topic}", result.error_message)
    await _until_seen(
        cluster, lambda view: topic in view.topics and len(view.topics[topic].partitions) >= total
    )


async def _until_seen(cluster: Cluster, done: Callable[[ClusterView], bool]) -> None:
    """Wait, not for long, until a change that was made shows: whoever asked for it is likely to look at it next."""
    for _ in range(_LOOKS_MAX):
        cluster.forget_view()
        try:
            if done(await cluster.view()):
                return
        except Unreachable:
            return  # the change is made all the same
        await asyncio.sleep(_LOOK_PAUSE_S)


async def describe_configs(
    cluster: Cluster, resources: Sequence[ConfigResource]
) -> dict[ConfigResource, list[ConfigEntry] | KafkaError]:
    """The configurations of topics and brokers. A broker that cannot be reached has the error as its value."""
    by_broker: dict[int | None, list[ConfigResource]] = {}
    for resource in resources:
        by_broker.setdefault(_broker_of(resource), []).append(resource)
    found: dict[ConfigResource, list[ConfigEntry] | KafkaError] = {}
    questions = [_describe_at(cluster, broker_id, some) for broker_id, some in by_broker.items()]
    for answer in await asyncio.gather(*questions):
        found |= answer
    return found


async def _describe_at(
    cluster: Cluster, broker_id: int | None, resources: list[ConfigResource]
) -> dict[ConfigResource, list[ConfigEntry] | KafkaError]:
    entries = [
        DescribeConfigsResource(
            resource_type=resource.kind, resource_name=resource.name, configuration_keys=None
        )
        for resource in resources
    ]
    request = DescribeConfigsRequest(resources=entries, include_documentation=True)
    try:
        answer = await cluster.ask(request, DescribeConfigsResponse, broker_id=broker_id)
    except Unreachable as error:
        if broker_id is None:
            raise
        return dict.fromkeys(resources, KafkaError(ErrorCode.BROKER_NOT_AVAILABLE, str(error)))
    found: dict[ConfigResource, list[ConfigEntry] | KafkaError] = {}
    for result in answer.results:
        resource = ConfigResource(ResourceKind(result.resource_type), result.resource_name)
        if result.error_code:
            found[resource] = refusal(
                result.error_code, f"configuration of {resource.name}", result.error_message
            )
        else:
            found[resource] = [
                ConfigEntry(
                    name=entry.name,
                    value=entry.value,
                    source=entry.config_source,
                    read_only=entry.read_only,
                    sensitive=entry.is_sensitive,
                    documentation=entry.documentation or "",
                )
                for entry in result.configs
            ]
    return found


async def alter_configs(
    cluster: Cluster, resource: ConfigResource, changes: Mapping[str, str | None]
) -> None:
    """Set single values; None takes a value back to its default. KafkaError when refused."""
    configs = [
        AlterableConfig(name=name, config_operation=_DELETE if value is None else _SET, value=value)
        for name, value in changes.items()
    ]
    entry = AlterConfigsResource(resource_type=resource.kind, resource_name=resource.name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[entry], validate_only=False)
    answer = await cluster.ask(
        request,
        IncrementalAlterConfigsResponse,
        broker_id=_broker_of(resource),
        purpose=_CHANGES,
    )
    for result in answer.responses:
        if result.error_code:
            raise refusal(result.error_code, f"configuration of {resource.name}", result.error_message)


def _broker_of(resource: ConfigResource) -> int | None:
    """A broker's configuration is known to itself; the cluster's default for brokers, and topics', to all."""
    return int(resource.name) if resource.kind is ResourceKind.BROKER and resource.name.isdecimal() else None


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | KafkaError]:
    """Delete what lies before the given offsets (-1: everything): where each partition begins afterwards."""
    view = await cluster.view()
    found: dict[TopicPartition, int | KafkaError] = {}
    by_leader: dict[int, dict[str, list[DeleteRecordsPartition]]] = {}
    for place, offset in before.items():
        try:
            topics = by_leader.setdefault(view.leader(place).leader, {})
        except KafkaError as error:
            found[place] = error
            continue
        entry = DeleteRecordsPartition(partition_index=place.partition, offset=offset)
        topics.setdefault(place.topic, []).append(entry)
    questions = [_delete_at(cluster, leader, topics) for leader, topics in by_leader.items()]
    for answer in await asyncio.gather(*questions):
        found |= answer
    return found


async def _delete_at(
    cluster: Cluster, leader: int, topics: dict[str, list[DeleteRecordsPartition]]
) -> dict[TopicPartition, int | KafkaError]:
    request = DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=name, partitions=entries) for name, entries in topics.items()],
        timeout_ms=_broker_timeout_ms(cluster),
    )
    try:
        answer = await cluster.ask(request, DeleteRecordsResponse, broker_id=leader, purpose=_CHANGES)
    except Unreachable as error:
        refused = KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(error))
        return {
            TopicPartition(name, entry.partition_index): refused
            for name, entries in topics.items()
            for entry in entries
        }
    found: dict[TopicPartition, int | KafkaError] = {}
    for topic in answer.topics:
        for part in topic.partitions:
            place = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                cluster.forget_view()
                found[place] = refusal(part.error_code, f"deleting records of {place}")
            else:
                found[place] = part.low_watermark
    return found


def _broker_timeout_ms(cluster: Cluster) -> int:
    """What a broker may take: somewhat less than it is waited for, so that its answer is heard."""
    return int(cluster.timeout_ms * 0.8)
