"""The cluster as the gateway's parts ask it: any broker, one broker, a group's coordinator; and how it looks now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from culver.errors import KafkaError
from culver.gateway.cluster.view import ClusterView, TopicPartition
from culver.protocol.schema import Message
from culver.wire_client import Unreachable

__all__ = ["Cluster", "OffsetAt", "Unreachable"]

R = TypeVar("R", bound=Message)


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """Where a lookup by time ended: -1 and -1 when every record is older."""

    offset: int
    timestamp_ms: int = -1
    leader_epoch: int = -1


class Cluster:
    """The brokers behind a bootstrap address, asked from one event loop. One for the whole gateway.

    Requests to a broker are pipelined on one connection for each `purpose`, since a broker answers in order: what
    may take its time has a connection of its own. Connections are made when needed and closed when idle.
    """

    def __init__(
        self, bootstrap: str, *, client_id: str = "culver-gateway", timeout_ms: float = 15_000
    ) -> None:
        """ValueError for an address that is none. Nothing is connected yet."""

    async def start(self) -> None:
        """Begin. Succeeds even if no broker is up yet."""

    async def close(self) -> None:
        """Close all connections. What waits for an answer gets Unreachable."""

    async def ask(
        self,
        request: Message,
        response: type[R],
        *,
        broker_id: int | None = None,
        least_version: int = 0,
        newest_version: int | None = None,
        timeout_ms: float | None = None,
        purpose: str = "questions",
        once: bool = False,
        client_id: str | None = None,
    ) -> R:
        """The answer of one broker, or of any when `broker_id` is None: then another is tried when one does not answer.

        With `once` no second broker is asked after the request may have reached the first: for what must not be done
        twice. Raises Unreachable, or KafkaError(UNSUPPORTED_VERSION) when no version between the two is known to
        both sides. Error codes inside the answer are the caller's business.
        """
        raise Unreachable("not connected")

    async def ask_coordinator(
        self,
        group: str,
        request: Message,
        response: type[R],
        *,
        least_version: int = 0,
        newest_version: int | None = None,
        timeout_ms: float | None = None,
        client_id: str | None = None,
    ) -> R:
        """The answer of the group's coordinator, which is looked up once and remembered.

        After an error that says it moved, call `forget_coordinator`. Unreachable forgets it by itself.
        """
        raise Unreachable("not connected")

    async def find_coordinators(self, groups: list[str], *, transactions: bool = False) -> dict[str, int]:
        """The broker that coordinates each group (or transactional id); those that have none now are left out."""
        return {}

    def forget_coordinator(self, group: str) -> None:
        """It answered that it is not the one (any more): look it up again next time."""

    async def view(self, *, max_age_ms: float = 1000) -> ClusterView:
        """All brokers and topics, as they were at most so long ago. Raises Unreachable."""
        raise Unreachable("not connected")

    def forget_view(self) -> None:
        """The last view was found to be out of date: a leader was none, a topic has been made."""

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, committed: bool = False, retry_ms: float = 2000
    ) -> dict[TopicPartition, OffsetAt | KafkaError]:
        """By partition: the first offset at or after a time in ms, or EARLIEST (-2), or LATEST (-1).

        With `committed` the latest is the last stable offset. A partition whose leader cannot be found or reached
        within `retry_ms` has the error as its value.
        """
        return {}
