"""Where partitions end for consumers of committed transactions, and what is said of their producers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from log_batches import NOW_MS
from replica_world import ReplicaNode
from transaction_writer import Writer, lone_node

from culver.broker.handlers import describe_producers, list_offsets
from culver.errors import ErrorCode
from culver.protocol.messages.describe_producers import DescribeProducersRequest, ProducerState, TopicRequest
from culver.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


@pytest.fixture
def node() -> ReplicaNode:
    """Record n is n seconds after the start; 0 and 1 are plain, 2 is in an open transaction, 3 is plain."""
    node = lone_node()
    writer = Writer(node)
    for number in range(2):
        writer.plain(b"plain", timestamp=NOW_MS + number * 1000)
    writer.write(7, b"within", timestamp=NOW_MS + 2000)
    writer.plain(b"plain", timestamp=NOW_MS + 3000)
    return node


def offset_of(node: ReplicaNode, timestamp: int, isolation: int) -> int:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    request = ListOffsetsRequest(
        replica_id=-1, isolation_level=isolation, topics=[ListOffsetsTopic(name="t", partitions=[partition])]
    )
    exchange: Any = SimpleNamespace(version=7)
    (answer,) = list_offsets.handle(node, exchange, request).topics[0].partitions  # type: ignore[arg-type]
    assert answer.error_code == ErrorCode.NONE
    return answer.offset


@pytest.mark.parametrize(
    ("timestamp", "of_all", "of_ended"),
    [
        (LATEST, 4, 2),
        (EARLIEST, 0, 0),
        (NOW_MS + 1000, 1, 1),
        (NOW_MS + 2000, 2, -1),
        (NOW_MS + 3000, 3, -1),
        (MAX_TIMESTAMP, 3, -1),
    ],
)
def test_an_open_transaction_and_what_is_behind_it_is_not_there_for_readers_of_ended_ones(
    node: ReplicaNode, timestamp: int, of_all: int, of_ended: int
) -> None:
    assert offset_of(node, timestamp, READ_UNCOMMITTED) == of_all
    assert offset_of(node, timestamp, READ_COMMITTED) == of_ended
    Writer(node).commit(7)
    at_end = 5 if timestamp == LATEST else of_all
    assert (
        offset_of(node, timestamp, READ_COMMITTED) == at_end == offset_of(node, timestamp, READ_UNCOMMITTED)
    )


def producers(node: ReplicaNode) -> list[ProducerState]:
    request = DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[0])])
    exchange: Any = SimpleNamespace(version=0)
    response = describe_producers.handle(node, exchange, request)  # type: ignore[arg-type]
    return response.topics[0].partitions[0].active_producers


def test_producers_are_described_with_their_open_transaction(node: ReplicaNode) -> None:
    [one] = producers(node)
    assert (one.producer_id, one.current_txn_start_offset, one.coordinator_epoch) == (7, 2, -1)
    Writer(node).abort(7, coordinator_epoch=3)
    [one] = producers(node)
    assert (one.producer_id, one.current_txn_start_offset, one.coordinator_epoch) == (7, -1, 3)
