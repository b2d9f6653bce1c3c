"""Ask a cluster what a reader needs to know, over blocking sockets: partitions, offsets, records, commits.

It follows leaders as a client should: what a broker refuses because it does not lead a partition (any more), or does
not answer, is asked again of the broker that the cluster names then, until `retry_s` have passed.

    with BlockingCluster("127.0.0.1:9092") as cluster:
        ends = cluster.list_offsets({("orders", 0): LATEST})
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from culver.core.names import OWN_TOPICS_PREFIX
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from culver.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from culver.spark.connection import Connection
from culver.spark.wire_batches import Aborted
from culver.wire_client import Unreachable, host_and_port

LATEST = -1
EARLIEST = -2
NO_LEADER = -1
NO_OFFSET = -1

_CLIENT_ID = "culver-spark"
_CONSUMER = -1  # the replica id of those who are no replica
_FIRST_PAUSE_SECONDS = 0.02
_LONGEST_PAUSE_SECONDS = 1.0
# The last versions that name topics, rather than giving their ids.
_FETCH_BY_NAME = 12
_OFFSET_COMMIT_BY_NAME = 9
_FIND_ONE_COORDINATOR = 3
_TOPIC_WAIT_SECONDS = 5.0

TopicPartition = tuple[str, int]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fetched:
    """What a fetch found. `records` is valid until the next fetch from the same broker."""

    records: memoryview
    aborted: list[Aborted]
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int


class BlockingCluster:
    """The brokers behind a bootstrap address. Not for several threads at once."""

    def __init__(
        self,
        bootstrap: str,
        *,
        timeout_s: float = 30.0,
        retry_s: float = 60.0,
        topic_wait_s: float = _TOPIC_WAIT_SECONDS,
    ) -> None:
        self._bootstrap = [host_and_port(address) for address in bootstrap.split(",") if address.strip()]
        if not self._bootstrap:
            raise ValueError("no broker address given: expected HOST:PORT")
        self._timeout_s = timeout_s
        self._retry_s = retry_s
        self._topic_wait_s = topic_wait_s
        self._brokers: dict[int, tuple[str, int]] = {}
        self._leaders: dict[TopicPartition, int] = {}
        self._connections: dict[tuple[str, int], Connection] = {}

    # -- what there is --------------------------------------------------------------------------------------

    def metadata(self, topics: Iterable[str] | None = None) -> dict[str, dict[int, int]]:
        """The partitions of the topics and the broker that leads each (-1: none at the moment); None: all topics.

        Topics of the cluster's own are left out of "all". UNKNOWN_TOPIC_OR_PARTITION for a topic that does not
        show up within a few seconds: one that was created just now takes its time to reach every broker.
        """
        names = None if topics is None else sorted(set(topics))
        return self.retrying(lambda: self._metadata(names), self._topic_wait_s if names else self._retry_s)

    def _metadata(self, names: list[str] | None) -> dict[str, dict[int, int]]:
        request = MetadataRequest(
            topics=None if names is None else [MetadataRequestTopic(name=name) for name in names],
            allow_auto_topic_creation=False,
        )
        answer = self._anyone().ask(request, MetadataResponse)
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in answer.brokers}
        found = {}
        for topic in answer.topics:
            name = topic.name or ""
            if topic.error_code:
                raise _refused(topic.error_code, f"topic {name}")
            if names is None and (topic.is_internal or name.startswith(OWN_TOPICS_PREFIX)):
                continue
            leaders = {partition.partition_index: partition.leader_id for partition in topic.partitions}
            self._leaders |= {(name, partition): leader for partition, leader in leaders.items()}
            found[name] = dict(sorted(leaders.items()))
        return found

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], *, read_committed: bool = False
    ) -> dict[TopicPartition, int]:
        """By partition: the first offset whose timestamp is not before the given one (ms), or EARLIEST or LATEST.

        NO_OFFSET where every record is older. With `read_committed` LATEST is the last stable offset.
        """
        left = dict(wanted)
        found: dict[TopicPartition, int] = {}
        while left:
            some = self.retrying(partial(self._list_offsets, left, read_committed))
            found |= some
            left = {place: timestamp for place, timestamp in left.items() if place not in some}
        return found

    def _list_offsets(
        self, wanted: Mapping[TopicPartition, int], read_committed: bool
    ) -> dict[TopicPartition, int]:
        """Those that one broker leads."""
        connection = self.leader(*next(iter(wanted)))
        topics: dict[str, list[ListOffsetsPartition]] = {}
        for (topic, partition), timestamp in wanted.items():
            if self._leads(connection, topic, partition):
                entry = ListOffsetsPartition(partition_index=partition, timestamp=timestamp)
                topics.setdefault(topic, []).append(entry)
        request = ListOffsetsRequest(
            replica_id=_CONSUMER,
            isolation_level=int(read_committed),
            topics=[ListOffsetsTopic(name=name, partitions=entries) for name, entries in topics.items()],
            timeout_ms=int(self._timeout_s * 1000),
        )
        answer = connection.ask(request, ListOffsetsResponse)
        found = {}
        for topic_answer in answer.topics:
            for part in topic_answer.partitions:
                place = topic_answer.name, part.partition_index
                if part.error_code:
                    raise _refused(part.error_code, f"offsets of {place[0]}-{place[1]}")
                found[place] = part.offset
        return found

    # -- records --------------------------------------------------------------------------------------------

    def fetch(
        self,
        topic: str,
        partition: int,
        offset: int,
        max_bytes: int = 8 << 20,
        *,
        read_committed: bool = False,
        max_wait_ms: int = 500,
    ) -> Fetched:
        """Record batches from the one that holds `offset` on; none when nothing comes within `max_wait_ms`.

        Raises KafkaError(OFFSET_OUT_OF_RANGE) outside what the partition holds.
        """
        request = fetch_request(topic, partition, offset, max_bytes, read_committed, max_wait_ms)

        def attempt() -> Fetched:
            connection = self.leader(topic, partition)
            send_fetch(connection, request)
            return receive_fetched(connection, topic, partition)

        return self.retrying(attempt)

    def leader(self, topic: str, partition: int) -> Connection:
        """A connection to the broker that leads the partition."""
        if (topic, partition) not in self._leaders:
            self._metadata([topic])
        broker = self._leaders.get((topic, partition))
        if broker is None:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"topic {topic} has no partition {partition}"
            )
        if broker == NO_LEADER or broker not in self._brokers:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{topic}-{partition} has no leader")
        return self._connect(self._brokers[broker])

    def _leads(self, connection: Connection, topic: str, partition: int) -> bool:
        broker = self._leaders.get((topic, partition))
        return broker is not None and self._brokers.get(broker) == connection.address

    # -- progress -------------------------------------------------------------------------------------------

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        """Store offsets for a group that has no members: how far a job has come, for those who look at lag."""
        if offsets:
            self.retrying(lambda: self._commit_offsets(group, offsets))

    def _commit_offsets(self, group: str, offsets: Mapping[TopicPartition, int]) -> None:
        found = self._anyone().ask(
            FindCoordinatorRequest(key=group), FindCoordinatorResponse, newest=_FIND_ONE_COORDINATOR
        )
        if found.error_code:
            raise _refused(found.error_code, f"the coordinator of group {group}")
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for (topic, partition), offset in sorted(offsets.items()):
            entry = OffsetCommitRequestPartition(
                partition_index=partition, committed_offset=offset, committed_metadata=""
            )
            topics.setdefault(topic, []).append(entry)
        request = OffsetCommitRequest(
            group_id=group,
            member_id="",
            topics=[
                OffsetCommitRequestTopic(name=name, partitions=entries) for name, entries in topics.items()
            ],
        )
        connection = self._connect((found.host, found.port))
        answer = connection.ask(request, OffsetCommitResponse, newest=_OFFSET_COMMIT_BY_NAME)
        for topic_answer in answer.topics:
            for part in topic_answer.partitions:
                if part.error_code:
                    raise _refused(
                        part.error_code,
                        f"offset of {topic_answer.name}-{part.partition_index} for group {group}",
                    )

    # -- connections ----------------------------------------------------------------------------------------

    def retrying(self, attempt: Callable[[], T], retry_s: float | None = None) -> T:
        """What `attempt` returns, once no retriable error stands in its way; after each, leaders are looked up."""
        deadline = time.monotonic() + (self._retry_s if retry_s is None else retry_s)
        pause_s = _FIRST_PAUSE_SECONDS
        while True:
            try:
                return attempt()
            except KafkaError as error:
                if not error.retriable or time.monotonic() + pause_s > deadline:
                    raise
            except Unreachable:
                if time.monotonic() + pause_s > deadline:
                    raise
            self.forget_leaders()
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_SECONDS)

    def forget_leaders(self) -> None:
        """Ask again who leads what, and make new connections in place of those that may be out of step."""
        self._leaders.clear()
        self.close()

    def _anyone(self) -> Connection:
        """A connection to a broker of the cluster, whichever answers first."""
        if self._connections:
            return next(iter(self._connections.values()))
        addresses = dict.fromkeys([*self._brokers.values(), *self._bootstrap])
        reasons = []
        for address in addresses:
            try:
                return self._connect(address)
            except Unreachable as error:
                reasons.append(str(error))
        raise Unreachable("; ".join(reasons))

    def _connect(self, address: tuple[str, int]) -> Connection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = Connection(address, self._timeout_s, _CLIENT_ID)
        return connection

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def fetch_request(
    topic: str, partition: int, offset: int, max_bytes: int, read_committed: bool, max_wait_ms: int
) -> FetchRequest:
    entry = FetchPartition(partition=partition, fetch_offset=offset, partition_max_bytes=max_bytes)
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        isolation_level=int(read_committed),
        topics=[FetchTopic(topic=topic, partitions=[entry])],
    )


def send_fetch(connection: Connection, request: FetchRequest) -> None:
    connection.send(request, newest=_FETCH_BY_NAME)


def receive_fetched(connection: Connection, topic: str, partition: int) -> Fetched:
    answer = connection.receive(FetchResponse)
    if answer.error_code:
        raise _refused(answer.error_code, f"fetch from {topic}-{partition}")
    if not answer.responses or not answer.responses[0].partitions:
        raise Unreachable(f"the broker at {connection} answered a fetch with nothing")
    found = answer.responses[0].partitions[0]
    if found.error_code:
        raise _refused(found.error_code, f"fetch from {topic}-{partition}")
    aborted = [Aborted(entry.producer_id, entry.first_offset) for entry in found.aborted_transactions or ()]
    records = found.records if found.records is not None else b""
    assert isinstance(records, bytes | memoryview)
    return Fetched(
        memoryview(records), aborted, found.high_watermark, found.last_stable_offset, found.log_start_offset
    )


def _refused(code: int, what: str) -> KafkaError:
    known = ErrorCode(code) if code in ErrorCode._value2member_map_ else ErrorCode.UNKNOWN_SERVER_ERROR
    return KafkaError(known, f"{what}: {known.text}")
