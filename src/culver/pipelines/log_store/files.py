"""Parquet files of events: partitioned by date and hour, sorted by time, in small row groups that rows are read from.

data/date=2026-11-15/hour=16/4f1c....parquet   the events
data/date=2026-11-15/hour=16/4f1c....fts       the full-text index of that file
"""

from __future__ import annotations

import os
import posixpath
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from culver.pipelines.log_store import durable_files, text_index
from culver.pipelines.log_store.entries import LISTED_COLUMNS, LISTED_VALUES_MAX, FileEntry
from culver.pipelines.log_store.errors import LogStoreError
from culver.pipelines.parsing.events import EVENT_SCHEMA

DATA_DIRECTORY = "data"
PARQUET_SUFFIX = ".parquet"
INDEX_SUFFIX = ".fts"
# To show one line of a row group all of it is unpacked: small ones make that quick, and still compress well.
ROW_GROUP_ROWS = 2048
ROWS_PER_FILE_MAX = 1 << 19

_HOUR_US = 3_600_000_000
_REPETITIVE = ["level", "service", "host", "format", "topic"]
# Of long text, least and greatest values help nobody and would swell the footer.
_WITH_STATISTICS = [name for name in EVENT_SCHEMA.names if name not in ("message", "fields", "raw")]


def write_files(
    root: str, events: pa.Table, *, rows_per_file_max: int = ROWS_PER_FILE_MAX
) -> list[FileEntry]:
    """Write events to new files of the store, each event to the hour it happened in; no reader sees them yet."""
    events = conform(events)
    if not events.num_rows:
        return []
    events = events.take(pc.sort_indices(events, sort_keys=[("ts", "ascending")])).combine_chunks()
    return [
        _write_file(root, hour, events.slice(first, end - first))
        for hour, first, end in _hours(events["ts"], rows_per_file_max)
    ]


def conform(events: pa.Table) -> pa.Table:
    """The columns of an event in their order and types; those about the origin may be missing."""
    columns = []
    for field in EVENT_SCHEMA:
        if field.name in events.column_names:
            column = events[field.name]
            if column.type != field.type:
                column = column.cast(field.type)
            if not field.nullable and column.null_count:
                raise LogStoreError(
                    f"column {field.name} of the events holds nulls",
                    "parse_lines() fills every line's columns",
                )
            columns.append(column)
        elif field.nullable:
            columns.append(pa.nulls(events.num_rows, field.type))
        else:
            raise LogStoreError(
                f"the events have no column {field.name}", f"needed are {', '.join(EVENT_SCHEMA.names)}"
            )
    return pa.table(columns, schema=EVENT_SCHEMA)


def _hours(timestamps: pa.ChunkedArray, rows_max: int) -> Iterator[tuple[int, int, int]]:
    """Where each hour begins and ends in sorted timestamps: hours since 1970, first row, end row."""
    hours = np.floor_divide(timestamps.cast(pa.int64()).to_numpy(), _HOUR_US)
    starts = np.flatnonzero(np.diff(hours, prepend=hours[0] - 1))
    for first, end in pairwise([*starts.tolist(), len(hours)]):
        for start in range(first, end, rows_max):
            yield int(hours[first]), start, min(start + rows_max, end)


def _write_file(root: str, hour: int, events: pa.Table) -> FileEntry:
    moment = datetime.fromtimestamp(hour * 3600, UTC)
    directory = posixpath.join(DATA_DIRECTORY, f"date={moment:%Y-%m-%d}", f"hour={moment:%H}")
    name = posixpath.join(directory, uuid.uuid4().hex)
    path, index = name + PARQUET_SUFFIX, name + INDEX_SUFFIX
    write_parquet(local_path(root, path), events)
    write_index(local_path(root, index), events)
    return entry_of(root, path, index, events)


def write_parquet(path: str, events: pa.Table) -> None:
    """Write sorted events as one file."""

    def fill(temporary: str) -> None:
        pq.write_table(
            events,
            temporary,
            row_group_size=ROW_GROUP_ROWS,
            compression="zstd",
            compression_level=1,
            use_dictionary=_REPETITIVE,
            write_statistics=_WITH_STATISTICS,
            write_page_checksum=True,
            sorting_columns=[pq.SortingColumn(0)],
        )

    durable_files.write_new(path, fill)


def write_index(path: str, events: pa.Table) -> None:
    """Write the full-text index of the events of one file."""
    text_index.build(path, text_index.searchable_text(events))


def entry_of(root: str, path: str, index: str, events: pa.Table) -> FileEntry:
    """What the manifest says about a file that holds these events."""
    timestamps = events["ts"].cast(pa.int64())
    local, local_index = local_path(root, path), local_path(root, index)
    return FileEntry(
        path=path,
        index=index,
        rows=events.num_rows,
        row_group_rows=ROW_GROUP_ROWS,
        bytes=os.path.getsize(local),
        index_bytes=os.path.getsize(local_index),
        crc32c=durable_files.checksum(local),
        index_crc32c=durable_files.checksum(local_index),
        ts_min=timestamps[0].as_py(),
        ts_max=timestamps[-1].as_py(),
        values=_listed_values(events),
    )


def _listed_values(events: pa.Table) -> dict[str, list[str | None]]:
    listed: dict[str, list[str | None]] = {}
    for name in LISTED_COLUMNS:
        distinct = pc.unique(events[name])
        if len(distinct) <= LISTED_VALUES_MAX:
            listed[name] = distinct.to_pylist()
    return listed


def local_path(root: str, path: str) -> str:
    """Where a path of the manifest lies on this machine."""
    return os.path.join(root, *path.split("/"))
