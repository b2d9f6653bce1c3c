"""Readers of partitions: what they see, how soon, what they share, and what they survive."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import confluent_kafka
import pytest
from wire_produce import connected, produce, reading, run, until

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.topics import create_topic, delete_records, delete_topics
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.reading.chunks import Chunk, RecentChunks
from culver.gateway.reading.partition_reader import Cursor, Readers
from culver.gateway.reading.record import Record
from culver.gateway.reading.visible_records import ENOUGH_BYTES, visible_records
from culver.protocol.compression import Codec
from culver.protocol.records import Record as WireRecord
from culver.protocol.records import encode_batch
from culver.testing import Broker
from culver.testing import Cluster as Brokers

PLENTY = {"records_max": 10_000, "bytes_max": 1 << 20}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


async def values(cursor: Cursor, count: int, **limits: int) -> list[bytes | None]:
    """What a cursor reads until it has so many."""
    found: list[bytes | None] = []
    while len(found) < count:
        found += [record.value for record in await cursor.read(**{**PLENTY, **limits})]
    return found


def fetches(readers: Readers) -> int:
    return readers.poll_at(1, committed=True).fetches


def test_a_cursor_reads_what_is_there_and_then_what_comes(broker: Broker) -> None:
    async def scenario() -> None:
        async with reading(broker.bootstrap_servers) as (cluster, readers):
            await create_topic(cluster, "plain", partitions=1)
            await produce(cluster, "plain", [b"a", b"b"])
            await produce(cluster, "plain", [b"c", b"d"], compression=Codec.ZSTD)
            cursor = readers.open("plain", 0, 1)
            assert await values(cursor, 3) == [b"b", b"c", b"d"]
            waiting = asyncio.create_task(cursor.read(**PLENTY))
            await until(lambda: fetches(readers))
            await produce(cluster, "plain", [b"e"])
            (record,) = await waiting
            expected = Record("plain", 0, 4, 1000, 0, b"key", b"e", ())
            assert (record, cursor.position) == (expected, 5)
            cursor.close()

    run(scenario)


def test_names_of_headers_are_text_whatever_their_bytes(broker: Broker) -> None:
    async def scenario() -> None:
        async with reading(broker.bootstrap_servers) as (cluster, readers):
            await create_topic(cluster, "names", partitions=1)
            names = (b"plain", "größe".encode(), b"\xff\xfe")
            headers = tuple((name.decode("utf-8", "surrogateescape"), b"1") for name in names)
            await produce(cluster, "names", [b"a"], headers=headers)
            (record,) = await readers.read_range("names", 0, 0, records_max=1, bytes_max=1)
            assert [name for name, _ in record.headers] == ["plain", "größe", "\ufffd\ufffd"]

    run(scenario)


def test_reads_keep_to_their_limits_but_always_give_one_record(broker: Broker) -> None:
    async def scenario() -> None:
        async with reading(broker.bootstrap_servers) as (cluster, readers):
            await create_topic(cluster, "limits", partitions=1)
            await produce(cluster, "limits", [b"x" * 100] * 10)
            cursor = readers.open("limits", 0, 0)
            assert len(await cursor.read(records_max=3, bytes_max=10_000)) == 3
            assert len(await cursor.read(records_max=10, bytes_max=2 * 103)) == 2
            assert len(await cursor.read(records_max=10, bytes_max=1)) == 1
            assert cursor.position == 6
            assert len(await readers.read_range("limits", 0, 0, records_max=4, bytes_max=10_000)) == 4
            assert len(await readers.read_range("limits", 0, 0, records_max=4, bytes_max=150)) == 1
            assert len(await readers.read_range("limits", 0, 7, records_max=9, bytes_max=10_000)) == 3
            assert await readers.read_range("limits", 0, 10, records_max=9, bytes_max=10_000) == []
            cursor.close()

    run(scenario)


def test_looking_around_waits_for_a_record_when_asked_to(broker: Broker) -> None:
    async def scenario() -> None:
        async with reading(broker.bootstrap_servers) as (cluster, readers):
            await create_topic(cluster, "around", partitions=1)
            limits = {"records_max": 1, "bytes_max": 100}
            assert await readers.read_range("around", 0, 0, wait_ms=50, **limits) == []
            waiting = asyncio.create_task(readers.read_range("around", 0, 0, wait_ms=10_000, **limits))
            await produce(cluster, "around", [b"first"])
            assert [record.value for record in await waiting] == [b"first"]

    run(scenario)


def test_a_thousand_cursors_at_the_end_share_each_fetch_and_get_it_soon(broker: Broker) -> None:
    async def scenario() -> None:
        async with reading(broker.bootstrap_servers) as (cluster, readers):
            await create_topic(cluster, "shared", partitions=1)
            cursors = [readers.open("shared", 0, 0) for _ in range(1000)]
            reads = [asyncio.create_task(values(cursor, 5)) for cursor in cursors]
            await until(lambda: fetches(readers) == 1)
            worst_ms = 0.0
            for number in range(5):
                began = time.perf_counter()
                await produce(cluster, "shared", [b"%d" % number])
                await until(lambda number=number: all(cursor.position == number + 1 for cursor in cursors))
                worst_ms = max(worst_ms, (time.perf_counter() - began) * 1000)
            # One for each record and the one that waits, whatever the number of cursors; some may end empty-handed.
            assert fetches(readers) < 20
            assert worst_ms < 2_000
            for found in await asyncio.gather(*reads):
                assert found == [b"0", b"1", b"2", b"3", b"4"]
            for cursor in cursors:
                cursor.close()
            assert readers.recent.size_bytes == 0

    run(scenario)


def test_a_partition_that_joins_does_not_wait_for_the_poll_under_way(broker: Broker) -> None:
    async def scenario() -> None:
        async with reading(broker.bootstrap_servers) as (cluster, readers):
            await create_topic(cluster, "joining", partitions=6)
            cursors = [readers.open("joining", partition, 0) for partition in range(6)]
            first = asyncio.create_task(cursors[0].read(**PLENTY))
            await until(lambda: fetches(readers) == 1)
            soonest_s = 10.0
            for partition in range(1, 6):
                read = asyncio.create_task(cursors[partition].read(**PLENTY))
                before = fetches(readers)
                await until(lambda before=before: fetches(readers) > before)
                began = time.perf_counter()
                await produce(cluster, "joining", [b"x"], partition)
                await read
                soonest_s = min(soonest_s, time.perf_counter() - began)
            assert soonest_s < 0.25, "half of what the poll under way would have taken"
            await produce(cluster, "joining", [b"x"], 0)
            assert len(await first) == 1
            for cursor in cursors:
                cursor.close()

    run(scenario)


def test_cursors_that_are_behind_catch_up_and_join_the_rest(broker: Broker) -> None:
    async def scenario() -> None:
        # Room for a few records only, so that nobody lives off what was kept.
        async with reading(broker.bootstrap_servers, buffer_max_bytes=20_000) as (cluster, readers):
            await create_topic(cluster, "behind", partitions=1)
            for number in range(50):
                await produce(cluster, "behind", [b"%d-%d" % (number, at) for at in range(20)])
            cursors = [readers.open("behind", 0, 20 * (number % 50)) for number in range(100)]
            reads = [
                asyncio.create_task(values(cursor, 1000 - cursor.position + 1, records_max=37))
                for cursor in cursors
            ]
            await until(lambda: all(cursor.position == 1000 for cursor in cursors))
            assert readers.recent.size_bytes <= 20_000
            await produce(cluster, "behind", [b"last"])
            everything = [b"%d-%d" % (number, at) for number in range(50) for at in range(20)] + [b"last"]
            for number, found in enumerate(await asyncio.gather(*reads)):
                assert found == everything[20 * (number % 50) :]
            for cursor in cursors:
                cursor.close()

    run(scenario)


def test_a_reader_that_stalls_holds_nobody_up_and_loses_nothing(broker: Broker) -> None:
    async def scenario() -> None:
        async with reading(broker.bootstrap_servers, buffer_max_bytes=50_000) as (cluster, readers):
            await create_topic(cluster, "stalled", partitions=1)
            stalled, quick = readers.open("stalled", 0, 0), readers.open("stalled", 0, 0)
            first = asyncio.create_task(stalled.read(**PLENTY))
            for number in range(100):
                await produce(cluster, "stalled", [b"%d" % number + b"." * 5000])
                assert (await quick.read(**PLENTY))[0].offset == number
            assert readers.recent.size_bytes <= 50_000
            assert len(await first) + len(await values(stalled, 99)) == 100
            stalled.close()
            quick.close()

    run(scenario)


def test_records_of_aborted_transactions_are_not_seen_by_those_who_want_committed_ones(
    broker: Broker,
) -> None:
    broker.create_topic("aborted")
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "t", "linger.ms": 0}
    )
    producer.init_transactions(10)

    def transaction(value: bytes, *, commit: bool) -> None:
        producer.begin_transaction()
        producer.produce("aborted", value, partition=0)
        producer.flush(10)
        (producer.commit_transaction if commit else producer.abort_transaction)(10)

    async def scenario() -> None:
        async with reading(broker.bootstrap_servers) as (_, readers):
            transaction(b"no", commit=False)
            transaction(b"yes", commit=True)
            committed, every = readers.open("aborted", 0, 0), readers.open("aborted", 0, 0, committed=False)
            assert await values(committed, 1) == [b"yes"]
            assert await values(every, 2) == [b"no", b"yes"]
            # At the end, where a poll brings them.
            read = asyncio.create_task(values(committed, 1))
            read_every = asyncio.create_task(values(every, 2))
            await until(lambda: fetches(readers) > 0)
            await asyncio.to_thread(transaction, b"no, again", commit=False)
            assert not read.done()
            await asyncio.to_thread(transaction, b"yes, again", commit=True)
            assert await read == [b"yes, again"]
            assert await read_every == [b"no, again", b"yes, again"]
            committed.close()
            every.close()

    run(scenario)


def test_an_offset_that_is_not_there_is_an_error_of_its_reader_only(broker: Broker) -> None:
    async def scenario() -> None:
        async with reading(broker.bootstrap_servers) as (cluster, readers):
            await create_topic(cluster, "range", partitions=1)
            await produce(cluster, "range", [b"a", b"b", b"c"])
            await delete_records(cluster, {TopicPartition("range", 0): 2})
            good = readers.open("range", 0, 2)
            assert await values(good, 1) == [b"c"]
            waiting = asyncio.create_task(values(good, 1))
            for offset in (0, 17):
                bad = readers.open("range", 0, offset)
                with pytest.raises(KafkaError) as refused:
                    await bad.read(**PLENTY)
                assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
                bad.close()
            await produce(cluster, "range", [b"d"])
            assert await waiting == [b"d"]
            good.close()

    run(scenario)


def test_what_the_protocol_has_no_room_for_is_refused_and_harms_nobody(broker: Broker) -> None:
    async def scenario() -> None:
        async with reading(broker.bootstrap_servers) as (cluster, readers):
            await create_topic(cluster, "room", partitions=1)
            await produce(cluster, "room", [b"a"])
            for offset in (1 << 63, -(1 << 63) - 1):
                cursor = readers.open("room", 0, offset)
                with pytest.raises(KafkaError) as refused:
                    await cursor.read(**PLENTY)
                assert refused.value.code is ErrorCode.INVALID_REQUEST
                cursor.close()
            assert len(await readers.read_range("room", 0, 0, **PLENTY)) == 1

    run(scenario)


def test_a_deleted_topic_ends_its_readers_once_it_is_certain(broker: Broker) -> None:
    async def scenario() -> None:
        async with reading(broker.bootstrap_servers) as (cluster, readers):
            await create_topic(cluster, "gone", partitions=1)
            cursor = readers.open("gone", 0, 0)
            waiting = asyncio.create_task(cursor.read(**PLENTY))
            await until(lambda: fetches(readers) > 0)
            await delete_topics(cluster, ["gone"])
            with pytest.raises(KafkaError) as refused:
                await waiting
            assert refused.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            cursor.close()

    run(scenario)


def test_a_cursor_whose_read_was_cancelled_goes_on_where_it_was(broker: Broker) -> None:
    async def scenario() -> None:
        async with reading(broker.bootstrap_servers) as (cluster, readers):
            await create_topic(cluster, "cancelled", partitions=1)
            cursor = readers.open("cancelled", 0, 0)
            read = asyncio.create_task(cursor.read(**PLENTY))
            await until(lambda: fetches(readers) > 0)
            read.cancel()
            await asyncio.gather(read, return_exceptions=True)
            await produce(cluster, "cancelled", [b"a"])
            assert await values(cursor, 1) == [b"a"]
            read = asyncio.create_task(cursor.read(**PLENTY))
            await asyncio.sleep(0)
            cursor.close()
            with pytest.raises(asyncio.CancelledError):
                await read

    run(scenario)


def test_cursors_survive_the_death_of_their_leader() -> None:
    with Brokers(brokers=3, topics={"orders": 1}) as brokers:

        async def scenario() -> None:
            async with reading(brokers.bootstrap_servers) as (cluster, readers):
                cursors = [readers.open("orders", 0, 0) for _ in range(50)]
                reads = [asyncio.create_task(values(cursor, 3)) for cursor in cursors]
                await produce(cluster, "orders", [b"before"])
                await until(lambda: all(cursor.position == 1 for cursor in cursors))
                leader = brokers.broker(brokers.leader("orders"))
                await asyncio.to_thread(leader.kill)
                await produce(cluster, "orders", [b"after"])
                await until(lambda: all(cursor.position == 2 for cursor in cursors))
                # Back again, it leads again after a while, or not: the readers do not care.
                await asyncio.to_thread(leader.restart)
                await produce(cluster, "orders", [b"again"])
                for found in await asyncio.gather(*reads):
                    assert found == [b"before", b"after", b"again"]
                for cursor in cursors:
                    cursor.close()

        run(scenario)


def test_a_damaged_batch_is_never_handed_on() -> None:
    batch = encode_batch([WireRecord(at, 0, None, b"%d" % at) for at in range(3)])
    place = TopicPartition("orders", 0)
    records, next_offset = visible_records(place, bytes(batch), 1, ())
    assert ([record.value for record in records], next_offset) == ([b"1", b"2"], 3)
    batch[-2] ^= 1
    with pytest.raises(KafkaError) as refused:
        visible_records(place, bytes(batch), 0, ())
    assert refused.value.code is ErrorCode.CORRUPT_MESSAGE
    assert visible_records(place, bytes(batch[:-1]), 0, ()) == ([], 0), "cut off: to be fetched again"


def test_batches_that_unpack_to_more_than_enough_are_decoded_a_few_at_a_time() -> None:
    place = TopicPartition("orders", 0)
    batches = [
        encode_batch(
            [WireRecord(at, 0, None, bytes(ENOUGH_BYTES // 2))], base_offset=at, compression=Codec.ZSTD
        )
        for at in range(10)
    ]
    found: list[int] = []
    while len(found) < 10:
        records, next_offset = visible_records(place, bytes(b"".join(batches[len(found) :])), len(found), ())
        assert 0 < len(records) <= 3
        found += [record.offset for record in records]
        assert next_offset == len(found)
    assert found == list(range(10))


def test_what_came_first_goes_first_when_there_is_no_more_room() -> None:
    def chunk(start: int) -> Chunk:
        return Chunk(start, start + 1, [Record("orders", 0, start, 0, 0, None, b"x" * 1000)])

    recent = RecentChunks(max_bytes=3 * chunk(0).size_bytes)
    one, other = (TopicPartition("orders", 0), True), (TopicPartition("orders", 0), False)
    for start in (5, 3, 4):
        recent.add(one, chunk(start))
    recent.add(other, chunk(0))
    assert [recent.find(one, start) is not None for start in (3, 4, 5)] == [True, True, False]
    assert recent.find(other, 0) is not None
    recent.drop(one)
    assert recent.size_bytes == chunk(0).size_bytes
    recent.add(other, Chunk(9, 10, [Record("orders", 0, 9, 0, 0, None, b"x" * 10_000)]))
    assert recent.find(other, 9) is None, "what is larger than all the room is not kept"


async def make_again(cluster: Cluster, topic: str, contents: list[bytes]) -> None:
    """Delete a topic and make another of the same name."""
    await delete_topics(cluster, [topic])
    await create_topic(cluster, topic, partitions=1)
    if contents:
        await produce(cluster, topic, contents)


def test_a_topic_that_is_made_again_is_not_read_from_where_the_former_one_was(broker: Broker) -> None:
    async def scenario() -> None:
        async with (
            reading(broker.bootstrap_servers) as (cluster, readers),
            connected(broker.bootstrap_servers) as elsewhere,
        ):
            await create_topic(cluster, "again", partitions=1)
            await produce(cluster, "again", [b"a", b"b"])
            waiting_one, late_one = readers.open("again", 0, 0), readers.open("again", 0, 0)
            for cursor in (waiting_one, late_one):
                assert await values(cursor, 2) == [b"a", b"b"]
            waiting = asyncio.create_task(waiting_one.read(**PLENTY))
            await until(lambda: fetches(readers))
            # By somebody else, so that nobody here hears of it; and it is longer than the former one.
            await make_again(elsewhere, "again", [b"1", b"2", b"3", b"4"])
            for read in (waiting, late_one.read(**PLENTY)):
                with pytest.raises(KafkaError) as refused:
                    await read
                assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
            # It has been told once. The new one is read as soon as it is asked for.
            late_one.position = 0
            assert await values(late_one, 4) == [b"1", b"2", b"3", b"4"]
            newcomer = readers.open("again", 0, 0)
            assert await values(newcomer, 4) == [b"1", b"2", b"3", b"4"]
            for cursor in (waiting_one, late_one, newcomer):
                cursor.close()

    run(scenario)


def test_of_a_topic_that_is_made_again_and_still_empty_a_reader_hears_once(broker: Broker) -> None:
    async def scenario() -> None:
        async with reading(broker.bootstrap_servers) as (cluster, readers):
            await create_topic(cluster, "empty", partitions=1)
            await produce(cluster, "empty", [b"a", b"b"])
            cursor = readers.open("empty", 0, 0)
            assert await values(cursor, 2) == [b"a", b"b"]
            await make_again(cluster, "empty", [])
            with pytest.raises(KafkaError) as refused:
                await cursor.read(**PLENTY)
            assert refused.value.code is ErrorCode.OFFSET_OUT_OF_RANGE
            cursor.position = 0
            await produce(cluster, "empty", [b"1"])
            assert await values(cursor, 1) == [b"1"]
            cursor.close()

    run(scenario)


def test_what_was_kept_of_a_former_topic_is_not_given_to_a_new_reader(broker: Broker) -> None:
    async def scenario() -> None:
        async with (
            reading(broker.bootstrap_servers) as (cluster, readers),
            connected(broker.bootstrap_servers) as elsewhere,
        ):
            await create_topic(cluster, "stale", partitions=1)
            await produce(cluster, "stale", [b"old"])
            before = readers.open("stale", 0, 0)
            assert await values(before, 1) == [b"old"]
            await make_again(elsewhere, "stale", [b"new"])
            after = readers.open("stale", 0, 0)
            assert await values(after, 1) == [b"new"]
            before.close()
            after.close()

    run(scenario)


def test_a_reader_that_asks_for_it_hears_of_the_marks_that_nobody_sees(broker: Broker) -> None:
    async def scenario() -> None:
        async with reading(broker.bootstrap_servers) as (cluster, readers):
            await create_topic(cluster, "marked", partitions=1)
            producer = confluent_kafka.Producer(
                {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "marked"}
            )
            producer.init_transactions(10)
            producer.begin_transaction()
            producer.produce("marked", b"a")
            producer.flush(10)
            cursor = readers.open("marked", 0, 0, committed=False)
            assert await values(cursor, 1) == [b"a"]
            producer.commit_transaction(10)
            assert await cursor.read(**PLENTY, may_be_empty=True) == []
            assert cursor.position == 2
            cursor.close()

    run(scenario)
