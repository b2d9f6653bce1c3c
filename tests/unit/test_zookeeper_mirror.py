"""What is told of ZooKeeper is always a state that it had, however readings, notices and changes interleave."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from kazoo.exceptions import ConnectionLoss, NoNodeError

from culver.coordination.store import Entry, Event
from culver.coordination.zookeeper_mirror import Mirror

ROOT = "/root"
State = dict[str, tuple[bytes, int]]


@dataclass
class Node:
    value: bytes | None
    created: int
    changed: int
    children_changed: int
    version: int = 0


@dataclass
class Server:
    """A server and one client's connection to it: requests wait, then answers and notices do, each in order.

    Stands for kazoo and for the client in front of it.
    """

    zxid: int = 1
    nodes: dict[str, Node] = field(default_factory=lambda: {ROOT: Node(None, 1, 1, 1)})
    history: list[State] = field(default_factory=lambda: [{}])
    requests: deque[Callable[[], None]] = field(default_factory=deque)
    stream: deque[Callable[[], object]] = field(default_factory=deque)
    # Who is told of every change, once that has been asked for on the connection.
    notice: Callable[[str], object] | None = None

    # --- what the mirror calls ---

    def request(
        self, make: Callable[[Any], object], answered: Callable[[Any, Exception | None], object]
    ) -> None:
        def serve() -> None:
            try:
                value = make(self)
            except NoNodeError as error:
                self.stream.append(lambda error=error: answered(None, error))  # type: ignore[misc]
            else:
                self.stream.append(lambda: answered(value, None))
            self.lost.popleft()

        self.requests.append(serve)
        self.lost.append(lambda: answered(None, ConnectionLoss()))

    lost: deque[Callable[[], object]] = field(default_factory=deque)

    def get_async(self, path: str) -> tuple[bytes | None, Any]:
        if path not in self.nodes:
            raise NoNodeError
        node = self.nodes[path]
        return node.value, SimpleNamespace(czxid=node.created, mzxid=node.changed, version=node.version)

    def get_children_async(self, path: str, include_data: bool) -> tuple[list[str], Any]:
        assert include_data
        if path not in self.nodes:
            raise NoNodeError
        names = [name[len(path) + 1 :] for name in self.nodes if name.rpartition("/")[0] == path]
        return names, self.exists_async(path)

    def exists_async(self, path: str) -> Any:
        return SimpleNamespace(pzxid=self.nodes[path].children_changed) if path in self.nodes else None

    # --- what others do ---

    def commit(self, changes: Sequence[tuple[str, bytes | None, bool]]) -> None:
        """One transaction: create, change or (None) delete; with the flag, a directory."""
        self.zxid += 1
        for path, value, directory in changes:
            full = ROOT + path
            parent = full.rpartition("/")[0]
            if value is None:
                del self.nodes[full]
                self.nodes[parent].children_changed = self.zxid
            elif full in self.nodes:
                node = self.nodes[full]
                node.value, node.changed, node.version = value, self.zxid, node.version + 1
            else:
                self.nodes[full] = Node(None if directory else value, self.zxid, self.zxid, self.zxid)
                self.nodes[parent].children_changed = self.zxid
            if self.notice is not None:
                self.stream.append(lambda full=full, notice=self.notice: notice(full))  # type: ignore[misc]
        self.history.append(
            {
                path[len(ROOT) :]: (node.value, node.version)
                for path, node in self.nodes.items()
                if node.value is not None
            }
        )

    def break_connection(self) -> None:
        """What the client was sent before still arrives; the rest it is told to be lost."""
        self.requests.clear()
        self.stream.extend(self.lost)
        self.lost.clear()
        self.notice = None


class Reader:
    """A mirror, and what it told, checked each time against everything that ever was."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.entries: dict[str, Entry] = {}
        self.at = 0
        self.read = 0
        self.mirror = Mirror(server, ROOT, self.take)  # type: ignore[arg-type]
        self.connect()

    def connect(self) -> None:
        self.mirror.disconnected(ConnectionLoss())
        self.server.request(self.watch_all, lambda _value, _error: None)
        self.mirror.read_all(self.all_read)

    def watch_all(self, server: Server) -> None:
        server.notice = self.mirror.notice

    def all_read(self, error: Exception | None) -> None:
        self.read += error is None

    def take(self, events: list[Event]) -> None:
        for path, entry in events:
            if entry is None:
                assert path in self.entries
                del self.entries[path]
            else:
                old = self.entries.get(path)
                assert old is None or old.version < entry.version
                self.entries[path] = entry
        assert self.mirror.entries == self.entries
        state = {path: (entry.value, entry.version) for path, entry in self.entries.items()}
        while self.server.history[self.at] != state:
            self.at += 1
            assert self.at < len(self.server.history), f"never was: {state}"

    def run(self, randomness: random.Random, turns: int) -> None:
        """Let requests reach the server and answers the client, as it happens."""
        for _ in range(turns):
            if self.server.requests and randomness.random() < 0.5:
                self.server.requests.popleft()()
            elif self.server.stream:
                self.server.stream.popleft()()

    def settle(self) -> None:
        while self.server.requests or self.server.stream:
            if self.server.requests:
                self.server.requests.popleft()()
            else:
                self.server.stream.popleft()()


