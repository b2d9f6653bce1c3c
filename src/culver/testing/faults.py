"""A filesystem in memory that fails the way disks do: on demand, and the same way every time.

    fs = FaultyFileSystem()
    fs.fail("sync", nth=2)                 # the second sync from now on raises EIO
    fs.space_bytes = 10_000                # ENOSPC beyond that, after a part of the write went through
    fs.crash(power_cut=True, seed=7)       # what was not synced is gone, in part or whole
    fs.flip_bit("/data/t-0/00000000000000000000.log", 100, 3)

It implements culver.filesystem.FileSystem. Killing a process is not a power cut: `crash()` alone keeps all that
was written and drops only the locks.
"""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from culver.filesystem import Buffer, FileRange


@dataclass(eq=False)
class _Node:
    """A file's content: as programs see it, and as it would be after a power cut."""

    data: bytearray = field(default_factory=bytearray)
    durable: bytes = b""
    modified_ms: int = 0
    cached: bool = True


@dataclass
class _Fault:
    operation: str
    countdown: int
    error: OSError
    path_contains: str
    sticky: bool


class FaultyFile:
    """One open file of a FaultyFileSystem."""

    def __init__(self, fs: FaultyFileSystem, path: str, node: _Node) -> None:
        self._fs = fs
        self.path = path
        self._node = node
        self._closed = False

    def _check_open(self) -> None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self.path)

    def pwrite(self, data: Buffer, position: int) -> None:
        self._check_open()
        self._fs._write(self._node, self.path, bytes(data), position)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        self.pwrite(b"".join(buffers), position)

    def pread(self, size: int, position: int) -> bytes:
        self._check_open()
        self._fs._occurs("read", self.path)
        self._node.cached = True
        return bytes(self._node.data[position : position + size])

    def pread_cached(self, size: int, position: int) -> bytes | bytearray | None:
        self._check_open()
        cached_bytes = len(self._node.data) if self._node.cached else self._fs.cached_bytes
        if position >= cached_bytes and position < len(self._node.data):
            return None
        return bytes(self._node.data[position : min(position + size, cached_bytes)])

    def range_cached(self, size: int, position: int) -> FileRange | None:
        return None  # there is no file that a kernel could send

    def load(self, size: int, position: int) -> None:
        self.pread(size, position)

    def sync(self) -> None:
        self._check_open()
        self._fs._occurs("sync", self.path)
        self._node.durable = bytes(self._node.data)

    def truncate(self, size: int) -> None:
        self._check_open()
        self._fs._occurs("truncate", self.path)
        del self._node.data[size:]
        self._node.data.extend(bytes(size - len(self._node.data)))

    def size(self) -> int:
        self._check_open()
        return len(self._node.data)

    def close(self) -> None:
        self._closed = True


class FaultyLock:
    """A lock that a crash releases."""

    def __init__(self, fs: FaultyFileSystem, path: str) -> None:
        self._fs = fs
        self._path = path

    def release(self) -> None:
        self._fs._locks.discard(self._path)


