"""What `culver txn` asks: of coordinators about transactional ids, of leaders about open transactions."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from culver.cli.failure import Failure
from culver.cli.wire import Wire, check, error_code
from culver.core.image import BrokerInfo, ClusterImage
from culver.core.names import TRANSACTION_STATE_TOPIC
from culver.core.placement import PartitionKey
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages import describe_configs, find_coordinator
from culver.protocol.messages import describe_producers as producers
from culver.protocol.messages import describe_transactions as describing
from culver.protocol.messages import init_producer_id as initialising
from culver.protocol.messages import list_transactions as listing
from culver.protocol.messages import write_txn_markers as markers

MAX_TIMEOUT = "transaction.max.timeout.ms"
_BROKER = 4
_TRANSACTION = 1
_POLL_SECONDS = 0.1
# A coordinator that moves or loads, or that is still ending a transaction, will have an answer in a moment.
_PASSING = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.CONCURRENT_TRANSACTIONS,
    }
)
# A partition that was deleted or has another leader since its place was looked up.
_MOVED = frozenset({ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.NOT_LEADER_OR_FOLLOWER})

Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Filter:
    """Which transactional ids to list. States are named as on the wire."""

    states: tuple[str, ...] = ()
    producer_ids: tuple[int, ...] = ()
    longer_than_ms: int = -1
    pattern: str | None = None

    @property
    def least_version(self) -> int:
        """The first version of ListTransactions that has all of it."""
        return 2 if self.pattern is not None else 1 if self.longer_than_ms >= 0 else 0


@dataclass(frozen=True, slots=True)
class Listed:
    """A transactional id and the broker that coordinates it."""

    transactional_id: str
    coordinator: int
    producer_id: int
    state: str


@dataclass(frozen=True, slots=True)
class Described:
    """All that the coordinator tells of a transactional id; no start when no transaction is open."""

    transactional_id: str
    coordinator: BrokerInfo
    state: str
    timeout_ms: int
    started_ms: int | None
    producer_id: int
    producer_epoch: int
    partitions: tuple[PartitionKey, ...]


@dataclass(frozen=True, slots=True)
class Open:
    """A transaction that is open in a partition, as the partition's leader sees it."""

    topic: str
    partition: int
    producer_id: int
    producer_epoch: int
    coordinator_epoch: int
    start_offset: int
    last_timestamp_ms: int

    @property
    def key(self) -> PartitionKey:
        return self.topic, self.partition


