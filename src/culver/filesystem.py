"""The filesystem port: the only door to the disk, so that a test or simulator can stand behind it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Sequence
from typing import Protocol, TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview


_BOOT_ID_FILE = "/proc/sys/kernel/random/boot_id"
_PAGE_BYTES = 4096
_PROBE = bytearray(1)
_AHEAD_BYTES = 8 << 20  # what a reader of old records is likely to want next


_PROBE_STEP_BYTES = 64 << 10


class FileRange:
    """Bytes of a file, to be sent by the kernel without passing through this process.

    It has a descriptor of its own, so that the file may be closed or deleted before all is sent.
    """

    __slots__ = ("_descriptor", "position", "size")

    def __init__(self, descriptor: int, position: int, size: int) -> None:
        self._descriptor = os.dup(descriptor)
        self.position = position
        self.size = size

    def __len__(self) -> int:
        return self.size

    def send_to(self, socket_descriptor: int, max_bytes: int) -> int:
        """Send some of it; how many bytes. BlockingIOError when the socket takes none now."""
        count = min(self.size, max_bytes)
        sent = os.sendfile(socket_descriptor, self._descriptor, self.position, count)
        self.position += sent
        self.size -= sent
        return sent

    def read(self) -> bytes:
        """The bytes after all, for those who cannot send a range."""
        return os.pread(self._descriptor, self.size, self.position)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()


class File(Protocol):
    """One open file, read and written by position. Every failure is an OSError."""

    path: str

    def pwrite(self, data: Buffer, position: int) -> None:
        """Write all of `data`, or raise. After a raise any part of it may be in the file."""
        ...

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        """Write all the buffers one after another, or raise."""
        ...

    def pread(self, size: int, position: int) -> bytes:
        """Up to `size` bytes (fewer only at the end of the file); may wait for the disk."""
        ...

    def pread_cached(self, size: int, position: int) -> bytes | bytearray | None:
        """As pread, but never waiting for the disk: what is in the page cache of it, None when nothing is."""
        ...

    def range_cached(self, size: int, position: int) -> FileRange | None:
        """These bytes for sending, if they are in the page cache as far as can be told quickly."""
        ...

    def load(self, size: int, position: int) -> None:
        """Wait until these bytes are in the page cache, and have those behind them follow."""
        ...

    def sync(self) -> None:
        """Return when everything written so far would survive a power cut."""
        ...

    def truncate(self, size: int) -> None: ...

    def size(self) -> int: ...

    def close(self) -> None: ...


class Lock(Protocol):
    """Held until released or until the process ends, however it ends."""

    def release(self) -> None: ...


class FileSystem(Protocol):
    """Files and directories by path."""

    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing. Without `create` a missing file is FileNotFoundError."""
        ...

    def exists(self, path: str) -> bool: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int: ...

    def list(self, path: str) -> list[str]:
        """Names in a directory, sorted."""
        ...

    def make_directory(self, path: str) -> None:
        """Create it and its parents; no complaint when it is there."""
        ...

    def rename(self, source: str, target: str) -> None:
        """Atomically, replacing the target."""
        ...

    def remove(self, path: str) -> None: ...

    def remove_tree(self, path: str) -> None: ...

    def sync_directory(self, path: str) -> None:
        """Return when the names in the directory would survive a power cut."""
        ...

    def read(self, path: str) -> bytes: ...

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        """Replace the file's whole content so that a crash leaves the old or the new, never a mixture."""
        ...

    def disk_space(self, path: str) -> tuple[int, int]:
        """(all bytes, usable bytes) of the disk that holds `path`."""
        ...

    def lock(self, path: str) -> Lock:
        """Take the lock file, or raise BlockingIOError when another process has it."""
        ...

    def boot_id(self) -> str:
        """The same for as long as the machine runs: what was written and not synced is still there. "": not known."""
        ...


