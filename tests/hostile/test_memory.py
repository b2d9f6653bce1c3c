"""Clients that try to fill the broker's memory: announced sizes, unread answers, bombs in batches."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import time
from collections.abc import Callable, Iterator

import cramjam
import pytest
from crc32c import crc32c

from culver.errors import ErrorCode
from culver.protocol.apis import APIS, Api
from culver.protocol.compression import XERIAL_HEADER, Codec
from culver.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from culver.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest
from culver.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from culver.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from culver.protocol.messages.metadata import MetadataRequest
from culver.protocol.primitives import ELEMENTS_MAX
from hostile.sensible_requests import swollen_requests
from hostile.victim import (
    COMPACTED,
    MIB,
    PREY,
    Victim,
    fetch_request,
    produce_request,
    record_batch,
    victim_broker,
)
from raw_connection import RawConnection, encode_request, framed

ANNOUNCED = 90 * MIB
# From the next version on they have topic ids, of which none is known.
LAST_VERSION_WITH_NAMES = {"Produce": 12, "Fetch": 12, "OffsetCommit": 9, "OffsetFetch": 9, "DeleteTopics": 5}


@contextlib.contextmanager
def connections(victim: Victim, count: int) -> Iterator[list[socket.socket]]:
    """Open at the same time; the limit of open files is raised where it must be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count + 200:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, count + 200), hard))
    try:
        with contextlib.ExitStack() as opened:
            yield [opened.enter_context(socket.create_connection(victim.address)) for _ in range(count)]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def send_without_reading(connection: socket.socket, data: bytes, patience_seconds: float = 0.5) -> None:
    """As much as the broker takes, until it has taken nothing for a while."""
    connection.setblocking(False)
    sent = 0
    last = time.monotonic()
    while sent < len(data) and time.monotonic() - last < patience_seconds:
        try:
            sent += connection.send(data[sent : sent + (256 << 10)])
            last = time.monotonic()
        except BlockingIOError:
            time.sleep(0.01)
        except (BrokenPipeError, ConnectionResetError):
            break


@pytest.mark.parametrize("extra_bytes", [0, 1, 50, 1500])
def test_a_thousand_announced_requests_of_90_mb_cost_little(victim: Victim, extra_bytes: int) -> None:
    start = struct.pack(">i", ANNOUNCED) + encode_request(produce_request(PREY, record_batch(b"x" * 3000)), 9)
    with (
        connections(victim, 1000) as opened,
        victim.others_are_served(),
        victim.grows_by_less_than(50 * MIB),
    ):
        for connection in opened:
            connection.sendall(start[: 4 + extra_bytes])


def test_partial_requests_stay_within_their_budget() -> None:
    with victim_broker(queued_max_request_bytes=40 * MIB, socket_request_max_bytes=20 * MIB) as victim:
        start = struct.pack(">i", 20 * MIB) + bytes(5 * MIB)
        # The budget, one request beyond it, and what the allocator keeps: not the 250 MB that are sent.
        with (
            connections(victim, 50) as opened,
            victim.others_are_served(),
            victim.grows_by_less_than(80 * MIB),
        ):
            for connection in opened:
                send_without_reading(connection, start, patience_seconds=0.05)


