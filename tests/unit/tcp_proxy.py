"""A TCP proxy on threads, to cut off or silence whoever connects through it."""

from __future__ import annotations

import contextlib
import socket
import threading

CHUNK_BYTES = 1 << 16


class TcpProxy:
    """Passes bytes on between its own port and a target until told otherwise.

    `cut` closes all connections and refuses new ones. `freeze` keeps them open, takes new ones, and lets no byte
    through: a network that swallows packets. `heal` undoes both.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._target = host, int(port)
        self._listener: socket.socket | None = None
        self._port = 0
        self._flowing = threading.Event()
        self._flowing.set()
        self._refusing = False
        self._closed = False
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._listen()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def cut(self) -> None:
        self._refusing = True
        self._drop_connections()

    def freeze(self) -> None:
        self._flowing.clear()

    def heal(self) -> None:
        self._refusing = False
        self._flowing.set()

    def drop(self) -> None:
        """Close all connections; new ones are welcome."""
        self._drop_connections()

    def close(self) -> None:
        self._closed = True
        self._flowing.set()
        assert self._listener is not None
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._drop_connections()
        for thread in list(self._threads):
            thread.join()

    def _listen(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._port = self._listener.getsockname()[1]
        self._spawn(self._accept, self._listener)

    def _spawn(self, work: object, *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="tcp-proxy", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        while not self._closed:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            try:
                if self._refusing or self._closed:
                    raise ConnectionRefusedError
                far = socket.create_connection(self._target, timeout=5)
                far.settimeout(None)
            except OSError:
                near.close()
                continue
            for end in near, far:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {near, far}
            self._spawn(self._pump, near, far)
            self._spawn(self._pump, far, near)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while chunk := source.recv(CHUNK_BYTES):
                self._flowing.wait()
                sink.sendall(chunk)
        self._drop(source, sink)

    def _drop(self, *ends: socket.socket) -> None:
        with self._lock:
            known = [end for end in ends if end in self._sockets]
            self._sockets -= set(known)
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for end in known:
            end.close()

    def _drop_connections(self) -> None:
        with self._lock:
            ends = list(self._sockets)
        self._drop(*ends)
