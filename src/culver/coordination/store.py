"""The metadata-store port: small versioned values in a tree of paths, changed by compare-and-set."""

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
    """Make a path that must not exist yet."""

    path: str
    value: bytes


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


Change: TypeAlias = Create | Put | Delete


class StoreError(Exception):
    """The store cannot be reached or used.

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


class MetadataStore(Protocol):
    """Callbacks run on the broker's thread, in the order of the calls."""

    def load(self) -> Mapping[str, Entry]:
        """Everything in the store; called once, before serving, and may take its time."""
        ...

    def change(self, changes: Sequence[Change], done: Done) -> None:
        """Make all the changes or none; durable when `done(None)` is called."""
        ...

    def allocate_ids(self, kind: str, count: int, done: IdsDone) -> None:
        """Hand out the first of `count` numbers that nobody else gets, ever."""
        ...

    def close(self) -> None:
        """Finish what was begun and let go of the files."""
        ...
