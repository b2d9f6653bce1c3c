"""A blocking connection for what surrounds a measurement: creating, awaiting, filling and deleting topics."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Self

from bench import wire

NOT_YET = {3, 5, 6, 14, 15, 72, 75}  # topic or leader that the broker has not heard of yet
UNKNOWN_TOPIC = 3


class RequestFailed(Exception):
    """The broker answered with an error code."""


class Connection:
    """One request at a time, in the order of the calls."""

    def __init__(self, address: tuple[str, int], timeout_seconds: float = 120) -> None:
        self._socket = socket.create_connection(address, timeout=timeout_seconds)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def request(self, request: bytes) -> bytes:
        """The response frame, length prefix included."""
        self._socket.sendall(request)
        head = self._receive(4)
        return head + self._receive(struct.unpack(">i", head)[0])

    def _receive(self, size: int) -> bytes:
        parts = bytearray()
        while len(parts) < size:
            received = self._socket.recv(min(size - len(parts), 1 << 20))
            if not received:
                raise ConnectionError("the broker closed the connection")
            parts += received
        return bytes(parts)

    def create_topics(
        self, names: Sequence[str], partitions: int = 1, configuration: Mapping[str, str] | None = None
    ) -> None:
        """Creates the topics and raises unless every one was created."""
        response = self.request(wire.create_topics_request(names, partitions, configuration))
        # Correlation id, tags, throttle time; then per topic: name, id, error code and more.
        count, position = _unsigned_varint(response, 13)
        if count - 1 != len(names):
            raise RequestFailed(f"CreateTopics of {len(names)} answered for {count - 1}")
        for _ in range(count - 1):
            size, position = _unsigned_varint(response, position)
            name = response[position : position + size - 1].decode()
            position += size - 1 + 16
            (error,) = struct.unpack_from(">h", response, position)
            if error != 0:
                raise RequestFailed(f"CreateTopics {name}: error code {error}")
            position = _after_created_topic(response, position + 2)

    def create_topic(
        self, name: str, partitions: int = 1, configuration: Mapping[str, str] | None = None
    ) -> None:
        """Creates a topic and waits until its first and last partition take a message."""
        self.create_topics([name], partitions, configuration)
        for partition in {0, partitions - 1}:
            self.await_partition(name, partition)

    def delete_topic(self, name: str) -> None:
        """Deletes the topic and waits until Metadata no longer knows it."""
        self.request(wire.delete_topics_request([name]))
        deadline = time.monotonic() + 60
        while self._metadata_error(name) != UNKNOWN_TOPIC:
            if time.monotonic() > deadline:
                raise RequestFailed(f"topic {name} is still there a minute after its deletion")
            time.sleep(0.005)

    def await_partition(self, topic: str, partition: int) -> None:
        """Writes one message as soon as the partition has a leader that takes it."""
        batch = wire.record_batch(100, 1)
        deadline = time.monotonic() + 60
        while (error := self.produce(topic, partition, batch)) != 0:
            if error not in NOT_YET or time.monotonic() > deadline:
                raise RequestFailed(f"Produce to {topic}-{partition}: error code {error}")
            time.sleep(0.002)

    def produce(self, topic: str, partition: int, batch: bytes, acks: int = 1) -> int:
        """The error code of one Produce."""
        response = self.request(wire.produce_request(topic, partition, batch, acks))
        error: int = struct.unpack_from(">h", response, wire.PRODUCE_ERROR_OFFSET + len(topic))[0]
        return error

    def _metadata_error(self, topic: str) -> int:
        response = self.request(wire.metadata_request(topic))
        count, position = _unsigned_varint(response, 13)
        for _ in range(count - 1):
            size, position = _unsigned_varint(response, position + 4)
            size, position = _unsigned_varint(response, position + size - 1 + 4)
            position += max(size - 1, 0) + 1
        size, position = _unsigned_varint(response, position)
        position += max(size - 1, 0) + 4 + 1
        error: int = struct.unpack_from(">h", response, position)[0]
        return error

    def close(self) -> None:
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _unsigned_varint(buffer: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = buffer[position]
        position += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, position
        shift += 7


def _after_created_topic(response: bytes, position: int) -> int:
    """Skips what follows the error code of one topic in a CreateTopics response of version 7."""
    size, position = _unsigned_varint(response, position)  # error message
    position += max(size - 1, 0) + 6  # partition count, replication factor
    count, position = _unsigned_varint(response, position)
    for _ in range(max(count - 1, 0)):
        size, position = _unsigned_varint(response, position)
        position += size - 1
        size, position = _unsigned_varint(response, position)
        position += max(size - 1, 0) + 3  # read-only, source, sensitive
        position = _after_tags(response, position)
    return _after_tags(response, position)


def _after_tags(response: bytes, position: int) -> int:
    count, position = _unsigned_varint(response, position)
    for _ in range(count):
        _, position = _unsigned_varint(response, position)
        size, position = _unsigned_varint(response, position)
        position += size
    return position
