"""Bytes that are not a message: decoders raise MalformedRequest, nothing else, and allocate little."""

from __future__ import annotations

import struct
import tracemalloc
from random import Random
from typing import Any

import pytest

from culver.errors import MalformedRequest
from culver.protocol.apis import APIS
from culver.protocol.messages.describe_log_dirs import DescribeLogDirsRequest
from culver.protocol.messages.fetch import FetchRequest
from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from culver.protocol.messages.produce import ProduceRequest
from culver.protocol.primitives import ELEMENTS_MAX, finish_uvarint, read_uvarint, skip_tagged_fields, uvarint
from culver.protocol.schema import Message, decoder, encoder
from message_values import all_message_versions, random_message, title

REQUEST_VERSIONS = [(m, v) for m, v in all_message_versions() if m.__name__.endswith("Request")]
FEW_BYTES = 200_000


def attempt(message: type[Message], version: int, data: bytes) -> Any:
    """The message, or None where it was refused; any other outcome is an error."""
    try:
        decoded, end = decoder(message, version)(data, 0)
    except MalformedRequest:
        return None
    assert end <= len(data)
    return decoded


@pytest.mark.parametrize(("message", "version"), all_message_versions(), ids=title)
def test_every_truncation_is_refused(message: type[Message], version: int) -> None:
    rng = Random(f"{message.__name__} {version}")
    data = b"".join(encoder(message, version)(random_message(message, version, rng)))
    for length in range(min(len(data), 400)):
        assert attempt(message, version, data[:length]) is None
        assert attempt(message, version, memoryview(bytearray(data[:length]))) is None  # type: ignore[arg-type]


@pytest.mark.parametrize(("message", "version"), all_message_versions(), ids=title)
def test_mutations_are_read_or_refused(message: type[Message], version: int) -> None:
    rng = Random(f"{message.__name__} {version} mutated")
    for _ in range(10):
        data = b"".join(encoder(message, version)(random_message(message, version, rng)))
        for _ in range(20):
            mutated = bytearray(data)
            for _ in range(rng.randint(1, 4)):
                if mutated:
                    mutated[rng.randrange(len(mutated))] = rng.choice(
                        (0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256))
                    )
            attempt(message, version, bytes(mutated))


@pytest.mark.parametrize(("message", "version"), REQUEST_VERSIONS, ids=title)
def test_noise_is_read_or_refused(message: type[Message], version: int) -> None:
    rng = Random(f"{message.__name__} {version} noise")
    for _ in range(50):
        attempt(message, version, rng.randbytes(rng.randrange(100)))


@pytest.mark.parametrize("count", [0x7FFFFFFF, 1 << 20, -2, -0x80000000])
def test_a_claimed_count_allocates_nothing(count: int) -> None:
    old = struct.pack(">i", count) + bytes(64)
    new = uvarint(count & 0xFFFFFFFF) + bytes(64)
    decode_old, decode_new = decoder(MetadataRequest, 1), decoder(MetadataRequest, 12)
    tracemalloc.start()
    try:
        for decode, data in ((decode_old, old), (decode_new, new)):
            with pytest.raises(MalformedRequest):
                decode(data, 0)
        assert tracemalloc.get_traced_memory()[1] < FEW_BYTES
    finally:
        tracemalloc.stop()


def test_a_message_of_very_many_tiny_elements_is_refused() -> None:
    topics = uvarint(ELEMENTS_MAX + 2) + bytes.fromhex("0100") * (ELEMENTS_MAX + 1) + bytes(4)
    half = b"\x00\x00" + struct.pack(">i", ELEMENTS_MAX // 2) + bytes(ELEMENTS_MAX // 2 * 4)
    numbers = struct.pack(">i", 2) + half * 2
    decode_topics, decode_numbers = decoder(MetadataRequest, 9), decoder(DescribeLogDirsRequest, 1)
    tracemalloc.start()
    try:
        with pytest.raises(MalformedRequest, match="elements"):
            decode_topics(topics, 0)
        assert tracemalloc.get_traced_memory()[1] < FEW_BYTES
        with pytest.raises(MalformedRequest, match="elements"):
            decode_numbers(numbers, 0)
    finally:
        tracemalloc.stop()


def test_mutated_requests_allocate_in_proportion_to_their_size() -> None:
    rng = Random("allocation")
    for message, version in ((ProduceRequest, 9), (FetchRequest, 17), (FetchRequest, 4)):
        data = b"".join(encoder(message, version)(random_message(message, version, rng)))[:2000]
        decode = decoder(message, version)
        tracemalloc.start()
        try:
            for position in range(len(data)):
                for lie in (b"\xff\xff\xff\xff\x0f", b"\x7f\xff\xff\xff", b"\xfe\xff\x7f"):
                    lying = data[:position] + lie + data[position + len(lie) :]
                    attempt(message, version, lying)
            assert tracemalloc.get_traced_memory()[1] < 50 * FEW_BYTES
        finally:
            tracemalloc.stop()
        assert decode is decoder(message, version)


@pytest.mark.parametrize(
    ("version", "data", "problem"),
    [
        (1, b"\x00\x00\x00\x01\xff\xff", "negative length"),
        (1, b"\x00\x00\x00\x01\x00\x05abc", "longer than what remains"),
        (1, b"\x00\x00\x00\x01\x00\x01\xff", "utf-8"),
        (0, b"\xff\xff\xff\xff", "negative length"),
        (9, b"\x02\x00\x00\x00\x00\x00\x00", "null"),
        (9, b"\x02\x02\xff\x00\x00\x00\x00\x00", "utf-8"),
        (9, b"\xff\xff\xff\xff\xff\x01", "32 bits"),
        (9, b"\x80\x80\x80\x80\x80\x00", "32 bits"),
    ],
)
def test_lies_are_named(version: int, data: bytes, problem: str) -> None:
    with pytest.raises(MalformedRequest, match=problem):
        decoder(MetadataRequest, version)(data, 0)


def test_a_compact_string_is_no_longer_than_an_old_one_could_be() -> None:
    def encoded(length: int) -> bytes:
        topic = MetadataRequestTopic(name="x" * length)
        return b"".join(encoder(MetadataRequest, 9)(MetadataRequest(topics=[topic])))

    assert attempt(MetadataRequest, 9, encoded(0x7FFF)) is not None
    assert attempt(MetadataRequest, 9, encoded(0x8000)) is None


@pytest.mark.parametrize("value", [0, 1, 127, 128, 16383, 16384, 2097151, 2097152, 268435456, 0xFFFFFFFF])
def test_varints_round_trip(value: int) -> None:
    encoded = uvarint(value)
    assert read_uvarint(encoded + b"\xff", 0) == (value, len(encoded))
    if value > 127:
        assert finish_uvarint(encoded, 1, encoded[0]) == (value, len(encoded))


def test_skipping_tagged_fields_stays_inside_the_buffer() -> None:
    assert skip_tagged_fields(b"\x00\x01a\x09\x02bc", 0, 2) == 7
    for data, count in ((b"\x00\x05a", 1), (b"\x00\x00\x00\x00", 2), (b"\x00\x00", 120), (b"\xff\x0f", 0xFF)):
        with pytest.raises(MalformedRequest):
            skip_tagged_fields(data, 0, count)


def test_every_api_has_both_messages_with_the_same_versions() -> None:
    for api in APIS.values():
        assert api.request.SCHEMA.versions == api.response.SCHEMA.versions
        assert api.request.SCHEMA.flexible_since == api.response.SCHEMA.flexible_since
        assert api.request.SCHEMA.api_key == api.response.SCHEMA.api_key == api.key
