"""The metadata store of one machine: a SQLite file in WAL mode."""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from culver.coordination.store import Change, Conflict, Create, Done, Entry, IdsDone, Put, StoreError
from culver.scheduler import Scheduler

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ids (kind TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID;
"""


@dataclass(slots=True)
class _Job:
    """One transaction: `work` runs on a thread, `done` gets its outcome on the broker's thread."""

    work: Callable[[sqlite3.Connection], int]
    done: Callable[[int | None, BaseException | None], object]
    result: int | None = None
    error: BaseException | None = None


class LocalStore:
    """Jobs run one after another on a thread; those that queue up meanwhile share one commit.

    SQLite's commit waits for an fsync, so the event loop never makes one itself.
    """

    def __init__(self, path: str, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._jobs: deque[_Job] = deque()
        self._running = False
        self._closed = False
        try:
            self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode=WAL")
            self._connection.execute("PRAGMA synchronous=FULL")
            self._connection.executescript(_SCHEMA)
        except sqlite3.Error as error:
            raise StoreError(f"cannot open the metadata store {path}: {error}") from error

    def load(self) -> Mapping[str, Entry]:
        rows = self._connection.execute("SELECT path, value, version FROM entries")
        return {path: Entry(value, version) for path, value, version in rows}

    def change(self, changes: Sequence[Change], done: Done) -> None:
        def work(connection: sqlite3.Connection) -> int:
            _apply(connection, changes)
            return 0

        self._submit(_Job(work, lambda _result, error: done(error)))

    def allocate_ids(self, kind: str, count: int, done: IdsDone) -> None:
        assert count > 0

        def work(connection: sqlite3.Connection) -> int:
            row = connection.execute(
                "INSERT INTO ids VALUES (?1, ?2) ON CONFLICT (kind) DO UPDATE SET next = next + ?2 RETURNING next",
                (kind, count),
            ).fetchone()
            return int(row[0]) - count

        self._submit(_Job(work, done))

    def close(self) -> None:
        # The scheduler is closed before this, so no thread is inside a job any more.
        self._closed = True
        self._run(list(self._jobs))
        self._jobs.clear()
        self._connection.close()

    def _submit(self, job: _Job) -> None:
        if self._closed:
            raise StoreError("the metadata store is closed")
        self._jobs.append(job)
        if not self._running:
            self._start()

    def _start(self) -> None:
        jobs = list(self._jobs)
        self._jobs.clear()
        self._running = True

        def work() -> None:
            self._run(jobs)

        def done(_result: None, error: BaseException | None) -> None:
            self._running = False
            if self._jobs:
                self._start()
            for job in jobs:
                job.done(job.result, job.error or error)

        self._scheduler.run_blocking(work, done)

    def _run(self, jobs: list[_Job]) -> None:
        if not jobs:
            return
        connection = self._connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            for job in jobs:
                # A savepoint each: a conflict undoes that job alone, the others still commit.
                connection.execute("SAVEPOINT job")
                try:
                    job.result = job.work(connection)
                except StoreError as error:
                    job.error = error
                    connection.execute("ROLLBACK TO job")
                connection.execute("RELEASE job")
            connection.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _apply(connection: sqlite3.Connection, changes: Sequence[Change]) -> None:
    for change in changes:
        path = change.path
        if isinstance(change, Create):
            try:
                connection.execute("INSERT INTO entries VALUES (?, ?, 0)", (path, change.value))
            except sqlite3.IntegrityError:
                raise Conflict(path, "exists already") from None
            continue
        version = -1 if change.expected_version is None else change.expected_version
        if isinstance(change, Put):
            cursor = connection.execute(
                "UPDATE entries SET value = ?2, version = version + 1 WHERE path = ?1 AND (?3 < 0 OR version = ?3)",
                (path, change.value, version),
            )
        else:
            cursor = connection.execute(
                "DELETE FROM entries WHERE path = ?1 AND (?2 < 0 OR version = ?2)", (path, version)
            )
        if cursor.rowcount != 1:
            raise Conflict(path, "is missing or was changed by another")
