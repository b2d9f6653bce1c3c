"""Let old events go, and collect the files that crashed writers left behind."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

from culver.pipelines.log_store import compaction, durable_files, files
from culver.pipelines.log_store.entries import Commit, FileEntry, State
from culver.pipelines.log_store.manifest import Manifest, new_commit_id

# Longer than any batch takes: a task writes its files long before the driver commits them.
ORPHAN_AGE_SECONDS = 24 * 3600.0


@dataclass(frozen=True, slots=True)
class ExpiryResult:
    """What retention has removed."""

    files: int
    rows: int
    bytes: int


def expire(root: str, manifest: Manifest, before_us: int) -> ExpiryResult:
    """Remove the files all of whose events are older; an hour that is only partly older stays whole."""
    expired: list[FileEntry] = []

    def change(state: State) -> Commit | None:
        expired[:] = [entry for entry in state.files.values() if entry.ts_max < before_us]
        if not expired:
            return None
        return Commit(
            id=new_commit_id(),
            kind="retention",
            at_ms=int(time.time() * 1000),
            remove=[entry.path for entry in expired],
        )

    manifest.commit(change)
    freed = compaction.delete(root, expired)
    return ExpiryResult(len(expired), sum(entry.rows for entry in expired), freed)


def collect_orphans(
    root: str, manifest: Manifest, older_than_seconds: float = ORPHAN_AGE_SECONDS
) -> list[str]:
    """Delete files below data/ and temporary ones of the manifest that no commit names; which ones, relative."""
    latest_s = time.time() - older_than_seconds
    # First the files, then the manifest: what is committed in between is seen as committed.
    old = [path for path in _stored(root, manifest) if _modified_s(path) <= latest_s]
    live = {
        files.local_path(root, path)
        for entry in manifest.state().files.values()
        for path in (entry.path, entry.index)
    }
    removed = []
    for path in old:
        if path not in live and durable_files.remove(path):
            removed.append(os.path.relpath(path, root))
            durable_files.remove_empty_directories(
                os.path.dirname(path), os.path.join(root, files.DATA_DIRECTORY)
            )
    return sorted(removed)


def _stored(root: str, manifest: Manifest) -> list[str]:
    ours = (files.PARQUET_SUFFIX, files.INDEX_SUFFIX, durable_files.TEMPORARY_SUFFIX)
    found = [
        os.path.join(directory, name)
        for directory, _, names in os.walk(os.path.join(root, files.DATA_DIRECTORY))
        for name in names
        if name.endswith(ours)
    ]
    return found + [
        os.path.join(manifest.directory, name)
        for name in os.listdir(manifest.directory)
        if name.endswith(durable_files.TEMPORARY_SUFFIX)
    ]


def _modified_s(path: str) -> float:
    try:
        return os.path.getmtime(path)
    except FileNotFoundError:
        return float("inf")
