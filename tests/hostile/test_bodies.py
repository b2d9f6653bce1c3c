"""Requests of every API and version that are cut short, lie about lengths, or are changed at random."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from culver.errors import ErrorCode
from culver.protocol.apis import API_VERSIONS_KEY, Api
from hostile.sensible_requests import every_version, sensible_request
from hostile.victim import PREY, Victim, fetch_request
from raw_connection import Closed, NoAnswer, RawConnection, encode_request, framed

# What a length, a count or a varint is overwritten with.
LIES = (
    b"\x7f\xff",
    b"\x80\x00",
    b"\xff\xff",
    b"\x7f\xff\xff\xff",
    b"\x80\x00\x00\x00",
    b"\xff\xff\xff\xfe",
    b"\x00\xff\xff\xff",
    b"\xff\xff\xff\xff\x07",  # the largest int as a varint
    b"\xff\xff\xff\xff\x0f",  # the largest unsigned one
    b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
    b"\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80\x80",  # a varint that never ends
)
HEADER_BYTES = 8  # api key, version, correlation id: a request with another is another request


def title(argument: object) -> str:
    return argument.name if isinstance(argument, Api) else str(argument)


def end_offset(victim: Victim, partition: int = 0) -> int:
    with RawConnection(victim.address) as connection:
        fetched = connection.call(fetch_request(PREY, 0, max_bytes=1), 11)
    high_watermark: int = fetched.responses[0].partitions[partition].high_watermark
    return high_watermark


@pytest.mark.parametrize(("api", "version"), every_version(), ids=title)
def test_a_sensible_request_is_answered(shared_victim: Victim, api: Api, version: int) -> None:
    """Otherwise the attacks below would not get past the first check."""
    with RawConnection(shared_victim.address) as connection:
        answer = connection.call(sensible_request(api, version), version)
    assert getattr(answer, "error_code", 0) != ErrorCode.UNKNOWN_SERVER_ERROR


def test_a_request_cut_short_anywhere_is_refused(victim: Victim) -> None:
    def cut() -> Iterator[bytes]:
        for api, version in every_version():
            payload = encode_request(sensible_request(api, version), version)
            for length in range(len(payload)):
                yield framed(payload[:length])

    before = end_offset(victim)
    victim.attack(cut())
    assert end_offset(victim) == before, "a part of a request was carried out"


def test_a_frame_that_ends_before_its_size_is_refused(victim: Victim) -> None:
    def cut() -> Iterator[bytes]:
        for api, version in every_version():
            frame = framed(encode_request(sensible_request(api, version), version))
            for length in range(1, len(frame), 5):
                yield frame[:length]

    before = end_offset(victim)
    victim.attack(cut())
    assert end_offset(victim) == before


def test_lengths_and_counts_that_lie_are_refused(victim: Victim) -> None:
    def lies() -> Iterator[bytes]:
        rng = Random(1)
        for api, version in every_version():
            payload = encode_request(sensible_request(api, version), version)
            for position in range(HEADER_BYTES, len(payload)):
                for lie in rng.sample(LIES, 2):
                    yield framed(payload[:position] + lie + payload[position + len(lie) :])
                yield framed(payload[:position] + rng.choice(LIES) + payload[position:])

    victim.attack(lies())


def test_garbage_behind_a_body_does_no_harm(victim: Victim) -> None:
    rng = Random(2)
    victim.attack(
        framed(encode_request(sensible_request(api, version), version) + rng.randbytes(rng.randint(1, 300)))
        for api, version in every_version()
    )


def test_random_bytes_in_place_of_a_body_are_refused(victim: Victim) -> None:
    def rubbish() -> Iterator[bytes]:
        rng = Random(3)
        for api, version in every_version():
            header = encode_request(sensible_request(api, version), version)[:15]
            for length in (0, 1, 7, 64, 1000):
                yield framed(header + rng.randbytes(length))

    victim.attack(rubbish())


def test_many_changes_at_random_are_survived(victim: Victim) -> None:
    def changed() -> Iterator[bytes]:
        rng = Random(4)
        for api, version in every_version():
            payload = encode_request(sensible_request(api, version), version)
            for _ in range(12):
                mutated = bytearray(payload)
                for _ in range(rng.randint(1, 6)):
                    mutated[rng.randrange(HEADER_BYTES, len(mutated))] = rng.choice((0, 1, 127, 128, 255))
                yield framed(bytes(mutated))

    victim.attack(changed())


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    which=st.integers(0, len(every_version()) - 1),
    edits=st.lists(
        st.tuples(st.integers(0, 10_000), st.binary(min_size=0, max_size=9)), min_size=1, max_size=8
    ),
)
def test_any_edit_of_any_request_is_answered_or_refused(
    victim: Victim, which: int, edits: list[tuple[int, bytes]]
) -> None:
    api, version = every_version()[which]
    payload = bytearray(encode_request(sensible_request(api, version), version))
    for position, replacement in edits:
        at = HEADER_BYTES + position % (len(payload) - HEADER_BYTES)
        payload[at : at + len(replacement) or at + 1] = replacement
    with RawConnection(victim.address, timeout_seconds=15) as connection:
        connection.send(framed(bytes(payload)))
        connection.half_close()
        try:
            answer = connection.receive_frame()
        except Closed:
            return
        except NoAnswer:
            pytest.fail("neither an answer nor an end")
        assert struct.unpack_from(">i", answer) == struct.unpack_from(">i", payload, 4)
        assert api.key == API_VERSIONS_KEY or len(answer) >= 4
