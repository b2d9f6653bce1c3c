"""A simulated network: byte streams between hosts that are late, cut into pieces, stalled, and reset.

It behaves as TCP does. Bytes arrive in order or not at all. A cut loses nothing at first: what was sent waits, and
goes on when the cut heals in time; otherwise the sender gives up, while the other end, which hears nothing, may
keep its half of the connection for ever.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from typing import Any
from zlib import crc32

from culver.testing.simulation.loop import Event, Process, World

_KERNEL_BUFFER_BYTES = 256 << 10
_DEFAULT_HIGH_WATER_BYTES = 64 << 10


class SimulatedNetwork:
    """All hosts, and what is between them."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._random = world.random("network")
        self._listeners: dict[tuple[str, int], SimulatedListener] = {}
        # One way: (from, to).
        self._cuts: set[tuple[str, str]] = set()
        self._down: set[str] = set()
        # All open ends, in the order in which they were made.
        self._ends: dict[SimulatedTransport, None] = {}
        self._next_port = 40_000
        # How the network of this run is.
        self.latency_us = (100, 1_500)
        self.spike_share = 0.005
        self.spike_max_us = 150_000
        self.fragment_share = 0.1

    def of(self, process: Process) -> ProcessNetwork:
        """The network as one process sees it."""
        return ProcessNetwork(self, process)

    def delay_us(self) -> int:
        generator = self._random
        if generator.random() < self.spike_share:
            return generator.randrange(5_000, self.spike_max_us)
        return generator.randrange(*self.latency_us)

    def patience_us(self) -> int:
        """How long a sender waits for a peer that does not acknowledge."""
        return self._random.randrange(800_000, 6_000_000)

    # -- faults -----------------------------------------------------------------------------------------

    def reaches(self, source: str, target: str) -> bool:
        return (source, target) not in self._cuts and source not in self._down and target not in self._down

    def cut(self, source: str, target: str) -> None:
        """Nothing goes from one host to the other any more; the way back is another matter."""
        self._cuts.add((source, target))

    def heal(self, source: str, target: str) -> None:
        self._cuts.discard((source, target))
        self._resume()

    def heal_all(self) -> None:
        self._cuts.clear()
        self._resume()

    def host_down(self, host: str) -> None:
        """The machine is off: it neither sends nor answers."""
        self._down.add(host)

    def host_up(self, host: str) -> None:
        self._down.discard(host)
        self._resume()

    def reset(self, one: str, other: str) -> None:
        """Reset all connections between two hosts."""
        for end in list(self._ends):
            if end.process.host == one and end.peer.process.host == other:
                end.fail()
                end.peer.fail()

    def _resume(self) -> None:
        for end in list(self._ends):
            if end.stalled and self.reaches(end.peer.process.host, end.process.host):
                end.arrive_stalled()

    def process_died(self, process: Process, silently: bool) -> None:
        """A killed process's kernel tells its peers; one whose machine lost its power tells nobody."""
        for key in [key for key, listener in self._listeners.items() if listener.process is process]:
            del self._listeners[key]
        for end in [end for end in self._ends if end.process is process]:
            del self._ends[end]
            end.dead = True
            if not silently:
                end.send_end(reset=self._random.random() < 0.5)

    # -- connections ------------------------------------------------------------------------------------

    def bind(
        self, process: Process, host: str, port: int, factory: Callable[[], asyncio.BaseProtocol]
    ) -> SimulatedListener:
        if port == 0:
            self._next_port += 1
            port = self._next_port
        if (process.host, port) in self._listeners:
            raise OSError(98, f"address {host}:{port} is in use")
        listener = SimulatedListener(self, process, host, port, factory)
        self._listeners[process.host, port] = listener
        return listener

    def begin_connect(
        self,
        process: Process,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BaseProtocol],
        failed: Callable[[OSError], object],
    ) -> SimulatedConnecting:
        connecting = SimulatedConnecting(process, factory, failed)
        self.world.after(self.delay_us(), None, self._knock, connecting, host, port)
        return connecting

    def _knock(self, connecting: SimulatedConnecting, host: str, port: int) -> None:
        process = connecting.process
        if not process.alive or connecting.cancelled:
            return
        if not self.reaches(process.host, host) or not self.reaches(host, process.host):
            timeout = TimeoutError(110, f"no answer from {host}:{port}")
            process.later(self.patience_us(), connecting.fail, timeout)
            return
        listener = self._listeners.get((host, port))
        if listener is None:
            refused = ConnectionRefusedError(111, f"nobody listens on {host}:{port}")
            process.later(self.delay_us(), connecting.fail, refused)
            return
        here = SimulatedTransport(self, process, (host, port))
        there = SimulatedTransport(self, listener.process, (process.host, 0))
        here.peer, there.peer = there, here
        self._ends[here] = self._ends[there] = None
        there.open(listener.factory, 0)
        process.later(self.delay_us(), connecting.succeed, here)

    def forget(self, end: SimulatedTransport) -> None:
        self._ends.pop(end, None)

    def fragments(self, data: bytes) -> list[bytes]:
        generator = self._random
        if len(data) < 2 or generator.random() >= self.fragment_share:
            return [data]
        at = generator.randrange(1, min(len(data), 100)) if generator.random() < 0.5 else len(data) // 2
        return [data[:at], *self.fragments(data[at:])]

    @property
    def generator(self) -> random.Random:
        return self._random


