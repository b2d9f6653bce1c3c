"""Transactions, asked about: which there are, and what each has touched."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.every_broker import ask_every_broker
from culver.gateway.cluster.group_offsets import ELSEWHERE
from culver.gateway.cluster.view import TopicPartition, refusal
from culver.protocol.messages import describe_transactions as describing
from culver.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from culver.wire_client import Unreachable


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
    request = ListTransactionsRequest(state_filters=list(states), producer_id_filters=[])
    found: dict[str, TransactionListing] = {}
    for broker_id, answer in (await ask_every_broker(cluster, request, ListTransactionsResponse)).items():
        for entry in answer.transaction_states:
            found[entry.transactional_id] = TransactionListing(
                entry.transactional_id, entry.producer_id, entry.transaction_state, broker_id
            )
    return [found[name] for name in sorted(found)]


async def describe_transactions(
    cluster: Cluster, transactional_ids: Sequence[str]
) -> dict[str, TransactionDescription | KafkaError]:
    """Every transactional id asked for."""
    coordinators = await cluster.find_coordinators(transactional_ids, transactions=True)
    found: dict[str, TransactionDescription | KafkaError] = {}
    by_coordinator: dict[int, list[str]] = {}
    for name in dict.fromkeys(transactional_ids):
        if name in coordinators:
            by_coordinator.setdefault(coordinators[name], []).append(name)
        else:
            found[name] = KafkaError(
                ErrorCode.COORDINATOR_NOT_AVAILABLE,
                f"transactional id {name} has no coordinator at the moment",
            )
    questions = [_describe(cluster, coordinator, names) for coordinator, names in by_coordinator.items()]
    for answer in await asyncio.gather(*questions):
        found |= answer
    for name, result in found.items():
        if isinstance(result, KafkaError) and result.code in ELSEWHERE:
            cluster.forget_coordinator(name, transactions=True)
    return found


async def _describe(
    cluster: Cluster, coordinator: int, names: list[str]
) -> dict[str, TransactionDescription | KafkaError]:
    request = describing.DescribeTransactionsRequest(transactional_ids=names)
    try:
        answer = await cluster.ask(request, describing.DescribeTransactionsResponse, broker_id=coordinator)
    except Unreachable as error:
        return dict.fromkeys(names, KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, str(error)))
    return {state.transactional_id: _description(state) for state in answer.transaction_states}


def _description(state: describing.TransactionState) -> TransactionDescription | KafkaError:
    if state.error_code:
        return refusal(state.error_code, f"transactional id {state.transactional_id}")
    return TransactionDescription(
        transactional_id=state.transactional_id,
        state=state.transaction_state,
        producer_id=state.producer_id,
        producer_epoch=state.producer_epoch,
        timeout_ms=state.transaction_timeout_ms,
        started_ms=state.transaction_start_time_ms if state.transaction_start_time_ms >= 0 else None,
        partitions=tuple(
            TopicPartition(topic.topic, partition) for topic in state.topics for partition in topic.partitions
        ),
    )
