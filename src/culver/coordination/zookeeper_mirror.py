"""Reads everything in ZooKeeper, and again whatever changes: every node is watched.

Entries are nodes with a value. A node without one is a directory, which users of the store never see. kazoo's
watches fire once, so each reading sets the next one: a node's for its value, a directory's for its children. Answers
and notices of one connection come in the order in which the server made them, so an answer that comes after a notice
shows what the notice was about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionLoss, NoNodeError, SessionExpiredError
from kazoo.protocol.states import EventType, WatchedEvent

from culver.coordination.store import Entry, Event
from culver.coordination.zookeeper_client import ZooKeeperClient
from culver.coordination.zookeeper_timeline import Finding, Timeline

# Called with None when it has been read, or why not.
Read: TypeAlias = Callable[[Exception | None], object]

# Ids are counted under this name; they are no entries.
IDS = "ids"
# Readings under way at a time: enough to keep the connection busy, few enough for others to get a word in.
_UNDER_WAY_MAX = 256


@dataclass(slots=True, eq=False)
class _Reading:
    """A node, or a directory's children, that are to be read, and who waits for it."""

    path: str
    children: bool
    # There is no unread change that is this old.
    since_zxid: int
    waiting: list[Read]
    sent: bool = False
    # Whether what has been found so far is told only after this one.
    counts: bool = False
    # Whether its directory showed it.
    listed: bool = False
    # The same to be read once more, by a request that goes out after somebody's change.
    next: _Reading | None = None


