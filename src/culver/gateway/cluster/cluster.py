"""The cluster as the gateway's parts ask it: any broker, one broker, a group's coordinator; and how it looks now."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TypeVar

from culver.errors import KafkaError
from culver.gateway.cluster.connection import Address, Decode
from culver.gateway.cluster.connections import Connections
from culver.gateway.cluster.coordinators import GROUP, TRANSACTION, Coordinators
from culver.gateway.cluster.last_answer import LastAnswer
from culver.gateway.cluster.offsets import OffsetAt, list_offsets
from culver.gateway.cluster.view import ClusterView, TopicPartition, refusal, view_of
from culver.protocol.messages.metadata import MetadataRequest, MetadataResponse
from culver.protocol.schema import Message
from culver.wire_client import Unreachable, host_and_port

__all__ = ["Cluster", "OffsetAt", "Unreachable"]

R = TypeVar("R", bound=Message)

QUESTIONS = "questions"
_GROUPS = "groups"
# What a broker gets at least when several are tried in turn.
_SHARE_MIN_MS = 2_000.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 0.5
_TOPIC_IDS_SINCE_VERSION = 10
_ADDRESS_MAX_AGE_MS = 100.0


class Cluster:
    """The brokers behind a bootstrap address, asked from one event loop. One for the whole gateway.

    Requests to a broker are pipelined on one connection for each `purpose`, since a broker answers in order: what
    may take its time has a connection of its own. Connections are made when needed and closed when idle.
    """

    def __init__(
        self, bootstrap: str, *, client_id: str = "culver-gateway", timeout_ms: float = 15_000
    ) -> None:
        """ValueError for an address that is none. Nothing is connected yet."""
        self.timeout_ms = timeout_ms
        self._bootstrap = [host_and_port(address) for address in bootstrap.split(",") if address.strip()]
        if not self._bootstrap:
            raise ValueError("no broker address given: expected HOST:PORT")
        self._connections = Connections(client_id)
        self._coordinators = Coordinators(self)
        self._addresses: dict[int, Address] = {}
        self._failed_at: dict[Address, float] = {}
        self._last_metadata = LastAnswer(MetadataResponse)
        self._last_view: tuple[MetadataResponse, ClusterView] | None = None
        self._view: ClusterView | None = None
        self._view_asked_at = float("-inf")
        self._views_out_of_date_before = float("-inf")
        self._viewing: asyncio.Task[ClusterView] | None = None
        self._viewing_since = float("-inf")

    async def start(self) -> None:
        """Begin. Succeeds even if no broker is up yet."""
        try:
            await self.view()
        except (Unreachable, KafkaError):
            return  # whoever asks next tries again, and is told

    async def close(self) -> None:
        """Close all connections. What waits for an answer gets Unreachable."""
        await self._connections.close()
        if self._viewing is not None:
            await asyncio.gather(self._viewing, return_exceptions=True)

    # -- asking ---------------------------------------------------------------------------------------------

    async def ask(
        self,
        request: Message,
        response: type[R],
        *,
        broker_id: int | None = None,
        least_version: int = 0,
        newest_version: int | None = None,
        timeout_ms: float | None = None,
        purpose: str = QUESTIONS,
        once: bool = False,
        client_id: str | None = None,
        decode: Decode[R] | None = None,
    ) -> R:
        """The answer of one broker, or of any when `broker_id` is None: then another is tried when one does not answer.

        With `once` no second broker is asked after the request may have reached the first: for what must not be done
        twice. Raises Unreachable, or KafkaError(UNSUPPORTED_VERSION) when no version between the two is known to
        both sides. Error codes inside the answer are the caller's business.
        """
        limit_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        addresses = self._anyone() if broker_id is None else [await self._address(broker_id)]
        share_ms = limit_ms if once else min(limit_ms, max(_SHARE_MIN_MS, limit_ms / len(addresses)))
        reasons = []
        unknown: KafkaError | None = None
        for address in addresses:
            sent = False
            try:
                async with asyncio.timeout(share_ms / 1000):
                    connection = await self._connections.get(address, purpose)
                    future = connection.ask(
                        request,
                        response,
                        # One that is slow for an impatient caller may still be in time for the others.
                        timeout_ms=max(limit_ms, self.timeout_ms),
                        least_version=least_version,
                        newest_version=newest_version,
                        client_id=client_id,
                        decode=decode,
                    )
                    sent = True
                    answer = await future
            except (Unreachable, TimeoutError) as error:
                self._failed_at[address] = time.monotonic()
                if broker_id is not None:
                    self._addresses.pop(broker_id, None)  # it may be back elsewhere: look it up next time
                reasons.append(
                    str(error) or f"the broker at {address[0]}:{address[1]} did not answer in time"
                )
                if once and sent:
                    break
            except KafkaError as error:
                unknown = error  # while a cluster is being upgraded, another may know it
            else:
                self._failed_at.pop(address, None)
                return answer
        raise unknown or Unreachable("; ".join(dict.fromkeys(reasons)))

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
        limit_ms = self.timeout_ms if timeout_ms is None else timeout_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                return await self.ask(
                    request,
                    response,
                    broker_id=await self._coordinator(group),
                    least_version=least_version,
                    newest_version=newest_version,
                    purpose=_GROUPS,
                    client_id=client_id,
                )
        except Unreachable:
            self.forget_coordinator(group)
            raise
        except TimeoutError:
            self.forget_coordinator(group)
            raise Unreachable(f"the coordinator of group {group} did not answer in time") from None

    async def _coordinator(self, group: str) -> int:
        """Waits while there is none: the first group of a cluster has its topic made first."""
        pause_s = _FIRST_PAUSE_S
        while True:
            found = await self._coordinators.find([group])
            if group in found:
                return found[group]
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def find_coordinators(self, groups: Sequence[str], *, transactions: bool = False) -> dict[str, int]:
        """The broker that coordinates each group (or transactional id); those that have none now are left out."""
        return await self._coordinators.find(groups, TRANSACTION if transactions else GROUP)

    def forget_coordinator(self, group: str, *, transactions: bool = False) -> None:
        """It answered that it is not the one (any more): look it up again next time."""
        self._coordinators.forget(group, TRANSACTION if transactions else GROUP)

    def _anyone(self) -> list[Address]:
        """Every address that is known, those first that have not failed, then those that failed longest ago."""
        addresses = dict.fromkeys([*self._addresses.values(), *self._bootstrap])
        return sorted(addresses, key=lambda address: self._failed_at.get(address, float("-inf")))

    async def _address(self, broker_id: int) -> Address:
        address = self._addresses.get(broker_id)
        if address is not None:
            return address
        broker = (await self.view(max_age_ms=_ADDRESS_MAX_AGE_MS)).brokers.get(broker_id)
        if broker is None:
            raise Unreachable(f"broker {broker_id} is not in the cluster at the moment")
        self._addresses[broker_id] = broker.host, broker.port
        return broker.host, broker.port

    # -- looking --------------------------------------------------------------------------------------------

    async def view(self, *, max_age_ms: float = 1000) -> ClusterView:
        """All brokers and topics, as they were at most so long ago. Raises Unreachable."""
        now = time.monotonic()
        oldest = max(self._views_out_of_date_before, now - max_age_ms / 1000)
        if self._view is not None and self._view_asked_at >= oldest:
            return self._view
        if self._viewing is None or self._viewing_since < oldest:
            self._viewing = asyncio.create_task(self._look(now))
            self._viewing.add_done_callback(self._looked)
            self._viewing_since = now
        return await asyncio.shield(self._viewing)

    async def _look(self, now: float) -> ClusterView:
        request = MetadataRequest(topics=None, allow_auto_topic_creation=False)
        answer = await self.ask(
            request,
            MetadataResponse,
            least_version=_TOPIC_IDS_SINCE_VERSION,
            decode=self._last_metadata.decode,
        )
        if answer.error_code:
            raise refusal(answer.error_code, "the cluster's metadata")
        if self._last_view is None or self._last_view[0] is not answer:
            self._last_view = answer, view_of(answer)
        view = self._last_view[1]
        if now > self._view_asked_at:
            self._view, self._view_asked_at = view, now
            self._addresses = {broker.id: (broker.host, broker.port) for broker in view.brokers.values()}
            known = {*self._addresses.values(), *self._bootstrap}
            self._failed_at = {address: at for address, at in self._failed_at.items() if address in known}
        return view

    def _looked(self, task: asyncio.Task[ClusterView]) -> None:
        if task is self._viewing:
            self._viewing = None
        if not task.cancelled():
            task.exception()  # whoever waited for it has been told, if anyone still does

    def forget_view(self, found_wrong: ClusterView | None = None) -> None:
        """The last view is out of date: a leader was none, a topic has been made.

        Given the view that was `found_wrong`, those who share it and find out one after another have one new view
        made between them.
        """
        if found_wrong is None:
            self._views_out_of_date_before = time.monotonic()
        elif found_wrong is self._view:
            self._view = None

    async def list_offsets(
        self, timestamps: Mapping[TopicPartition, int], *, committed: bool = False, retry_ms: float = 2000
    ) -> dict[TopicPartition, OffsetAt | KafkaError]:
        """By partition: the first offset at or after a time in ms, or EARLIEST (-2), or LATEST (-1).

        With `committed` the latest is the last stable offset. A partition whose leader cannot be found or reached
        within `retry_ms` has the error as its value.
        """
        return await list_offsets(self, timestamps, committed=committed, retry_ms=retry_ms)
