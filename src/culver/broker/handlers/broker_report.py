"""BrokerReport: the broker's counters and the events that it saw, for the gateway's /metrics. Serves version 0.

Anyone may ask: it says nothing that Metadata, DescribeLogDirs and a watch on them would not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.core import broker_report
from culver.core.broker_report import BrokerReport
from culver.protocol.messages.broker_report import BrokerReportRequest, BrokerReportResponse

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node


def handle(node: Node, exchange: Exchange, request: BrokerReportRequest) -> BrokerReportResponse | None:
    """At once where there are few partitions; otherwise when all have been looked at."""
    inside = True
    response: BrokerReportResponse | None = None

    def done(report: BrokerReport) -> None:
        nonlocal response
        response = BrokerReportResponse(report=broker_report.encode(report))
        if not inside:
            exchange.reply(response)

    node.telemetry.report(request.since_event, detailed=request.detailed, done=done)
    inside = False
    return response
