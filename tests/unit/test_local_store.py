"""What the local store does beyond the contract: its file, its shared commits, its leases to the millisecond."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
from metadata_stores import SteppedLocalWorld

from culver.clock import ManualClock
from culver.coordination import local_commits, local_database
from culver.coordination.local import LocalStore
from culver.coordination.local_sessions import Session
from culver.coordination.store import Conflict, Create, Delete, Entry, Put, StoreError


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SteppedLocalWorld]:
    world = SteppedLocalWorld(tmp_path)
    yield world
    world.close()


def session_files(world: SteppedLocalWorld) -> list[str]:
    return sorted(path.name for path in Path(f"{world.path}.sessions").iterdir())


# -- the file -------------------------------------------------------------------------------------------


def test_a_file_that_is_no_store_is_refused_with_its_name(world: SteppedLocalWorld) -> None:
    world.path.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(StoreError, match=r"metadata\.sqlite"):
        world.open()


def test_a_directory_that_does_not_exist_is_refused_with_its_name(world: SteppedLocalWorld) -> None:
    world.path = world.path.parent / "nowhere" / "metadata.sqlite"
    with pytest.raises(StoreError, match="nowhere"):
        world.open()


@pytest.mark.parametrize(
    "statement", ["PRAGMA user_version = 7", "CREATE TABLE invoices (amount)"], ids=["layout", "tables"]
)
def test_a_database_of_an_unknown_layout_is_refused_and_left_alone(
    world: SteppedLocalWorld, statement: str
) -> None:
    with contextlib.closing(sqlite3.connect(world.path)) as connection:
        connection.execute(statement)
    with pytest.raises(StoreError, match=r"layout \d.*move the file away"):
        world.open()
    with contextlib.closing(sqlite3.connect(world.path)) as connection:
        tables = [name for (name,) in connection.execute("SELECT name FROM sqlite_master")]
    assert set(tables) <= {"invoices"}


def test_a_store_of_the_first_layout_is_begun_anew_but_gives_out_no_id_twice(
    world: SteppedLocalWorld,
) -> None:
    with contextlib.closing(sqlite3.connect(world.path)) as connection:
        connection.execute(
            "CREATE TABLE entries (path TEXT PRIMARY KEY, value BLOB, version INTEGER) WITHOUT ROWID"
        )
        connection.execute("CREATE TABLE ids (kind TEXT PRIMARY KEY, next INTEGER NOT NULL) WITHOUT ROWID")
        connection.execute("INSERT INTO entries VALUES ('/a', x'00', 3)")
        connection.execute("INSERT INTO ids VALUES ('producer', 1000)")
        connection.commit()
    client = world.open()
    assert client.entries == {}
    assert client.ids("producer", 10) == 1000
    assert client.change(Create("/a", b"1", ephemeral=True)) is None


def test_a_session_leaves_nothing_behind_when_it_is_closed(world: SteppedLocalWorld) -> None:
    clients = [world.open(), world.open()]
    for number, client in enumerate(clients):
        client.change(Create(f"/brokers/{number}", b"", ephemeral=True))
    assert len(session_files(world)) == 2
    for client in clients:
        client.close()
    assert session_files(world) == []
    with contextlib.closing(sqlite3.connect(world.path)) as connection:
        assert connection.execute("SELECT * FROM sessions").fetchall() == []
        assert connection.execute("SELECT * FROM entries").fetchall() == []


def test_whoever_comes_next_clears_away_what_the_dead_left(world: SteppedLocalWorld) -> None:
    dead = world.open()
    dead.change(Create("/brokers/1", b"", ephemeral=True))
    world.kill(dead)
    # Died before the database knew of it.
    Session.create(f"{world.path}.sessions", 1e12).release(remove=False)
    assert len(session_files(world)) == 2
    client = world.open()
    assert client.entries == {}
    assert len(session_files(world)) == 1
    assert client.change(Create("/brokers/1", b"", ephemeral=True)) is None


def test_closing_twice_or_without_opening_is_nothing_special(world: SteppedLocalWorld) -> None:
    store = LocalStore(str(world.path), world.new_scheduler(), ManualClock())
    store.close()
    client = world.open()
    client.close()
    client.store.close()


# -- commits --------------------------------------------------------------------------------------------


def test_changes_that_queue_up_share_a_commit(
    world: SteppedLocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.open()
    transactions = []
    run = local_commits.Commits._run
    monkeypatch.setattr(
        local_commits.Commits, "_run", lambda self, jobs: (transactions.append(len(jobs)), run(self, jobs))[1]
    )
    calls = [client.begin(Create(path, b"")) for path in ("/first", "/a", "/a", "/b")]
    world.until(lambda: all(call.done for call in calls))
    assert transactions == [1, 3]
    assert [type(call.error) for call in calls] == [type(None), type(None), Conflict, type(None)]


def test_a_store_that_another_holds_on_to_is_an_error_and_works_again_afterwards(
    world: SteppedLocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.open()
    monkeypatch.setattr(local_database, "BUSY_SECONDS", 0.01)
    with contextlib.closing(sqlite3.connect(world.path, isolation_level=None)) as holder:
        holder.execute("BEGIN IMMEDIATE")
        error = client.change(Create("/a", b""))
        assert isinstance(error, StoreError)
        assert not isinstance(error, Conflict)
        assert "locked" in str(error)
        holder.execute("ROLLBACK")
    assert client.change(Create("/a", b"")) is None
    assert client.sessions == []


def test_an_error_in_one_transaction_is_told_to_everyone_in_it(
    world: SteppedLocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = world.open()

    def full(connection: sqlite3.Connection) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(local_database, "prune", full)
        calls = [client.begin(Create(path, b"")) for path in ("/first", "/a", "/a", "/b")]
        calls.append(client.begin_ids("kind", 5))
        world.until(lambda: all(call.done for call in calls))
    assert all(type(call.error) is StoreError and "disk is full" in str(call.error) for call in calls)
    assert calls[-1].first_id is None
    assert client.change(Create("/a", b"")) is None
    assert set(world.open().entries) == {"/a"}


def test_a_callback_that_raises_keeps_nobody_else_from_hearing(world: SteppedLocalWorld) -> None:
    client = world.open()

    def broken(_error: BaseException | None) -> None:
        raise ZeroDivisionError

    first = client.begin(Create("/first", b""))
    client.store.change([Create("/a", b"")], broken)
    last = client.begin(Create("/b", b""))
    with pytest.raises(ZeroDivisionError):
        world.until(lambda: last.done)
    world.until(lambda: last.done)
    assert first.done

    def broken_event(_path: str, _entry: Entry | None) -> None:
        raise ZeroDivisionError

    client.on_event = broken_event
    call = client.begin(Create("/c", b""))
    with pytest.raises(ZeroDivisionError):
        world.until(lambda: call.done)
    assert call.done
    client.on_event = lambda _path, _entry: None
    assert client.change(Create("/d", b"")) is None


# -- events ---------------------------------------------------------------------------------------------


def test_a_reader_that_fell_behind_the_journal_finds_out_what_differs(
    world: SteppedLocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_database, "CHANGES_KEPT", 5)
    writer, reader = world.open(), world.open()
    writer.change(*(Create(f"/a/{number}", b"1") for number in range(8)))
    reader.sees("/a/7", b"1")
    world.stall(reader)
    writer.change(*(Delete(f"/a/{number}") for number in range(4)))
    writer.change(Create("/a/0", b"1"), Create("/a/1", b"2"), Put("/a/7", b"2"), Create("/b", b""))
    for number in range(10):
        writer.change(Put("/b", b"%d" % number))
    del reader.events[:]
    world.resume(reader)
    reader.sees("/b", b"9")
    assert reader.entries == writer.entries
    assert sorted(path for path, _entry in reader.events) == ["/a/1", "/a/2", "/a/3", "/a/7", "/b"]
    # And from there on the journal is enough again.
    writer.change(Delete("/b"))
    reader.sees("/b", None)


def test_the_journal_does_not_grow_for_ever(
    world: SteppedLocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_database, "CHANGES_KEPT", 5)
    client = world.open()
    client.change(Create("/a", b""))
    for _ in range(20):
        client.change(Put("/a", b""))
    with contextlib.closing(sqlite3.connect(world.path)) as connection:
        assert connection.execute("SELECT count(*), max(number) FROM changes").fetchone() == (5, 21)


def test_a_store_that_cannot_be_read_lets_its_lease_run_out_and_recovers(
    world: SteppedLocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = world.open(), world.open()
    other.change(Create("/a", b"1"))
    client.sees("/a", b"1")
    with monkeypatch.context() as patched:

        def fail(connection: sqlite3.Connection) -> int:
            raise sqlite3.OperationalError("disk I/O error")

        patched.setattr(local_database, "data_version", fail)
        error = client.change(Create("/b", b""))
        assert type(error) is StoreError
        assert "disk I/O error" in str(error)
        # All in this world are blind, so nobody ends anybody's session.
        world.pass_ms(1.5 * world.session_timeout_ms)
        assert client.store.lease_until_ms < world.clock.monotonic_ms()
    client.sees("/b", b"")
    world.until(lambda: client.store.lease_until_ms > world.clock.monotonic_ms(), "a lease")
    assert client.sessions == []


# -- leases ---------------------------------------------------------------------------------------------


def test_a_session_that_nobody_ended_goes_on_after_a_pause(world: SteppedLocalWorld) -> None:
    client = world.open()
    client.change(Create("/brokers/1", b"", ephemeral=True))
    world.stall(client)
    world.pass_ms(5 * world.session_timeout_ms)
    assert client.store.lease_until_ms < world.clock.monotonic_ms()
    world.resume(client)
    world.until(lambda: client.store.lease_until_ms > world.clock.monotonic_ms(), "a lease")
    assert client.sessions == []
    assert set(world.open().entries) == {"/brokers/1"}


def test_when_all_stood_still_together_nobody_loses_a_session(world: SteppedLocalWorld) -> None:
    """A machine that was suspended, say: whoever wakes first does not take the others for dead."""
    clients = [world.open() for _ in range(3)]
    for number, client in enumerate(clients):
        client.change(Create(f"/brokers/{number}", b"", ephemeral=True))
    for client in clients:
        world.stall(client)
    world.pass_ms(5 * world.session_timeout_ms)
    for client in clients:
        world.resume(client)
        world.pass_ms(100)
    world.pass_ms(2 * world.session_timeout_ms)
    assert all(client.sessions == [] for client in clients)
    assert all(len(client.entries) == 3 for client in clients)


def test_a_sign_of_life_that_came_too_late_moves_no_lease(
    world: SteppedLocalWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped between looking at the clock and writing: meanwhile another has ended the session."""
    owner, other = world.open(), world.open()
    owner.change(Create("/brokers/1", b"", ephemeral=True))
    other.sees("/brokers/1", b"")
    own_session = owner.store._session  # type: ignore[attr-defined]
    write = Session.write
    paused = False

    def slow_write(session: Session, deadline_ms: float) -> None:
        nonlocal paused
        if session is own_session and not paused:
            paused = True
            world.stall(owner)
            other.sees("/brokers/1", None)
            write(session, deadline_ms)
            world.resume(owner)
        else:
            write(session, deadline_ms)

    monkeypatch.setattr(Session, "write", slow_write)

    def trusted() -> bool:
        return owner.store.lease_until_ms >= world.clock.monotonic_ms()

    def renewed() -> bool:
        # Checked at every step: once the others have seen the entry go, the old session is trusted no more.
        assert not (paused and owner.store._session is own_session and trusted())  # type: ignore[attr-defined]
        return owner.sessions == [False, True]

    other.on_event = lambda _path, _entry: renewed()
    world.until(renewed, "a new session")
    assert paused


