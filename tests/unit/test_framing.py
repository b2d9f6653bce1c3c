"""Frames: sizes, request headers in, response headers out."""

from __future__ import annotations

import io

import pytest

from culver.errors import MalformedRequest
from culver.protocol.apis import API_VERSIONS_KEY, APIS
from culver.protocol.framing import frame_response, parse_request_header

kio_serial = pytest.importorskip("kio.serial")


def header(key: int, version: int, client_id: str | None, header_version: int) -> bytes:
    """A request header as kio writes it."""
    if header_version == 2:
        from kio.schema.request_header.v2.header import RequestHeader as Header
    else:
        from kio.schema.request_header.v1.header import RequestHeader as Header  # type: ignore[assignment]
    buffer = io.BytesIO()
    written = Header(
        request_api_key=key,  # type: ignore[arg-type]
        request_api_version=version,  # type: ignore[arg-type]
        correlation_id=77,  # type: ignore[arg-type]
        client_id=client_id,
    )
    kio_serial.entity_writer(Header)(buffer, written)
    return buffer.getvalue()


@pytest.mark.parametrize("client_id", [None, "", "rdkafka", "Ж" * 100])
@pytest.mark.parametrize(
    ("key", "version", "header_version"),
    [(0, 3, 1), (0, 8, 1), (0, 9, 2), (1, 11, 1), (1, 12, 2), (18, 2, 1), (18, 3, 2), (47, 0, 1), (60, 0, 2)],
)
def test_request_headers_of_both_versions(
    key: int, version: int, header_version: int, client_id: str | None
) -> None:
    data = header(key, version, client_id, header_version)
    expected = (key, version, 77, client_id, len(data) + 2)
    assert parse_request_header(b"xx" + data + b"body", 2) == expected
    assert parse_request_header(memoryview(bytearray(b"xx" + data + b"body")), 2) == expected


def test_a_version_from_the_future_has_the_newest_header() -> None:
    data = header(API_VERSIONS_KEY, 99, "new", 2)
    assert parse_request_header(data, 0) == (API_VERSIONS_KEY, 99, 77, "new", len(data))


def test_the_header_of_an_unknown_api_is_still_read() -> None:
    data = header(999, 3, "someone", 1)
    assert parse_request_header(data, 0)[:4] == (999, 3, 77, "someone")


def test_tagged_fields_in_the_header_are_skipped() -> None:
    data = header(18, 3, "x", 2)[:-1] + b"\x01\x05\x02ab"
    assert parse_request_header(data + b"body", 0)[4] == len(data)


@pytest.mark.parametrize("header_version", [1, 2])
def test_every_truncated_header_is_refused(header_version: int) -> None:
    data = header(0, 8 if header_version == 1 else 9, "client", header_version)
    for length in range(len(data)):
        with pytest.raises(MalformedRequest):
            parse_request_header(data[:length], 0)


@pytest.mark.parametrize(
    "data",
    [
        b"\x00\x00\x00\x09\x00\x00\x00\x01\xff\xfe\x00",
        b"\x00\x00\x00\x09\x00\x00\x00\x01\x7f\xffabc",
        b"\x00\x00\x00\x09\x00\x00\x00\x01\x00\x01\xff\x00",
        b"\x00\x00\x00\x09\x00\x00\x00\x01\x00\x01a\x7f",
    ],
    ids=["negative length", "too long", "not utf-8", "too many tags"],
)
def test_a_header_that_lies_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedRequest):
        parse_request_header(data, 0)


def test_a_response_gets_its_size_and_correlation_id() -> None:
    assert frame_response(7, 0, [b"body"]) == [b"\x00\x00\x00\x08\x00\x00\x00\x07body"]
    assert frame_response(7, 1, [b"body"]) == [b"\x00\x00\x00\x09\x00\x00\x00\x07\x00body"]
    assert frame_response(-1, 0, []) == [b"\x00\x00\x00\x04\xff\xff\xff\xff"]


def test_records_in_a_response_are_not_copied() -> None:
    records = memoryview(bytearray(1000))
    framed = frame_response(7, 1, [bytearray(b"start"), records, bytearray(b"end")])
    assert framed[0] == (1000 + 13).to_bytes(4, "big") + b"\x00\x00\x00\x07\x00start"
    assert framed[1] is records


def test_header_versions_follow_the_api() -> None:
    produce, api_versions, offset_delete = APIS[0], APIS[API_VERSIONS_KEY], APIS[47]
    assert [produce.request_header_version(v) for v in (8, 9)] == [1, 2]
    assert [produce.response_header_version(v) for v in (8, 9)] == [0, 1]
    assert [api_versions.request_header_version(v) for v in (2, 3, 4)] == [1, 2, 2]
    assert [api_versions.response_header_version(v) for v in (2, 3, 4)] == [0, 0, 0]
    assert offset_delete.response_header_version(0) == 0


def test_produce_advertises_versions_that_it_cannot_decode() -> None:
    produce = APIS[0]
    assert produce.min_version == 0
    assert [produce.decodable(v) for v in (0, 2, 3, 13, 14)] == [False, False, True, True, False]
