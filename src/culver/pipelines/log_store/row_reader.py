"""Read rows of one Parquet file of the store by their row group; errors name the file and the remedy."""

from __future__ import annotations

import os

import pyarrow as pa
import pyarrow.parquet as pq

from culver.pipelines.log_store.entries import FileEntry
from culver.pipelines.log_store.errors import DamagedFile
from culver.pipelines.log_store.files import local_path


class RowReader:
    """One file, opened when the first row is wanted. FileNotFoundError when there is none."""

    def __init__(self, root: str, entry: FileEntry) -> None:
        self._path = local_path(root, entry.path)
        self._entry = entry
        self._file: pq.ParquetFile | None = None

    def __enter__(self) -> RowReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def groups_between(self, since: int, until: int) -> range:
        """The row groups that may hold rows of this time; they are in order of time."""
        count = -(-self._entry.rows // self._entry.row_group_rows)
        if since <= self._entry.ts_min and self._entry.ts_max < until:
            return range(count)
        first = next((group for group in range(count) if self.ts_max(group) >= since), count)
        end = next((group for group in range(first, count) if self._ts(group, "min") >= until), count)
        return range(first, end)

    def ts_max(self, group: int) -> int:
        return self._ts(group, "max")

    def _ts(self, group: int, bound: str) -> int:
        statistics = self._open().metadata.row_group(group).column(0).statistics
        if statistics is None or not statistics.has_min_max:
            return self._entry.ts_min if bound == "min" else self._entry.ts_max
        return int(statistics.min_raw if bound == "min" else statistics.max_raw)

    def read(self, group: int, columns: list[str] | None = None) -> pa.Table:
        """A whole row group, or some columns of it."""
        file = self._open()
        try:
            # One group is too small to share out among threads; the files are.
            return file.read_row_group(group, columns=columns, use_threads=False)
        except (OSError, pa.ArrowException) as error:
            raise DamagedFile.parquet(
                self._path, f"is damaged in row group {group} ({_first_line(error)})"
            ) from error

    def _open(self) -> pq.ParquetFile:
        if self._file is None:
            try:
                size = os.path.getsize(self._path)
                if size != self._entry.bytes:
                    raise DamagedFile.parquet(
                        self._path, f"has {size} bytes where the manifest says {self._entry.bytes}"
                    )
                self._file = pq.ParquetFile(self._path, page_checksum_verification=True)
            except FileNotFoundError:
                raise
            except (OSError, pa.ArrowException) as error:
                raise DamagedFile.parquet(self._path, f"cannot be read ({_first_line(error)})") from error
        return self._file


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
