"""How much goes through the cluster, second by second over the last quarter of an hour.

For endpoints (`services.throughput`):

    throughput.series()   a list of Point(at_ms, messages_in_s, bytes_in_s, bytes_out_s), oldest first

It is empty in front of brokers that are not Culver's: the Kafka protocol does not tell. Only producers' messages and
bytes count as in; out is all that brokers send, to consumers, to each other and in answers.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import NamedTuple

from culver.core.broker_report import BrokerReport

_KEPT_S = 15 * 60


class Point(NamedTuple):
    """What went through in one second, on average since the point before."""

    at_ms: int
    messages_in_s: float
    bytes_in_s: float
    bytes_out_s: float


class Throughput:
    """Sums over brokers of how their counters have grown."""

    def __init__(self, interval_s: float) -> None:
        self._points: deque[Point] = deque(maxlen=round(_KEPT_S / interval_s))
        self._last: dict[int, BrokerReport] = {}

    def series(self) -> list[Point]:
        return list(self._points)

    def add(self, at_ms: int, reports: Iterable[BrokerReport]) -> None:
        """What brokers have just told. One that was not asked before, or has been restarted, counts from now on."""
        found = {report.broker: report for report in reports}
        grown = [
            _growth(self._last[number], report)
            for number, report in found.items()
            if number in self._last and _same_life(self._last[number], report)
        ]
        self._last.update(found)
        if grown:
            self._points.append(Point(at_ms, *(round(sum(rates), 3) for rates in zip(*grown, strict=True))))


def _same_life(earlier: BrokerReport, later: BrokerReport) -> bool:
    return earlier.started_at_ms == later.started_at_ms and earlier.at_ms < later.at_ms


def _growth(earlier: BrokerReport, later: BrokerReport) -> tuple[float, float, float]:
    seconds = (later.at_ms - earlier.at_ms) / 1000
    return (
        max(0, later.messages_in - earlier.messages_in) / seconds,
        max(0, later.bytes_in - earlier.bytes_in) / seconds,
        max(0, later.sent_bytes - earlier.sent_bytes) / seconds,
    )
