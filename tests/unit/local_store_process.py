"""A process with a local store, for test_local_store_processes: told what to do on stdin, telling all on stdout.

Commands, one a line:

    create PATH VALUE [ephemeral]
    storm PREFIX COUNT      that many creations, ten at a time, each reported when it is done
    hang                    write an entry, and stop inside the transaction for good

What it tells, one JSON object a line, `at` being milliseconds of the machine's monotonic clock:

    {"ready": [paths], "at": ...}   {"event": path, "version": n or null, "at": ...}
    {"session": bool, "at": ...}    {"done": path, "error": null or text, "lease": ..., "at": ...}    {"inside": true}
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Sequence

from culver.clock import SystemClock
from culver.coordination import local_database as database
from culver.coordination.local import LocalStore
from culver.coordination.store import Create, Event
from culver.scheduler import AsyncioScheduler

IN_FLIGHT = 10
clock = SystemClock()


def tell(**facts: object) -> None:
    sys.stdout.write(json.dumps(facts | {"at": clock.monotonic_ms()}) + "\n")
    sys.stdout.flush()


class Commands(asyncio.Protocol):
    """Lines from stdin, carried out as they come."""

    def __init__(self, store: LocalStore, path: str, over: asyncio.Event) -> None:
        self._store = store
        self._path = path
        self._over = over
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            name, *words = line.decode().split()
            getattr(self, name)(*words)

    def connection_lost(self, exception: Exception | None) -> None:
        self._over.set()

    def create(self, path: str, value: str, ephemeral: str = "") -> None:
        self._create(path, value, bool(ephemeral), lambda: None)

    def storm(self, prefix: str, count: str) -> None:
        paths = (f"{prefix}{number}" for number in range(int(count)))

        def next_one() -> None:
            path = next(paths, None)
            if path is not None:
                self._create(path, "x", False, next_one)

        for _ in range(IN_FLIGHT):
            next_one()

    def hang(self) -> None:
        writer, _reader = database.connect(self._path)
        with database.transaction(writer):
            writer.execute("INSERT INTO entries VALUES ('/half-done', x'', 0, NULL)")
            tell(inside=True)
            signal.pause()

    def _create(self, path: str, value: str, ephemeral: bool, then) -> None:  # type: ignore[no-untyped-def]
        def done(error: BaseException | None) -> None:
            tell(done=path, error=None if error is None else str(error), lease=self._store.lease_until_ms)
            then()

        self._store.change([Create(path, value.encode(), ephemeral)], done)


def on_events(events: Sequence[Event]) -> None:
    for path, entry in events:
        tell(event=path, version=None if entry is None else entry.version)


async def run(path: str, session_timeout_ms: float) -> None:
    loop = asyncio.get_running_loop()
    scheduler = AsyncioScheduler(loop)
    store = LocalStore(path, scheduler, clock, session_timeout_ms)
    entries = store.open(on_events, lambda begun: tell(session=begun))
    tell(ready=sorted(entries))
    over = asyncio.Event()
    await loop.connect_read_pipe(lambda: Commands(store, path, over), sys.stdin)
    await over.wait()
    scheduler.close()
    store.close()


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], float(sys.argv[2])))
