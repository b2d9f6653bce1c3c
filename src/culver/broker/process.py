"""The broker as a process: real clock, disk, network and metadata store, and the signals that end it."""

from __future__ import annotations

import asyncio
import gc
import os
import resource
import signal
import sys
from typing import TYPE_CHECKING, Protocol

import uvloop

from culver.broker.node import Node
from culver.clock import SystemClock
from culver.filesystem import OsFileSystem
from culver.logging import configure_logging
from culver.network import AsyncioNetwork
from culver.scheduler import AsyncioScheduler

if TYPE_CHECKING:
    from culver.config import BrokerConfig
    from culver.coordination.store import MetadataStore

METADATA_FILE = "metadata.sqlite"

_SWITCH_INTERVAL_SECONDS = 0.0005
_LOCAL = "local"


class Companion(Protocol):
    """What runs beside the broker for as long as it serves."""

    def start(self, bootstrap: str) -> None:
        """The broker is ready at this address. Returns at once."""
        ...

    def stop(self) -> None:
        """The broker is about to stop. May take its time: it is called in a thread."""
        ...


def serve(config: BrokerConfig, companion: Companion | None = None) -> int:
    """Run a broker until SIGTERM or SIGINT; the exit code.

    OSError when it cannot listen or use its directory, StoreError when it cannot use the metadata store,
    BrokerRefused when the cluster does not take it.
    """
    # Several brokers may write to the same place.
    alone = config.culver_coordination == _LOCAL
    configure_logging(
        config.log_level, config.log_format, always=None if alone else {"node": config.broker_id}
    )
    _raise_open_files_limit()
    # A thread that comes back from an fsync must not wait five milliseconds (Python's default) for its turn.
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config, companion))


async def _serve(config: BrokerConfig, companion: Companion | None) -> int:
    loop = asyncio.get_running_loop()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    filesystem = OsFileSystem()
    filesystem.make_directory(config.data_dir)
    scheduler = AsyncioScheduler(loop)
    store = open_store(config, scheduler)
    node = Node(
        config,
        clock=SystemClock(),
        scheduler=scheduler,
        filesystem=filesystem,
        network=AsyncioNetwork(loop),
        store=store,
    )
    node.on_refused = stopping.set
    try:
        host, port = await node.start()
    except BaseException:
        scheduler.close()
        store.close()
        raise
    gc.freeze()  # what is there now stays: no collection needs to look at it again
    # Requests and responses hold no cycles: looking for some after every 700 objects, as is the default, makes a
    # request with tens of thousands of elements take three times as long, and the others wait.
    gc.set_threshold(20_000, 50, 100)
    print(f"ready {_join(host, port)} broker={node.broker_id} data={config.data_dir}", flush=True)
    if companion is not None:
        companion.start(_join(_reachable(host), port))
    await stopping.wait()
    if companion is not None:
        await asyncio.to_thread(companion.stop)
    if node.refused is None:
        await node.hand_over()
    node.stop_listening()
    await asyncio.sleep(0)  # let the loop send what was written last
    scheduler.close()
    node.close()
    if node.refused is not None:
        raise node.refused
    return 0


def open_store(config: BrokerConfig, scheduler: AsyncioScheduler) -> MetadataStore:
    """The metadata store that the configuration names."""
    where = config.culver_coordination
    if where == _LOCAL or where.startswith(_LOCAL + ":"):
        from culver.coordination.local import LocalStore

        file = where.partition(":")[2] or os.path.join(config.data_dir, METADATA_FILE)
        return LocalStore(file, scheduler, SystemClock(), config.culver_session_timeout_ms)
    from culver.coordination.zookeeper import ZooKeeperStore

    return ZooKeeperStore(where, scheduler, SystemClock(), config.culver_session_timeout_ms)


def _join(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _reachable(host: str) -> str:
    """Where this machine reaches what listens on a host; all hosts are reached through the loopback."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _raise_open_files_limit() -> None:
    """A partition keeps a file open, a client a socket: take all that the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
