"""Consumer groups, asked about and changed: listed, described, their offsets read, set and deleted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.group_offsets import CommittedOffset
from culver.gateway.cluster.view import TopicPartition


@dataclass(frozen=True, slots=True)
class GroupListing:
    """A group in a list. `type` is "classic" or "consumer", empty where the broker does not say."""

    group: str
    protocol_type: str
    state: str
    type: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class MemberDescription:
    """A member of a group and what it reads at the moment."""

    member_id: str
    instance_id: str | None
    client_id: str
    host: str
    assignment: tuple[TopicPartition, ...]


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group and its members. `error` when the coordinator has none to describe, or could not be asked."""

    group: str
    state: str
    type: str
    protocol_type: str
    assignor: str
    epoch: int
    coordinator: int
    members: tuple[MemberDescription, ...]
    error: KafkaError | None = None


async def list_groups(cluster: Cluster) -> list[GroupListing]:
    """All groups, by name. Groups of brokers that cannot be reached are missing; Unreachable when none can."""
    return []


async def describe_groups(cluster: Cluster, groups: Sequence[str]) -> dict[str, GroupDescription]:
    """Every group asked for, of either protocol."""
    return {}


async def committed_offsets(
    cluster: Cluster, groups: Sequence[str]
) -> dict[str, dict[TopicPartition, CommittedOffset]]:
    """All offsets of the groups; a group whose coordinator cannot be asked now is left out."""
    return {}


async def alter_offsets(cluster: Cluster, group: str, offsets: Mapping[TopicPartition, int]) -> None:
    """Set offsets of a group without members. KafkaError for the first that is refused."""


async def delete_group(cluster: Cluster, group: str) -> None:
    """Delete a group without members, with its offsets. KafkaError when refused."""
