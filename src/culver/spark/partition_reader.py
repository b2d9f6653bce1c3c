"""Read a stretch of a partition into Arrow batches: the next fetch is under way while the last one is decoded."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator

import pyarrow as pa

from culver.errors import ErrorCode, KafkaError
from culver.spark.arrow_batches import decode
from culver.spark.connection import Connection
from culver.spark.fetching import (
    EARLIEST,
    LATEST,
    BlockingCluster,
    Fetched,
    fetch_request,
    receive_fetched,
    send_fetch,
)
from culver.spark.offset_ranges import OffsetRange
from culver.spark.read_settings import DataLost, ReadSettings
from culver.spark.wire_batches import offset_after
from culver.wire_client import Unreachable

log = logging.getLogger(__name__)

_MAX_WAIT_MS = 500


def read_range(
    cluster: BlockingCluster, wanted: OffsetRange, settings: ReadSettings
) -> Iterator[pa.RecordBatch]:
    """All records of the range that a reader may see, in order.

    Raises DataLost where records are gone, unless the settings say to go on without them; then a warning is logged.
    """
    reader = _Reader(cluster, wanted, settings)
    while reader.position < wanted.end:
        fetched = reader.fetch()
        if fetched is None:
            continue
        after = offset_after(fetched.records)
        if after is None or after <= reader.position:
            reader.stalled(fetched)
            continue
        start = reader.position
        reader.advance(after)
        yield from decode(
            fetched.records,
            topic=wanted.topic,
            partition=wanted.partition,
            start_offset=start,
            end_offset=wanted.end,
            include_headers=settings.include_headers,
            aborted=fetched.aborted,
        )


class _Reader:
    """The position in the range, and the fetch that may be under way for it."""

    def __init__(self, cluster: BlockingCluster, wanted: OffsetRange, settings: ReadSettings) -> None:
        self.position = wanted.start
        self._cluster = cluster
        self._wanted = wanted
        self._settings = settings
        self._fetch_bytes = settings.fetch_bytes
        self._ahead: Connection | None = None
        self._progress_at = time.monotonic()

    def fetch(self) -> Fetched | None:
        """What there is at the position; None when that has moved on instead, because its records are gone."""
        try:
            return self._receive_ahead() or self._cluster.fetch(
                self._wanted.topic,
                self._wanted.partition,
                self.position,
                self._fetch_bytes,
                read_committed=self._settings.read_committed,
                max_wait_ms=_MAX_WAIT_MS,
            )
        except KafkaError as error:
            if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                raise
            self._skip_what_is_gone()
            return None

    def _receive_ahead(self) -> Fetched | None:
        connection, self._ahead = self._ahead, None
        if connection is None:
            return None
        try:
            return receive_fetched(connection, self._wanted.topic, self._wanted.partition)
        except Unreachable:
            self._cluster.forget_leaders()
        except KafkaError as error:
            if not error.retriable:
                raise
            self._cluster.forget_leaders()
        return None

    def advance(self, position: int) -> None:
        self.position = position
        self._fetch_bytes = self._settings.fetch_bytes
        self._progress_at = time.monotonic()
        if position >= self._wanted.end:
            return
        topic, partition = self._wanted.topic, self._wanted.partition
        request = fetch_request(
            topic, partition, position, self._fetch_bytes, self._settings.read_committed, _MAX_WAIT_MS
        )
        try:
            connection = self._cluster.leader(topic, partition)
            send_fetch(connection, request)
        except (Unreachable, KafkaError):
            # Asked again, with patience, when it is needed.
            self._cluster.forget_leaders()
        else:
            self._ahead = connection

    def stalled(self, fetched: Fetched) -> None:
        """No whole batch came: ask for more if it is too large; else wait, but not for ever."""
        if len(fetched.records):
            self._fetch_bytes *= 2
        if time.monotonic() - self._progress_at < self._settings.stall_s:
            return
        visible = fetched.last_stable_offset if self._settings.read_committed else fetched.high_watermark
        self._lost(
            f"{self._wanted}: nothing came at offset {self.position} for {self._settings.stall_s:.0f} s; "
            f"the partition can be read up to offset {visible}"
        )
        self.position = self._wanted.end

    def _skip_what_is_gone(self) -> None:
        place = self._wanted.topic, self._wanted.partition
        earliest = self._cluster.list_offsets({place: EARLIEST})[place]
        latest = self._cluster.list_offsets({place: LATEST})[place]
        self._lost(
            f"offset {self.position} of {place[0]}-{place[1]} is gone: the partition now holds {earliest} to {latest}"
        )
        self.position = earliest if self.position < earliest < self._wanted.end else self._wanted.end

    def _lost(self, what: str) -> None:
        if self._settings.fail_on_data_loss:
            raise DataLost(what)
        log.warning("%s; going on without", what)
