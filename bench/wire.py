"""Requests as bytes, encoded before the clock starts: Produce, Fetch, topic creation, record batches.

Written apart from `culver.protocol`, so that the load is the same bytes whatever Culver's codec does.
Produce and Fetch are version 12, the last that names topics by name, so the same bytes suit both brokers.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Mapping, Sequence

from crc32c import crc32c

CLIENT_ID = b"bench"
PRODUCE, FETCH, METADATA, CREATE_TOPICS, DELETE_TOPICS = 0, 1, 3, 19, 20
DATA_VERSION = 12
CREATE_TOPICS_VERSION = 7
DELETE_TOPICS_VERSION = 5
BATCH_HEADER_BYTES = 61
# In a response frame: length 4, correlation id 4, tags 1, topics 1, name 1 + n, partitions 1, index 4.
PRODUCE_ERROR_OFFSET = 16
# As above with throttle time 4, error 2 and session id 4 before the topics.
FETCH_ERROR_OFFSET = 26


def unsigned_varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 127:
        encoded.append(value & 127 | 128)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def varint(value: int) -> bytes:
    """Zigzag, as in records."""
    return unsigned_varint(value << 1 if value >= 0 else (-value << 1) - 1)


def compact_string(value: str) -> bytes:
    encoded = value.encode()
    return unsigned_varint(len(encoded) + 1) + encoded


def frame(api_key: int, version: int, body: bytes) -> bytes:
    """A whole request with a version 2 header; the correlation id is filled in when it is sent."""
    header = struct.pack(">hhih", api_key, version, 0, len(CLIENT_ID)) + CLIENT_ID + b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


def record_batch(message_bytes: int, message_count: int) -> bytes:
    """One v2 batch without compression, producer id or keys."""
    value = bytes(i * 7 % 251 for i in range(message_bytes))
    records = bytearray()
    for index in range(message_count):
        body = b"\0" + varint(0) + varint(index) + varint(-1) + varint(message_bytes) + value + varint(0)
        records += varint(len(body)) + body
    now_ms = int(time.time() * 1000)
    checked = (
        struct.pack(">hiqqqhii", 0, message_count - 1, now_ms, now_ms, -1, -1, -1, message_count) + records
    )
    return struct.pack(">qiibI", 0, len(checked) + 9, -1, 2, crc32c(checked)) + checked


def batch_of_bytes(batch_bytes: int, message_bytes: int) -> tuple[bytes, int]:
    """The largest batch of such messages that fits, and how many messages it holds."""
    per_message = (len(record_batch(message_bytes, 1001)) - len(record_batch(message_bytes, 1))) / 1000
    count = max(1, int((batch_bytes - BATCH_HEADER_BYTES) / per_message))
    while count > 1 and len(record_batch(message_bytes, count)) > batch_bytes:
        count -= 1
    return record_batch(message_bytes, count), count


def produce_request(topic: str, partition: int, batch: bytes, acks: int, timeout_ms: int = 30_000) -> bytes:
    data = struct.pack(">i", partition) + unsigned_varint(len(batch) + 1) + batch + b"\0"
    body = b"\0" + struct.pack(">hi", acks, timeout_ms)
    body += unsigned_varint(2) + compact_string(topic) + unsigned_varint(2) + data + b"\0" + b"\0"
    return frame(PRODUCE, DATA_VERSION, body)


def fetch_request(topic: str, partition: int, offset: int, max_bytes: int, isolation: int = 0) -> bytes:
    """A sessionless fetch of one partition that wants all it asks for and waits up to half a second for it."""
    body = struct.pack(">iiiibii", -1, 500, max_bytes, max_bytes, isolation, 0, -1)
    asked = struct.pack(">iiqiqi", partition, -1, offset, -1, -1, max_bytes) + b"\0"
    body += unsigned_varint(2) + compact_string(topic) + unsigned_varint(2) + asked + b"\0"
    body += unsigned_varint(1) + compact_string("") + b"\0"
    return frame(FETCH, DATA_VERSION, body)


def create_topics_request(
    names: Sequence[str], partitions: int = 1, configuration: Mapping[str, str] | None = None
) -> bytes:
    settings = b"".join(
        compact_string(name) + compact_string(value) + b"\0" for name, value in (configuration or {}).items()
    )
    configured = unsigned_varint(len(configuration or {}) + 1) + settings
    body = unsigned_varint(len(names) + 1)
    for name in names:
        body += (
            compact_string(name) + struct.pack(">ih", partitions, 1) + unsigned_varint(1) + configured + b"\0"
        )
    body += struct.pack(">ib", 60_000, 0) + b"\0"
    return frame(CREATE_TOPICS, CREATE_TOPICS_VERSION, body)


def delete_topics_request(names: Sequence[str]) -> bytes:
    body = unsigned_varint(len(names) + 1) + b"".join(map(compact_string, names))
    body += struct.pack(">i", 60_000) + b"\0"
    return frame(DELETE_TOPICS, DELETE_TOPICS_VERSION, body)


def metadata_request(topic: str) -> bytes:
    """Version 9: one topic by name, not created by asking."""
    body = unsigned_varint(2) + compact_string(topic) + b"\0" + b"\0\0\0" + b"\0"
    return frame(METADATA, 9, body)