def random_transaction(server: Server, randomness: random.Random) -> list[tuple[str, bytes | None, bool]]:
    changes: dict[str, tuple[str, bytes | None, bool]] = {}
    for _ in range(randomness.randrange(1, 5)):
        directory = randomness.choice(["", "/a", "/b", "/c"])
        if directory and ROOT + directory not in server.nodes:
            server.commit([(directory, b"", True)])
        path = f"{directory}/{randomness.choice('xyz')}"
        value = None if randomness.random() < 0.3 else b"%d" % server.zxid
        if value is not None or ROOT + path in server.nodes:
            changes[path] = (path, value, False)
    return list(changes.values())


@pytest.mark.parametrize("seed", range(200))
def test_every_state_that_is_told_has_been(seed: int) -> None:
    randomness = random.Random(seed)
    server = Server()
    reader = Reader(server)
    breaks = seed % 3 == 0
    for _ in range(60):
        server.commit(random_transaction(server, randomness))
        reader.run(randomness, randomness.randrange(0, 12))
        if randomness.random() < 0.3:
            path = f"{randomness.choice(['', '/a', '/b', '/c'])}/{randomness.choice('xyz')}"
            reader.mirror.read(path, lambda error: None)
        if breaks and randomness.random() < 0.1:
            server.break_connection()
            for _ in range(randomness.randrange(5)):
                server.commit(random_transaction(server, randomness))
            while server.stream:
                server.stream.popleft()()
            reader.connect()
    reader.settle()
    final = {path: (entry.value, entry.version) for path, entry in reader.entries.items()}
    assert final == server.history[-1]
    assert reader.read > 0


def test_a_server_that_has_lost_its_memory_is_believed() -> None:
    server = Server()
    reader = Reader(server)
    for number in range(50):
        server.commit([("/x", b"%d" % number, False), ("/y", b"", False)])
    reader.settle()
    assert reader.entries.keys() == {"/x", "/y"}
    empty = Server()
    empty.commit([("/a", b"", True)])
    empty.commit([("/x", b"new", False)])
    reader.server = reader.mirror._client = empty  # type: ignore[assignment]
    told: list[Event] = []
    reader.mirror._timeline._on_events = told.extend
    reader.connect()
    reader.settle()
    assert told == [("/y", None), ("/x", None), ("/x", Entry(b"new", 0))]


def test_what_is_told_does_not_wait_for_the_storm_to_end() -> None:
    """A path that changes with every answer is told of all the same, and so are the others."""
    server = Server()
    reader = Reader(server)
    server.commit([("/hot", b"0", False), ("/cold", b"0", False)])
    reader.settle()
    behind = []
    for number in range(200):
        server.commit([("/hot", b"%d" % number, False)])
        if number % 10 == 0:
            server.commit([("/cold", b"%d" % number, False)])
        for _ in range(2):
            if server.requests:
                server.requests.popleft()()
            elif server.stream:
                server.stream.popleft()()
        behind.append(len(server.history) - reader.at)
    assert max(behind[50:]) < 30


def test_a_reading_that_is_asked_for_after_a_change_shows_it() -> None:
    server = Server()
    reader = Reader(server)
    server.commit([("/x", b"0", False)])
    reader.settle()
    shown: list[bytes] = []
    for number in range(3):
        reader.mirror.read("/x", lambda error: None)
        server.requests.append(lambda number=number: server.commit([("/x", b"%d" % number, False)]))  # type: ignore[misc]
        reader.mirror.read(
            "/x",
            lambda error: reader.mirror.when_told(lambda error: shown.append(reader.entries["/x"].value)),
        )
    reader.settle()
    assert shown == [b"2", b"2", b"2"]
