"""What tasks of the archive pipeline do: write the records of a stretch of a partition to Parquet files, in order."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterator

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from culver.pipelines.archive_manifest import ArchivedFile, local_path
from culver.pipelines.log_store.durable_files import write_new

RESULT_SCHEMA = "partition INT, file STRING"
ROWS_PER_FILE_MAX = 1_000_000
BYTES_PER_FILE_MAX = 256 << 20

_RESULT = pa.schema([("partition", pa.int32()), ("file", pa.string())])
# Few rows are read to get at a range; records of which nothing is known compress well in groups like this.
_ROW_GROUP_ROWS = 32_768


def archive_task(
    root: str, rows_per_file_max: int = ROWS_PER_FILE_MAX
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """For mapInArrow: records, in order of offsets, to files that count once the manifest names them."""

    def run(records: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        gathered: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        for batch in records:
            if not batch.num_rows:
                continue
            if gathered and (
                rows + batch.num_rows > rows_per_file_max
                or size_bytes + batch.nbytes > BYTES_PER_FILE_MAX
                or _partition(gathered[-1]) != _partition(batch)
            ):
                yield _written(root, gathered)
                gathered, rows, size_bytes = [], 0, 0
            gathered.append(batch)
            rows += batch.num_rows
            size_bytes += batch.nbytes
        if gathered:
            yield _written(root, gathered)

    return run


def _partition(batch: pa.RecordBatch) -> int:
    return int(batch.column("partition")[0].as_py())


def _written(root: str, batches: list[pa.RecordBatch]) -> pa.RecordBatch:
    table = pa.Table.from_batches(batches)
    partition = _partition(batches[0])
    first, last = table["offset"][0].as_py(), table["offset"][-1].as_py()
    path = f"{partition}/{first:020d}-{uuid.uuid4().hex}.parquet"
    local = local_path(root, path)

    def fill(temporary: str) -> None:
        pq.write_table(
            table,
            temporary,
            row_group_size=_ROW_GROUP_ROWS,
            compression="zstd",
            compression_level=3,
            use_dictionary=["topic", "partition", "timestampType"],
            write_statistics=["offset", "timestamp"],
            write_page_checksum=True,
        )

    write_new(local, fill)
    times = pc.min_max(table["timestamp"].cast(pa.int64()))
    file = ArchivedFile(
        path=path,
        records=table.num_rows,
        bytes=os.path.getsize(local),
        first_offset=first,
        last_offset=last,
        timestamp_ms_min=times["min"].as_py() // 1000,
        timestamp_ms_max=times["max"].as_py() // 1000,
    )
    row = {"partition": partition, "file": msgspec.json.encode(file).decode()}
    return pa.RecordBatch.from_pylist([row], schema=_RESULT)
