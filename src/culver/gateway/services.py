"""What endpoints work with: made once, started and closed with the gateway."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from typing import cast

from starlette.requests import HTTPConnection

from culver.gateway.admission import Admission
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.console.state import ConsoleState
from culver.gateway.metrics.broker_reports import INTERVAL_S, BrokerReports
from culver.gateway.metrics.events import Events
from culver.gateway.metrics.gateway_metrics import GatewayMetrics
from culver.gateway.metrics.service import Metrics
from culver.gateway.metrics.throughput import Throughput
from culver.gateway.producing import Producing
from culver.gateway.push.subscriptions import Subscriptions
from culver.gateway.reading.partition_reader import Readers
from culver.gateway.rest.consumer_instances import ConsumerInstances
from culver.gateway.settings import GatewaySettings
from culver.gateway.webhooks.service import Webhooks


class Services:
    """Everything that requests share. Endpoints reach it through `services_of(request)`."""

    def __init__(self, settings: GatewaySettings) -> None:
        self.settings = settings
        self.admission = Admission(settings)
        self.cluster = Cluster(settings.bootstrap)
        self.readers = Readers(self.cluster, buffer_max_bytes=settings.reading_buffer_max_bytes)
        self.producing = Producing(
            settings.bootstrap,
            self.cluster,
            in_flight_max_bytes=settings.in_flight_max_bytes,
            client_settings=settings.client_settings,
        )
        # Set when the gateway is told to end: streams that would go on for ever end then.
        self.stopping = asyncio.Event()
        self.subscriptions = Subscriptions(
            self.cluster,
            self.readers,
            self.stopping,
            subscribers_max=settings.push_subscribers_max,
            buffer_bytes=settings.push_buffer_bytes,
        )
        self.consumers = ConsumerInstances(settings, self.stopping)
        self.console = ConsoleState(self.cluster, self.readers, self.producing, settings.log_store)
        self.webhooks = Webhooks(
            self.cluster, self.readers, self.producing, allow_private=settings.webhook_allow_private
        )
        # What brokers tell of themselves each second, for the console and for /metrics.
        self.events = Events(first_number=time.time_ns() // 1_000_000)
        self.throughput = Throughput(INTERVAL_S)
        self.reports = BrokerReports(self.cluster, self.events, self.throughput)
        self.metrics = Metrics(self.cluster, self.readers, self.reports, self._gateway_metrics())
        self._started = AsyncExitStack()

    async def start(self) -> None:
        """Start all parts. They are closed in the opposite order, also when a later one cannot start.

        A part stands below those that it uses.
        """
        async with AsyncExitStack() as started:
            started.push_async_callback(self.cluster.close)
            await self.cluster.start()
            started.push_async_callback(self.readers.close)
            started.push_async_callback(self.producing.close)
            await self.producing.start()
            started.push_async_callback(self.subscriptions.close)
            await self.subscriptions.start()
            started.push_async_callback(self.consumers.close)
            await self.consumers.start()
            started.push_async_callback(self.console.close)
            started.push_async_callback(self.webhooks.close)
            await self.webhooks.start()
            started.push_async_callback(self.reports.close)
            await self.reports.start()
            self._started = started.pop_all()

    async def close(self) -> None:
        await self._started.aclose()

    def _gateway_metrics(self) -> GatewayMetrics:
        gauges = {
            "culver_http_in_flight_bytes": (
                "Bytes of bodies that are being worked on.",
                lambda: float(self.admission.in_flight_bytes),
            ),
            "culver_http_unacknowledged_bytes": (
                "Bytes of records that the cluster has not acknowledged yet.",
                lambda: float(self.producing.in_flight_bytes),
            ),
            "culver_push_subscribers": (
                "Push subscribers that are connected.",
                lambda: float(len(self.subscriptions)),
            ),
        }
        return GatewayMetrics(gauges, self.webhooks.counts)


def services_of(connection: HTTPConnection) -> Services:
    """The services, from a request or a WebSocket."""
    return cast(Services, connection.app.state.services)
