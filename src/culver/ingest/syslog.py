"""Listens for syslog over UDP and TCP, and puts what comes into the spool.

Over TCP both framings of RFC 6587 are understood: a length in front of each message, or a newline behind it. A sender
that is ahead of the spool is read no further until there is room; over UDP there is no way to hold one back.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable

from culver.ingest.splitting import LineSplitter
from culver.ingest.spool import Spool, SpoolFull
from culver.logging import get_logger

_log = get_logger("culver.ingest")

_RECEIVE_BUFFER_BYTES = 8 << 20
_RETRY_SECONDS = 0.2
_LENGTH_DIGITS_MAX = 7


class SyslogListener:
    """Both protocols on a thread of their own."""

    def __init__(
        self,
        spool: Spool,
        now_ms: Callable[[], int],
        *,
        udp: tuple[str, int] | None = None,
        tcp: tuple[str, int] | None = None,
        message_max_bytes: int = 1 << 18,
    ) -> None:
        self._spool = spool
        self._now_ms = now_ms
        self._udp = udp
        self._tcp = tcp
        self._message_max_bytes = message_max_bytes
        self._loop = asyncio.new_event_loop()
        self._ready = threading.Event()
        self._stopping: asyncio.Event | None = None
        self._failures: list[OSError] = []
        self.received = 0
        self.dropped = 0
        # Where it listens: with port 0 the kernel has chosen one.
        self.udp_address: tuple[str, int] | None = None
        self.tcp_address: tuple[str, int] | None = None
        self._thread = threading.Thread(target=self._run, name="syslog", daemon=True)
        self._thread.start()
        self._ready.wait()
        for failure in self._failures:
            self._thread.join()
            raise failure

    def close(self) -> None:
        if self._stopping is not None:
            self._loop.call_soon_threadsafe(self._stopping.set)
        self._thread.join()

    # -- the thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_until_complete(self._serve())
        except OSError as error:
            self._failures.append(error)
        finally:
            self._ready.set()
            self._loop.close()

    async def _serve(self) -> None:
        self._stopping = asyncio.Event()
        transport = server = None
        tasks: set[asyncio.Task[None]] = set()
        if self._udp is not None:
            transport = await self._listen_udp(self._udp)
        if self._tcp is not None:
            server = await asyncio.start_server(
                lambda reader, writer: self._connection(reader, writer, tasks), *self._tcp
            )
            self.tcp_address = server.sockets[0].getsockname()[:2]
        self._ready.set()
        await self._stopping.wait()
        if transport is not None:
            transport.close()
        if server is not None:
            server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _listen_udp(self, address: tuple[str, int]) -> asyncio.DatagramTransport:
        family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        receiver = socket.socket(family, socket.SOCK_DGRAM)
        receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER_BYTES)
        receiver.setblocking(False)
        receiver.bind(address)
        self.udp_address = receiver.getsockname()[:2]
        transport, _ = await self._loop.create_datagram_endpoint(lambda: _Datagrams(self), sock=receiver)
        return transport

    def datagram(self, data: bytes, host: str) -> None:
        try:
            self._spool.append([(host, data.rstrip(b"\n\0"), self._now_ms())])
        except SpoolFull as reason:
            self.dropped += 1
            if self.dropped == 1:
                _log.error("datagrams are dropped: the spool is full", reason=str(reason))
        else:
            self.received += 1

    async def _connection(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, tasks: set[asyncio.Task[None]]
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        host = str(writer.get_extra_info("peername")[0])
        framing = _Framing(self._message_max_bytes)
        try:
            while data := await reader.read(1 << 16):
                await self._keep(host, framing.feed(data))
            await self._keep(host, framing.finish())
        except ValueError as error:
            _log.warning("closed a syslog connection", peer=host, reason=str(error))
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            tasks.discard(task)
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _keep(self, host: str, messages: list[bytes]) -> None:
        if not messages:
            return
        entries = [(host, message, self._now_ms()) for message in messages]
        count = len(entries)
        while entries:
            try:
                self._spool.append(entries[:count])
            except SpoolFull:
                if count > 1:
                    count = (count + 1) // 2
                    continue
                # Not read any further: the sender's own buffers fill, and it waits.
                await asyncio.sleep(_RETRY_SECONDS)
            else:
                self.received += len(entries[:count])
                del entries[:count]


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, listener: SyslogListener) -> None:
        self._listener = listener

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._listener.datagram(data, addr[0])


class _Framing:
    """Messages in a stream. The first byte says which framing a sender uses: a digit begins a length."""

    def __init__(self, message_max_bytes: int) -> None:
        self._max_bytes = message_max_bytes
        self._lines: LineSplitter | None = None
        self._counted: bytearray | None = None

    def feed(self, data: bytes) -> list[bytes]:
        if self._lines is None and self._counted is None:
            if data[:1].isdigit():
                self._counted = bytearray()
            else:
                self._lines = LineSplitter(self._max_bytes)
        if self._lines is not None:
            return [line for line, _ in self._lines.feed(data) if line]
        assert self._counted is not None
        buffer = self._counted
        buffer += data
        messages = []
        while buffer:
            space = buffer.find(b" ", 0, _LENGTH_DIGITS_MAX + 1)
            if space < 0 and len(buffer) <= _LENGTH_DIGITS_MAX:
                break
            digits = bytes(buffer[: max(space, 0)])
            if not digits.isdigit() or int(digits) > self._max_bytes:
                raise ValueError(f"no message length, or one above {self._max_bytes}: {bytes(buffer[:16])!r}")
            end = space + 1 + int(digits)
            if len(buffer) < end:
                break
            messages.append(bytes(buffer[space + 1 : end]).rstrip(b"\n"))
            del buffer[:end]
        return messages

    def finish(self) -> list[bytes]:
        if self._lines is None:
            return []
        return [line for line, _ in self._lines.finish()]
