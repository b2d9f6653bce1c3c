"""The transactions of the local store: they run on a thread, and those that queue up meanwhile share one commit.

SQLite's commit waits for an fsync, so the event loop never makes one itself.
"""

from __future__ import annotations

import sqlite3
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from culver.coordination import local_database as database
from culver.coordination.store import StoreError
from culver.scheduler import Scheduler

Work: TypeAlias = Callable[[sqlite3.Connection], int]
WorkDone: TypeAlias = Callable[[int | None, BaseException | None], object]


@dataclass(slots=True)
class _Job:
    """A part of a transaction: `work` runs on a thread, `done` gets its outcome on the broker's thread."""

    work: Work
    done: WorkDone
    result: int | None = None
    error: BaseException | None = None
    ran: bool = False


class Commits:
    """Jobs that wait, those that a thread is at, and those that are made but not reported yet."""

    def __init__(
        self,
        path: str,
        connection: sqlite3.Connection,
        scheduler: Scheduler,
        committed: Callable[[], StoreError | None],
    ) -> None:
        """`committed` is called behind each commit, before its jobs are reported; they get the error it returns."""
        self._path = path
        self._connection = connection
        self._scheduler = scheduler
        self._committed = committed
        self._waiting: deque[_Job] = deque()
        self._running: list[_Job] = []
        self._finished: deque[_Job] = deque()
        # Held by whoever uses the connection, and while `closed` is set.
        self._lock = threading.Lock()
        self._closed = False

    def submit(self, work: Work, done: WorkDone) -> None:
        """`work` may raise StoreError, which undoes what it did and nothing else."""
        if self._closed:
            raise StoreError("the metadata store is closed")
        self._waiting.append(_Job(work, done))
        if not self._running:
            self._start()

    def close(self, last: Work | None) -> None:
        """Do what is left, then `last`. No `done` is called any more; the scheduler may be closed already or not.

        Without `last` nothing more is done. Raises sqlite3.Error or OSError when `last` could not be done.
        """
        with self._lock:  # a thread that is inside a transaction finishes it
            if self._closed:
                return
            self._closed = True
            try:
                if last is not None:
                    # What was handed to a thread that never came to it, and what waits behind that.
                    self._run([job for job in self._running if not job.ran] + list(self._waiting))
                    with database.transaction(self._connection):
                        last(self._connection)
            finally:
                self._connection.close()
                self._waiting.clear()
                self._finished.clear()

    def _start(self) -> None:
        jobs = self._running = list(self._waiting)
        self._waiting.clear()

        def work() -> None:
            with self._lock:
                if not self._closed:
                    self._run(jobs)

        def done(_result: None, error: BaseException | None) -> None:
            if not self._closed:
                self._finish(jobs, error)

        self._scheduler.run_blocking(work, done)

    def _run(self, jobs: list[_Job]) -> None:
        """One transaction."""
        if not jobs:
            return
        connection = self._connection
        try:
            with database.transaction(connection):
                for job in jobs:
                    job.ran = True
                    try:
                        with database.savepoint(connection):
                            job.result = job.work(connection)
                    except StoreError as error:
                        job.error = error
                database.prune(connection)
        except (sqlite3.Error, OSError) as error:
            failure = StoreError(f"the metadata store {self._path} cannot be changed: {error}")
            for job in jobs:
                # Even a conflict: it may have been with a job of the same transaction.
                job.ran, job.result, job.error = True, None, failure

    def _finish(self, jobs: list[_Job], error: BaseException | None) -> None:
        self._running = []
        self._finished.extend(jobs)
        if self._waiting:
            self._start()
        try:
            error = error or self._committed()
            if error is not None:
                for job in jobs:
                    job.result, job.error = None, job.error or error
        finally:
            self._report()

    def _report(self) -> None:
        try:
            while self._finished and not self._closed:
                job = self._finished.popleft()
                job.done(job.result, job.error)
        finally:
            # One who raises keeps nobody else from hearing.
            if self._finished and not self._closed:
                self._scheduler.call_soon(self._report)
