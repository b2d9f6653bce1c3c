"""The metadata store's server in a simulation: versioned entries, sessions that expire, and every change in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from culver.coordination.store import Change, Check, Conflict, Create, Entry, Event, Put
from culver.testing.simulation.loop import World


@dataclass(eq=False)
class Session:
    """A client's claim to be alive, and what goes with it when it is not."""

    number: int
    timeout_us: int
    expires_us: int
    ephemeral: dict[str, None] = field(default_factory=dict)
    # Who hears of changes through the connection that the session is on now.
    connection: object = None


class StoreServer:
    """One server that never loses what it has answered for; it may be down for a while.

    Sessions do not expire while it is down: it cannot tell who was silent, so everyone gets a full timeout again.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._random = world.random("store")
        self.entries: dict[str, Entry] = {}
        self._owners: dict[str, Session] = {}
        self._ids: dict[str, int] = {}
        self._sessions: dict[int, Session] = {}
        self._next_session = 1
        # Every change ever made, so that a client that was away can be told what it missed.
        self.events: list[Event] = []
        self.up = True
        self._sweep()

    # -- sessions ---------------------------------------------------------------------------------------

    def begin_session(self, timeout_us: int) -> Session:
        session = Session(self._next_session, timeout_us, self._world.now_us + timeout_us)
        self._next_session += 1
        self._sessions[session.number] = session
        return session

    def touch(self, session: Session) -> bool:
        """The session's client has been heard of; False when it is too late for that."""
        if session.number not in self._sessions:
            return False
        session.expires_us = self._world.now_us + session.timeout_us
        return True

    def end_session(self, session: Session) -> None:
        if self._sessions.pop(session.number, None) is not None:
            self._world.trace.note(f"store: session {session.number} ends")
            for path in list(session.ephemeral):
                self._owners.pop(path, None)
                del self.entries[path]
                self._tell([(path, None)])

    def _sweep(self) -> None:
        # Expiry is looked for now and then, so a session may live a little longer than it must.
        if self.up:
            for session in list(self._sessions.values()):
                if session.expires_us <= self._world.now_us:
                    self.end_session(session)
        self._world.after(self._random.randrange(20_000, 120_000), None, self._sweep)

    def stop(self) -> None:
        self.up = False

    def start(self) -> None:
        self.up = True
        for session in self._sessions.values():
            session.expires_us = self._world.now_us + session.timeout_us

    # -- changes ----------------------------------------------------------------------------------------

    def apply(self, session: Session, changes: Sequence[Change]) -> None:
        """All of the changes or, raising Conflict, none."""
        for change in changes:
            entry = self.entries.get(change.path)
            if isinstance(change, Create):
                if entry is not None:
                    raise Conflict(change.path, "exists already")
            elif entry is None or (
                change.expected_version is not None and change.expected_version != entry.version
            ):
                raise Conflict(change.path, "is missing or was changed by another")
        events: list[Event] = []
        for change in changes:
            path = change.path
            if isinstance(change, Check):
                continue
            if isinstance(change, Create):
                self.entries[path] = Entry(change.value, 0)
                if change.ephemeral:
                    self._owners[path] = session
                    session.ephemeral[path] = None
            elif isinstance(change, Put):
                self.entries[path] = Entry(change.value, self.entries[path].version + 1)
            else:
                del self.entries[path]
                owner = self._owners.pop(path, None)
                if owner is not None:
                    del owner.ephemeral[path]
            events.append((path, self.entries.get(path)))
        self._tell(events)

    def allocate(self, kind: str, count: int) -> int:
        first = self._ids.get(kind, 0)
        self._ids[kind] = first + count
        return first

    def _tell(self, events: list[Event]) -> None:
        for path, entry in events:
            value = "gone" if entry is None else f"v{entry.version} {entry.value.decode(errors='replace')}"
            self._world.trace.note(f"store: {path} {value}")
        self.events += events
        for session in list(self._sessions.values()):
            connection = session.connection
            if isinstance(connection, Subscriber):
                connection.changed()


class Subscriber:
    """A connection that wants to hear of changes."""

    def changed(self) -> None:
        """There is more in the server's list of events."""
        raise AssertionError("a subscriber says what it does about changes")
