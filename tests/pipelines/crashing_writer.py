"""Runs one operation on copies of a log store, each in a process of its own that is killed one step later.

    python crashing_writer.py OPERATION TEMPLATE DIRECTORY

makes DIRECTORY/0, DIRECTORY/1, ... as TEMPLATE was, killed before the first, the second, ... change on the disk, and
stops after the copy in which the operation came to its end. Forking from a process that has done nothing yet is quick
and safe, which is why this is no part of the test's own process.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from typing import Any

from store_events import HOUR_US, START_US, batch

from culver.pipelines.log_store import manifest
from culver.pipelines.log_store.store import LogStore

STEPS = ("makedirs", "rename", "link", "unlink", "rmdir")

OPERATIONS: dict[str, Callable[[LogStore], object]] = {
    "write": lambda store: store.write_batch(batch(5), query_id="q", batch_id=5),
    "compact": lambda store: store.compact(),
    "expire": lambda store: store.expire(START_US + HOUR_US),
    "repair": lambda store: store.repair(),
}


def kill_before(step: int) -> None:
    """Let this process end before it changes the disk for the step-th time from now."""
    remaining = step

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            nonlocal remaining
            if remaining == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            remaining -= 1
            return change(*arguments, **options)

        return counting

    for name in STEPS:
        setattr(os, name, counted(getattr(os, name)))
    # What a killed process has written stays without it, and a hundred of them are slow.
    os.fsync = lambda descriptor: None


def main(operation: str, template: str, directory: str) -> None:
    manifest.COMMITS_PER_CHECKPOINT = 2
    for step in range(1000):
        path = os.path.join(directory, str(step))
        shutil.copytree(template, path)
        child = os.fork()
        if child == 0:
            store = LogStore(path)
            kill_before(step)
            OPERATIONS[operation](store)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            sys.exit(os.WEXITSTATUS(status))
    sys.exit("the operation never ended")


if __name__ == "__main__":
    main(*sys.argv[1:])
