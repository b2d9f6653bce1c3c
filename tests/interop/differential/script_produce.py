"""Scripts about Produce: good batches, each kind of bad one, limits and refusals."""

from __future__ import annotations

import time

from culver.protocol.compression import Codec
from culver.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from culver.protocol.records import Record
from differential import batches
from differential.play import Play, produce_request, script
from differential.script_metadata import BAD_NAMES, SOME_ID

DAY_MS = 24 * 60 * 60 * 1000


def several(topics: list[tuple[str, list[tuple[int, bytes | None]]]], acks: int = -1) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(
                name=name,
                partition_data=[
                    PartitionProduceData(index=index, records=None if data is None else memoryview(data))
                    for index, data in partitions
                ],
            )
            for name, partitions in topics
        ],
    )


@script
def produce(play: Play) -> None:
    topic_id = play.topic("produce", 2)
    for version in range(3, 13):
        play.step(f"one record, v{version}", produce_request("produce", batches.batch()), version)
    play.step("one record, v13", produce_request("", batches.batch(), topic_id=topic_id), 13)
    for acks in (0, 1, -1, 2, -2, 32767):
        request = produce_request("produce", batches.batch(3), 1, acks=acks)
        if acks == 0:
            play.silent("acks=0", request, 9)
        else:
            play.step(f"acks={acks}", request, 9)
    play.silent("acks=0 to a missing partition", produce_request("produce", batches.batch(), 7, acks=0), 9)
    play.silent("acks=0 with a bad batch", produce_request("produce", b"rubbish", 1, acks=0), 9)
    for codec in (Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        request = produce_request("produce", batches.batch(5, compression=codec))
        play.step(f"{codec.name.lower()}, v9", request, 9)
        play.step(f"{codec.name.lower()}, v6", request, 6)
    play.step(
        "negative timeout",
        ProduceRequest(
            acks=-1, timeout_ms=-5, topic_data=produce_request("produce", batches.batch()).topic_data
        ),
        9,
    )
    play.step("a null value", produce_request("produce", batches.batch(value=None)), 9)
    play.step("a null key", produce_request("produce", batches.batch(key=None)), 9)
    with_headers = Record(0, batches.TIMESTAMP_MS, b"k", b"v", (("a", b"1"), ("a", None), ("", b"")))
    play.step("headers", produce_request("produce", batches.of([with_headers])), 9)


@script
def produce_to_where_nothing_is(play: Play) -> None:
    play.topic("produce.where", 1)
    good = batches.batch()
    for version in (3, 8, 9, 12):
        play.step(f"a missing topic, v{version}", produce_request("produce.missing", good), version)
        play.step(f"a missing partition, v{version}", produce_request("produce.where", good, 5), version)
    play.step("a negative partition", produce_request("produce.where", good, -1), 9)
    play.step("an unknown id", produce_request("", good, topic_id=SOME_ID), 13)
    play.step("no id", produce_request("", good), 13)
    for number, name in enumerate(BAD_NAMES):
        play.step(f"bad name {number}", produce_request(name, good), 9)
    play.step("no topics", several([]), 9)
    play.step("a topic without partitions", several([("produce.where", [])]), 9)
    play.step(
        "a good and a missing one",
        several([("produce.where", [(0, good), (3, good)]), ("produce.missing", [(0, good)])]),
        9,
    )
    play.coordinator("produce")
    play.step("an internal topic", produce_request("__consumer_offsets", good), 9)


@script
def produce_one_partition_twice(play: Play) -> None:
    play.topic("produce.twice", 1)
    good = batches.batch()
    play.step("the same partition twice", several([("produce.twice", [(0, good), (0, good)])]), 9)
    play.step(
        "the same topic twice", several([("produce.twice", [(0, good)]), ("produce.twice", [(0, good)])]), 9
    )
    play.step("after that", produce_request("produce.twice", good), 9)


@script
def produce_bad_batches(play: Play) -> None:
    play.topic("bad.batches", 1)
    good = batches.batch(3)

    def ask(title: str, records: bytes | None) -> None:
        # Kafka has no answer to null records: it fails inside.
        play.step(
            title, produce_request("bad.batches", records), 9, timeout_seconds=3 if records is None else None
        )

    ask("a good one first", good)
    ask("null", None)
    ask("empty", b"")
    ask("one byte", b"\0")
    ask("a header cut short", good[:40])
    ask("a length without a header", good[:12])
    ask("cut before its last byte", good[:-1])
    ask("a byte too many", good + b"\0")
    ask("a whole batch and half of another", good + good[:50])
    ask("two batches", good + good)
    ask("a bad CRC", batches.with_field(good, "crc", 12345))
    ask("a flipped bit", good[:-3] + bytes([good[-3] ^ 1]) + good[-2:])
    for magic in (0, 1):
        ask(f"a message of format {magic}", batches.old_message(magic))
        ask(f"a message of format {magic} before a batch", batches.old_message(magic) + good)
        ask(f"a batch that says magic {magic}", batches.with_field(good, "magic", magic))
    ask("magic 3", batches.with_field(good, "magic", 3))
    ask("magic -1", batches.with_field(good, "magic", -1))
    for length in (-1, 0, 13, 14, 48, 49, 100_000, 2**31 - 1, -(2**31)):
        ask(f"a length of {length}", batches.with_field(good, "batch_length", length, fix_crc=False))
    for count in (-1, 0, 1, 2, 4, 1000, 2**31 - 1):
        ask(f"three records that claim to be {count}", batches.with_field(good, "record_count", count))
    for delta in (-1, 0, 1, 3, 2**31 - 1):
        ask(
            f"a last offset delta of {delta} for three records",
            batches.with_field(good, "last_offset_delta", delta),
        )
    ask("a base offset that is not zero", batches.with_field(good, "base_offset", 77))
    ask("a leader epoch in it", batches.with_field(good, "partition_leader_epoch", 99))
    ask("a control batch", batches.batch(control=True))
    ask("a codec nobody knows", batches.with_field(good, "attributes", 5))
    ask("attributes that mean nothing", batches.with_field(good, "attributes", 0x0100))
    ask("append time claimed by the producer", batches.with_field(good, "attributes", 0x08))
    ask("a delete horizon claimed by the producer", batches.with_field(good, "attributes", 0x40))
    ask(
        "a batch of no records",
        batches.with_field(
            batches.with_field(batches.with_payload(good, b""), "record_count", 0), "last_offset_delta", 0
        ),
    )
    ask("a good one last", good)


@script
def produce_batches_that_are_bad_inside(play: Play) -> None:
    good = batches.batch(3)
    packed = batches.batch(3, compression=Codec.GZIP)
    more = batches.with_field(batches.with_field(good, "last_offset_delta", 3), "record_count", 4)
    less = batches.with_field(batches.with_field(good, "last_offset_delta", 1), "record_count", 2)
    for number, (title, records) in enumerate(
        (
            ("a delta and a count of one more", more),
            ("a delta and a count of one less", less),
            ("records that are no records", batches.with_payload(good, b"\xff" * 40)),
            ("no record bytes", batches.with_payload(good, b"")),
            ("record bytes left over", batches.with_payload(good, good[61:] + b"\0\0")),
            ("gzip that is none", batches.with_payload(packed, b"not gzip at all")),
        )
    ):
        play.topic(f"inside.{number}")
        play.step(title, produce_request(f"inside.{number}", records), 9)
        # Where every record must have a key, every record is read.
        play.topic(f"inside.compacted.{number}", cleanup_policy="compact")
        play.step(f"{title}, to a compacted topic", produce_request(f"inside.compacted.{number}", records), 9)


@script
def produce_times(play: Play) -> None:
    play.topic("times", 1)
    play.topic("times.append", 1, message_timestamp_type="LogAppendTime")
    play.topic(
        "times.strict", 1, message_timestamp_before_max_ms="1000", message_timestamp_after_max_ms="1000"
    )
    now = int(time.time() * 1000)
    for title, timestamp in (
        ("now", now),
        ("-1", -1),
        ("-2", -2),
        ("zero", 0),
        ("far in the past", 1),
        ("in half an hour", now + DAY_MS // 48),
        ("in two days", now + 2 * DAY_MS),
        ("in the year 292 million", 2**63 - 1_000_000),
    ):
        for topic in ("times", "times.append", "times.strict"):
            play.step(f"{title}, to {topic}", produce_request(topic, batches.batch(timestamp=timestamp)), 9)
    good = batches.batch(3)
    for topic in ("times", "times.append"):
        lies = batches.with_field(good, "max_timestamp", batches.TIMESTAMP_MS + 5000)
        play.step(f"a max timestamp too high, to {topic}", produce_request(topic, lies), 9)
        lies = batches.with_field(good, "max_timestamp", batches.TIMESTAMP_MS - 5000)
        play.step(f"a max timestamp too low, to {topic}", produce_request(topic, lies), 9)
        append = batches.with_field(good, "attributes", 0x08)
        play.step(f"append time in the batch, to {topic}", produce_request(topic, append), 9)
        packed = batches.batch(3, compression=Codec.LZ4)
        play.step(f"compressed, to {topic}", produce_request(topic, packed), 9)


@script
def produce_to_a_compacted_topic(play: Play) -> None:
    play.topic("compacted", 1, cleanup_policy="compact")
    play.topic("compacted.deleted", 1, cleanup_policy="compact,delete")
    for topic in ("compacted", "compacted.deleted"):
        for version in (3, 7, 8, 11):
            play.step(
                f"no key, v{version}, to {topic}", produce_request(topic, batches.batch(3, key=None)), version
            )
        some = [
            batches.record(0),
            batches.record(1, key=None),
            batches.record(2),
            batches.record(3, key=None),
        ]
        play.step(f"some without a key, to {topic}", produce_request(topic, batches.of(some)), 9)
        play.step(
            f"some without a key, compressed, to {topic}",
            produce_request(topic, batches.of(some, compression=Codec.GZIP)),
            9,
        )
        play.step(f"keys, to {topic}", produce_request(topic, batches.batch(3)), 9)
        play.step(
            f"keys, compressed, to {topic}",
            produce_request(topic, batches.batch(3, compression=Codec.ZSTD)),
            9,
        )
        play.step(f"a tombstone, to {topic}", produce_request(topic, batches.batch(value=None)), 9)
        play.step(f"an empty key, to {topic}", produce_request(topic, batches.batch(key=b"")), 9)


@script
def produce_too_much(play: Play) -> None:
    play.topic("small", 1, max_message_bytes="1000")
    play.topic("default.size", 1)
    for version in (3, 9):
        play.step(
            f"over the limit, v{version}", produce_request("small", batches.batch(value=b"x" * 1000)), version
        )
    overhead = len(batches.batch(value=b"x" * 500)) - 500
    play.step("exactly the limit", produce_request("small", batches.batch(value=b"x" * (1000 - overhead))), 9)
    play.step("one more", produce_request("small", batches.batch(value=b"x" * (1001 - overhead))), 9)
    two = batches.batch(value=b"x" * 600)
    play.step("two below it, together over", produce_request("small", two + two), 9)
    packed = batches.batch(value=b"x" * 5000, compression=Codec.GZIP)
    play.step("over it before compression only", produce_request("small", packed), 9)
    play.step(
        "over the default limit", produce_request("default.size", batches.batch(value=b"x" * 1_048_600)), 9
    )
    play.step(
        "just below the default limit",
        produce_request("default.size", batches.batch(value=b"x" * 1_048_400)),
        9,
    )
