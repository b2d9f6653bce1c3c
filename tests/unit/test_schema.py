"""Message classes and their compiled codecs: values, versions, nulls, tags, records."""

from __future__ import annotations

import traceback
from random import Random

import pytest

from culver.errors import MalformedRequest
from culver.protocol.schema import (
    ZERO_UUID,
    Buffer,
    Message,
    array,
    boolean,
    bytes_,
    decoder,
    encoder,
    float64,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uint16,
    uint32,
    uuid,
)
from message_values import all_message_versions, random_message, title


class Place(Message):
    street: str = string()
    number: int = int32(since=1, default=-1)


class Everything(Message, api_key=99, versions=(0, 3), flexible_since=2):
    truth: bool = boolean()
    tiny: int = int8()
    small: int = int16()
    port: int = uint16()
    medium: int = int32()
    unsigned: int = uint32()
    large: int = int64()
    real: float = float64()
    identity: bytes = uuid()
    name: str = string()
    nickname: str | None = string(nullable_since=1, default=None)
    blob: bytes = bytes_()
    maybe_blob: bytes | None = bytes_(nullable_since=0, default=None)
    numbers: list[int] = array(int32())
    words: list[str] = array(string())
    identities: list[bytes] = array(uuid())
    places: list[Place] | None = array(Place, nullable_since=1)
    gone: int = int16(until=1, default=7)
    home: Place | None = struct(Place, since=3, nullable_since=3, default=None)
    tagged_home: Place | None = struct(Place, since=3, tag=1, default=None)
    tagged_number: int = int64(since=2, tag=0, default=-1)
    tagged_places: list[Place] = array(Place, since=2, tag=200, default=())


class Batches(Message, versions=(0, 1), flexible_since=1):
    before: int = int32()
    records: Buffer | list[Buffer] | None = records(nullable_since=0)


def encode(message: Message, version: int) -> bytes:
    return b"".join(encoder(type(message), version)(message))


def round_trip(message: Message, version: int) -> Message:
    data = encode(message, version)
    decoded, end = decoder(type(message), version)(b"before" + data + b"after", 6)
    assert end == 6 + len(data)
    return decoded


def test_messages_are_values() -> None:
    assert Place(street="High", number=3) == Place(street="High", number=3)
    assert Place(street="High", number=3) != Place(street="High", number=4)
    assert repr(Place(street="High", number=3)) == "Place(street='High', number=3)"
    with pytest.raises(AttributeError):
        Place(street="High").strete = 1  # type: ignore[attr-defined]


def test_lists_are_not_shared_between_messages() -> None:
    Everything(name="a").numbers.append(1)
    assert Everything(name="b").numbers == []


@pytest.mark.parametrize("version", range(4))
def test_round_trip_of_every_kind(version: int) -> None:
    rng = Random(version)
    for _ in range(200):
        message = random_message(Everything, version, rng)
        assert round_trip(message, version) == message


@pytest.mark.parametrize(("message", "version"), all_message_versions(), ids=title)
def test_round_trip_of_every_definition(message: type[Message], version: int) -> None:
    rng = Random(f"{message.__name__} {version}")
    for _ in range(3):
        value = random_message(message, version, rng)
        assert round_trip(value, version) == value
        assert round_trip(message(), version) == message()


def test_fields_of_other_versions_keep_their_defaults() -> None:
    message = Everything(nickname="x", gone=1, home=Place(street="a", number=1), tagged_number=5)
    old, new = round_trip(message, 0), round_trip(message, 3)
    assert isinstance(old, Everything)
    assert isinstance(new, Everything)
    assert (old.gone, old.home, old.tagged_number) == (1, None, -1)
    assert (new.gone, new.home, new.tagged_number) == (7, Place(street="a", number=1), 5)


def test_a_part_follows_the_version_of_the_message_around_it() -> None:
    message = Everything(places=[Place(street="a", number=4)])
    assert round_trip(message, 0) == Everything(places=[Place(street="a")], nickname="")
    assert round_trip(message, 1) == message


def test_null_becomes_empty_before_it_is_allowed() -> None:
    message = Everything(nickname=None, places=None)
    assert round_trip(message, 0) == Everything(nickname="", places=[])
    assert round_trip(message, 1) == message


def test_fixed_widths_on_the_wire() -> None:
    message = Everything(
        truth=True, tiny=-2, small=-3, port=65535, medium=-4, unsigned=0xFFFFFFFF, large=-5, real=1.5
    )
    expected = "01 fe fffd ffff fffffffc ffffffff fffffffffffffffb 3ff8000000000000" + ZERO_UUID.hex()
    assert encode(message, 0).startswith(bytes.fromhex(expected))


