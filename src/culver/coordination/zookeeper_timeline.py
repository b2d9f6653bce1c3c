"""Puts what was read of ZooKeeper into the order in which it happened, and tells it one consistent state at a time.

Nodes are read one by one, so what has been read at a given moment is a mixture: of a transaction that changed three
nodes one may be there and two on their way. But every node carries the number of the transaction that changed it last
(its zxid), and ZooKeeper announces a change to all who watch before it answers them anything newer. So once all
readings are answered that were asked for before some moment, everything up to the highest number seen by then is known.
That much is told, and the rest kept back for the next time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from culver.coordination.store import Entry, Event

OnTold: TypeAlias = Callable[[Exception | None], object]


@dataclass(frozen=True, slots=True)
class Node:
    """An entry, and the transaction that created it: another one means another node under the same path."""

    entry: Entry
    created_zxid: int


@dataclass(slots=True, eq=False)
class Finding:
    """What one reading revealed of a path, yet to be told."""

    number: int
    # Its changes since the last reading: none is older than the first number, the last has the second. Of a deletion
    # that one is not known until its directory has been looked at.
    first_zxid: int
    last_zxid: int | None
    # None for something of which there is nothing to tell, but in the midst of which nothing is to be told either.
    path: str | None
    node: Node | None


class Timeline:
    """Knows no connection: who reads says what was found, and when all is known up to some number."""

    def __init__(self, on_events: Callable[[list[Event]], object]) -> None:
        self._on_events = on_events
        self._told: dict[str, Node] = {}
        self.seen_zxid = 0
        self._told_zxid = 0
        self._findings: list[Finding] = []
        self._count = 0
        self._waiting: deque[tuple[int, OnTold]] = deque()

    @property
    def entries(self) -> dict[str, Entry]:
        """The state that was told last."""
        return {path: node.entry for path, node in self._told.items()}

    def restart(self, error: Exception) -> None:
        """Everything will be read anew, perhaps from a server that has lost its memory; until then nothing is told.

        Whoever waits is told the error.
        """
        self.seen_zxid = self._told_zxid = 0
        self._findings.clear()
        waiting, self._waiting = self._waiting, deque()
        for _number, done in waiting:
            done(error)

    def saw(self, zxid: int) -> None:
        self.seen_zxid = max(self.seen_zxid, zxid)

    def found(
        self, first_zxid: int, last_zxid: int | None, path: str | None = None, node: Node | None = None
    ) -> Finding:
        self._count += 1
        finding = Finding(self._count, first_zxid, last_zxid, path, node)
        self._findings.append(finding)
        return finding

    @property
    def since_zxid(self) -> int:
        """Up to where there is no change that has neither been read nor been announced."""
        return self.seen_zxid if self._told_zxid else 0

    @property
    def has_more(self) -> bool:
        """Whether something was found that has not been told."""
        return bool(self._findings)

    def known_up_to(self, zxid: int) -> None:
        """Tell what happened up to this number, or up to an earlier one if that one falls between two changes of
        a path of which only the later is known."""
        while True:
            torn = [
                finding.first_zxid
                for finding in self._findings
                if finding.first_zxid <= zxid and (finding.last_zxid is None or finding.last_zxid > zxid)
            ]
            if not torn:
                break
            zxid = min(torn) - 1
        if zxid > self._told_zxid:
            afresh = self._told_zxid == 0
            self._told_zxid = zxid
            events = self._begin(self._take(zxid)) if afresh else self._go_on(self._take(zxid))
            if events:
                self._on_events(events)
        self._call_waiting()

    def _take(self, zxid: int) -> list[tuple[str, Node | None]]:
        """What was found up to this number, in its order."""
        taken: list[tuple[int, int, str, Node | None]] = []
        kept: list[Finding] = []
        last_of_path: dict[str, int] = {}
        for finding in self._findings:
            if finding.last_zxid is None or finding.last_zxid > zxid:
                kept.append(finding)
            elif finding.path is not None:
                # A deletion may have got a number that is too high; what was found after it still comes after it.
                path = finding.path
                last_zxid = last_of_path[path] = max(finding.last_zxid, last_of_path.get(path, 0))
                taken.append((last_zxid, finding.number, path, finding.node))
        self._findings = kept
        taken.sort(key=lambda item: item[:2])
        return [(path, node) for _zxid, _number, path, node in taken]

    def _begin(self, found: list[tuple[str, Node | None]]) -> list[Event]:
        """All there is, compared with all there was."""
        before, self._told = self._told, {}
        for path, node in found:
            if node is None:
                self._told.pop(path, None)
            else:
                self._told[path] = node
        events: list[Event] = [(path, None) for path in before if path not in self._told]
        for path, node in self._told.items():
            events += _difference(path, before.get(path), node)
        return events

    def _go_on(self, found: list[tuple[str, Node | None]]) -> list[Event]:
        events: list[Event] = []
        for path, node in found:
            before = self._told.pop(path, None)
            if node is not None:
                self._told[path] = node
            events += _difference(path, before, node)
        return events

    def when_told(self, done: OnTold) -> None:
        """Call `done` once everything has been told that was found before this call."""
        self._waiting.append((self._count, done))
        self._call_waiting()

    def _call_waiting(self) -> None:
        while self._waiting:
            number, done = self._waiting[0]
            if self._findings and self._findings[0].number <= number:
                return
            self._waiting.popleft()
            done(None)


def _difference(path: str, before: Node | None, after: Node | None) -> list[Event]:
    if before == after:
        return []
    if after is None:
        return [(path, None)]
    if before is None or before.created_zxid == after.created_zxid:
        return [(path, after.entry)]
    return [(path, None), (path, after.entry)]
