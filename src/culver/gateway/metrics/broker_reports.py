"""Asks brokers for their reports: each second for events and throughput, in detail when someone reads the metrics."""

from __future__ import annotations

import asyncio
import time

import msgspec

from culver.core.broker_report import BrokerReport, decode
from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.metrics.events import Events
from culver.gateway.metrics.throughput import Throughput
from culver.logging import get_logger
from culver.protocol.messages.broker_report import BrokerReportRequest, BrokerReportResponse
from culver.protocol.messages.metadata import MetadataRequest, MetadataResponse
from culver.wire_client import Unreachable

_log = get_logger("culver.gateway.metrics")

INTERVAL_S = 1.0
# A broker that hangs is given up for this time, and tried again at the next.
_TIMEOUT_MS = 2_500.0
# A connection of its own: a broker of another make closes it over the question.
_PURPOSE = "reports"
# After which a broker that did not know the question is asked again: it may have been replaced.
_FOREIGN_FOR_S = 300.0


class NotCulver(Exception):
    """The broker is there and does not know the question: it is of another make."""


class BrokerReports:
    """One for the gateway. Whatever happens to brokers, it goes on."""

    def __init__(self, cluster: Cluster, events: Events, throughput: Throughput) -> None:
        self._cluster = cluster
        self._events = events
        self._throughput = throughput
        # What is known of each broker's events: in which life, and the last number.
        self._told: dict[int, tuple[int, int]] = {}
        self._foreign_until: dict[int, float] = {}
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._task = asyncio.create_task(self._go_on())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def ask(self, broker_id: int, *, detailed: bool) -> BrokerReport:
        """One broker's report; its events go where they belong. Raises Unreachable, NotCulver."""
        if self._foreign_until.get(broker_id, 0.0) > time.monotonic():
            raise NotCulver(f"broker {broker_id} is not Culver's")
        life, number = self._told.get(broker_id, (0, -1))
        request = BrokerReportRequest(since_event=number, detailed=detailed)
        try:
            answer = await self._cluster.ask(
                request,
                BrokerReportResponse,
                broker_id=broker_id,
                timeout_ms=_TIMEOUT_MS,
                purpose=_PURPOSE,
            )
            report = decode(answer.report)
        except Unreachable:
            await self._find_out(broker_id)
            raise
        except (KafkaError, msgspec.DecodeError) as error:
            self._foreign(broker_id)
            raise NotCulver(f"broker {broker_id} does not report as it should: {error}") from error
        if life not in (0, report.started_at_ms):
            # It was started again since and counts anew: what it has to tell is asked for next time.
            self._told[broker_id] = (report.started_at_ms, -1)
        else:
            self._told[broker_id] = (report.started_at_ms, max(number, report.last_event))
            self._events.add(report.events)
        return report

    async def _find_out(self, broker_id: int) -> None:
        """The connection was lost over the question, or there was none: does it answer what all know?"""
        try:
            await self._cluster.ask(
                MetadataRequest(topics=[], allow_auto_topic_creation=False),
                MetadataResponse,
                broker_id=broker_id,
                timeout_ms=_TIMEOUT_MS,
                purpose=_PURPOSE,
            )
        except (Unreachable, KafkaError):
            return
        self._foreign(broker_id)
        raise NotCulver(f"broker {broker_id} is not Culver's")

    def _foreign(self, broker_id: int) -> None:
        if broker_id not in self._foreign_until:
            _log.info("a broker does not tell its own metrics: it is not Culver's", broker=broker_id)
        self._foreign_until[broker_id] = time.monotonic() + _FOREIGN_FOR_S

    async def _go_on(self) -> None:
        while True:
            try:
                await self._ask_all()
            except Exception:  # noqa: BLE001 - the boundary: what one round stumbles over, the next may not
                _log.exception("brokers could not be asked for their reports")
            await asyncio.sleep(INTERVAL_S)

    async def _ask_all(self) -> None:
        try:
            brokers = list((await self._cluster.view(max_age_ms=INTERVAL_S * 1000)).brokers)
        except (Unreachable, KafkaError):
            return
        for gone in self._told.keys() - set(brokers):
            del self._told[gone]
        asked = [self.ask(number, detailed=False) for number in brokers]
        answers = await asyncio.gather(*asked, return_exceptions=True)
        reports = [answer for answer in answers if isinstance(answer, BrokerReport)]
        for answer in answers:
            if isinstance(answer, BaseException) and not isinstance(answer, Unreachable | NotCulver):
                raise answer
        self._throughput.add(time.time_ns() // 1_000_000, reports)
