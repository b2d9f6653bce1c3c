"""Find damaged files by their checksums, and make the store whole again as far as that can be done."""

from __future__ import annotations

import os
import posixpath
import uuid
from dataclasses import dataclass, field

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from culver.pipelines.log_store import compaction, durable_files, files
from culver.pipelines.log_store.entries import FileEntry, State
from culver.pipelines.log_store.errors import DamagedFile
from culver.pipelines.log_store.manifest import Manifest

QUARANTINE_DIRECTORY = "damaged"


@dataclass(slots=True)
class RepairResult:
    """What was wrong and what became of it."""

    problems: list[DamagedFile] = field(default_factory=list)
    indexes_rebuilt: int = 0
    rows_saved: int = 0
    rows_lost: int = 0
    put_aside: list[str] = field(default_factory=list)  # damaged Parquet files, where they lie now


def verify(root: str, state: State) -> list[DamagedFile]:
    """What is wrong with the files of the store, each read in full."""
    problems = []
    for entry in state.files.values():
        if reason := _damage(root, entry.path, entry.bytes, entry.crc32c):
            problems.append(DamagedFile.parquet(files.local_path(root, entry.path), reason))
        if reason := _damage(root, entry.index, entry.index_bytes, entry.index_crc32c):
            problems.append(DamagedFile.index(files.local_path(root, entry.index), reason))
    return problems


def _damage(root: str, path: str, size: int, crc32c: int) -> str:
    local = files.local_path(root, path)
    try:
        found = os.path.getsize(local)
        if found != size:
            return f"has {found} bytes where the manifest says {size}"
        return "" if durable_files.checksum(local) == crc32c else "does not have its checksum"
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read ({error.strerror})"


def repair(root: str, manifest: Manifest) -> RepairResult:
    """Mend every damaged file. Searches and the pipeline may run meanwhile."""
    result = RepairResult()
    state = manifest.state()
    for entry in state.files.values():
        problems = verify(root, msgspec.structs.replace(state, files={entry.path: entry}))
        if not problems or entry.path not in manifest.state().files:
            continue
        result.problems += problems
        if any(problem.path.endswith(files.PARQUET_SUFFIX) for problem in problems):
            _save(root, manifest, entry, result)
        else:
            _rebuild_index(root, manifest, entry, result)
    return result


def _rebuild_index(root: str, manifest: Manifest, entry: FileEntry, result: RepairResult) -> None:
    events = pq.read_table(files.local_path(root, entry.path), partitioning=None)
    # Under a new name: somebody may be reading the damaged one.
    index = posixpath.join(posixpath.dirname(entry.path), uuid.uuid4().hex + files.INDEX_SUFFIX)
    files.write_index(files.local_path(root, index), events)
    mended = files.entry_of(root, entry.path, index, events)
    if compaction.replace(manifest, "repair", [entry], [mended]):
        durable_files.remove(files.local_path(root, entry.index))
        result.indexes_rebuilt += 1


def _save(root: str, manifest: Manifest, entry: FileEntry, result: RepairResult) -> None:
    """Write the row groups that can still be read to a new file; the damaged one goes to a directory of its own."""
    path = files.local_path(root, entry.path)
    tables = _readable(path)
    saved = files.write_files(root, pa.concat_tables(tables)) if tables else []
    if not compaction.replace(manifest, "repair", [entry], saved):
        compaction.delete(root, saved)
        return
    rows = sum(new.rows for new in saved)
    result.rows_saved += rows
    result.rows_lost += max(0, entry.rows - rows)
    durable_files.remove(files.local_path(root, entry.index))
    if os.path.exists(path):
        aside = os.path.join(root, QUARANTINE_DIRECTORY, os.path.basename(path))
        os.makedirs(os.path.dirname(aside), exist_ok=True)
        os.rename(path, aside)
        result.put_aside.append(aside)


def _readable(path: str) -> list[pa.Table]:
    tables = []
    try:
        with pq.ParquetFile(path, page_checksum_verification=True) as file:
            for group in range(file.num_row_groups):
                try:
                    tables.append(file.read_row_group(group))
                except (OSError, pa.ArrowException):
                    continue
    except (OSError, pa.ArrowException):
        return tables
    return tables