@dataclass(frozen=True, slots=True)
class _Stamp:
    """The transactions that created a node and that changed it last."""

    created_zxid: int
    changed_zxid: int


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
        self._timeline = Timeline(on_events)
        # And the transaction that last added a child or took one away, as last read.
        self.directories: dict[str, int] = {}
        # Of all entries, as last read, which may be newer than what has been told.
        self._stamps: dict[str, _Stamp] = {}
        # By path and whether its children are meant; "" is the root.
        self._readings: dict[tuple[str, bool], _Reading] = {}
        self._unsent: deque[_Reading] = deque()
        self._under_way = 0
        self._connection = 0  # how many there have been: answers that belong to an earlier one are void
        # While some readings count: how many, and up to which transaction all is known when they are answered.
        self._counting = 0
        self._known_zxid: int | None = None
        self._blind = False  # whether a reading failed since the connection was made
        self._deletions: dict[str, list[Finding]] = {}  # by directory, until that has been read

    # --- what the store asks for ---

    @property
    def entries(self) -> dict[str, Entry]:
        return self._timeline.entries

    def read_all(self, done: Read) -> None:
        """Read everything there is, and everything that was there: watches do not outlive a connection."""
        self.directories.clear()
        since_zxid = self._timeline.told_zxid
        known = list(self._stamps)
        directories = {"", *self._deletions}
        all_read = Countdown(len(directories) + len(known), self._then_told(done))
        for directory in directories:
            self._read(directory, True, since_zxid, [all_read])
        for path in known:
            self._read(path, False, since_zxid, [all_read])

    def read(self, path: str, done: Read) -> None:
        """Read one path, with a request that goes out after this call."""
        listing = self._readings.get((path[: path.rindex("/")], True))
        since_zxid = self._timeline.seen_zxid if listing is None else listing.since_zxid
        reading = self._readings.get((path, False))
        if reading is None or not reading.sent:
            self._read(path, False, since_zxid, [done])
        elif reading.next is None:
            reading.next = _Reading(path, False, since_zxid, [done])
        else:
            reading.next.waiting.append(done)

    def when_told(self, done: Read) -> None:
        """Call `done` once everything has been told that was read before this call."""
        self._timeline.when_told(done)

    def _then_told(self, done: Read) -> Read:
        return lambda error: self._timeline.when_told(done) if error is None else done(error)

    def disconnected(self, error: Exception) -> None:
        """Whoever waits for something is told the error."""
        self._connection += 1
        readings, self._readings = self._readings, {}
        self._unsent.clear()
        self._under_way = 0
        self._counting, self._known_zxid = 0, None
        self._blind = False
        for reading in readings.values():
            later = [] if reading.next is None else reading.next.waiting
            for done in reading.waiting + later:
                done(error)
        self._timeline.give_up(error)

    # --- requests ---

    def _read(
        self,
        path: str,
        children: bool,
        since_zxid: int,
        waiting: list[Read],
        counts: bool = False,
        listed: bool = False,
    ) -> None:
        """Read it, or wait with others for an answer that is yet to come."""
        reading = self._readings.get((path, children))
        if reading is None:
            reading = _Reading(path, children, since_zxid, list(waiting))
            self._enqueue(reading)
        else:
            reading.waiting += waiting
        reading.listed = reading.listed or listed
        if counts and not reading.counts:
            reading.counts = True
            self._counting += 1

    def _enqueue(self, reading: _Reading) -> None:
        self._readings[reading.path, reading.children] = reading
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

        def make(kazoo: KazooClient) -> Any:
            if reading.children:
                return kazoo.get_children_async(path, watch=self._children_changed, include_data=True)
            return kazoo.get_async(path, watch=self._node_changed)

        def answered(value: Any, error: Exception | None) -> None:
            if connection == self._connection:
                self._answered(reading, value, error)

        self._client.request(make, answered)

    # --- answers ---

    def _answered(self, reading: _Reading, value: Any, error: Exception | None) -> None:
        del self._readings[reading.path, reading.children]
        self._under_way -= 1
        if reading.next is not None:
            self._enqueue(reading.next)
        if error is not None and not isinstance(error, NoNodeError):
            # The connection is gone, of which we shall hear: nothing more is known until all has been read anew.
            self._blind = self._blind or isinstance(error, (ConnectionLoss, SessionExpiredError))
            for done in reading.waiting:
                done(error)
        elif reading.children:
            names, facts = value if value is not None else ([], None)
            self._found_children(reading, names, facts)
        else:
            self._found(reading, value)
        if reading.counts:
            self._counting -= 1
        self._send()
        self._tell()

    def _found(self, reading: _Reading, value: Any) -> None:
        """A node's value and facts, or None: it does not exist."""
        path = reading.path
        if value is not None and value[0] is None:
            self.directories.setdefault(path, 0)
            self._read(path, True, reading.since_zxid, reading.waiting, reading.counts)
            return
        self.directories.pop(path, None)
        if value is not None:
            self._found_entry(reading, *value)
        elif path in self._stamps or reading.listed:
            self._found_gone(reading)
        for done in reading.waiting:
            done(None)

    def _found_entry(self, reading: _Reading, value: bytes, facts: Any) -> None:
        path, timeline = reading.path, self._timeline
        stamp = _Stamp(facts.czxid, facts.mzxid)
        timeline.saw(facts.mzxid)
        known = self._stamps.get(path)
        if stamp == known:
            return
        self._stamps[path] = stamp
        event = path, Entry(value, facts.version)
        if known is None:
            # It may have been there before, and have been deleted: its creation need not be the first of its changes.
            timeline.found(min(facts.czxid, reading.since_zxid + 1), facts.mzxid, event)
            return
        first_zxid = max(reading.since_zxid, known.changed_zxid) + 1
        if known.created_zxid == stamp.created_zxid:
            timeline.found(first_zxid, facts.mzxid, event)
        else:
            timeline.found(first_zxid, facts.mzxid, (path, None), event)

    def _found_gone(self, reading: _Reading) -> None:
        path = reading.path
        known = self._stamps.pop(path, None)
        first_zxid, events = reading.since_zxid + 1, ()
        if known is not None:
            first_zxid, events = max(first_zxid, known.changed_zxid + 1), ((path, None),)
        # An entry that came and went unseen has no event, but no state in between may be told.
        finding = self._timeline.found(first_zxid, None, *events)
        directory = path[: path.rindex("/")]
        self._deletions.setdefault(directory, []).append(finding)
        self._read(directory, True, reading.since_zxid, [], reading.counts)

    def _found_children(self, reading: _Reading, names: list[str], facts: Any) -> None:
        """Look at what is new, and at what should be there and is not."""
        directory = reading.path
        last_zxid = self._timeline.seen_zxid if facts is None else facts.pzxid
        self._timeline.saw(last_zxid)
        for finding in self._deletions.pop(directory, ()):
            finding.last_zxid = max(finding.first_zxid, last_zxid)
            # The directory may be gone as well, or the server have lost its data and number anew: told all the same.
            self._timeline.saw(finding.last_zxid)
        known_zxid = self.directories.get(directory, 0)
        if last_zxid > known_zxid:
            # Something may have come and gone between two readings: again no state in between may be told.
            self._timeline.found(min(last_zxid, max(reading.since_zxid, known_zxid) + 1), last_zxid)
            self.directories[directory] = last_zxid
        found = {f"{directory}/{name}" for name in names}
        if directory == "":
            found.discard(f"/{IDS}")
            known = {path for path in (*self._stamps, *self.directories) if path.count("/") == 1}
        else:
            prefix = f"{directory}/"
            known = {path for path in self._stamps if path.startswith(prefix)}
        doubtful = found ^ known

        def done(error: Exception | None) -> None:
            for one in reading.waiting:
                one(error)

        countdown = Countdown(len(doubtful) + 1, done)
        for path in sorted(doubtful):
            self._read(path, False, reading.since_zxid, [countdown], reading.counts, path in found)
        countdown(None)

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

    # --- watches ---

    def _node_changed(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # NONE: the connection is gone, and all watches with it
            self._read(event.path[len(self._root) :], False, self._timeline.seen_zxid, [])

    def _children_changed(self, event: WatchedEvent) -> None:
        if event.type == EventType.CHILD:
            self._read(event.path[len(self._root) :], True, self._timeline.seen_zxid, [])
