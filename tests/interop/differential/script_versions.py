"""Scripts about the protocol's frame: ApiVersions, versions and APIs that are not served, broken headers."""

from __future__ import annotations

import struct

from culver.protocol.apis import APIS
from culver.protocol.messages.api_versions import ApiVersionsRequest
from culver.protocol.messages.describe_cluster import DescribeClusterRequest
from culver.protocol.messages.metadata import MetadataRequest
from differential.play import Play, script
from raw_connection import encode_request

HEADER = struct.Struct(">hhih")


def header(key: int, version: int, *, flexible: bool = False, client_id: bytes = b"tests") -> bytes:
    return HEADER.pack(key, version, 7, len(client_id)) + client_id + (b"\0" if flexible else b"")


@script
def api_versions(play: Play) -> None:
    for version in (0, 1, 2):
        play.step(f"v{version}", ApiVersionsRequest(), version)
    for version in (3, 4):
        named = ApiVersionsRequest(client_software_name="differential", client_software_version="1.0")
        play.step(f"v{version}", named, version)
    for title, name, release in (
        ("empty software name", "", "1.0"),
        ("software name with a space", "a b", "1.0"),
        ("software name that ends in a dash", "abc-", "1.0"),
        ("software name that starts with a dot", ".abc", "1.0"),
        ("software name with dots and dashes inside", "a-b.c", "1.0"),
        ("empty software version", "abc", ""),
        ("software version with a slash", "abc", "1/2"),
        ("long software name", "x" * 4000, "1.0"),
    ):
        request = ApiVersionsRequest(client_software_name=name, client_software_version=release)
        play.step(title, request, 4)
    play.step("no client id", ApiVersionsRequest(), 0, client_id=None)
    play.step("empty client id", ApiVersionsRequest(), 0, client_id="")


@script
def api_versions_that_are_not_known(play: Play) -> None:
    # The answer has the format of version 0, whatever was asked.
    for version in (5, 99, 32767):
        connection = play.connect()
        payload = header(18, version, flexible=True) + b"\x05abcd\x041.0\x00"
        connection.send(struct.pack(">i", len(payload)) + payload)
        frame = connection.receive_frame()
        correlation_id, code, count = struct.unpack_from(">ihi", frame)
        keys = [struct.unpack_from(">hhh", frame, 10 + 6 * place) for place in range(count)]
        play.note(
            f"v{version}",
            {
                "correlation_id": correlation_id,
                "code": code,
                "api_versions": [key for key in keys if key[0] == 18],
                "left_over": len(frame) - 10 - 6 * count,
            },
        )
        play.step(f"v0 on the same connection after v{version}", ApiVersionsRequest(), 0, on=connection)
    play.raw("a negative version", header(18, -1) + b"\0", with_bytes=True)
    play.raw("a too new version with no body", header(18, 99, flexible=True), with_bytes=True)


@script
def versions_that_are_not_served(play: Play) -> None:
    for api in APIS.values():
        if api.key == 18:
            continue
        play.raw(
            f"{api.name}, one version too new",
            header(api.key, api.max_version + 1, flexible=True) + bytes(64),
        )
        if api.min_version > 0:
            play.raw(f"{api.name}, one version too old", header(api.key, api.min_version - 1) + bytes(64))
    for version in (0, 1, 2):
        body = struct.pack(">hii", 1, 1000, 0)
        play.raw(f"Produce {version}, which is advertised", header(0, version) + body)
        body = struct.pack(">hii", 0, 1000, 0)
        play.raw(f"Produce {version}, which is advertised, with acks=0", header(0, version) + body)
    for key in (4, 5, 6, 7, 52, 93, 999, -1, 32767):
        play.raw(f"API key {key}", header(key, 0) + bytes(16))


@script
def broken_frames(play: Play) -> None:
    good = encode_request(MetadataRequest(topics=[]), 4)
    play.raw("frame size 0", b"", prefix=struct.pack(">i", 0))
    play.raw("frame size -1", b"", prefix=struct.pack(">i", -1))
    play.raw("frame size of 2 GiB", b"", prefix=struct.pack(">i", 2**31 - 1))
    play.raw("frame one larger than the default limit", b"", prefix=struct.pack(">i", 104857601))
    play.raw("frame of one byte", b"\0")
    play.raw("frame that ends in the header", good[:6])
    play.raw("client id longer than the frame", struct.pack(">hhih", 3, 4, 1, 100) + b"abc")
    play.raw("client id of length -2", struct.pack(">hhih", 3, 4, 1, -2) + b"\0\0\0\0\0")
    play.raw("client id that is not UTF-8", struct.pack(">hhih", 3, 4, 9, 2) + b"\xff\xfe" + b"\0\0\0\0\0")
    play.raw("body cut short", good[:-1])
    play.raw("bytes after the body", encode_request(MetadataRequest(topics=[]), 4) + b"abc")
    play.raw("bytes after the body of ApiVersions", header(18, 0) + b"abc")
    play.raw("array longer than the frame", header(3, 4) + struct.pack(">i", 1000) + b"\0")
    play.raw("array of -2 elements", header(3, 4) + struct.pack(">i", -2) + b"\0")
    play.raw("null array where none is allowed", header(3, 0) + struct.pack(">i", -1))
    play.raw("string of length -1 where none is allowed", header(3, 4) + struct.pack(">ih", 1, -1) + b"\0")
    play.raw("boolean of 2", encode_request(MetadataRequest(topics=[]), 4)[:-1] + b"\x02")
    play.raw("unknown tags in the header", header(60, 0) + b"\x01\x05\x03abc" + b"\0\0")
    play.raw("tags in the header that overrun", header(60, 0) + b"\x01\x05\x7fabc" + b"\0\0")
    play.raw("unknown tag in the body", header(60, 0, flexible=True) + b"\0\x01\x09\x02ab")
    play.raw("the same tag twice", header(60, 0, flexible=True) + b"\0\x02\x09\x01a\x09\x01b")
    play.step("a good request in between", DescribeClusterRequest(), 0)