class SimulatedListener:
    """A bound port."""

    def __init__(
        self,
        network: SimulatedNetwork,
        process: Process,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BaseProtocol],
    ) -> None:
        self._network = network
        self.process = process
        self.factory = factory
        self.address = (host, port)

    def close(self) -> None:
        self._network._listeners.pop((self.process.host, self.address[1]), None)


class SimulatedConnecting:
    """A connection that is being made."""

    def __init__(
        self,
        process: Process,
        factory: Callable[[], asyncio.BaseProtocol],
        failed: Callable[[OSError], object],
    ) -> None:
        self.process = process
        self._factory = factory
        self._failed = failed
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True

    def fail(self, error: OSError) -> None:
        if not self.cancelled:
            self._failed(error)

    def succeed(self, end: SimulatedTransport) -> None:
        if self.cancelled:
            end.abort()
        else:
            end.made(self._factory)


class ProcessNetwork:
    """The network port of one process: culver.network.Network."""

    def __init__(self, network: SimulatedNetwork, process: Process) -> None:
        self._network = network
        self._process = process

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> SimulatedListener:
        return self._network.bind(self._process, host, port, factory)

    def connect(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BaseProtocol],
        failed: Callable[[OSError], object],
    ) -> SimulatedConnecting:
        return self._network.begin_connect(self._process, host, port, factory, failed)


