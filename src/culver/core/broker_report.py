"""What a broker tells of itself: the JSON inside a BrokerReport response, as both sides know it.

Counters begin at zero when the process starts (`started_at_ms` tells one life from the next) and only grow; the rest is
as it is at the moment of asking. Nothing here is secret: names of topics and numbers.
"""

from __future__ import annotations

import msgspec


class ClusterEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something that happened in the cluster and that a person may want to know of.

    Every broker sees the same changes of the cluster: `key` is the same for the same event, whoever tells of it.
    `number` counts the events of one broker in one of its lives.
    """

    number: int
    at_ms: int
    kind: str
    text: str
    key: str
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None


class HistogramReport(msgspec.Struct, frozen=True):
    """How many took at most so long, bucket by bucket (not summed up), with those beyond all bounds at the end."""

    counts: list[int]
    sum_ms: float


class ApiReport(msgspec.Struct, frozen=True):
    """The requests of one API that were answered, and the errors in their answers by name.

    An answer may tell of several partitions: each of their errors counts.
    """

    latency: HistogramReport
    errors: dict[str, int] = {}


class TopicReport(msgspec.Struct):
    """One topic as far as this broker holds it."""

    messages_in: int
    bytes_in: int
    # By partition.
    log_bytes: dict[int, int] = {}


class BrokerReport(msgspec.Struct, frozen=True, kw_only=True):
    """One broker. What takes a look at every partition is there only in a detailed report."""

    broker: int
    cluster_id: str
    version: str
    at_ms: int
    started_at_ms: int
    controller: bool
    # Since the start: bytes of all requests and responses; what producers wrote; what was fetched from leaders.
    received_bytes: int
    sent_bytes: int
    messages_in: int
    bytes_in: int
    replicated_bytes_in: int
    connections: int
    connections_opened: int
    # Those of partitions that this broker led afterwards, so that sums over brokers count each change once.
    isr_shrinks: int
    isr_expansions: int
    elections: int
    groups: int
    open_transactions: int
    # Upper bounds of the buckets of all histograms.
    bounds_ms: list[float]
    flushes: HistogramReport
    loop_lag: HistogramReport
    apis: dict[str, ApiReport]
    # The last event's number, and those after the one that was asked for which are still known.
    last_event: int
    events: list[ClusterEvent]
    # In a detailed report only.
    detailed: bool = False
    partitions: int = 0
    leaders: int = 0
    under_replicated: int = 0
    under_min_isr: int = 0
    failed_logs: int = 0
    topics: dict[str, TopicReport] = {}


encode = msgspec.json.encode
decode = msgspec.json.Decoder(BrokerReport).decode
