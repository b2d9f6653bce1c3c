"""Puts what was read of ZooKeeper into the order in which it happened, and tells it one consistent state at a time.

Nodes are read one by one, so what has been read at a given moment is a mixture: of a transaction that changed three
nodes one may be there and two on their way. But every node carries the number of the transaction that changed it last
(its zxid), and ZooKeeper announces a change to all who watch before it answers them anything newer. So once all
readings are answered that were asked for before some moment, everything up to the highest number seen by then is known.
That much is told, and the rest kept back for the next time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from culver.coordination.store import Entry, Event

OnTold: TypeAlias = Callable[[Exception | None], object]


@dataclass(slots=True, eq=False)
class Finding:
    """What one reading revealed of a path, yet to be told."""

    number: int
    # Its changes since the last reading: none is older than the first number, the last has the second. Of a deletion
    # the number is not known until its directory has been read.
    first_zxid: int
    last_zxid: int | None
    events: tuple[Event, ...]


class Timeline:
    """Knows no connection: who reads says what was found, and when all is known up to some number."""

    def __init__(self, on_events: Callable[[list[Event]], object]) -> None:
        self._on_events = on_events
        # Everything up to this number has been told, and is what `entries` shows.
        self.told_zxid = 0
        self.entries: dict[str, Entry] = {}
        self.seen_zxid = 0
        self._findings: list[Finding] = []
        self._count = 0
        self._waiting: list[tuple[int, OnTold]] = []

    def saw(self, zxid: int) -> None:
        self.seen_zxid = max(self.seen_zxid, zxid)

    def found(self, first_zxid: int, last_zxid: int | None, *events: Event) -> Finding:
        self._count += 1
        finding = Finding(self._count, first_zxid, last_zxid, events)
        self._findings.append(finding)
        return finding

    @property
    def has_more(self) -> bool:
        """Whether something was found that has not been told."""
        return bool(self._findings)

    def known_up_to(self, zxid: int) -> None:
        """Tell what happened up to this number, or up to an earlier one if that one falls between two changes of
        a path of which only the later is known."""
        while True:
            cut = [
                finding.first_zxid
                for finding in self._findings
                if finding.first_zxid <= zxid and (finding.last_zxid is None or finding.last_zxid > zxid)
            ]
            if not cut:
                break
            zxid = min(cut) - 1
        events = self._take(zxid)
        self.told_zxid = max(self.told_zxid, zxid)
        for path, entry in events:
            if entry is None:
                self.entries.pop(path, None)
            else:
                self.entries[path] = entry
        if events:
            self._on_events(events)
        self._call_waiting()

    def _take(self, zxid: int) -> list[Event]:
        """The events up to this number, in their order."""
        taken: list[tuple[int, int, Finding]] = []
        kept: list[Finding] = []
        last_of_path: dict[str, int] = {}
        for finding in self._findings:
            if finding.last_zxid is None or finding.last_zxid > zxid:
                kept.append(finding)
            elif finding.events:
                # A deletion may have got a number that is too high; what was found after it still comes after it.
                path = finding.events[0][0]
                last_zxid = last_of_path[path] = max(finding.last_zxid, last_of_path.get(path, 0))
                taken.append((last_zxid, finding.number, finding))
        self._findings = kept
        taken.sort()
        return [event for _zxid, _number, finding in taken for event in finding.events]

    def when_told(self, done: OnTold) -> None:
        """Call `done` once everything has been told that was found before this call."""
        self._waiting.append((self._count, done))
        self._call_waiting()

    def _call_waiting(self) -> None:
        first_kept = self._findings[0].number if self._findings else self._count + 1
        ready = [done for number, done in self._waiting if number < first_kept]
        self._waiting = [(number, done) for number, done in self._waiting if number >= first_kept]
        for done in ready:
            done(None)

    def give_up(self, error: Exception) -> None:
        """Whoever waits is told the error; what was found stays."""
        waiting, self._waiting = self._waiting, []
        for _number, done in waiting:
            done(error)
