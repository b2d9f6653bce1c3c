"""The SQLite file of the local store: its layout, its transactions, and the journal of changes that others read."""

from __future__ import annotations

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Sequence

from culver.coordination.store import Change, Check, Conflict, Create, Entry, Event, Put, StoreError
from culver.logging import get_logger

_log = get_logger("culver.metadata")

LAYOUT = 1
CHANGES_KEPT = 10_000
# How long to wait for a process that writes; one that was stopped inside a transaction holds up all others.
BUSY_SECONDS = 5.0
_RETRY_SECONDS = 0.001
# A reader waits only for the repair that follows the death of a writer, and it waits on the broker's thread.
_READER_BUSY_MS = 100

# Triggers write the journal, so that no way of changing an entry can forget it. Rows are numbered without gaps:
# a transaction that is undone gives its numbers back.
_SCHEMA = (
    """CREATE TABLE entries (
        path TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL, session TEXT
    ) WITHOUT ROWID""",
    "CREATE INDEX ephemeral_entries ON entries (session) WHERE session IS NOT NULL",
    "CREATE TABLE changes (number INTEGER PRIMARY KEY, path TEXT NOT NULL, value BLOB, version INTEGER)",
    "CREATE TABLE sessions (id TEXT PRIMARY KEY) WITHOUT ROWID",
    "CREATE TABLE IF NOT EXISTS ids (kind TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID",
    """CREATE TRIGGER entry_created AFTER INSERT ON entries BEGIN
        INSERT INTO changes (path, value, version) VALUES (new.path, new.value, new.version); END""",
    """CREATE TRIGGER entry_changed AFTER UPDATE ON entries BEGIN
        INSERT INTO changes (path, value, version) VALUES (new.path, new.value, new.version); END""",
    """CREATE TRIGGER entry_deleted AFTER DELETE ON entries BEGIN
        INSERT INTO changes (path) VALUES (old.path); END""",
)


class SessionEnded(StoreError):
    """The session of whoever asked is over, so nothing was changed."""


class FellBehind(Exception):
    """The journal no longer reaches back to where this reader stands."""


def connect(path: str) -> tuple[sqlite3.Connection, sqlite3.Connection]:
    """A connection for transactions and one for reading, to a file that has the right layout from now on."""
    writer = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
    try:
        _when_free(writer, "PRAGMA journal_mode=WAL")
        writer.execute("PRAGMA synchronous=FULL")
        _prepare(writer, path)
        reader = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, timeout=_READER_BUSY_MS / 1000
        )
    except BaseException:
        writer.close()
        raise
    return writer, reader


def _prepare(connection: sqlite3.Connection, path: str) -> None:
    if _layout(connection) == LAYOUT:
        return
    with transaction(connection):
        layout = _layout(connection)
        if layout == LAYOUT:
            return  # another process was faster
        tables = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if layout or not tables <= {"entries", "ids"}:
            raise StoreError(
                f"the metadata store {path} has layout {layout}, and this version of Culver knows only {LAYOUT}: "
                "start the version that wrote it, or move the file away to begin with an empty store"
            )
        if "entries" in tables:
            _log.warning("a metadata store of an early version is begun anew", path=path)
            connection.execute("DROP TABLE entries")
        for statement in _SCHEMA:
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {LAYOUT}")


def _layout(connection: sqlite3.Connection) -> int:
    return int(_when_free(connection, "PRAGMA user_version").fetchone()[0])


