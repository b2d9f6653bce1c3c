"""The metadata store of one machine: a SQLite file that any number of broker processes share.

Changes are made on a thread, since a commit waits for the disk; those that queue up meanwhile share one. What has
changed, by whomever, is read from the file's journal on the broker's thread, where nothing waits: at once behind a
change of its own, otherwise when a timer finds that the file is no longer the same.
"""

from __future__ import annotations

import math
import os
import sqlite3
from collections.abc import Mapping, Sequence

from culver.clock import Clock
from culver.coordination import local_database as database
from culver.coordination.local_commits import Commits, Work, WorkDone
from culver.coordination.local_sessions import Session, has_ended, remove_files, remove_strays
from culver.coordination.store import Change, Done, Entry, Event, IdsDone, OnEvents, OnSession, StoreError
from culver.logging import get_logger
from culver.scheduler import Scheduler, Timer

_log = get_logger("culver.metadata")

SESSION_TIMEOUT_MS = 2000
# How often to look at the file while others use it, and while nobody does.
_SHARED_POLL_MS = 20.0
_ALONE_POLL_MS = 50.0
_LOOK_MS = 50.0  # how often to see whether the others live


class LocalStore:
    """A session, the queue of what is to be changed, and how far the journal has been read."""

    def __init__(
        self, path: str, scheduler: Scheduler, clock: Clock, session_timeout_ms: float = SESSION_TIMEOUT_MS
    ) -> None:
        self._path = path
        self._directory = f"{path}.sessions"
        self._scheduler = scheduler
        self._now_ms = clock.monotonic_ms
        self._timeout_ms = session_timeout_ms
        self._margin_ms = session_timeout_ms / 10
        self._beat_interval_ms = session_timeout_ms / 4
        self._on_events: OnEvents
        self._on_session: OnSession
        self._commits: Commits | None = None
        self._reader: sqlite3.Connection | None = None
        self._closed = False
        self._timer: Timer | None = None
        # Sessions: this one's, the others', and those of them that are being ended.
        self._session: Session | None = None
        self._begun: Session | None = None  # made on a thread, and not told of yet
        self._beginning = False
        self._renewing = False
        self._others: set[str] = set()
        self._ending: set[str] = set()
        self._tick_due_ms = 0.0
        self._beat_due_ms = 0.0
        self._look_due_ms = 0.0
        # Reading.
        self._known: dict[str, Entry] = {}
        self._last_change = 0
        self._data_version = -1
        self._readable = True
        self._file: tuple[int, int] | None = None  # which one was opened
        self._told_of_no_session = False

    # -- the port ---------------------------------------------------------------------------------------

    @property
    def lease_until_ms(self) -> float:
        session = self._session
        return -math.inf if session is None else session.deadline_ms - self._margin_ms

    def open(self, on_events: OnEvents, on_session: OnSession) -> Mapping[str, Entry]:
        self._on_events = on_events
        self._on_session = on_session
        try:
            writer, self._reader = database.connect(self._path)
            self._file = self._file_at_path()
            self._commits = Commits(self._path, writer, self._scheduler, self._read)
            self._session = self._first_session(writer)
            self._data_version = database.data_version(self._reader)
            self._known, self._last_change = database.load(self._reader)
            self._others = database.sessions(self._reader) - {self._session.id}
        except (sqlite3.Error, OSError) as error:
            self.abandon()
            raise StoreError(f"cannot open the metadata store {self._path}: {error}") from error
        except StoreError:
            self.abandon()
            raise
        self._beat_due_ms = self._now_ms() + self._beat_interval_ms
        self._arm()
        return dict(self._known)

    def change(self, changes: Sequence[Change], done: Done) -> None:
        # A change asked for while there is no session must not be made in the next one.
        session = "" if self._session is None else self._session.id

        def work(connection: sqlite3.Connection) -> int:
            database.apply(connection, session, changes)
            return 0

        self._submit(work, lambda _result, error: done(error))

    def allocate_ids(self, kind: str, count: int, done: IdsDone) -> None:
        assert count > 0
        self._submit(lambda connection: database.allocate_ids(connection, kind, count), done)

    def close(self) -> None:
        """No callback is made any more. Works before and after the scheduler's own closing."""

        def end_sessions(connection: sqlite3.Connection) -> int:
            for session in (self._session, self._begun):
                if session is not None:
                    database.end_session(connection, session.id)
            return 0

        self._close(end_sessions)

    def abandon(self) -> None:
        """Let go of everything without a word, as a crash would; the others notice."""
        self._close(None)

    def _close(self, last: Work | None) -> None:
        self._closed = True
        ended = last is not None
        if self._timer is not None:
            self._timer.cancel()
        try:
            if self._commits is not None:
                self._commits.close(last)
        except (sqlite3.Error, OSError) as error:
            # The others end it as soon as the lock is gone.
            _log.warning("a session could not be ended in order", path=self._path, error=str(error))
            ended = False
        finally:
            for session in (self._session, self._begun):
                if session is not None:
                    session.release(remove=ended)
            if self._reader is not None:
                self._reader.close()
            self._timer = self._commits = self._session = self._begun = self._reader = None
            self._known = {}

    def _submit(self, work: Work, done: WorkDone) -> None:
        if self._commits is None:
            raise StoreError("the metadata store is closed")
        self._commits.submit(work, done)

    # -- events -----------------------------------------------------------------------------------------

    def _poll(self) -> None:
        assert self._reader is not None
        try:
            self._check_file()
            changed = database.data_version(self._reader) != self._data_version
        except sqlite3.Error as error:
            self._cannot_read(error)
            return
        if changed or not self._readable:
            self._read()

    def _read(self) -> StoreError | None:
        """Report what has changed since the last time; the error when that cannot be found out."""
        reader = self._reader
        assert reader is not None
        try:
            self._check_file()
            # Asked first: what changes from here on shows in the next one.
            data_version = database.data_version(reader)
            try:
                events, last = database.read_changes(reader, self._last_change)
            except database.FellBehind:
                events, last = self._reload(reader)
            sessions = database.sessions(reader)
        except sqlite3.Error as error:
            return self._cannot_read(error)
        if not self._readable:
            _log.info("the metadata store can be read again", path=self._path)
            self._readable = True
        self._data_version, self._last_change = data_version, last
        for path, entry in events:
            if entry is None:
                self._known.pop(path, None)
            else:
                self._known[path] = entry
        try:
            self._notice(sessions)
        finally:
            if events and not self._closed:
                self._on_events(events)
        return None

    def _reload(self, reader: sqlite3.Connection) -> tuple[list[Event], int]:
        entries, last = database.load(reader)
        known = self._known
        events: list[Event] = [(path, None) for path in known if path not in entries]
        events += [(path, entry) for path, entry in entries.items() if known.get(path) != entry]
        return events, last

    def _file_at_path(self) -> tuple[int, int]:
        found = os.stat(self._path)
        return found.st_dev, found.st_ino

    def _check_file(self) -> None:
        """A file that was removed can still be used by those who have it open, but others would begin another."""
        try:
            in_place = self._file_at_path() == self._file
        except OSError:
            in_place = False
        if not in_place:
            raise sqlite3.OperationalError(
                "the file was removed or replaced while it was in use. Move it back; if that cannot be done, restore "
                "it and start all brokers again"
            )

    def _cannot_read(self, error: sqlite3.Error) -> StoreError:
        if self._readable:
            _log.warning("the metadata store cannot be read", path=self._path, error=str(error))
            self._readable = False
        return StoreError(f"the metadata store {self._path} cannot be read: {error}")

    # -- time -------------------------------------------------------------------------------------------

    def _arm(self) -> None:
        if not self._closed:
            delay_ms = _SHARED_POLL_MS if self._others else _ALONE_POLL_MS
            self._tick_due_ms = self._now_ms() + delay_ms
            self._timer = self._scheduler.call_later(delay_ms, self._tick)

    def _tick(self) -> None:
        if self._closed:
            return
        try:
            self._poll()
            if self._readable:
                # Who cannot read the store has lost touch with it: it lets its lease run out, and judges nobody.
                self._keep_up()
        finally:
            self._arm()

    def _keep_up(self) -> None:
        if self._closed:
            return
        now_ms = self._now_ms()
        if now_ms > self._tick_due_ms + self._beat_interval_ms:
            # It was this process that stood still, and perhaps all others with it: let them show themselves first.
            self._look_due_ms = now_ms + self._beat_interval_ms
        if self._session is None:
            self._begin()
        elif now_ms >= self._beat_due_ms:
            self._beat(self._session)
        if self._others and now_ms >= self._look_due_ms:
            self._look_due_ms = now_ms + _LOOK_MS
            self._look()

    # -- sessions ---------------------------------------------------------------------------------------

    def _first_session(self, connection: sqlite3.Connection) -> Session:
        """Begin a session, and clear away those of the dead, so that their entries are not shown at all."""
        with database.transaction(connection):
            known = database.sessions(connection)
            dead = {other for other in known if has_ended(self._directory, other, self._now_ms)}
            for other in dead:
                database.end_session(connection, other)
            self._begun = session = self._new_session(connection)
        remove_strays(self._directory, known - dead)
        self._begun = None
        return session

    def _new_session(self, connection: sqlite3.Connection) -> Session:
        """Inside a transaction: however long that had to wait, the time counts from here."""
        os.makedirs(self._directory, exist_ok=True)  # it may have been removed, too
        session = Session.create(self._directory, self._now_ms() + self._timeout_ms)
        try:
            database.begin_session(connection, session.id)
        except sqlite3.Error:
            session.release()
            raise
        return session

    def _begin(self) -> None:
        """Begin a new session in place of one that was lost; tried again by the timer until it succeeds."""
        if self._beginning:
            return
        self._beginning = True

        def work(connection: sqlite3.Connection) -> int:
            self._begun = self._new_session(connection)
            return 0

        def done(_result: int | None, error: BaseException | None) -> None:
            session, self._begun, self._beginning = self._begun, None, False
            if session is None or error is not None:
                if session is not None:
                    session.release()
                if not self._told_of_no_session:
                    self._told_of_no_session = True
                    _log.warning("cannot begin a session", path=self._path, error=str(error))
                return
            self._told_of_no_session = False
            self._session = session
            self._others.discard(session.id)
            self._beat_due_ms = session.deadline_ms - self._timeout_ms + self._beat_interval_ms
            _log.info("a new session with the metadata store", path=self._path, session=session.id)
            self._on_session(True)

        self._submit(work, done)

    def _lose(self, session: Session) -> None:
        if self._session is not session:
            return
        _log.warning("the session with the metadata store is lost", path=self._path, session=session.id)
        self._session = None
        session.release()
        self._on_session(False)
        if not self._closed:
            self._begin()

    def _beat(self, session: Session) -> None:
        """Move the deadline on."""
        now_ms = self._now_ms()
        if now_ms < session.deadline_ms:
            deadline_ms = now_ms + self._timeout_ms
            try:
                session.write(deadline_ms)
            except OSError as error:
                _log.warning("a sign of life could not be written", path=self._path, error=str(error))
                return
            # The others can only have taken the session for dead after the old deadline: it has not come yet.
            if self._now_ms() < session.deadline_ms:
                session.deadline_ms = deadline_ms
                self._beat_due_ms = now_ms + self._beat_interval_ms
                return
        self._renew(session)

    def _renew(self, session: Session) -> None:
        """Move the deadline on after the last one has passed, if nobody has ended the session because of that."""
        if self._renewing:
            return
        self._renewing = True
        deadline_ms = -math.inf

        def work(connection: sqlite3.Connection) -> int:
            nonlocal deadline_ms
            if not database.session_exists(connection, session.id):
                raise database.SessionEnded(f"session {session.id} was ended by another")
            deadline_ms = self._now_ms() + self._timeout_ms
            session.write(deadline_ms)
            return 0

        def done(_result: int | None, error: BaseException | None) -> None:
            self._renewing = False
            if error is None:
                session.deadline_ms = deadline_ms
                self._beat_due_ms = deadline_ms - self._timeout_ms + self._beat_interval_ms
            elif isinstance(error, database.SessionEnded):
                self._lose(session)

        self._submit(work, done)

    def _notice(self, sessions: set[str]) -> None:
        """Take note of who has a session."""
        session = self._session
        self._others = sessions if session is None else sessions - {session.id}
        if session is not None and session.id not in sessions:
            self._lose(session)

    def _look(self) -> None:
        """End the sessions of those who died or have not been heard of for too long."""
        try:
            suspects = {
                other
                for other in self._others - self._ending
                if has_ended(self._directory, other, self._now_ms)
            }
        except OSError as error:
            _log.warning("the other sessions could not be looked at", path=self._path, error=str(error))
            return
        if not suspects:
            return
        self._ending |= suspects
        ended: list[str] = []

        def work(connection: sqlite3.Connection) -> int:
            # Looked at again: here nobody can come back to life any more without seeing that it is over.
            ended.extend(
                other
                for other in suspects
                if has_ended(self._directory, other, self._now_ms) and database.end_session(connection, other)
            )
            return 0

        def done(_result: int | None, error: BaseException | None) -> None:
            self._ending -= suspects
            if error is None and ended:  # otherwise another was faster
                _log.info("ended sessions without a living owner", path=self._path, sessions=" ".join(ended))
                remove_files(self._directory, ended)

        self._submit(work, done)
