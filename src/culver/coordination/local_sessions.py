"""The sessions of the local store: a locked file each, with the time until which its owner counts as alive.

The kernel drops the lock with the process, so the others see a dead one at once. One that is stopped, or stuck, keeps
its lock, but the time in its file runs out.

Nobody's session may end while its owner still trusts it. So the owner moves the time on with a plain write only while
the last one has not run out, and looks at the clock again behind the write; otherwise it does so inside a write
transaction of the database, where it also sees whether the session is still there. The others end a session only
inside such a transaction, and look at the clock before they look at the file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import struct
import threading
from collections.abc import Callable, Iterable

_DEADLINE = struct.Struct("=d")  # eight bytes in one place: read whole or not at all


class Session:
    """This store's own session: it holds the lock on its file until it is let go of."""

    def __init__(self, session_id: str, path: str, descriptor: int, deadline_ms: float) -> None:
        self.id = session_id
        # Until when, on the machine's monotonic clock, nobody else ends this session.
        self.deadline_ms = deadline_ms
        self._path = path
        # Written to by a thread while another lets go of it: the number could be another file's by then.
        self._lock = threading.Lock()
        self._descriptor = descriptor

    @classmethod
    def create(cls, directory: str, deadline_ms: float) -> Session:
        while True:
            session_id = f"{os.getpid()}-{secrets.token_hex(8)}"
            path = os.path.join(directory, session_id)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                # Someone who removes files without an owner may have come in between.
                if os.fstat(descriptor).st_nlink:
                    session = cls(session_id, path, descriptor, deadline_ms)
                    session.write(deadline_ms)
                    return session
            except BlockingIOError:
                pass
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def write(self, deadline_ms: float) -> None:
        """Show the others a later deadline; whether it can be relied on is for the caller to find out."""
        with self._lock:
            if self._descriptor >= 0:
                os.pwrite(self._descriptor, _DEADLINE.pack(deadline_ms), 0)

    def release(self, *, remove: bool = True) -> None:
        """Let go of the lock; without `remove` the file stays, as after a crash."""
        with self._lock:
            if self._descriptor < 0:
                return
            if remove:
                remove_file(self._path)
            os.close(self._descriptor)
            self._descriptor = -1


def has_ended(directory: str, session_id: str, now_ms: Callable[[], float]) -> bool:
    """Whether the owner of a session is dead, or has not been heard of until its deadline."""
    try:
        descriptor = os.open(os.path.join(directory, session_id), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        if _lockable(descriptor):
            return True
        # The clock first: had the owner moved its deadline on in time, the file would already say so.
        now = now_ms()
        data = os.pread(descriptor, _DEADLINE.size, 0)
        return len(data) == _DEADLINE.size and now > _DEADLINE.unpack(data)[0]
    finally:
        os.close(descriptor)


def remove_files(directory: str, session_ids: Iterable[str]) -> None:
    for session_id in session_ids:
        remove_file(os.path.join(directory, session_id))


def remove_file(path: str) -> None:
    # Several may have seen the same session end, and each removes its file.
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def remove_strays(directory: str, known: set[str]) -> None:
    """Remove the files of owners that died before or after the database knew their sessions."""
    for name in os.listdir(directory):
        if name in known:
            continue
        path = os.path.join(directory, name)
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                if _lockable(descriptor):
                    remove_file(path)
            finally:
                os.close(descriptor)


def _lockable(descriptor: int) -> bool:
    try:
        # Shared, so that two who look at the same moment both see it.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
