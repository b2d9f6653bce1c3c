"""The control record that ends a transaction in a partition: a batch of its own, written by the broker.

key    version int16 = 0, type int16: 0 aborted, 1 committed
value  version int16 = 0, coordinator epoch int32
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from culver.errors import KafkaError
from culver.protocol.compression import Buffer
from culver.protocol.records import Record, decode_records, encode_batch

ABORT = 0
COMMIT = 1
_KEY = struct.Struct(">hh")
_VALUE = struct.Struct(">hi")
_VERSION = 0
# A marker is 78 bytes. Versions to come may be longer; one that claims megabytes is none.
_MARKER_BYTES_MAX = 1 << 16


class EndMarker(NamedTuple):
    """How a transaction ended, and the epoch of the coordinator that said so."""

    committed: bool
    coordinator_epoch: int


def encode_end_marker(
    marker: EndMarker, *, producer_id: int, producer_epoch: int, timestamp_ms: int
) -> bytearray:
    """A control batch. Offset and leader epoch are set when it is appended."""
    record = Record(
        0,
        timestamp_ms,
        _KEY.pack(_VERSION, COMMIT if marker.committed else ABORT),
        _VALUE.pack(_VERSION, marker.coordinator_epoch),
        (),
    )
    return encode_batch(
        [record],
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        is_transactional=True,
        is_control=True,
    )


def decode_end_marker(batch: Buffer) -> EndMarker | None:
    """What a control batch says about a transaction; None when that is nothing.

    So it is when compaction has left only its header, and with control records of other kinds. Fields that a later
    version may add are ignored.
    """
    try:
        records = decode_records(batch, _MARKER_BYTES_MAX)
    except KafkaError:
        return None
    if not records:
        return None
    key, value = records[0].key, records[0].value
    if key is None or value is None or len(key) < _KEY.size or len(value) < _VALUE.size:
        return None
    kind = _KEY.unpack_from(key)[1]
    if kind not in (ABORT, COMMIT):
        return None
    return EndMarker(kind == COMMIT, _VALUE.unpack_from(value)[1])
