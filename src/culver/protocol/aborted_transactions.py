"""Which batches of a fetch answer hold nothing for its reader: markers, and records of aborted transactions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from culver.protocol.compression import Buffer
from culver.protocol.control_records import decode_end_marker
from culver.protocol.records import BatchHeader


class AbortedTransaction(Protocol):
    """A transaction that came to nothing: its records lie between this offset and its marker."""

    @property
    def producer_id(self) -> int: ...

    @property
    def first_offset(self) -> int: ...


class HiddenBatches:
    """Told of every batch of an answer in order. `aborted` is what the broker names beside committed records."""

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._pending = sorted(aborted, key=lambda transaction: transaction.first_offset, reverse=True)
        self._aborting: set[int] = set()

    def hides(self, fetched: Buffer, position: int, header: BatchHeader) -> bool:
        """Whether the batch at this position is none of the reader's business."""
        aborting, pending = self._aborting, self._pending
        while pending and pending[-1].first_offset <= header.last_offset:
            aborting.add(pending.pop().producer_id)
        if not header.is_control:
            return header.is_transactional and header.producer_id in aborting
        if header.producer_id in aborting:
            marker = decode_end_marker(fetched[position : position + header.size_bytes])
            if marker is not None and not marker.committed:
                aborting.discard(header.producer_id)
        return True