def _when_free(connection: sqlite3.Connection, statement: str) -> sqlite3.Cursor:
    deadline = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            return connection.execute(statement)
        except sqlite3.OperationalError as error:
            # SQLite's own way of waiting sleeps up to 100 ms at a time, many times what a transaction takes.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_RETRY_SECONDS)


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """The only writer in all processes, until the block ends and all it did is on disk, or none of it."""
    _when_free(connection, "BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


@contextlib.contextmanager
def savepoint(connection: sqlite3.Connection) -> Iterator[None]:
    """A part of a transaction that can be undone alone."""
    connection.execute("SAVEPOINT part")
    try:
        yield
    except StoreError:
        connection.execute("ROLLBACK TO part")
        connection.execute("RELEASE part")
        raise
    connection.execute("RELEASE part")


# -- inside a transaction -------------------------------------------------------------------------------


def apply(connection: sqlite3.Connection, session: str, changes: Sequence[Change]) -> None:
    """Raises Conflict or SessionEnded, having done a part of it."""
    if not session_exists(connection, session):
        raise SessionEnded("the session with the metadata store is over, so the change was not made")
    for change in changes:
        path = change.path
        if isinstance(change, Create):
            owner = session if change.ephemeral else None
            try:
                connection.execute("INSERT INTO entries VALUES (?, ?, 0, ?)", (path, change.value, owner))
            except sqlite3.IntegrityError:
                raise Conflict(path, "exists already") from None
            continue
        version = -1 if change.expected_version is None else change.expected_version
        if isinstance(change, Check):
            found = connection.execute("SELECT version FROM entries WHERE path = ?", (path,)).fetchone()
            matched = found is not None and found[0] == version
        elif isinstance(change, Put):
            matched = _changed(
                connection,
                "UPDATE entries SET value = ?3, version = version + 1 WHERE path = ?1 AND (?2 < 0 OR version = ?2)",
                (path, version, change.value),
            )
        else:
            matched = _changed(
                connection,
                "DELETE FROM entries WHERE path = ?1 AND (?2 < 0 OR version = ?2)",
                (path, version),
            )
        if not matched:
            raise Conflict(path, "is missing or was changed by another")


def _changed(connection: sqlite3.Connection, statement: str, values: tuple[object, ...]) -> bool:
    return connection.execute(statement, values).rowcount > 0


def allocate_ids(connection: sqlite3.Connection, kind: str, count: int) -> int:
    ((end,),) = connection.execute(
        "INSERT INTO ids VALUES (?1, ?2) ON CONFLICT (kind) DO UPDATE SET next = next + ?2 RETURNING next",
        (kind, count),
    ).fetchall()
    return int(end) - count


def begin_session(connection: sqlite3.Connection, session: str) -> None:
    connection.execute("INSERT INTO sessions VALUES (?)", (session,))


def session_exists(connection: sqlite3.Connection, session: str) -> bool:
    return connection.execute("SELECT 1 FROM sessions WHERE id = ?", (session,)).fetchone() is not None


def end_session(connection: sqlite3.Connection, session: str) -> bool:
    """Its ephemeral entries go with it. False when it is over already."""
    if not _changed(connection, "DELETE FROM sessions WHERE id = ?", (session,)):
        return False
    connection.execute("DELETE FROM entries WHERE session = ?", (session,))
    return True


def prune(connection: sqlite3.Connection) -> None:
    """Forget the oldest changes; who has not read them yet reads all entries instead."""
    connection.execute(
        "DELETE FROM changes WHERE number <= (SELECT max(number) FROM changes) - ?", (CHANGES_KEPT,)
    )


# -- reading --------------------------------------------------------------------------------------------


def data_version(connection: sqlite3.Connection) -> int:
    """Another number whenever any other connection, in any process, has changed anything."""
    return int(connection.execute("PRAGMA data_version").fetchone()[0])


def sessions(connection: sqlite3.Connection) -> set[str]:
    return {session for (session,) in connection.execute("SELECT id FROM sessions")}


def load(connection: sqlite3.Connection) -> tuple[dict[str, Entry], int]:
    """All entries, and the number of the last change that they contain."""
    connection.execute("BEGIN")
    try:
        rows = connection.execute("SELECT path, value, version FROM entries").fetchall()
        last = connection.execute("SELECT max(number) FROM changes").fetchone()[0]
    finally:
        connection.execute("COMMIT")
    return {path: Entry(value, version) for path, value, version in rows}, last or 0


def read_changes(connection: sqlite3.Connection, last: int) -> tuple[list[Event], int]:
    """What has changed behind change number `last`, in order, and the number to go on from; or FellBehind."""
    rows = connection.execute(
        "SELECT number, path, value, version FROM changes WHERE number > ? ORDER BY number", (last,)
    ).fetchall()
    if not rows:
        return [], last
    if rows[0][0] != last + 1:
        raise FellBehind
    return [
        (path, None if value is None else Entry(value, version)) for _number, path, value, version in rows
    ], rows[-1][0]
