"""Reads everything in ZooKeeper, and again whatever a notice says has changed.

Entries are nodes with a value. A node without one is a directory, which users of the store never see. Answers and
notices of one connection come in the order in which the server made them: an answer that comes after a notice shows
what the notice was about, and nothing that is newer than the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError

from culver.coordination.store import Entry, Event
from culver.coordination.zookeeper_client import ZooKeeperClient
from culver.coordination.zookeeper_timeline import Finding, Node, Timeline

# Called with None when it has been read, or why not.
Read: TypeAlias = Callable[[Exception | None], object]

# Ids are counted under this name; they are no entries.
IDS = "ids"
# Readings under way at a time: enough to keep the connection busy, few enough for others to get a word in.
_UNDER_WAY_MAX = 256


class _Kind(Enum):
    NODE = "its value"
    CHILDREN = "the names of its children"
    FACTS = "when its children last changed"


@dataclass(slots=True, eq=False)
class _Reading:
    """Something that is to be read of a node, and who waits for it."""

    path: str
    kind: _Kind
    # There is no unread change that is this old.
    since_zxid: int
    waiting: list[Read]
    sent: bool = False
    # Whether what has been found so far is told only after this one.
    counts: bool = False
    # Whether a notice or its directory said that it is there, or was.
    expected: bool = False
    # Whether everything is being read: if this turns out to be a directory, all in it as well.
    thorough: bool = False
    # The same to be read once more, by a request that goes out after somebody's change.
    next: _Reading | None = None


class Countdown:
    """Calls `done` when `count` things have happened, with the first error among them."""

    def __init__(self, count: int, done: Read) -> None:
        self._left = count
        self._done = done
        self._error: Exception | None = None

    def __call__(self, error: Exception | None) -> None:
        self._left -= 1
        self._error = self._error or error
        if self._left == 0:
            self._done(self._error)


class Mirror:
    """What ZooKeeper holds under a path, as a state that it had a moment ago."""

    def __init__(
        self, client: ZooKeeperClient, root: str, on_events: Callable[[list[Event]], object]
    ) -> None:
        self._client = client
        self._root = root
        self._ids = f"{root}/{IDS}"
        self._timeline = Timeline(on_events)
        self.directories: set[str] = set()
        # For every entry the transaction that changed it last: as last read, so perhaps newer than what has been told.
        self._changed_zxids: dict[str, int] = {}
        # The root's path is "".
        self._readings: dict[tuple[str, _Kind], _Reading] = {}
        self._unsent: deque[_Reading] = deque()
        self._under_way = 0
        self._connection = 0  # how many there have been: answers that belong to an earlier one are void
        # While some readings count: how many, and up to which transaction all is known when they are answered.
        self._counting = 0
        self._known_zxid: int | None = None
        self._blind = False  # whether a reading failed since the connection was made
        self._deletions: dict[str, list[Finding]] = {}  # by directory, until that has been looked at

    # --- what the store asks for ---

    @property
    def entries(self) -> dict[str, Entry]:
        return self._timeline.entries

    def read_all(self, done: Read) -> None:
        """Read everything there is, on a new connection where notices have been asked for."""
        self._read("", _Kind.CHILDREN, 0, [self._then_told(done)])

    def read(self, path: str, done: Read) -> None:
        """Read one path, with a request that goes out after this call."""
        since_zxid = self._timeline.since_zxid
        reading = self._readings.get((path, _Kind.NODE))
        if reading is None or not reading.sent:
            self._read(path, _Kind.NODE, since_zxid, [done])
        elif reading.next is None:
            reading.next = _Reading(path, _Kind.NODE, since_zxid, [done])
        else:
            reading.next.waiting.append(done)

    def notice(self, full_path: str) -> None:
        """A node was created, changed or deleted."""
        if full_path != self._root and not full_path.startswith(self._ids):
            path = full_path[len(self._root) :]
            self._read(path, _Kind.NODE, self._timeline.since_zxid, [], expected=True)

    def when_told(self, done: Read) -> None:
        """Call `done` once everything has been told that was read before this call."""
        self._timeline.when_told(done)

    def _then_told(self, done: Read) -> Read:
        return lambda error: self._timeline.when_told(done) if error is None else done(error)

    def disconnected(self, error: Exception) -> None:
        """There are no notices any more: all must be read anew. Whoever waits for something is told the error."""
        self._connection += 1
        self.directories.clear()
        self._changed_zxids.clear()
        self._deletions.clear()
        self._unsent.clear()
        self._under_way = 0
        self._counting, self._known_zxid = 0, None
        self._blind = False
        readings, self._readings = self._readings, {}
        for reading in readings.values():
            later = [] if reading.next is None else reading.next.waiting
            for done in reading.waiting + later:
                done(error)
        self._timeline.restart(error)

    # --- requests ---

    def _read(
        self,
        path: str,
        kind: _Kind,
        since_zxid: int,
        waiting: list[Read],
        *,
        counts: bool = False,
        expected: bool = False,
        thorough: bool = False,
    ) -> None:
        """Read it, or wait with others for an answer that is yet to come."""
        reading = self._readings.get((path, kind))
        if reading is None:
            reading = _Reading(path, kind, since_zxid, list(waiting))
            self._enqueue(reading)
        else:
            reading.waiting += waiting
        reading.expected = reading.expected or expected
        reading.thorough = reading.thorough or thorough
        if counts and not reading.counts:
            reading.counts = True
            self._counting += 1

    def _enqueue(self, reading: _Reading) -> None:
        self._readings[reading.path, reading.kind] = reading
        self._unsent.append(reading)
        self._send()

    def _send(self) -> None:
        while self._unsent and self._under_way < _UNDER_WAY_MAX:
            reading = self._unsent.popleft()
            reading.sent = True
            self._under_way += 1
            self._request(reading)

    def _request(self, reading: _Reading) -> None:
        connection = self._connection
        path = self._root + reading.path

        def make(kazoo: KazooClient) -> object:
            if reading.kind is _Kind.NODE:
                return kazoo.get_async(path)
            if reading.kind is _Kind.FACTS:
                return kazoo.exists_async(path)
            return kazoo.get_children_async(path, include_data=True)

        def answered(value: Any, error: Exception | None) -> None:
            if connection == self._connection:
                self._answered(reading, value, error)

        self._client.request(make, answered)

    # --- answers ---

    def _answered(self, reading: _Reading, value: Any, error: Exception | None) -> None:
        del self._readings[reading.path, reading.kind]
        self._under_way -= 1
        if reading.next is not None:
            self._enqueue(reading.next)
        if error is not None and not isinstance(error, NoNodeError):
            # The connection is gone, of which we shall hear: nothing more is known until all has been read anew.
            self._blind = self._blind or isinstance(error, (ConnectionLoss, SessionExpiredError))
            self._done(reading, error)
        elif reading.kind is _Kind.NODE:
            self._found(reading, value)
        elif reading.kind is _Kind.CHILDREN:
            self._found_children(reading, value)
        else:
            self._found_facts(reading, value)
        if reading.counts:
            self._counting -= 1
        self._send()
        self._tell()

    def _done(self, reading: _Reading, error: Exception | None = None) -> None:
        for done in reading.waiting:
            done(error)

    def _found(self, reading: _Reading, value: Any) -> None:
        """A node's value and facts, or None: it does not exist."""
        path = reading.path
        if value is not None and value[0] is None:
            self.directories.add(path)
            if reading.thorough:
                self._read(path, _Kind.CHILDREN, reading.since_zxid, reading.waiting, counts=reading.counts)
                return
        else:
            self.directories.discard(path)
            if value is not None:
                self._found_entry(reading, *value)
            elif path in self._changed_zxids or reading.expected:
                self._found_gone(reading)
        self._done(reading)

    def _found_entry(self, reading: _Reading, value: bytes, facts: Any) -> None:
        path, timeline = reading.path, self._timeline
        timeline.saw(facts.mzxid)
        known_zxid = self._changed_zxids.get(path)
        if known_zxid == facts.mzxid:
            return
        self._changed_zxids[path] = facts.mzxid
        # Before what we see there may have been more: also of an entry that is new to us, which may have been deleted
        # and created again.
        first_zxid = max(reading.since_zxid, known_zxid or 0) + 1
        node = Node(Entry(value, facts.version), facts.czxid)
        timeline.found(min(first_zxid, facts.mzxid), facts.mzxid, path, node)

    def _found_gone(self, reading: _Reading) -> None:
        """Nothing says when it was deleted but its directory, and that only if no child came or went later."""
        path = reading.path
        known_zxid = self._changed_zxids.pop(path, None)
        first_zxid = max(reading.since_zxid, known_zxid or 0) + 1
        # If it came and went unseen there is nothing to tell, but no state in between either.
        finding = self._timeline.found(first_zxid, None, None if known_zxid is None else path)
        directory = path[: path.rindex("/")]
        self._deletions.setdefault(directory, []).append(finding)
        self._read(directory, _Kind.FACTS, reading.since_zxid, [], counts=reading.counts)

    def _found_facts(self, reading: _Reading, facts: Any) -> None:
        self._date_deletions(reading.path, facts)
        self._done(reading)

    def _date_deletions(self, directory: str, facts: Any) -> None:
        """A child came or went last when the directory says, or if it is itself gone, nobody knows when."""
        if facts is not None:
            self._timeline.saw(facts.pzxid)
        for finding in self._deletions.pop(directory, ()):
            finding.last_zxid = finding.first_zxid if facts is None else max(finding.first_zxid, facts.pzxid)
            self._timeline.saw(finding.last_zxid)

    def _found_children(self, reading: _Reading, value: Any) -> None:
        directory = reading.path
        names, facts = ([], None) if value is None else value
        self._date_deletions(directory, facts)
        if facts is not None:
            # Something may have come and gone before there were notices: no state in between is to be told.
            self._timeline.found(1, facts.pzxid)
        paths = [f"{directory}/{name}" for name in names if directory or name != IDS]
        all_read = Countdown(1 + len(paths), lambda error: self._done(reading, error))
        for path in paths:
            self._read(
                path, _Kind.NODE, 0, [all_read], counts=reading.counts, expected=True, thorough=not directory
            )
        all_read(None)

    def _tell(self) -> None:
        """Whenever all is answered that counted: tell, and if there is more, count what is under way now."""
        while self._counting == 0 and not self._blind:
            if self._known_zxid is not None:
                known_zxid, self._known_zxid = self._known_zxid, None
                self._timeline.known_up_to(known_zxid)
            if not self._timeline.has_more:
                return
            self._known_zxid = self._timeline.seen_zxid
            for reading in self._readings.values():
                reading.counts = True
            self._counting = len(self._readings)
