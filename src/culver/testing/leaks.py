"""Find what a test leaves behind: child processes, threads, open files and sockets.

    @pytest.fixture(autouse=True)
    def no_leaks():
        with leaks.forbidden():
            yield

A fixture of a wider scope is set up before, so a session's broker does not count against its first test.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SETTLE_SECONDS = 3.0
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.1


class Leaked(AssertionError):
    """Something outlived its test; the message says what."""


@dataclass(frozen=True, slots=True)
class Resources:
    """What this process holds at one moment, each with a description for people."""

    processes: dict[int, str]
    threads: dict[int, str]
    files: dict[int, str]

    @classmethod
    def now(cls) -> Resources:
        threads = {thread.ident: thread.name for thread in threading.enumerate() if thread.ident is not None}
        return cls(_child_processes(), threads, _open_files())

    def added_since(self, before: Resources) -> list[str]:
        """One line for each thing that was not there before."""
        lines = [
            f"process {pid}: {self.processes[pid]}" for pid in self.processes.keys() - before.processes.keys()
        ]
        lines += [f"thread {self.threads[ident]}" for ident in self.threads.keys() - before.threads.keys()]
        lines += [
            f"file descriptor {descriptor}: {target}"
            for descriptor, target in self.files.items()
            if before.files.get(descriptor) != target
        ]
        return sorted(lines)


@contextlib.contextmanager
def forbidden(settle_s: float = SETTLE_SECONDS) -> Iterator[None]:
    """Raise Leaked when the block leaves something behind that does not go away by itself in `settle_s`."""
    before = Resources.now()
    yield
    added = Resources.now().added_since(before)
    if not added:
        return
    # Objects in reference cycles and threads that are just ending are no leaks: give them their chance.
    deadline = time.monotonic() + settle_s
    pause = _FIRST_PAUSE_SECONDS
    while added:
        gc.collect()
        added = Resources.now().added_since(before)
        if added and time.monotonic() > deadline:
            raise Leaked("left behind:\n  " + "\n  ".join(added))
        if added:
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def _open_files() -> dict[int, str]:
    """Open descriptors and what they are open on."""
    files = {}
    for name in os.listdir("/proc/self/fd"):
        # The descriptor that listed the directory is gone by now.
        with contextlib.suppress(FileNotFoundError):
            target = os.readlink(f"/proc/self/fd/{name}")
            files[int(name)] = target
    return files


def _child_processes() -> dict[int, str]:
    """Direct children that run or wait to be reaped, and their command lines."""
    children = {}
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for word in Path(f"/proc/self/task/{task}/children").read_text().split():
                children[int(word)] = _command_line(int(word))
    return children


def _command_line(pid: int) -> str:
    try:
        command = (
            Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        )
    except OSError:
        return "ended"
    return command or "ended, not waited for"
