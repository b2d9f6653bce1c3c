"""What ZooKeeper holds, as far as this broker has read it: every node is watched, and read again when it changed.

Entries are nodes with a value. A node without one is a directory, which no change to the store ever sees. kazoo's
watches fire once, so each reading sets the next one: a node's for its value, a directory's for its children. Answers of
one session come in the order of the requests, and never show a state older than an earlier answer, so what is read
last is the newest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError
from kazoo.protocol.states import EventType, WatchedEvent

from culver.coordination.store import Entry, Event
from culver.coordination.zookeeper_client import ZooKeeperClient

# Called with None when it has been read, or why not.
Read: TypeAlias = Callable[[Exception | None], object]

# Ids are counted under this name; they are no entries.
IDS = "ids"
# Readings under way at a time: enough to keep the connection busy, few enough for others to get a word in.
_UNDER_WAY_MAX = 256


@dataclass(slots=True)
class _Reading:
    """A node or a directory that is being read, and who waits for it."""

    waiting: list[Read]
    sent: bool = False
    # It changed again, or somebody changed it, after the request went out: it will be read once more.
    waiting_for_next: list[Read] = field(default_factory=list)
    once_more: bool = False


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
    """Collects in `events` what changed in `entries`, for the store to take; `on_events` says that there are some."""

    def __init__(self, client: ZooKeeperClient, root: str, on_events: Callable[[], object]) -> None:
        self._client = client
        self._root = root
        self._on_events = on_events
        self.entries: dict[str, Entry] = {}
        self.events: list[Event] = []
        self.directories: set[str] = set()
        # For each entry the transactions that created it and changed it last.
        self._stamps: dict[str, tuple[int, int]] = {}
        # By path and whether its children are meant; "" is the root.
        self._readings: dict[tuple[str, bool], _Reading] = {}
        self._unsent: deque[tuple[str, bool]] = deque()
        self._under_way = 0
        self._connection = 0  # how many there have been: answers that belong to an earlier one are void

    # --- what the store asks for ---

    def read_all(self, done: Read) -> None:
        """Read everything there is, and everything that was there: watches do not outlive a connection."""
        self.directories.clear()
        known = list(self.entries)
        both = Countdown(1 + len(known), done)
        self._read("", True, both)
        for path in known:
            self._read(path, False, both)

    def read(self, path: str, done: Read) -> None:
        """Read one path, with a request that goes out after this call."""
        self._read(path, False, done)

    def disconnected(self, error: Exception) -> None:
        """Whoever waits for a reading is told the error."""
        self._connection += 1
        readings, self._readings = self._readings, {}
        self._unsent.clear()
        self._under_way = 0
        for reading in readings.values():
            for done in reading.waiting + reading.waiting_for_next:
                done(error)

    # --- requests ---

    def _read(self, path: str, children: bool, *waiting: Read) -> None:
        key = path, children
        reading = self._readings.get(key)
        if reading is None:
            self._readings[key] = _Reading(list(waiting))
            self._unsent.append(key)
            self._send()
        elif not reading.sent:
            reading.waiting += waiting
        else:
            reading.once_more = True
            reading.waiting_for_next += waiting

    def _send(self) -> None:
        while self._unsent and self._under_way < _UNDER_WAY_MAX:
            key = self._unsent.popleft()
            self._readings[key].sent = True
            self._under_way += 1
            self._request(key)

    def _request(self, key: tuple[str, bool]) -> None:
        path, children = key
        connection = self._connection
        full_path = self._root + path

        def make(kazoo: KazooClient) -> Any:
            if children:
                return kazoo.get_children_async(full_path, watch=self._children_changed)
            return kazoo.get_async(full_path, watch=self._node_changed)

        def answered(value: Any, error: Exception | None) -> None:
            if connection == self._connection:
                self._answered(key, value, error)

        self._client.request(make, answered)

    # --- answers ---

    def _answered(self, key: tuple[str, bool], value: Any, error: Exception | None) -> None:
        path, children = key
        reading = self._readings.pop(key)
        self._under_way -= 1
        if reading.once_more:
            self._read(path, children, *reading.waiting_for_next)
        if error is None or isinstance(error, NoNodeError):
            if children:
                self._found_children(path, value or [], reading.waiting)
            else:
                self._found(path, value, reading.waiting)
        else:
            for done in reading.waiting:
                done(error)
        self._send()

    def _found(self, path: str, value: Any, waiting: list[Read]) -> None:
        """A node's value and facts, or None: it does not exist."""
        if value is not None and value[0] is None:
            self.directories.add(path)
            self._read(path, True, *waiting)
            return
        self.directories.discard(path)
        if value is None:
            if self.entries.pop(path, None) is not None:
                del self._stamps[path]
                self._event(path, None)
        else:
            self._store(path, *value)
        for done in waiting:
            done(None)

    def _store(self, path: str, value: bytes, facts: Any) -> None:
        stamp = facts.czxid, facts.mzxid
        known = self._stamps.get(path)
        if known is not None:
            if stamp <= known:
                return
            if stamp[0] != known[0]:  # it was deleted and made anew in between
                self._event(path, None)
        entry = Entry(value, facts.version)
        self._stamps[path] = stamp
        self.entries[path] = entry
        self._event(path, entry)

    def _event(self, path: str, entry: Entry | None) -> None:
        self.events.append((path, entry))
        if len(self.events) == 1:
            self._on_events()

    def _found_children(self, directory: str, names: list[str], waiting: list[Read]) -> None:
        """Look at what is new, and at what should be there and is not."""
        found = {f"{directory}/{name}" for name in names}
        if directory == "":
            found.discard(f"/{IDS}")
            known = {path for path in self.entries if path.count("/") == 1} | self.directories
        else:
            prefix = f"{directory}/"
            known = {path for path in self.entries if path.startswith(prefix)}
        doubtful = found ^ known

        def done(error: Exception | None) -> None:
            for one in waiting:
                one(error)

        countdown = Countdown(len(doubtful) + 1, done)
        for path in doubtful:
            self._read(path, False, countdown)
        countdown(None)

    # --- watches ---

    def _node_changed(self, event: WatchedEvent) -> None:
        if event.type != EventType.NONE:  # NONE: the connection is gone, and all watches with it
            self._read(event.path[len(self._root) :], False)

    def _children_changed(self, event: WatchedEvent) -> None:
        if event.type == EventType.CHILD:
            self._read(event.path[len(self._root) :], True)
