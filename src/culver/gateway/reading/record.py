"""A record as the gateway hands it on: with its place, decompressed, shared by everyone who reads it."""

from __future__ import annotations

import msgspec


class Record(msgspec.Struct, frozen=True, gc=False):
    """One record. `timestamp_type` is 0 when the producer set the time, 1 when the broker did on append."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes | None], ...] = ()
