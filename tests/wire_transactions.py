"""A transactional producer that sends just what a test tells it, over one raw connection."""

from __future__ import annotations

import time
from typing import Any

from culver.errors import ErrorCode
from culver.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from culver.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from culver.protocol.messages.describe_transactions import DescribeTransactionsRequest
from culver.protocol.messages.end_txn import EndTxnRequest
from culver.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest
from culver.protocol.messages.init_producer_id import InitProducerIdRequest
from culver.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from culver.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from culver.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from culver.protocol.records import Record, decode_records, encode_batch, iterate_headers
from raw_connection import RawConnection

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
LATEST = -1
_RECORDS_MAX_BYTES = 1 << 20


class WireProducer:
    """Id, epoch and sequences are plain attributes, to be changed by tests that want to lie."""

    def __init__(self, connection: RawConnection, transactional_id: str) -> None:
        self.connection = connection
        self.transactional_id = transactional_id
        self.producer_id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}

    def find(self, until_found: Any, *, group: str | None = None) -> None:
        """Ask for the coordinator (of a group, if one is given) until there is one; `until_found(condition)` waits."""

        def found() -> bool:
            key, kind = (self.transactional_id, 1) if group is None else (group, 0)
            answer = self.connection.call(FindCoordinatorRequest(key=key, key_type=kind), 2)
            return ErrorCode(answer.error_code) is ErrorCode.NONE

        until_found(found)

    def init(self, timeout_ms: int = 60_000, version: int = 4, **identity: int) -> ErrorCode:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=timeout_ms, **identity
        )
        answer = self.connection.call(request, version)
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return code

    def add(self, topic: str, *partitions: int, version: int = 3) -> list[ErrorCode]:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.producer_id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )
        answer = self.connection.call(request, version)
        (result,) = answer.results_by_topic_v3_and_below
        return [ErrorCode(one.partition_error_code) for one in result.results_by_partition]

    def batch(self, target: tuple[str, int], *values: bytes, transactional: bool = True) -> bytearray:
        return encode_batch(
            [Record(position, int(time.time() * 1000), None, value) for position, value in enumerate(values)],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            base_sequence=self.sequences.get(target, 0),
            is_transactional=transactional,
        )

    def produce(
        self, topic: str, partition: int, *values: bytes, version: int = 11, transactional: bool = True
    ) -> ErrorCode:
        target = (topic, partition)
        records = self.batch(target, *values, transactional=transactional)
        request = ProduceRequest(
            transactional_id=self.transactional_id if transactional else None,
            acks=-1,
            timeout_ms=5_000,
            topic_data=[
                TopicProduceData(
                    name=topic, partition_data=[PartitionProduceData(index=partition, records=records)]
                )
            ],
        )
        answer = self.connection.call(request, version)
        code = ErrorCode(answer.responses[0].partition_responses[0].error_code)
        if code is ErrorCode.NONE:
            self.sequences[target] = self.sequences.get(target, 0) + len(values)
        return code

    def end(self, *, commit: bool, version: int = 4) -> ErrorCode:
        request = EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            committed=commit,
        )
        answer = self.connection.call(request, version)
        code = ErrorCode(answer.error_code)
        if code is ErrorCode.NONE and version >= 5:
            self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            self.sequences.clear()
        return code

    def add_offsets(self, group: str, version: int = 3) -> ErrorCode:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        return ErrorCode(self.connection.call(request, version).error_code)

    def commit_offset(
        self, group: str, topic: str, partition: int, offset: int, version: int = 3, **member: Any
    ) -> ErrorCode:
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=""
                        )
                    ],
                )
            ],
            **member,
        )
        answer = self.connection.call(request, version)
        return ErrorCode(answer.topics[0].partitions[0].error_code)

    def state(self) -> str:
        """By the coordinator's word, an error's name if there is one."""
        request = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        (described,) = self.connection.call(request, 0).transaction_states
        code = ErrorCode(described.error_code)
        return code.name if code is not ErrorCode.NONE else described.transaction_state


def latest_offset(connection: RawConnection, topic: str, partition: int, isolation: int) -> int:
    request = ListOffsetsRequest(
        replica_id=-1,
        isolation_level=isolation,
        topics=[
            ListOffsetsTopic(
                name=topic, partitions=[ListOffsetsPartition(partition_index=partition, timestamp=LATEST)]
            )
        ],
    )
    answer = connection.call(request, 5)
    offset: int = answer.topics[0].partitions[0].offset
    return offset


def read(
    connection: RawConnection,
    topic: str,
    partition: int = 0,
    *,
    isolation: int = READ_COMMITTED,
    offset: int = 0,
) -> list[bytes]:
    """What a consumer makes of one fetch: with read_committed, without the records of aborted transactions."""
    request = FetchRequest(
        replica_id=-1,
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=_RECORDS_MAX_BYTES,
        isolation_level=isolation,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[
                    FetchPartition(
                        partition=partition, fetch_offset=offset, partition_max_bytes=_RECORDS_MAX_BYTES
                    )
                ],
            )
        ],
    )
    answer = connection.call(request, 11)
    data = answer.responses[0].partitions[0]
    assert data.error_code == 0, ErrorCode(data.error_code)
    aborted = sorted(data.aborted_transactions or (), key=lambda one: one.first_offset)
    values: list[bytes] = []
    skipping: set[int] = set()
    records = bytes(data.records or b"")
    for position, header in iterate_headers(records):
        while aborted and aborted[0].first_offset <= header.last_offset:
            skipping.add(aborted.pop(0).producer_id)
        if header.is_control:
            skipping.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in skipping):
            values += [
                record.value or b"" for record in decode_records(records, _RECORDS_MAX_BYTES, position)
            ]
    return values