class FaultyFileSystem:
    """Files and directories in memory. Paths are absolute; "/" exists."""

    def __init__(self) -> None:
        self._live: dict[str, _Node] = {}
        self._durable: dict[str, _Node] = {}
        # Changes of names since the last sync of their directory: (name, file or None) pairs that belong together.
        self._journal: list[list[tuple[str, _Node | None]]] = []
        self._directories = {"/", ""}
        self._locks: set[str] = set()
        self._faults: list[_Fault] = []
        self._boots = 1
        # How much all files together may hold, or None.
        self.space_bytes: int | None = None
        self.now_ms = 0
        # Of a file that is not in the page cache: how much of its start is.
        self.cached_bytes = 0
        # Every operation so far as (operation, path), for tests about the order of things.
        self.history: list[tuple[str, str]] = []

    # -- making it fail --------------------------------------------------------------------------------------

    def fail(
        self,
        operation: str,
        *,
        nth: int = 1,
        error: OSError | None = None,
        path_contains: str = "",
        sticky: bool = False,
    ) -> None:
        """The nth such operation from now on raises. Operations: open, read, write, sync, sync_directory,
        truncate, rename, remove. A write that fails has written half of its bytes. With `sticky` every later
        one fails too."""
        fault_error = error or OSError(errno.EIO, os.strerror(errno.EIO))
        self._faults.append(_Fault(operation, nth, fault_error, path_contains, sticky))

    def heal(self) -> None:
        """No more faults and no limit on space."""
        self._faults.clear()
        self.space_bytes = None

    def crash(self, *, power_cut: bool = False, seed: int = 0, lose_names: bool | None = True) -> None:
        """The process dies; with a power cut, what was not synced is gone.

        Of the bytes written since a file's last sync a random prefix is kept, sometimes with zeros behind it, as
        when the size reached the disk and the data did not. A file that was cut is as before or as after. Names
        since a directory's last sync are lost, or kept, or with None a random number of them is lost, the last ones
        first, as with a journal that reached the disk in part.
        """
        self._locks.clear()
        self._faults.clear()
        if not power_cut:
            return
        self._boots += 1
        generator = random.Random(seed)
        kept_changes = 0 if lose_names else len(self._journal)
        if lose_names is None:
            kept_changes = generator.randint(0, len(self._journal))
        for change in self._journal[:kept_changes]:
            self._apply(change, self._durable)
        self._journal.clear()
        self._live = dict(self._durable)
        for _, node in sorted(self._live.items()):
            node.data = self._torn(node, generator)
            node.durable = bytes(node.data)
        self._durable = dict(self._live)

    @staticmethod
    def _torn(node: _Node, generator: random.Random) -> bytearray:
        written = len(node.data)
        synced = min(len(node.durable), written)
        if node.data[:synced] != node.durable[:synced] or written == len(node.durable):
            return bytearray(node.durable)
        if written < len(node.durable):
            return bytearray(node.data if generator.random() < 0.5 else node.durable)
        kept = generator.randint(synced, written)
        data = bytearray(node.data[:kept])
        if generator.random() < 0.25:
            data.extend(bytes(generator.randint(0, written - kept)))
        return data

    def flip_bit(self, path: str, position: int, bit: int = 0) -> None:
        """Change one bit behind everybody's back."""
        node = self._node(path)
        node.data[position] ^= 1 << bit
        node.durable = bytes(node.data)

    def chill(self, cached_bytes: int = 0) -> None:
        """Drop the page cache but for the start of each file, until the file is read."""
        self.cached_bytes = cached_bytes
        for node in self._live.values():
            node.cached = False

    def _occurs(self, operation: str, path: str) -> None:
        self.history.append((operation, path))
        for fault in list(self._faults):
            if fault.operation == operation and fault.path_contains in path:
                fault.countdown -= 1
                if fault.countdown <= 0:
                    if not fault.sticky:
                        self._faults.remove(fault)
                    raise fault.error

    def _write(self, node: _Node, path: str, data: bytes, position: int) -> None:
        try:
            self._occurs("write", path)
            if self.space_bytes is not None:
                used = sum(len(other.data) for other in self._live.values())
                room = self.space_bytes - used + max(0, len(node.data) - position)
                if len(data) > room:
                    data = data[: max(0, room)]
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        except OSError as error:
            part = data if error.errno == errno.ENOSPC else data[: len(data) // 2]
            self._store(node, part, position)
            raise
        self._store(node, data, position)

    def _store(self, node: _Node, data: bytes, position: int) -> None:
        if len(node.data) < position:
            node.data.extend(bytes(position - len(node.data)))
        node.data[position : position + len(data)] = data
        node.modified_ms = self.now_ms

    def _change(self, change: list[tuple[str, _Node | None]]) -> None:
        self._journal.append(change)
        self._apply(change, self._live)

    @staticmethod
    def _apply(change: list[tuple[str, _Node | None]], table: dict[str, _Node]) -> None:
        for path, node in change:
            if node is not None:
                table[path] = node
            else:
                table.pop(path, None)

    def _node(self, path: str) -> _Node:
        node = self._live.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return node

    # -- the port --------------------------------------------------------------------------------------------

    def open(self, path: str, *, create: bool = False) -> FaultyFile:
        self._occurs("open", path)
        node = self._live.get(path)
        if node is None:
            if not create or path.rpartition("/")[0] not in self._directories:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            node = _Node(modified_ms=self.now_ms)
            self._change([(path, node)])
        return FaultyFile(self, path, node)

    def exists(self, path: str) -> bool:
        return path in self._live or path in self._directories

    def size(self, path: str) -> int:
        return len(self._node(path).data)

    def modified_ms(self, path: str) -> int:
        return self._node(path).modified_ms

    def list(self, path: str) -> list[str]:
        if path not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        prefix = path.rstrip("/") + "/"
        entries = [*self._live, *self._directories]
        found = {entry[len(prefix) :].partition("/")[0] for entry in entries if entry.startswith(prefix)}
        return sorted(found - {""})

    def make_directory(self, path: str) -> None:
        parts = path.strip("/").split("/")
        for end in range(1, len(parts) + 1):
            self._directories.add("/" + "/".join(parts[:end]))

    def rename(self, source: str, target: str) -> None:
        self._occurs("rename", target)
        if source in self._live:
            self._change([(target, self._live[source]), (source, None)])
            return
        if source not in self._directories:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        # Directories move at once and for good: nothing here depends on when their new name is durable.
        for table in (self._live, self._durable):
            for path in [path for path in table if path.startswith(source + "/")]:
                table[target + path[len(source) :]] = table.pop(path)
        self._journal = [
            [(target + p[len(source) :] if p.startswith(source + "/") else p, node) for p, node in change]
            for change in self._journal
        ]
        self._directories.discard(source)
        self._directories.add(target)

    def remove(self, path: str) -> None:
        self._occurs("remove", path)
        self._node(path)
        self._change([(path, None)])

    def remove_tree(self, path: str) -> None:
        for table in (self._live, self._durable):
            for entry in [entry for entry in table if entry.startswith(path + "/")]:
                del table[entry]
        self._journal = [change for change in self._journal if not change[0][0].startswith(path + "/")]
        self._directories = {entry for entry in self._directories if not (entry + "/").startswith(path + "/")}

    def sync_directory(self, path: str) -> None:
        self._occurs("sync_directory", path)
        prefix = path + "/"
        for entry in [entry for entry in self._durable if entry.rpartition("/")[0] + "/" == prefix]:
            del self._durable[entry]
        self._durable |= {e: n for e, n in self._live.items() if e.rpartition("/")[0] + "/" == prefix}
        self._journal = [change for change in self._journal if change[0][0].rpartition("/")[0] != path]

    def read(self, path: str) -> bytes:
        self._occurs("read", path)
        return bytes(self._node(path).data)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        node = _Node(modified_ms=self.now_ms)
        self._change([(path + ".new", node)])
        try:
            self._write(node, path, bytes(data), 0)
            if sync:
                self._occurs("sync", path)
                node.durable = bytes(node.data)
            self._occurs("rename", path)
        except OSError:
            self._change([(path + ".new", None)])
            raise
        self._change([(path, node), (path + ".new", None)])
        if sync:
            self.sync_directory(path.rpartition("/")[0])

    def lock(self, path: str) -> FaultyLock:
        if path in self._locks:
            raise BlockingIOError(errno.EWOULDBLOCK, os.strerror(errno.EWOULDBLOCK), path)
        self._locks.add(path)
        return FaultyLock(self, path)

    def boot_id(self) -> str:
        return f"boot-{self._boots}"
