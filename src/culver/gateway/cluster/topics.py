"""Topics, asked about and changed: created, deleted, configured, given partitions, cut at their beginning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import TopicPartition


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


async def delete_topics(cluster: Cluster, names: Sequence[str]) -> dict[str, KafkaError | None]:
    """Delete topics: what stood in the way of each, None where nothing did."""
    return {}


async def create_partitions(cluster: Cluster, topic: str, total: int) -> None:
    """Give a topic more partitions, so that there are `total`. KafkaError when refused."""


async def describe_configs(
    cluster: Cluster, resources: Sequence[ConfigResource]
) -> dict[ConfigResource, list[ConfigEntry] | KafkaError]:
    """The configurations of topics and brokers."""
    return {}


async def alter_configs(
    cluster: Cluster, resource: ConfigResource, changes: Mapping[str, str | None]
) -> None:
    """Set single values; None takes a value back to its default. KafkaError when refused."""


async def delete_records(
    cluster: Cluster, before: Mapping[TopicPartition, int]
) -> dict[TopicPartition, int | KafkaError]:
    """Delete what lies before the given offsets (-1: everything): where each partition begins afterwards."""
    return {}
