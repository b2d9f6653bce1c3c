"""What lines are read from: a source hands them out in order, and is told up to where they have arrived."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

State = dict[str, Any]
"""Where a source stands, as JSON: enough to go on there after a restart."""


class Line(NamedTuple):
    """One line, and where its source stands behind it."""

    source: str
    text: bytes
    # When it was received, by this machine's clock.
    received_ms: int
    state: State


class Source(Protocol):
    """Something that is read from. Lines that were handed out and not acknowledged come again after a restart."""

    @property
    def name(self) -> str: ...

    def read(self, limit: int) -> list[Line]:
        """The next lines, at most so many; none when there is nothing new now."""

    def acknowledge(self, state: State) -> None:
        """All lines up to the one with this state have arrived."""

    @property
    def exhausted(self) -> bool:
        """Whether nothing more will ever come, or, of a file, nothing more is there now."""

    def close(self) -> None: ...