@pytest.mark.parametrize(
    "request_",
    [
        MetadataRequest(topics=None),
        fetch_request(PREY, 0, max_bytes=50 * MIB),
        ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=PREY, partitions=[ListOffsetsPartition(partition_index=0, timestamp=-1)]
                )
            ],
        ),
    ],
    ids=lambda request: type(request).__name__,
)
def test_answers_that_nobody_reads_do_not_pile_up(victim: Victim, request_: object) -> None:
    with RawConnection(victim.address) as connection:
        for _ in range(4):
            connection.call(produce_request(PREY, record_batch(b"y" * 900_000)), 9)
    payload = framed(encode_request(request_, 9))  # type: ignore[arg-type]
    with connections(victim, 3) as opened, victim.others_are_served(), victim.grows_by_less_than(60 * MIB):
        for connection in opened:
            send_without_reading(connection, payload * (4 * MIB // len(payload)))


def test_answers_behind_a_long_poll_do_not_pile_up(victim: Victim) -> None:
    """The first request waits for a minute; a thousand behind it could be answered at once."""
    long_poll = framed(encode_request(fetch_request(COMPACTED, 0, max_wait_ms=60_000), 11))
    behind = framed(encode_request(fetch_request(PREY, 0, max_bytes=50 * MIB), 11))
    with connections(victim, 3) as opened, victim.others_are_served(), victim.grows_by_less_than(60 * MIB):
        for connection in opened:
            send_without_reading(connection, long_poll + behind * (8 * MIB // len(behind)))


def test_consumers_that_stop_reading_share_a_bounded_memory() -> None:
    with victim_broker(queued_max_response_bytes=20 * MIB, fetch_max_bytes=10 * MIB) as victim:
        with RawConnection(victim.address) as connection:
            for _ in range(12):
                connection.call(produce_request(PREY, record_batch(b"y" * 900_000)), 9)
        payload = framed(encode_request(fetch_request(PREY, 0, max_bytes=10 * MIB), 11))
        with (
            connections(victim, 100) as opened,
            victim.others_are_served(),
            victim.grows_by_less_than(70 * MIB),
        ):
            for connection in opened:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.sendall(payload)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_as_many_elements_as_a_request_may_have_hold_nobody_up(victim: Victim, api: Api) -> None:
    version = LAST_VERSION_WITH_NAMES.get(api.name, api.max_version)
    with victim.others_are_served(), victim.grows_by_less_than(100 * MIB):
        for request in swollen_requests(api, version, ELEMENTS_MAX):
            with RawConnection(victim.address) as connection:
                connection.send(framed(encode_request(request, version)))
                assert connection.receive_frame()


def test_fetch_sessions_share_a_bounded_memory(victim: Victim) -> None:
    """Sixty sessions of 65,000 partitions each would take a gigabyte."""
    partitions = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=1) for number in range(65_000)
    ]
    request = FetchRequest(
        max_wait_ms=0,
        min_bytes=0,
        max_bytes=1,
        session_id=0,
        session_epoch=0,
        topics=[FetchTopic(topic=PREY, partitions=partitions)],
    )
    payload = framed(encode_request(request, 11))
    session_ids = []
    with victim.others_are_served(), victim.grows_by_less_than(200 * MIB):
        for _ in range(15):
            with RawConnection(victim.address) as connection:
                connection.send(payload)
                # correlation id, throttle time, error code, session id
                session_ids.append(struct.unpack_from(">iihi", connection.receive_frame())[3])
    assert session_ids[0] != 0
    assert session_ids[-1] == 0, "who comes too late does without a session"


def test_groups_keep_no_more_than_fits_into_their_record(victim: Victim) -> None:
    with (
        victim.others_are_served(),
        victim.grows_by_less_than(120 * MIB),
        RawConnection(victim.address) as connection,
    ):
        connection.call(FindCoordinatorRequest(key="large", key_type=0), 3)
        for number in range(10):
            join = JoinGroupRequest(
                group_id=f"large-{number}",
                session_timeout_ms=10_000,
                rebalance_timeout_ms=10_000,
                member_id="",
                protocol_type="any",
                protocols=[JoinGroupRequestProtocol(name="any", metadata=bytes(20 * MIB))],
            )
            assert connection.call(join, 3).error_code == ErrorCode.MESSAGE_TOO_LARGE


def test_more_elements_than_that_are_refused(victim: Victim) -> None:
    for request in swollen_requests(APIS[3], 9, ELEMENTS_MAX + 10):
        with RawConnection(victim.address) as connection:
            connection.send(framed(encode_request(request, 9)))
            assert connection.is_closed_by_peer()


def test_topics_named_twice_many_times_over_hold_nobody_up(victim: Victim) -> None:
    names = [f"twice-{number // 2}" for number in range(30_000)]
    topics = [CreatableTopic(name=name, num_partitions=1, replication_factor=1) for name in names]
    with victim.others_are_served(), RawConnection(victim.address) as connection:
        answer = connection.call(CreateTopicsRequest(topics=topics), 7)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.POLICY_VIOLATION}


# --- compressed batches that unpack to far more than they are ---

BOMB_BYTES = 400 * MIB


def bomb(codec: int) -> bytes:
    """The payload of a batch: one record whose value is nothing but zeros, well compressed."""
    zeros = bytes(4 * MIB)
    if codec == Codec.SNAPPY:
        block = bytes(cramjam.snappy.compress_raw(zeros))
        return XERIAL_HEADER + (struct.pack(">i", len(block)) + block) * (BOMB_BYTES // len(zeros) // 20)
    compressors: dict[int, Callable[[], object]] = {
        Codec.GZIP: lambda: cramjam.gzip.Compressor(9),
        Codec.LZ4: lambda: cramjam.lz4.Compressor(level=9, block_linked=False),
        Codec.ZSTD: lambda: cramjam.zstd.Compressor(9),
    }
    compressor = compressors[codec]()
    for _ in range(BOMB_BYTES // len(zeros)):
        compressor.compress(zeros)  # type: ignore[attr-defined]
    return bytes(compressor.finish())  # type: ignore[attr-defined]


def batch_with_payload(codec: int, payload: bytes) -> bytes:
    batch = bytearray(record_batch(compression=Codec.NONE)[:61]) + payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    return bytes(batch)


@pytest.mark.parametrize(
    "codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD], ids=lambda codec: codec.name
)
def test_a_bomb_for_a_topic_whose_batches_are_read_is_refused(codec: Codec) -> None:
    with victim_broker(max_decompressed_bytes=8 * MIB, message_max_bytes=20 * MIB) as victim:
        payload = bomb(codec)
        with (
            RawConnection(victim.address) as connection,
            victim.others_are_served(),
            victim.grows_by_less_than(60 * MIB),
        ):
            for _ in range(5):
                request = produce_request(COMPACTED, batch_with_payload(codec, payload))
                answer = connection.call(request, 9)
                (result,) = answer.responses[0].partition_responses
                assert result.error_code in (
                    ErrorCode.MESSAGE_TOO_LARGE,
                    ErrorCode.CORRUPT_MESSAGE,
                    ErrorCode.INVALID_RECORD,
                )
                assert result.base_offset == -1


def test_a_batch_that_claims_two_billion_records_costs_nothing(victim: Victim) -> None:
    batch = bytearray(record_batch(b"z" * 200_000))
    struct.pack_into(">i", batch, 23, 2**31 - 2)
    struct.pack_into(">i", batch, 57, 2**31 - 1)
    struct.pack_into(">I", batch, 17, crc32c(bytes(batch[21:])))
    with RawConnection(victim.address) as connection, victim.grows_by_less_than(20 * MIB):
        answer = connection.call(produce_request(COMPACTED, bytes(batch)), 9)
    (result,) = answer.responses[0].partition_responses
    assert result.error_code == ErrorCode.INVALID_RECORD
