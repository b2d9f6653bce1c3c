"""The metadata store in ZooKeeper as a world of the contract: a real server, and a proxy in front of each client."""

from __future__ import annotations

from collections.abc import Callable

from metadata_stores import AsyncioWorld, Client, MortalScheduler
from tcp_proxy import TcpProxy

from culver.coordination.store import MetadataStore
from culver.coordination.zookeeper import ZooKeeperStore
from culver.scheduler import Scheduler

TICK_TIME_MS = 100
SESSION_TIMEOUT_MS = 1000


class ThreadsafeMortalScheduler(MortalScheduler):
    """For a store that hears things on other threads."""

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        if not self._dead:
            self._inner.call_soon_threadsafe(lambda: self._run(callback))


class ZooKeeperWorld(AsyncioWorld):
    def __init__(self, server: str, path: str, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> None:
        super().__init__(session_timeout_ms)
        self._server = server
        self._path = path
        self.proxies: dict[MetadataStore, TcpProxy] = {}

    def new_store(self, scheduler: Scheduler) -> MetadataStore:
        proxy = TcpProxy(self._server)
        store = ZooKeeperStore(
            f"zookeeper://{proxy.address}{self._path}", scheduler, self.clock, self.session_timeout_ms
        )
        self.proxies[store] = proxy
        return store

    def open(self) -> Client:
        scheduler = ThreadsafeMortalScheduler(self.new_scheduler())
        client = Client(self, self.new_store(scheduler), scheduler)
        self.clients.append(client)
        return client

    def proxy(self, client: Client) -> TcpProxy:
        return self.proxies[client.store]

    def crash(self, store: MetadataStore) -> None:
        # The server sees the connection go and keeps the session, as with a dead process.
        self.proxies[store].cut()
        store.close()

    def close(self) -> None:
        super().close()
        for proxy in self.proxies.values():
            proxy.close()