def test_tagged_fields_on_the_wire_are_those_that_differ_from_their_defaults() -> None:
    plain, tagged = encode(Everything(), 2), encode(Everything(tagged_number=1), 2)
    assert plain[-1:] == b"\x00"
    assert tagged[len(plain) - 1 :] == bytes.fromhex("01 00 08 0000000000000001")


def test_unknown_tagged_fields_are_skipped() -> None:
    data = encode(Everything(), 2)[:-1] + bytes.fromhex("03 00 08 0000000000000009 05 02 abcd c801 01 01")
    decoded, end = decoder(Everything, 2)(data, 0)
    assert end == len(data)
    assert decoded == Everything(tagged_number=9)


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("02 00 08 0000000000000009 00 08 0000000000000009", "repeated or out of order"),
        ("02 05 00 04 00", "repeated or out of order"),
        ("01 00 07 00000000000009", "requires a buffer"),
        ("01 00 09 000000000000000900", "another size"),
        ("01 00 20 0000000000000009", "longer than what remains"),
        ("7f 00 08 0000000000000009", "more tagged fields"),
    ],
)
def test_bad_tagged_sections_are_refused(section: str, problem: str) -> None:
    data = encode(Everything(), 2)[:-1] + bytes.fromhex(section)
    with pytest.raises(MalformedRequest, match=problem):
        decoder(Everything, 2)(data, 0)


@pytest.mark.parametrize("version", [0, 1])
def test_records_are_a_writable_view_of_the_input(version: int) -> None:
    frame = bytearray(encode(Batches(before=1, records=b"batch"), version))
    for buffer in (frame, memoryview(frame)):
        decoded, _ = decoder(Batches, version)(buffer, 0)
        assert isinstance(decoded.records, memoryview)
        assert bytes(decoded.records) == b"batch"
        decoded.records[0:1] = b"B"
        assert b"Batch" in frame
        decoded.records[0:1] = b"b"


@pytest.mark.parametrize("version", [0, 1])
def test_records_are_encoded_without_a_copy(version: int) -> None:
    first, second = bytes(300), memoryview(bytearray(b"second"))
    buffers = encoder(Batches, version)(Batches(records=[first, second]))
    assert buffers[1] is first
    assert buffers[2] is second
    decoded, end = decoder(Batches, version)(b"".join(buffers), 0)
    assert decoded.records == first + bytes(second)
    assert end == sum(map(len, buffers))


class Walk(Message, versions=(0, 0), flexible_since=0):
    start: Place = struct(Place)
    end: Place | None = struct(Place, nullable_since=0, tag=0)
    steps: list[int] | None = array(int32(), nullable_since=0, tag=1, default=())


def test_a_struct_that_must_be_there_is_empty_by_default() -> None:
    assert Walk(end=None).start == Place()
    assert Walk(end=None).start is not Walk(end=None).start
    walk = Walk(start=Place(street="a"), end=Place())
    assert encode(walk, 0) == bytes.fromhex("02 61 00 00")
    assert round_trip(walk, 0) == walk


def test_null_is_sent_where_a_tagged_field_that_is_left_out_is_empty() -> None:
    walk = Walk(start=Place(), end=None, steps=None)
    assert encode(walk, 0) == bytes.fromhex("01 00 02 00 01 00 01 01 00")
    assert round_trip(walk, 0) == walk
    walk = Walk(start=Place(), end=Place(street="a"), steps=[5])
    assert encode(walk, 0) == bytes.fromhex("01 00 02 00 04 01 02 61 00 01 05 02 00000005")
    assert round_trip(walk, 0) == walk
    decoded, _ = decoder(Walk, 0)(bytes.fromhex("01 00 00"), 0)
    assert decoded == Walk(start=Place(), end=Place(), steps=[])


def test_a_version_that_is_not_declared_is_refused() -> None:
    with pytest.raises(ValueError, match="versions 0 to 3, not 4"):
        decoder(Everything, 4)
    with pytest.raises(TypeError, match="part of other messages"):
        encoder(Place, 0)


def test_codecs_are_compiled_once() -> None:
    assert decoder(Everything, 3) is decoder(Everything, 3)
    assert encoder(Everything, 3) is encoder(Everything, 3)


def test_a_traceback_shows_the_generated_line() -> None:
    with pytest.raises(Exception) as caught:
        encoder(Everything, 0)(Everything(medium="text"))  # type: ignore[arg-type]
    assert "pack_" in "".join(traceback.format_tb(caught.tb))


def test_an_element_without_bytes_is_not_declared() -> None:
    class Nothing(Message):
        later: int = int32(since=1, default=0)

    class Unbounded(Message, versions=(0, 1)):
        nothings: list[Nothing] = array(Nothing)

    decoder(Unbounded, 1)
    with pytest.raises(TypeError, match="unbounded"):
        decoder(Unbounded, 0)
