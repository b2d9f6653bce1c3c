"""Create topics over one blocking connection, so that importing `culver.testing` needs no Kafka client."""

from __future__ import annotations

import socket
import struct
from collections.abc import Mapping

from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from culver.protocol.schema import decoder, encoder

_API_KEY = 19
# The last version before compact strings and tagged headers: its header is four plain fields.
_VERSION = 4
_CLIENT_ID = b"culver-testing"
_TIMEOUT_SECONDS = 30.0


def create_topics(
    bootstrap_servers: str, partitions_by_topic: Mapping[str, int], config: Mapping[str, str] | None = None
) -> None:
    """Create all the topics in one request; the first refusal is raised as KafkaError."""
    request = CreateTopicsRequest(
        topics=[
            CreatableTopic(
                name=name,
                num_partitions=partitions,
                replication_factor=-1,
                assignments=[],
                configs=[
                    CreatableTopicConfig(name=key, value=value) for key, value in (config or {}).items()
                ],
            )
            for name, partitions in partitions_by_topic.items()
        ],
        timeout_ms=int(_TIMEOUT_SECONDS * 1000),
        validate_only=False,
    )
    body = b"".join(bytes(part) for part in encoder(CreateTopicsRequest, _VERSION)(request))
    header = struct.pack(">hhih", _API_KEY, _VERSION, 1, len(_CLIENT_ID)) + _CLIENT_ID
    host, _, port = bootstrap_servers.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT_SECONDS) as connection:
        connection.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
        (size,) = struct.unpack(">i", _receive(connection, 4))
        frame = _receive(connection, size)
    response, _ = decoder(CreateTopicsResponse, _VERSION)(frame, 4)  # after the correlation id
    for topic in response.topics:
        if topic.error_code != ErrorCode.NONE:
            raise KafkaError(ErrorCode(topic.error_code), f"topic {topic.name}: {topic.error_message}")


def _receive(connection: socket.socket, size: int) -> bytes:
    received = bytearray()
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise ConnectionError("the broker closed the connection before it had answered")
        received += chunk
    return bytes(received)
