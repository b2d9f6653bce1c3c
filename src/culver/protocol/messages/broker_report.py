"""BrokerReport, version 0: a broker tells its counters and what it saw happen. Culver's own, not of Kafka's protocol.

A broker of another make closes the connection on it, as on any API that it does not know.
"""

from __future__ import annotations

from culver.protocol.schema import Message, boolean, bytes_, int16, int64


class BrokerReportRequest(Message, api_key=30_001, versions=(0, 0)):
    # Events after this one are wanted; -1 for all that are still known.
    since_event: int = int64(default=-1)
    # Whether numbers that take a look at every partition are wanted too.
    detailed: bool = boolean(default=False)


class BrokerReportResponse(Message, api_key=30_001, versions=(0, 0)):
    error_code: int = int16(default=0)
    # JSON: see culver.core.broker_report. A form that grows needs no new version of the message.
    report: bytes = bytes_(default=b"")
