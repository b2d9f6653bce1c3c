"""Fetches of consumers that want committed transactions only: how far they read, and when they are woken."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest
from replica_world import ReplicaNode, ReplicaWorld
from transaction_writer import Writer, lone_node

from culver.broker.handlers import fetch
from culver.filesystem import FileRange
from culver.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from culver.protocol.records import decode_records, iterate_headers

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
NO_SESSION_EPOCH = -1


class Reader:
    """A consumer of partition 0 that wants committed transactions only."""

    def __init__(self, node: ReplicaNode, isolation: int = READ_COMMITTED, *, files: bool = False) -> None:
        self.node = node
        self.isolation = isolation
        self.files = files
        self.replies: list[FetchResponse] = []
        self.session: tuple[int, int] = (0, NO_SESSION_EPOCH)

    def fetch(
        self, offset: int | None = 0, *, min_bytes: int = 1, wait_ms: int = 0, max_bytes: int = 1 << 20
    ) -> FetchResponse | None:
        """With None for an offset, go on in the session with nothing changed."""
        asked = [FetchPartition(partition=0, fetch_offset=offset or 0, partition_max_bytes=max_bytes)]
        session_id, session_epoch = self.session
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=self.isolation,
            session_id=session_id,
            session_epoch=session_epoch,
            topics=[] if offset is None else [FetchTopic(topic="t", partitions=asked)],
        )
        exchange: Any = SimpleNamespace(
            connection=SimpleNamespace(sends_files=self.files, peer_broker=None),
            version=12,
            reply=self.replies.append,
            abandoned=False,
            on_abandon=None,
        )
        response = fetch.handle(self.node, exchange, request)  # type: ignore[arg-type]
        if response is not None and session_epoch != NO_SESSION_EPOCH:
            self.session = (response.session_id, session_epoch + 1)
        return response

    def data(self, offset: int = 0, **options: Any) -> PartitionData:
        response = self.fetch(offset, **options)
        assert response is not None
        return only(response)


def only(response: FetchResponse) -> PartitionData:
    [data] = response.responses[0].partitions
    assert data.error_code == 0
    return data


def read_bytes(data: PartitionData) -> bytes:
    pieces: Any = data.records or ()
    return b"".join(piece.read() if isinstance(piece, FileRange) else bytes(piece) for piece in pieces)


def whole_batches(content: bytes) -> bytes:
    """Without the last batch, if it was cut off."""
    end = 0
    while (length := content[end + 8 : end + 12]) and end + 12 + int.from_bytes(length, "big") <= len(
        content
    ):
        end += 12 + int.from_bytes(length, "big")
    return content[:end]


def values(data: PartitionData) -> list[bytes | None]:
    """What a client makes of it: without markers, without what was aborted."""
    aborted = sorted(data.aborted_transactions or (), key=lambda one: one.first_offset)
    ended: set[int] = set()
    found: list[bytes | None] = []
    content = whole_batches(read_bytes(data))
    for position, header in iterate_headers(content):
        while aborted and aborted[0].first_offset <= header.last_offset:
            ended.add(aborted.pop(0).producer_id)
        if header.is_control:
            ended.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in ended):
            found += [record.value for record in decode_records(content, 1 << 20, position)]
    return found


def replicate(world: ReplicaWorld, end_offset: int | None = None) -> None:
    """Let the leader hear that everyone has all below this offset, or all."""
    partition = world[1].partition()
    for number in world.nodes:
        if number != 1:
            offset = partition.log.end_offset if end_offset is None else end_offset
            world[1].replication.follower_fetched(partition, number, 1, offset)
    world[1].after_requests()


@pytest.fixture
def alone() -> ReplicaNode:
    return lone_node()


@pytest.fixture
def world() -> ReplicaWorld:
    """One leads, two and three follow only as far as the test says."""
    world = ReplicaWorld(3)
    world.make_topic()
    world.run()
    for number in (2, 3):
        world[number].fetchers.close()
    return world


# -- how far ------------------------------------------------------------------------------------------------


def test_reads_end_where_the_first_open_transaction_begins(alone: ReplicaNode) -> None:
    writer = Writer(alone)
    writer.plain(b"a", b"b")
    writer.write(7, b"c")
    writer.plain(b"d")
    data = Reader(alone).data(0)
    assert (data.high_watermark, data.last_stable_offset) == (4, 2)
    assert values(data) == [b"a", b"b"]
    assert data.aborted_transactions == []
    assert read_bytes(Reader(alone).data(2)) == b""
    assert read_bytes(Reader(alone).data(3)) == b""
    writer.commit(7)
    data = Reader(alone).data(0)
    assert (data.high_watermark, data.last_stable_offset) == (5, 5)
    assert values(data) == [b"a", b"b", b"c", b"d"]


def test_whoever_wants_all_gets_all_and_hears_of_the_last_stable_offset(alone: ReplicaNode) -> None:
    writer = Writer(alone)
    writer.plain(b"a")
    writer.write(7, b"b")
    writer.write(8, b"c")
    writer.abort(8)
    data = Reader(alone, READ_UNCOMMITTED).data(0)
    assert (data.high_watermark, data.last_stable_offset) == (4, 1)
    assert data.aborted_transactions is None
    assert values(data) == [b"a", b"b", b"c"]


def test_aborted_transactions_come_with_the_records_that_need_them(alone: ReplicaNode) -> None:
    writer = Writer(alone)
    writer.write(7, b"a")
    writer.write(8, b"b")
    writer.abort(7)
    writer.plain(b"c")
    writer.write(7, b"d")
    writer.commit(8)
    writer.abort(7)
    data = Reader(alone).data(0)
    assert {(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()} == {
        (7, 0),
        (7, 4),
    }
    assert values(data) == [b"b", b"c"]
    # From the middle of one on it is still needed, and after its marker no longer.
    data = Reader(alone).data(1)
    assert (7, 0) in {(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()}
    data = Reader(alone).data(3)
    assert [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()] == [(7, 4)]
    assert Reader(alone).data(7).aborted_transactions == []


def test_a_read_that_is_cut_short_brings_no_transactions_from_far_behind_it(alone: ReplicaNode) -> None:
    writer = Writer(alone)
    for _ in range(200):
        writer.write(7, bytes(1000))
        writer.abort(7)
    data = Reader(alone).data(0, max_bytes=10_000)
    assert 9 <= len(data.aborted_transactions or ()) < 30
    assert values(data) == []


def test_files_are_sent_up_to_the_last_stable_offset(alone: ReplicaNode) -> None:
    writer = Writer(alone)
    for _ in range(5):
        writer.write(7, bytes(100_000))
    writer.abort(7)
    writer.plain(bytes(100_000))
    stable_bytes = alone.partition().log.size_bytes
    writer.write(7, bytes(100_000))
    writer.plain(bytes(100_000))
    data = Reader(alone, files=True).data(0)
    pieces: Any = data.records
    assert sum(map(len, pieces)) == stable_bytes
    assert [one.first_offset for one in data.aborted_transactions or ()] == [0]


def test_random_transactions_are_read_as_they_ended(alone: ReplicaNode) -> None:
    chance = random.Random(7)
    writer = Writer(alone)
    log = alone.partition().log
    written: list[tuple[int, bytes, int]] = []  # first offset, value, producer
    fate: dict[int, list[int]] = {}  # by producer, places in `written` that are open
    committed: set[int] = set()
    for number in range(600):
        producer = chance.randrange(1, 6)
        choice = chance.random()
        if choice < 0.2:
            committed.add(len(written))
            written.append((log.end_offset, b"%d" % number, 0))
            writer.plain(b"%d" % number)
        elif choice < 0.75 or not fate.get(producer):
            fate.setdefault(producer, []).append(len(written))
            written.append((log.end_offset, b"%d" % number, producer))
            writer.write(producer, b"%d" % number)
        elif choice < 0.87:
            committed.update(fate.pop(producer))
            writer.commit(producer)
        else:
            fate.pop(producer)
            writer.abort(producer)
        if number % 20 == 0:
            still_open = [written[place][0] for places in fate.values() for place in places]
            end = min(still_open, default=log.end_offset)
            start = chance.randrange(end + 1)
            expected = [
                value
                for place, (offset, value, _) in enumerate(written)
                if start <= offset < end and place in committed
            ]
            data = Reader(alone).data(start)
            assert data.last_stable_offset == end
            assert values(data) == expected


# -- waiting ------------------------------------------------------------------------------------------------


def test_a_long_poll_is_not_ended_by_what_it_may_not_read(alone: ReplicaNode) -> None:
    writer = Writer(alone)
    reader = Reader(alone)
    assert reader.fetch(0, wait_ms=5000) is None
    writer.write(7, b"a" * 1000)
    writer.plain(b"b" * 1000)
    assert reader.replies == []
    writer.commit(7)
    [response] = reader.replies
    assert values(only(response)) == [b"a" * 1000, b"b" * 1000]


def test_a_long_poll_that_finds_an_open_transaction_is_woken_by_its_end(alone: ReplicaNode) -> None:
    writer = Writer(alone)
    writer.write(7, b"a" * 1000)
    reader = Reader(alone)
    # The marker is smaller than what it waits for: what had been there before counts.
    assert reader.fetch(0, wait_ms=5000, min_bytes=900) is None
    writer.plain(b"b")
    assert reader.replies == []
    writer.abort(7)
    [response] = reader.replies
    assert values(only(response)) == [b"b"]


def test_a_long_poll_counts_only_what_it_may_read(alone: ReplicaNode) -> None:
    writer = Writer(alone)
    reader = Reader(alone)
    assert reader.fetch(0, wait_ms=5000, min_bytes=1500) is None
    writer.plain(b"a" * 1000)
    writer.write(7, b"b" * 1000)
    writer.write(8, b"c" * 1000)
    assert reader.replies == []
    writer.commit(8)
    assert reader.replies == [], "7 is open"
    writer.commit(7)
    assert len(reader.replies) == 1


def test_a_long_poll_ends_with_nothing_when_its_time_is_up(alone: ReplicaNode) -> None:
    reader = Reader(alone)
    assert reader.fetch(0, wait_ms=5000) is None
    Writer(alone).write(7, b"a")
    alone.world.run(4999)
    assert reader.replies == []
    alone.world.run(1)
    data = only(reader.replies[0])
    assert (data.high_watermark, data.last_stable_offset) == (1, 0)
    assert read_bytes(data) == b""
    assert not alone.partition().waiters


def test_with_several_replicas_the_marker_counts_once_it_is_committed(world: ReplicaWorld) -> None:
    writer = Writer(world[1])
    reader = Reader(world[1])
    writer.write(7, b"a")
    replicate(world)
    assert reader.fetch(0, wait_ms=5000) is None
    writer.commit(7)
    writer.plain(b"b")
    assert reader.replies == [], "the marker is not at the others yet"
    data = Reader(world[1]).data(0)
    assert (data.high_watermark, data.last_stable_offset) == (1, 0)
    replicate(world, 2)
    [response] = reader.replies
    data = only(response)
    assert (data.high_watermark, data.last_stable_offset) == (2, 2)
    assert values(data) == [b"a"]


def test_with_several_replicas_a_high_watermark_inside_a_transaction_ends_no_long_poll(
    world: ReplicaWorld,
) -> None:
    writer = Writer(world[1])
    reader = Reader(world[1])
    assert reader.fetch(0, wait_ms=5000) is None
    for _ in range(3):
        writer.write(7, b"a")
        replicate(world)
    assert reader.replies == []
    writer.abort(7)
    replicate(world)
    [response] = reader.replies
    assert values(only(response)) == []
    assert read_bytes(only(response)), "the consumer has to get past it"


def test_followers_know_what_is_stable_as_leaders_do() -> None:
    world = ReplicaWorld(2)
    world.make_topic()
    world.run()
    writer = Writer(world[1])
    writer.write(7, b"a")
    writer.abort(7)
    writer.write(7, b"b")
    world.run(600)
    follower = Reader(world[2])
    data = follower.data(0)
    assert (data.high_watermark, data.last_stable_offset) == (3, 2)
    assert [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()] == [(7, 0)]
    assert follower.fetch(2, wait_ms=5000) is None
    writer.commit(7)
    world.run(600)
    [response] = follower.replies
    assert values(only(response)) == [b"b"]


# -- sessions -----------------------------------------------------------------------------------------------


def test_a_session_hears_of_a_partition_when_its_transactions_end(alone: ReplicaNode) -> None:
    writer = Writer(alone)
    reader = Reader(alone)
    reader.session = (0, 0)
    writer.write(7, b"a")
    first = reader.fetch(0)
    assert first is not None
    assert only(first).last_stable_offset == 0
    # Nothing new.
    again = reader.fetch(None)
    assert again is not None
    assert again.responses == []
    writer.abort(7)
    ended = reader.fetch(None)
    assert ended is not None
    data = only(ended)
    assert data.last_stable_offset == 2
    assert [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()] == [(7, 0)]
    assert read_bytes(data)
