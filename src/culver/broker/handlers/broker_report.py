"""BrokerReport: the broker's counters and the events that it saw, for the gateway's /metrics. Serves version 0.

Anyone may ask: it says nothing that Metadata, DescribeLogDirs and a watch on them would not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.core import broker_report
from culver.protocol.messages.broker_report import BrokerReportRequest, BrokerReportResponse

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node


def handle(node: Node, exchange: Exchange, request: BrokerReportRequest) -> BrokerReportResponse:
    report = node.telemetry.report(request.since_event, detailed=request.detailed)
    return BrokerReportResponse(report=broker_report.encode(report))