class OsFile:
    """A file descriptor."""

    __slots__ = ("_descriptor", "_reads_ahead", "path")

    def __init__(self, path: str, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._reads_ahead = True

    def pwrite(self, data: Buffer, position: int) -> None:
        written = os.pwrite(self._descriptor, data, position)
        size = len(data)
        if written != size:  # a short write: go on, so that the true error (say, ENOSPC) is raised
            view = memoryview(data)
            while written < size:
                written += os.pwrite(self._descriptor, view[written:], position + written)

    def pwritev(self, buffers: Sequence[Buffer], position: int) -> None:
        if len(buffers) > 1024:  # IOV_MAX
            self.pwrite(b"".join(buffers), position)
            return
        written = os.pwritev(self._descriptor, buffers, position)
        total = sum(map(len, buffers))
        if written != total:
            rest = b"".join(buffers)
            self.pwrite(memoryview(rest)[written:], position + written)

    def pread(self, size: int, position: int) -> bytes:
        data = os.pread(self._descriptor, size, position)
        if len(data) == size or not data:
            return data
        parts = [data]
        got = len(data)
        while got < size:
            data = os.pread(self._descriptor, size - got, position + got)
            if not data:
                break
            parts.append(data)
            got += len(data)
        return b"".join(parts)

    def pread_cached(self, size: int, position: int) -> bytes | bytearray | None:
        if self._reads_ahead:
            # Otherwise even a read that must not wait starts the kernel's read-ahead, megabytes of it, inside
            # the call. Reading ahead is `load`'s business.
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            self._reads_ahead = False
        try:
            if size > _PAGE_BYTES:
                # Both ends first: a miss costs a page then, not the whole range up to where it is.
                os.preadv(self._descriptor, (_PROBE,), position + size - 1, os.RWF_NOWAIT)
                os.preadv(self._descriptor, (_PROBE,), position, os.RWF_NOWAIT)
            # The buffer itself is handed out, so that the bytes are copied once, by the kernel.
            buffer = bytearray(size)
            got = os.preadv(self._descriptor, (buffer,), position, os.RWF_NOWAIT)
        except BlockingIOError:
            return None
        except OSError:
            # The filesystem has no NOWAIT reads (some overlay and network ones): wait instead.
            return self.pread(size, position)
        if got != size:  # the end of the file, or the end of what is cached
            del buffer[got:]
            if not got and position < os.fstat(self._descriptor).st_size:
                return None
        return buffer

    def range_cached(self, size: int, position: int) -> FileRange | None:
        if self._reads_ahead:
            os.posix_fadvise(self._descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            self._reads_ahead = False
        try:
            # From the end: what is still being read in is at the end. A hole between two probes is unlikely, since
            # the kernel brings in and drops pages in larger lots, and would cost a wait, nothing worse.
            for at in range(position + size - 1, position, -_PROBE_STEP_BYTES):
                os.preadv(self._descriptor, (_PROBE,), at, os.RWF_NOWAIT)
            os.preadv(self._descriptor, (_PROBE,), position, os.RWF_NOWAIT)
        except OSError:
            return None
        return FileRange(self._descriptor, position, size)

    def load(self, size: int, position: int) -> None:
        os.posix_fadvise(self._descriptor, position, size + _AHEAD_BYTES, os.POSIX_FADV_WILLNEED)
        os.pread(self._descriptor, size, position)

    def sync(self) -> None:
        os.fdatasync(self._descriptor)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class OsLock:
    """An flock, which the kernel drops when the process dies."""

    def __init__(self, path: str) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BaseException:
            os.close(self._descriptor)
            raise

    def release(self) -> None:
        os.close(self._descriptor)


class OsFileSystem:
    """The machine's own filesystem."""

    def open(self, path: str, *, create: bool = False) -> OsFile:
        flags = os.O_RDWR | os.O_CLOEXEC | (os.O_CREAT if create else 0)
        return OsFile(path, os.open(path, flags, 0o644))

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def list(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def make_directory(self, path: str) -> None:
        try:
            os.mkdir(path)
        except FileNotFoundError:
            os.makedirs(path, exist_ok=True)
        except FileExistsError:
            if not os.path.isdir(path):
                raise

    def rename(self, source: str, target: str) -> None:
        os.replace(source, target)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def remove_tree(self, path: str) -> None:
        shutil.rmtree(path)

    def sync_directory(self, path: str) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def read(self, path: str) -> bytes:
        # Half the time that a file object takes; a start reads a few small files of every partition.
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            data = os.read(descriptor, size)
            while len(data) < size and (more := os.read(descriptor, size - len(data))):
                data += more
            return data
        finally:
            os.close(descriptor)

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        temporary = path + ".new"
        try:
            with open(temporary, "wb") as file:
                file.write(data)
                file.flush()
                if sync:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if sync:
            self.sync_directory(os.path.dirname(path))

    def disk_space(self, path: str) -> tuple[int, int]:
        disk = os.statvfs(path)
        return disk.f_blocks * disk.f_frsize, disk.f_bavail * disk.f_frsize

    def lock(self, path: str) -> OsLock:
        return OsLock(path)

    def boot_id(self) -> str:
        try:
            with open(_BOOT_ID_FILE, encoding="ascii") as file:
                return file.read().strip()
        except OSError:
            return ""