def test_who_comes_back_before_its_end_is_written_down_is_not_ended(world: SteppedLocalWorld) -> None:
    """The other has seen a deadline pass, but does not come to its transaction before the owner does."""
    owner, other = world.open(), world.open()
    owner.change(Create("/brokers/1", b"", ephemeral=True))
    other.sees("/brokers/1", b"")
    world.stall(owner)
    world.time.delay_ms = lambda: 100.0
    world.until(lambda: bool(other.store._ending), "the other's suspicion")  # type: ignore[attr-defined]
    world.time.delay_ms = lambda: 0.0
    world.resume(owner)
    world.pass_ms(2 * world.session_timeout_ms)
    assert owner.sessions == []
    assert set(other.entries) == {"/brokers/1"}
    assert owner.store.lease_until_ms > world.clock.monotonic_ms()


def test_what_is_asked_for_without_a_session_is_not_made_in_the_next(world: SteppedLocalWorld) -> None:
    owner, other = world.open(), world.open()
    owner.change(Create("/brokers/1", b"", ephemeral=True))
    other.sees("/brokers/1", b"")
    world.stall(owner)
    other.sees("/brokers/1", None)
    calls = []
    owner.on_session = lambda begun: None if begun else calls.append(owner.begin(Create("/a", b"")))
    world.resume(owner)
    world.until(lambda: owner.sessions == [False, True], "a new session")
    assert [type(call.error) for call in calls] == [local_database.SessionEnded]
    assert world.open().entries == {}


def test_a_released_session_is_never_written_to(tmp_path: Path) -> None:
    """Its descriptor may be another file's by then."""
    session = Session.create(str(tmp_path), 1.0)
    session.release()
    with (tmp_path / "innocent").open("w+b", buffering=0) as innocent:
        session.write(2.0)
        session.release()
        assert innocent.read() == b""
        innocent.write(b"still open")
