"""What tasks of the logs pipeline do: parse records of a topic and write them to files of the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from culver.pipelines.log_store.entries import FileEntry
from culver.pipelines.log_store.store import LogStore
from culver.pipelines.parsing.lines import UNPARSED, parse_lines

COLUMNS = ("value", "topic", "partition", "offset", "timestamp", "headers")
# What a task tells the driver: one row per file, and one at the end with what it has counted.
RESULT_SCHEMA = "file STRING, lines LONG, unparsed LONG"
HOST_HEADER = "host"

_RESULT = pa.schema([("file", pa.string()), ("lines", pa.int64()), ("unparsed", pa.int64())])
# As much as is sorted and indexed at once. Parsed lines take about a kilobyte of memory each.
_ROWS_PER_WRITE = 200_000


@dataclass(frozen=True, slots=True)
class Parsing:
    """How lines are read: their format (`auto` finds out) and the service of those that name none."""

    format: str = "auto"
    default_service: str | None = None


def parse_records(records: pa.RecordBatch, parsing: Parsing) -> pa.Table:
    """Events of records of a topic. A line that names no host has that of the header that `culver ingest` sets."""
    table = pa.Table.from_batches([records])
    events = parse_lines(
        table["value"],
        table["timestamp"],
        format=parsing.format,
        default_service=parsing.default_service,
        origin=table.select(
            [name for name in ("topic", "partition", "offset") if name in table.column_names]
        ),
    )
    if "headers" not in table.column_names or not events["host"].null_count:
        return events
    hosts = pc.coalesce(events["host"], header_values(records.column("headers"), HOST_HEADER))
    return events.set_column(events.column_names.index("host"), events.schema.field("host"), hosts)


def header_values(headers: pa.Array, name: str) -> pa.Array:
    """The value of the header of that name of each record as text, null where there is none."""
    flat = headers.flatten()
    # Whose header each is; the last one of a name counts, as with Kafka's lastHeader.
    owners = pc.list_parent_indices(headers).filter(pc.equal(flat.field("key"), name))
    values = flat.field("value").filter(pc.equal(flat.field("key"), name))
    found: list[str | None] = [None] * len(headers)
    if len(values):
        for owner, value in zip(owners.to_pylist(), values.to_pylist(), strict=True):
            found[owner] = None if value is None else value.decode("utf-8", "backslashreplace")
    return pa.array(found, pa.string())


def parse_task(parsing: Parsing) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow: records to events."""

    def run(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in records:
            yield from parse_records(batch, parsing).to_batches()

    return run


def write_task(
    store: str, parsing: Parsing, rows_per_write: int = _ROWS_PER_WRITE
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow: records to files of the store, which no reader sees before the driver commits them."""

    def run(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        target = LogStore(store, create=False)
        gathered: list[pa.Table] = []
        rows = 0
        for batch in records:
            gathered.append(parse_records(batch, parsing))
            rows += batch.num_rows
            if rows >= rows_per_write:
                yield _written(target, gathered)
                gathered, rows = [], 0
        if rows:
            yield _written(target, gathered)

    return run


def _written(store: LogStore, gathered: list[pa.Table]) -> pa.RecordBatch:
    events = pa.concat_tables(gathered)
    unparsed = pc.sum(pc.equal(events["format"], UNPARSED)).as_py() or 0
    entries = store.write_files(events)
    rows = [{"file": entry.to_json(), "lines": entry.rows, "unparsed": 0} for entry in entries]
    rows.append({"file": None, "lines": 0, "unparsed": unparsed})
    return pa.RecordBatch.from_pylist(rows, schema=_RESULT)


def entries_of(files: list[str | None]) -> list[FileEntry]:
    """The entries that tasks have told of."""
    return [FileEntry.from_json(file) for file in files if file is not None]
