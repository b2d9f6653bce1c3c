"""A log store: a directory of searchable events that batches are added to exactly once.

Tasks write files in parallel under names of their own (`write_files`); the driver then makes them visible, all of a
batch at once (`commit`). Searches, compaction and retention may run meanwhile, in other processes too.
"""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
import pyarrow as pa

from culver.pipelines.log_store import compaction, files, repairing, retention, searching
from culver.pipelines.log_store.compaction import CompactionResult
from culver.pipelines.log_store.entries import Commit, FileEntry, QueryProgress, State
from culver.pipelines.log_store.errors import (
    BatchConflict,
    DamagedFile,
    LogStoreError,
    StoreNotFound,
    WriterFenced,
)
from culver.pipelines.log_store.manifest import Manifest, new_commit_id
from culver.pipelines.log_store.repairing import RepairResult
from culver.pipelines.log_store.retention import ORPHAN_AGE_SECONDS, ExpiryResult
from culver.pipelines.log_store.searching import END_OF_TIME_US, START_OF_TIME_US, Search, SearchResult
from culver.pipelines.log_store.text_query import compile_text
from culver.pipelines.log_store.times import Moment, moment_us
from culver.pipelines.log_store.where import parse_where

_SEARCH_ATTEMPTS = 20


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a batch: committed now, or found to have been committed before."""

    query_id: str
    batch_id: int
    is_new: bool
    rows: int = 0
    files: int = 0
    version: int = 0


class DamagedFileWarning(UserWarning):
    """Some files could not be searched; the text names them and the remedy."""


@dataclass(slots=True)
class LogStore:
    """The store in a directory, which is made when it does not exist unless `create` is false."""

    path: str
    create: bool = True
    _manifest: Manifest = field(init=False, repr=False)
    _epochs: dict[str, int] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        self.path = os.path.abspath(os.fspath(self.path))
        self._manifest = Manifest(self.path)
        if self.create:
            self._manifest.create()
        elif not self._manifest.exists:
            raise StoreNotFound(
                f"there is no log store in {self.path}",
                "name the directory that `culver pipeline logs` writes to",
            )

    # --- writing ---

    def write_batch(
        self, events: pa.Table, *, query_id: str, batch_id: int, offsets: Any = None
    ) -> BatchResult:
        """Add a batch, once: given again under the same ids it is left alone."""
        if done := self._already(query_id, batch_id, offsets):
            return done
        return self.commit(query_id, batch_id, self.write_files(events), offsets)

    def write_files(self, events: pa.Table) -> list[FileEntry]:
        """Write events to files that nobody sees before `commit`; safe in any number of tasks and attempts."""
        return files.write_files(self.path, events)

    def claim(self, query_id: str) -> int:
        """Become the only writer of a query: who wrote it before is refused. The first commit does it too."""

        def change(state: State) -> Commit:
            self._epochs[query_id] = state.queries.get(query_id, QueryProgress()).epoch + 1
            return Commit(
                id=new_commit_id(),
                kind="claim",
                at_ms=int(time.time() * 1000),
                query_id=query_id,
                epoch=self._epochs[query_id],
            )

        self._manifest.commit(change)
        return self._epochs[query_id]

    def commit(
        self, query_id: str, batch_id: int, new_files: list[FileEntry], offsets: Any = None
    ) -> BatchResult:
        """Make the files of a batch visible in one step, unless this batch was committed before.

        Batches of a query are numbered upwards, as Spark does; one at or below the last number counts as replayed.
        The files of a replayed batch are left to `collect_orphans`. Raises WriterFenced when another writer has
        claimed or committed the query since this one did.
        """
        offsets = _plain(offsets)
        self._check_files(new_files)
        is_new = False

        def change(state: State) -> Commit | None:
            nonlocal is_new
            progress = state.queries.get(query_id, QueryProgress())
            self._check_epoch(query_id, progress)
            is_new = batch_id > progress.batch_id
            if not is_new:
                _check_replay(query_id, batch_id, offsets, progress)
                return None
            return Commit(
                id=new_commit_id(),
                kind="batch",
                at_ms=int(time.time() * 1000),
                query_id=query_id,
                epoch=self._epochs.get(query_id, progress.epoch + 1),
                batch_id=batch_id,
                offsets=offsets,
                add=new_files,
            )

        state = self._manifest.commit(change)
        if not is_new:
            return BatchResult(query_id, batch_id, is_new=False, version=state.version)
        self._epochs.setdefault(query_id, state.queries[query_id].epoch)
        rows = sum(entry.rows for entry in new_files)
        return BatchResult(query_id, batch_id, True, rows, len(new_files), state.version)

    def progress(self, query_id: str) -> QueryProgress:
        """The last batch of a query that was committed, and its offsets; batch -1 before the first."""
        return self._manifest.state().queries.get(query_id, QueryProgress())

    def _already(self, query_id: str, batch_id: int, offsets: Any) -> BatchResult | None:
        state = self._manifest.state()
        progress = state.queries.get(query_id, QueryProgress())
        self._check_epoch(query_id, progress)
        if batch_id > progress.batch_id:
            return None
        _check_replay(query_id, batch_id, _plain(offsets), progress)
        return BatchResult(query_id, batch_id, is_new=False, version=state.version)

    def _check_epoch(self, query_id: str, progress: QueryProgress) -> None:
        epoch = self._epochs.get(query_id)
        if epoch is not None and epoch < progress.epoch:
            raise WriterFenced(
                f"another writer of query {query_id} has taken over (epoch {progress.epoch}, this one has {epoch})",
                "stop this one; two pipelines into one store need checkpoints of their own",
            )

    def _check_files(self, new_files: list[FileEntry]) -> None:
        for entry in new_files:
            for path, size in ((entry.path, entry.bytes), (entry.index, entry.index_bytes)):
                local = files.local_path(self.path, path)
                if not os.path.exists(local) or os.path.getsize(local) != size:
                    raise BatchConflict(
                        f"{local}, which the batch is to be made of, has gone or changed",
                        "run the batch again; a batch may not take longer than orphans are kept",
                    )

    # --- reading ---

    def state(self) -> State:
        """The newest state: its files with their times and sizes, and how far each query has come."""
        return self._manifest.state()

    def parquet_files(self) -> list[str]:
        """The files that count, for DuckDB, Spark and others: what else lies below data/ may be half a batch."""
        return sorted(files.local_path(self.path, path) for path in self._manifest.state().files)

    def search(
        self,
        text: str = "",
        since: Moment = None,
        until: Moment = None,
        where: str = "",
        limit: int = 50,
    ) -> pa.Table:
        """The newest `limit` events with this text, as `find`; a DamagedFileWarning names what could not be read."""
        result = self.find(text, since, until, where, limit)
        for problem in result.problems:
            warnings.warn(str(problem), DamagedFileWarning, stacklevel=2)
        return result.events

    def find(
        self,
        text: str = "",
        since: Moment = None,
        until: Moment = None,
        where: str = "",
        limit: int = 50,
        is_enough: Callable[[], bool] | None = None,
    ) -> SearchResult:
        """The newest `limit` events, newest first, that match all of what is given, and what could not be searched.

        `text` is as in `text_query`, `where` as in `where`; times are datetimes, microseconds since 1970, ISO 8601
        text, or ages such as "2h"; since <= ts < until. Raises QueryError, and SearchTooLong once `is_enough` says so.
        """
        search = compiled_search(text, since, until, where, limit)
        if is_enough is not None:
            search = replace(search, is_enough=is_enough)
        for _ in range(_SEARCH_ATTEMPTS):
            result = searching.run(self.path, self._manifest.state(), search)
            # A file that has gone was merged or expired since the manifest was read, or it is lost.
            live = self._manifest.state().files if result.missing else {}
            if all(live.get(entry.path) == entry for entry, _ in result.missing):
                result.problems += [problem for _, problem in result.missing]
                return result
        raise LogStoreError("the store changed all the time while it was searched", "search again")

    # --- keeping it in order ---

    def compact(self, *, files_min: int = 2, target_rows: int = compaction.TARGET_ROWS) -> CompactionResult:
        """Merge small files of the same hour."""
        return compaction.compact(self.path, self._manifest, files_min=files_min, target_rows=target_rows)

    def expire(self, before: Moment) -> ExpiryResult:
        """Remove what is older, file by file: up to an hour more than asked for stays."""
        return retention.expire(self.path, self._manifest, moment_us(before, START_OF_TIME_US))

    def collect_orphans(self, older_than_seconds: float = ORPHAN_AGE_SECONDS) -> list[str]:
        """Delete files of crashed attempts and replayed batches."""
        return retention.collect_orphans(self.path, self._manifest, older_than_seconds)

    def verify(self) -> list[DamagedFile]:
        """Read every file in full and compare it with its checksum."""
        return repairing.verify(self.path, self._manifest.state())

    def repair(self) -> RepairResult:
        """Build damaged indexes again, save what can be read of damaged Parquet files; says what was lost."""
        return repairing.repair(self.path, self._manifest)


def compiled_search(
    text: str = "", since: Moment = None, until: Moment = None, where: str = "", limit: int = 50
) -> Search:
    """What is looked for, as `LogStore.find` takes it. Raises QueryError."""
    return Search(
        compile_text(text),
        moment_us(since, START_OF_TIME_US),
        moment_us(until, END_OF_TIME_US),
        parse_where(where),
        limit,
    )


def _plain(offsets: Any) -> Any:
    """As it will be read back, so that a replayed batch's offsets can be compared."""
    return msgspec.json.decode(msgspec.json.encode(offsets))


def _check_replay(query_id: str, batch_id: int, offsets: Any, progress: QueryProgress) -> None:
    known = offsets is not None and progress.offsets is not None
    if batch_id == progress.batch_id and known and offsets != progress.offsets:
        raise BatchConflict(
            f"batch {batch_id} of query {query_id} was committed with other offsets "
            f"({msgspec.json.encode(progress.offsets).decode()}, now {msgspec.json.encode(offsets).decode()})",
            "the query's checkpoint does not belong to this store: give it a new checkpoint or an own store",
        )
