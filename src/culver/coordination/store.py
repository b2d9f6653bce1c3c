"""The metadata-store port: small versioned values, changed by compare-and-set, watched by every broker.

Paths are `/kind` or `/kind/name`. An entry made with `ephemeral` lives as long as the session of the store that
made it; when the process dies or loses touch with the store for the session's timeout, the entry disappears and
the others see it go. That is all that leases and elections need: a broker is alive while its entry is there, and
whoever creates the controller's entry first is the controller.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True)
class Entry:
    """A value and the number of times it has been changed; a fresh one has version 0."""

    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Create:
    """Make a path that must not exist yet; an ephemeral one goes with the session that made it."""

    path: str
    value: bytes
    ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Replace a value; with `expected_version` only if nobody changed it since."""

    path: str
    value: bytes
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class Delete:
    """Remove a path that must exist; with `expected_version` only if nobody changed it since."""

    path: str
    expected_version: int | None = None


@dataclass(frozen=True, slots=True)
class Check:
    """Change nothing, but refuse the other changes unless the path exists in this version."""

    path: str
    expected_version: int


Change: TypeAlias = Create | Put | Delete | Check


class StoreError(Exception):
    """The store cannot be reached or used; whether the change was made is not known.

    StoreError
    └── Conflict        a compare-and-set lost: the path exists, is missing, or has another version
    """


class Conflict(StoreError):
    """The change was refused whole because one of its conditions does not hold."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


Done: TypeAlias = Callable[[BaseException | None], object]
IdsDone: TypeAlias = Callable[[int | None, BaseException | None], object]
# (path, its newest entry or None when it is gone), in the order of the changes to each path.
Event: TypeAlias = tuple[str, Entry | None]
OnEvents: TypeAlias = Callable[[Sequence[Event]], object]
# False: the session is lost, and with it every ephemeral entry it made. True: a new one has begun and all events
# up to now have been delivered, so ephemeral entries can be made again.
OnSession: TypeAlias = Callable[[bool], object]


class MetadataStore(Protocol):
    """Callbacks run on the broker's thread; `done` callbacks in the order of the calls."""

    @property
    def lease_until_ms(self) -> float:
        """Until when, on the broker's monotonic clock, the session's ephemeral entries are certain to exist.

        Moves on while the store answers. Minus infinity while there is no session.
        """
        ...

    def open(self, on_events: OnEvents, on_session: OnSession) -> Mapping[str, Entry]:
        """Begin a session and return everything in the store; called once, before serving, and may take its time.

        From then on every change, also by this process, is reported to `on_events`: none is missed, though
        several to one path may be reported as the last of them. After a lost session the store begins a new one
        by itself.
        """
        ...

    def change(self, changes: Sequence[Change], done: Done) -> None:
        """Make all the changes or none; durable when `done(None)` is called.

        By then `on_events` has been told of them. `done(Conflict)`: nothing was changed. `done(StoreError)`: it
        is not known whether it was.
        """
        ...

    def allocate_ids(self, kind: str, count: int, done: IdsDone) -> None:
        """Hand out the first of `count` numbers that nobody else gets, ever."""
        ...

    def close(self) -> None:
        """Finish what was begun, end the session so that its ephemeral entries go at once, let go of the files."""
        ...