class TransactionWire:
    """The questions and orders, over the connection of one command."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    # -- coordinators ---------------------------------------------------------------------------------------

    def listed(self, image: ClusterImage, chosen: Filter) -> list[Listed]:
        """The transactional ids of all brokers. Each answers for those that it coordinates."""
        request = listing.ListTransactionsRequest(
            state_filters=list(chosen.states),
            producer_id_filters=list(chosen.producer_ids),
            duration_filter=chosen.longer_than_ms,
            transactional_id_pattern=chosen.pattern,
        )
        # An id whose coordinator moves between two answers is in both, or told twice: the last word counts.
        found: dict[str, Listed] = {}
        for broker in image.brokers.values():
            answer = self._patiently(partial(self._list, broker, request, chosen.least_version))
            for each in answer.transaction_states:
                found[each.transactional_id] = Listed(
                    each.transactional_id, broker.id, each.producer_id, each.transaction_state
                )
        return sorted(found.values(), key=lambda each: each.transactional_id)

    def _list(
        self, broker: BrokerInfo, request: listing.ListTransactionsRequest, least_version: int
    ) -> listing.ListTransactionsResponse:
        answer = self._wire.ask_broker(
            broker, request, listing.ListTransactionsResponse, least_version=least_version
        )
        check(answer.error_code, None)
        return answer

    def described(self, transactional_id: str) -> Described:
        """KafkaError TRANSACTIONAL_ID_NOT_FOUND when no coordinator knows it."""

        def ask() -> Described:
            coordinator = self._coordinator(transactional_id)
            request = describing.DescribeTransactionsRequest(transactional_ids=[transactional_id])
            answer = self._wire.ask_broker(coordinator, request, describing.DescribeTransactionsResponse)
            (state,) = answer.transaction_states
            check(state.error_code, None)
            return Described(
                transactional_id=transactional_id,
                coordinator=coordinator,
                state=state.transaction_state,
                timeout_ms=state.transaction_timeout_ms,
                started_ms=state.transaction_start_time_ms if state.transaction_start_time_ms > 0 else None,
                producer_id=state.producer_id,
                producer_epoch=state.producer_epoch,
                partitions=tuple(
                    sorted((topic.topic, index) for topic in state.topics for index in topic.partitions)
                ),
            )

        return self._patiently(ask)

    def fence(self, transactional_id: str, timeout_ms: int) -> tuple[int, int]:
        """Take a new epoch for the transactional id, which aborts its transaction: gives producer id and epoch."""

        def ask() -> tuple[int, int]:
            coordinator = self._coordinator(transactional_id)
            request = initialising.InitProducerIdRequest(
                transactional_id=transactional_id, transaction_timeout_ms=timeout_ms
            )
            answer = self._wire.ask_broker(coordinator, request, initialising.InitProducerIdResponse)
            check(answer.error_code, None)
            return answer.producer_id, answer.producer_epoch

        return self._patiently(ask)

    def _coordinator(self, transactional_id: str) -> BrokerInfo:
        request = find_coordinator.FindCoordinatorRequest(
            key=transactional_id, key_type=_TRANSACTION, coordinator_keys=[transactional_id]
        )
        answer = self._wire.ask(request, find_coordinator.FindCoordinatorResponse)
        check(answer.error_code, answer.error_message)
        for each in answer.coordinators:
            check(each.error_code, each.error_message)
            return BrokerInfo(each.node_id, each.host, each.port)
        return BrokerInfo(answer.node_id, answer.host, answer.port)

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        """Ask again while the reason for a refusal passes by itself, as long as a command waits for an answer."""
        deadline_s = time.monotonic() + self._wire.timeout_s
        while True:
            try:
                return ask()
            except KafkaError as error:
                if error.code not in _PASSING or time.monotonic() > deadline_s:
                    raise
            time.sleep(_POLL_SECONDS)

    # -- leaders --------------------------------------------------------------------------------------------

    def max_timeout_ms(self, image: ClusterImage) -> int:
        """The longest timeout that a producer may ask for, by the settings of the brokers."""
        found = [0]
        for broker in image.brokers.values():
            resource = describe_configs.DescribeConfigsResource(
                resource_type=_BROKER, resource_name=str(broker.id), configuration_keys=[MAX_TIMEOUT]
            )
            request = describe_configs.DescribeConfigsRequest(resources=[resource])
            answer = self._wire.ask_broker(broker, request, describe_configs.DescribeConfigsResponse)
            for result in answer.results:
                check(result.error_code, result.error_message)
                found += [int(each.value) for each in result.configs if each.value]
        return max(found)

    def open_transactions(
        self, image: ClusterImage, partitions: Iterable[PartitionKey]
    ) -> tuple[list[Open], list[PartitionKey]]:
        """The transactions that are open in these partitions, and the partitions that nobody could be asked about."""
        by_leader: dict[int, list[PartitionKey]] = defaultdict(list)
        for topic, index in partitions:
            by_leader[image.topics[topic].partitions[index].leader].append((topic, index))
        found: list[Open] = []
        unknown: list[PartitionKey] = []
        for leader, keys in sorted(by_leader.items()):
            if leader not in image.brokers:
                unknown += keys
                continue
            answer = self._wire.ask_broker(
                image.brokers[leader], _producers_of(keys), producers.DescribeProducersResponse
            )
            for name, partition in (
                (topic.name, each) for topic in answer.topics for each in topic.partitions
            ):
                if error_code(partition.error_code) in _MOVED:
                    unknown.append((name, partition.partition_index))
                    continue
                check(partition.error_code, partition.error_message)
                found += [
                    Open(
                        topic=name,
                        partition=partition.partition_index,
                        producer_id=each.producer_id,
                        producer_epoch=each.producer_epoch,
                        coordinator_epoch=each.coordinator_epoch,
                        start_offset=each.current_txn_start_offset,
                        last_timestamp_ms=each.last_timestamp,
                    )
                    for each in partition.active_producers
                    if each.current_txn_start_offset >= 0
                ]
        return sorted(found, key=lambda each: (each.key, each.start_offset)), sorted(unknown)

    def abandoned(self, image: ClusterImage, candidates: Collection[Open]) -> list[Open]:
        """Those that no coordinator will ever end: it does not know the producer, or not of the partition."""
        if not candidates:
            return []
        state_topic = image.topics.get(TRANSACTION_STATE_TOPIC)
        silent = [each.index for each in (state_topic.partitions if state_topic else ()) if each.leader < 0]
        if silent:
            raise Failure(
                f"{TRANSACTION_STATE_TOPIC}-{silent[0]} has no leader: who coordinates what is not known",
                "`culver cluster why-unhealthy` says which broker to start",
            )
        asked = Filter(producer_ids=tuple(sorted({each.producer_id for each in candidates})))
        known: dict[int, set[PartitionKey]] = defaultdict(set)
        for each in self.listed(image, asked):
            try:
                known[each.producer_id].update(self.described(each.transactional_id).partitions)
            except KafkaError as error:
                if error.code != ErrorCode.TRANSACTIONAL_ID_NOT_FOUND:  # expired since
                    raise
        return [each for each in candidates if each.key not in known[each.producer_id]]

    def write_abort_marker(self, image: ClusterImage, transaction: Open) -> None:
        """End a transaction in one partition, past its coordinator."""
        topic = markers.WritableTxnMarkerTopic(
            name=transaction.topic, partition_indexes=[transaction.partition]
        )
        marker = markers.WritableTxnMarker(
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
            transaction_result=False,
            topics=[topic],
            # A producer that has never seen a marker has none.
            coordinator_epoch=max(0, transaction.coordinator_epoch),
        )
        leader = image.brokers[image.topics[transaction.topic].partitions[transaction.partition].leader]
        request = markers.WriteTxnMarkersRequest(markers=[marker])
        answer = self._wire.ask_broker(leader, request, markers.WriteTxnMarkersResponse)
        for result in (each for one in answer.markers for each in one.topics):
            for partition in result.partitions:
                check(partition.error_code, None)


def _producers_of(keys: Iterable[PartitionKey]) -> producers.DescribeProducersRequest:
    indexes: dict[str, list[int]] = defaultdict(list)
    for topic, index in keys:
        indexes[topic].append(index)
    return producers.DescribeProducersRequest(
        topics=[
            producers.TopicRequest(name=name, partition_indexes=found)
            for name, found in sorted(indexes.items())
        ]
    )