class SimulatedTransport(asyncio.Transport):
    """One end of a connection: it owns the bytes that are on their way to it."""

    def __init__(self, network: SimulatedNetwork, process: Process, peer_address: tuple[str, int]) -> None:
        super().__init__()
        self._network = network
        self._world = network.world
        self.process = process
        self.peer: SimulatedTransport
        self._peer_address = peer_address
        self._protocol: Any = None
        self.dead = False  # its process is gone
        self._closing = False
        self._lost = False
        self._opened = False
        self._reading = True
        self._received: deque[bytes] = deque()
        self._ended = False  # the peer has closed its side
        # What has been sent to this end and cannot get through; None is the end of the stream.
        self.stalled: list[bytes | None] = []
        self._last_arrival_us = 0
        # Of what this end has sent: bytes that the other has not taken yet.
        self.unread_bytes = 0
        self._high_water_bytes = _DEFAULT_HIGH_WATER_BYTES
        self._low_water_bytes = _DEFAULT_HIGH_WATER_BYTES // 4
        self._writing_paused = False
        self._giving_up: Event | None = None

    # -- life -------------------------------------------------------------------------------------------

    def open(self, factory: Callable[[], asyncio.BaseProtocol], delay_us: int) -> None:
        self.process.later(delay_us, self.made, factory)

    def made(self, factory: Callable[[], asyncio.BaseProtocol]) -> None:
        """The process has the connection now."""
        self._protocol = factory()
        self._opened = True
        self._protocol.connection_made(self)
        if self._lost:
            self._protocol.connection_lost(None)
        elif self._received or self._ended:
            self._feed()

    def fail(self) -> None:
        """The connection is reset, as seen from this end."""
        if not self._lost:
            self._lose(ConnectionResetError(104, "connection reset by peer"))

    def _lose(self, error: Exception | None) -> None:
        self._lost = self._closing = True
        self._network.forget(self)
        if self._giving_up is not None:
            self._giving_up.cancel()
        if self._opened and not self.dead:
            self.process.soon(self._protocol.connection_lost, error)

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.send_end(reset=False)
            self._lose(None)

    def abort(self) -> None:
        if not self._lost:
            self.send_end(reset=True)
            self._lose(None)

    def is_closing(self) -> bool:
        return self._closing

    # -- sending ----------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._closing or not data:
            return
        self._send(bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def _send(self, data: bytes) -> None:
        self._world.trace.content(crc32(data))
        self.unread_bytes += len(data)
        for piece in self._network.fragments(data):
            self.peer.expect(piece)
        if not self._writing_paused and self.get_write_buffer_size() > self._high_water_bytes:
            self._writing_paused = True
            self._protocol.pause_writing()

    def send_end(self, *, reset: bool) -> None:
        """Tell the other end that nothing more comes; a reset overtakes what is on its way."""
        if reset:
            self._world.after(self._network.delay_us(), None, self._reset_arrives)
        else:
            self.peer.expect(None)

    def _reset_arrives(self) -> None:
        if self._network.reaches(self.process.host, self.peer.process.host):
            self.peer.fail()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high_water_bytes = _DEFAULT_HIGH_WATER_BYTES if high is None else high
        self._low_water_bytes = self._high_water_bytes // 4 if low is None else low

    def get_write_buffer_size(self) -> int:
        return max(0, self.unread_bytes - _KERNEL_BUFFER_BYTES)

    def taken(self, size: int) -> None:
        """The other end's process has read so many bytes."""
        self.unread_bytes -= size
        if self._writing_paused and self.get_write_buffer_size() <= self._low_water_bytes:
            self._writing_paused = False
            if not self._lost and not self.dead:
                self.process.soon(self._resume_writing)

    def _resume_writing(self) -> None:
        if not self._lost:
            self._protocol.resume_writing()

    # -- receiving --------------------------------------------------------------------------------------

    def expect(self, piece: bytes | None) -> None:
        """Something was sent to this end."""
        self._last_arrival_us = max(self._last_arrival_us, self._world.now_us + self._network.delay_us())
        # The kernel takes it even while the process is frozen, so the event is nobody's.
        self._world.at(self._last_arrival_us, None, self._arrive, piece)

    def _arrive(self, piece: bytes | None) -> None:
        if self.stalled or not self._network.reaches(self.peer.process.host, self.process.host):
            self.stalled.append(piece)
            self.peer.wait_for_acknowledgement()
            return
        if self._lost or self.dead:
            # Nobody is here any more: the kernel says so, if its answer gets through.
            if piece is not None and self._network.reaches(self.process.host, self.peer.process.host):
                self.peer.fail()
            return
        if not self._network.reaches(self.process.host, self.peer.process.host):
            self.peer.wait_for_acknowledgement()
        if piece is None:
            self._ended = True
        else:
            self._received.append(piece)
        if self._opened and self._reading:
            self.process.soon(self._feed)

    def arrive_stalled(self) -> None:
        if self.peer._giving_up is not None:
            self.peer._giving_up.cancel()
            self.peer._giving_up = None
        stalled, self.stalled = self.stalled, []
        for piece in stalled:
            self.expect(piece)

    def wait_for_acknowledgement(self) -> None:
        """What this end has sent is not acknowledged: give up if that stays so."""
        if self._giving_up is None and not self._lost:
            self._giving_up = self._world.after(self._network.patience_us(), None, self._give_up)

    def _give_up(self) -> None:
        self._giving_up = None
        there, here = self.peer.process.host, self.process.host
        if self.peer.stalled or not (
            self._network.reaches(here, there) and self._network.reaches(there, here)
        ):
            self.fail()

    def _feed(self) -> None:
        """Hand what has arrived to the protocol, as far as it takes it."""
        while self._received and self._reading and not self._closing:
            data = self._received.popleft()
            if isinstance(self._protocol, asyncio.BufferedProtocol):
                buffer = memoryview(self._protocol.get_buffer(-1))
                size = min(len(buffer), len(data))
                buffer[:size] = data[:size]
                if size < len(data):
                    self._received.appendleft(data[size:])
                self.peer.taken(size)
                self._protocol.buffer_updated(size)
            else:
                self.peer.taken(len(data))
                self._protocol.data_received(data)
        if self._ended and not self._received and not self._closing and self._reading:
            self._protocol.eof_received()
            self._closing = True
            self._lose(None)

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            if self._received or self._ended:
                self.process.soon(self._feed)

    def is_reading(self) -> bool:
        return self._reading

    # -- what it is -------------------------------------------------------------------------------------

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._peer_address if name == "peername" else default

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol
