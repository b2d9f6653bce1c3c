"""Merge the small files that batches leave behind: per hour, into few files of a good size, in one commit each."""

from __future__ import annotations

import os
import posixpath
import time
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.parquet as pq

from culver.pipelines.log_store import durable_files, files
from culver.pipelines.log_store.entries import Commit, FileEntry, State
from culver.pipelines.log_store.errors import DamagedFile
from culver.pipelines.log_store.manifest import Manifest, new_commit_id

TARGET_ROWS = files.ROWS_PER_FILE_MAX
# A merge holds its lines in memory, which take several times the space they have when compressed.
TARGET_BYTES = 64 << 20


@dataclass(slots=True)
class CompactionResult:
    """What a compaction has done; files that could not be read were left as they are."""

    files_before: int = 0
    files_after: int = 0
    rows: int = 0
    problems: list[DamagedFile] | None = None


def compact(
    root: str, manifest: Manifest, *, files_min: int = 2, target_rows: int = TARGET_ROWS
) -> CompactionResult:
    """Merge files of the same hour when at least `files_min` of them fit into one of `target_rows`.

    With `files_min` 2 everything that fits is merged. With more, as after every batch, a file larger than all smaller
    ones together waits until they have caught up: each line is then written again only as often as the size doubles.
    """
    result = CompactionResult(problems=[])
    for group in _groups(manifest.state(), files_min, target_rows):
        try:
            merged = _merge(root, manifest, group)
        except DamagedFile as problem:
            assert result.problems is not None
            result.problems.append(problem)
            continue
        if merged:
            result.files_before += len(group)
            result.files_after += len(merged)
            result.rows += sum(entry.rows for entry in merged)
    return result


def _groups(state: State, files_min: int, target_rows: int) -> list[list[FileEntry]]:
    """Files to merge with each other: of one hour, the small ones first, none already large enough."""
    hours: dict[str, list[FileEntry]] = {}
    for entry in state.files.values():
        if entry.rows <= target_rows // 2 and entry.bytes <= TARGET_BYTES // 2:
            hours.setdefault(posixpath.dirname(entry.path), []).append(entry)
    groups = []
    for directory in sorted(hours):
        group: list[FileEntry] = []
        rows = size = 0
        for entry in sorted(hours[directory], key=lambda entry: (entry.rows, entry.path)):
            if files_min > 2 and len(group) >= files_min - 1 and entry.rows > rows:
                break
            if rows + entry.rows > target_rows or size + entry.bytes > TARGET_BYTES:
                groups.append(group)
                group, rows, size = [], 0, 0
            group.append(entry)
            rows += entry.rows
            size += entry.bytes
        groups.append(group)
    return [group for group in groups if len(group) >= max(2, files_min)]


def _merge(root: str, manifest: Manifest, group: list[FileEntry]) -> list[FileEntry]:
    """Write what these files hold to one file and put it in their place; nothing when they have gone meanwhile."""
    tables = []
    for entry in group:
        path = files.local_path(root, entry.path)
        try:
            tables.append(pq.read_table(path, partitioning=None, page_checksum_verification=True))
        except FileNotFoundError:
            if entry.path not in manifest.state().files:
                return []
            raise DamagedFile.parquet(path, "is missing") from None
        except (OSError, pa.ArrowException) as error:
            raise DamagedFile.parquet(path, f"is damaged ({str(error).splitlines()[0]})") from error
    merged = files.write_files(root, pa.concat_tables(tables))
    if not replace(manifest, "compaction", group, merged):
        delete(root, merged)
        return []
    delete(root, group)
    return merged


def replace(manifest: Manifest, kind: str, old: list[FileEntry], new: list[FileEntry]) -> bool:
    """Commit new files in the place of old ones; False when one of the old ones is no longer in the store."""
    replaced = False

    def change(state: State) -> Commit | None:
        nonlocal replaced
        replaced = all(entry.path in state.files for entry in old)
        if not replaced:
            return None
        return Commit(
            id=new_commit_id(),
            kind=kind,
            at_ms=int(time.time() * 1000),
            add=new,
            remove=[entry.path for entry in old],
        )

    manifest.commit(change)
    return replaced


def delete(root: str, entries: list[FileEntry]) -> int:
    """Delete files that the manifest no longer names, and directories left empty; the bytes set free.

    A search that began before reads on if it has them open; otherwise it begins again with the newer manifest.
    """
    freed = 0
    for entry in entries:
        for path, size in ((entry.index, entry.index_bytes), (entry.path, entry.bytes)):
            local = files.local_path(root, path)
            if durable_files.remove(local):
                freed += size
        durable_files.remove_empty_directories(
            os.path.dirname(files.local_path(root, entry.path)), os.path.join(root, files.DATA_DIRECTORY)
        )
    return freed
