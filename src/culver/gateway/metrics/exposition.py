"""Metrics of the cluster in Prometheus' text format, in pieces, so that a large cluster does not hold up the gateway.

A thousand topics and ten thousand groups make hundreds of thousands of lines. prometheus_client, which does the
gateway's own metrics, would make several objects of each; here a partition's labels are written once and a line costs
half a microsecond.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import NamedTuple

from culver.core.broker_report import BrokerReport, HistogramReport
from culver.gateway.cluster.view import NO_LEADER, TopicPartition
from culver.gateway.metrics.collection import ClusterFigures
from culver.gateway.metrics.families import FAMILIES

# Lines, and groups, that are written without letting others have a turn.
_PIECE_LINES = 1_000
_PIECE_GROUPS = 100

Sample = tuple[str, float]


class Waiting(NamedTuple):
    """How far one group is behind in one partition. `seconds` is None where that is not known."""

    place: TopicPartition
    committed: int
    lag: int
    seconds: float | None


def exposition(figures: ClusterFigures, waiting: Mapping[str, list[Waiting]], took_s: float) -> Iterator[str]:
    """All families that have something to say, in pieces."""
    yield from _topics(figures)
    yield from _groups(figures, waiting)
    reports = [broker.report for broker in figures.brokers.values() if broker.report is not None]
    yield from _family(
        "culver_up", ((_labels(broker=number), int(broker.up)) for number, broker in figures.brokers.items())
    )
    if reports:
        yield from _brokers(reports)
        yield from _requests(reports)
        yield from _logs(reports)
    yield from _family("culver_scrape_seconds", [("", round(took_s, 6))])


def _topics(figures: ClusterFigures) -> Iterator[str]:
    view = figures.view
    yield from _family("kafka_brokers", [("", len(view.brokers))])
    yield from _family(
        "kafka_broker_info",
        ((_labels(id=each.id, address=f"{each.host}:{each.port}"), 1) for each in view.brokers.values()),
    )
    yield from _family(
        "kafka_topic_partitions",
        ((_labels(topic=topic.name), len(topic.partitions)) for topic in view.topics.values()),
    )
    all_partitions = [
        (
            _labels(topic=topic.name, partition=partition.index),
            TopicPartition(topic.name, partition.index),
            partition,
        )
        for topic in view.topics.values()
        for partition in topic.partitions
    ]
    for name, offsets in (
        ("kafka_topic_partition_current_offset", figures.latest),
        ("kafka_topic_partition_oldest_offset", figures.earliest),
    ):
        yield from _family(
            name, ((labels, offsets[place]) for labels, place, _ in all_partitions if place in offsets)
        )
    partitions = [(labels, partition) for labels, _, partition in all_partitions]
    yield from _family(
        "kafka_topic_partition_in_sync_replica", ((labels, len(each.isr)) for labels, each in partitions)
    )
    yield from _family("kafka_topic_partition_leader", ((labels, each.leader) for labels, each in partitions))
    yield from _family(
        "kafka_topic_partition_leader_is_preferred",
        ((labels, int(each.replicas[:1] == (each.leader,))) for labels, each in partitions),
    )
    yield from _family(
        "kafka_topic_partition_replicas", ((labels, len(each.replicas)) for labels, each in partitions)
    )
    yield from _family(
        "kafka_topic_partition_under_replicated_partition",
        ((labels, int(len(each.isr) < len(each.replicas))) for labels, each in partitions),
    )
    offline = sum(each.leader == NO_LEADER for _, each in partitions)
    yield from _family("culver_offline_partitions", [("", offline)])


def _groups(figures: ClusterFigures, waiting: Mapping[str, list[Waiting]]) -> Iterator[str]:
    yield from _family(
        "kafka_consumergroup_members",
        ((_labels(consumergroup=name), group.members) for name, group in figures.groups.items()),
    )
    # All families of a group's partitions in one go: each line's labels are written once, and others get a turn.
    names = (
        "kafka_consumergroup_current_offset",
        "kafka_consumergroup_lag",
        "culver_consumergroup_lag_seconds",
        "kafka_consumergroup_current_offset_sum",
        "kafka_consumergroup_lag_sum",
    )
    at, lag, seconds, at_sum, lag_sum = families = [[_head(name)] for name in names]
    for number, (group, behind) in enumerate(waiting.items()):
        sums: dict[str, tuple[int, int]] = {}
        for each in behind:
            topic = each.place.topic
            labels = _labels(consumergroup=group, topic=topic, partition=each.place.partition)
            at.append(f"{names[0]}{{{labels}}} {each.committed}\n")
            lag.append(f"{names[1]}{{{labels}}} {each.lag}\n")
            if each.seconds is not None:
                seconds.append(f"{names[2]}{{{labels}}} {each.seconds}\n")
            known = sums.get(topic, (0, 0))
            sums[topic] = known[0] + each.committed, known[1] + each.lag
        for topic, (committed, behind_by) in sums.items():
            labels = _labels(consumergroup=group, topic=topic)
            at_sum.append(f"{names[3]}{{{labels}}} {committed}\n")
            lag_sum.append(f"{names[4]}{{{labels}}} {behind_by}\n")
        if not number % _PIECE_GROUPS:
            yield ""
    for lines in families:
        yield "".join(lines)


def _brokers(reports: list[BrokerReport]) -> Iterator[str]:
    for name, attribute in (
        ("culver_active_controller", "controller"),
        ("culver_connections", "connections"),
        ("culver_connections_opened_total", "connections_opened"),
        ("culver_received_bytes_total", "received_bytes"),
        ("culver_sent_bytes_total", "sent_bytes"),
        ("culver_messages_in_total", "messages_in"),
        ("culver_bytes_in_total", "bytes_in"),
        ("culver_replicated_bytes_in_total", "replicated_bytes_in"),
        ("culver_isr_shrinks_total", "isr_shrinks"),
        ("culver_isr_expansions_total", "isr_expansions"),
        ("culver_leader_elections_total", "elections"),
        ("culver_partitions", "partitions"),
        ("culver_leaders", "leaders"),
        ("culver_under_replicated_partitions", "under_replicated"),
        ("culver_under_min_isr_partitions", "under_min_isr"),
        ("culver_failed_logs", "failed_logs"),
        ("culver_groups", "groups"),
        ("culver_open_transactions", "open_transactions"),
    ):
        yield from _family(
            name, [(_labels(broker=report.broker), int(getattr(report, attribute))) for report in reports]
        )
    yield from _family(
        "culver_broker_start_time_seconds",
        [(_labels(broker=report.broker), report.started_at_ms / 1000) for report in reports],
    )


def _requests(reports: list[BrokerReport]) -> Iterator[str]:
    yield from _histograms(
        "culver_request_duration_seconds",
        (
            (_labels(broker=report.broker, api=name), report, api.latency)
            for report in reports
            for name, api in report.apis.items()
        ),
    )
    yield from _family(
        "culver_request_errors_total",
        (
            (_labels(broker=report.broker, api=name, error=error), count)
            for report in reports
            for name, api in report.apis.items()
            for error, count in api.errors.items()
        ),
    )
    yield from _histograms(
        "culver_fsync_duration_seconds",
        ((_labels(broker=report.broker), report, report.flushes) for report in reports),
    )
    yield from _histograms(
        "culver_event_loop_lag_seconds",
        ((_labels(broker=report.broker), report, report.loop_lag) for report in reports),
    )


def _logs(reports: list[BrokerReport]) -> Iterator[str]:
    topics = [
        (_labels(broker=report.broker, topic=name), topic)
        for report in reports
        for name, topic in report.topics.items()
    ]
    yield from _family(
        "culver_topic_messages_in_total", ((labels, topic.messages_in) for labels, topic in topics)
    )
    yield from _family("culver_topic_bytes_in_total", ((labels, topic.bytes_in) for labels, topic in topics))
    yield from _family(
        "culver_log_size_bytes",
        (
            (f'{labels},partition="{index}"', size)
            for labels, topic in topics
            for index, size in topic.log_bytes.items()
        ),
    )


# -- the format -----------------------------------------------------------------------------------------------


def _family(name: str, samples: Iterable[Sample]) -> Iterator[str]:
    """One metric with all its labels. Nothing at all when there are none."""
    lines: list[str] = []
    begun = False
    for labels, value in samples:
        if not begun:
            begun = True
            lines.append(_head(name))
        lines.append(f"{name}{{{labels}}} {value}\n" if labels else f"{name} {value}\n")
        if len(lines) >= _PIECE_LINES:
            yield "".join(lines)
            lines = []
    yield "".join(lines)


def _histograms(name: str, histograms: Iterable[tuple[str, BrokerReport, HistogramReport]]) -> Iterator[str]:
    """Prometheus counts in each bucket all that took at most so long, in seconds."""
    yield _head(name)
    for labels, report, histogram in histograms:
        bounds = [*(f"{bound / 1000:g}" for bound in report.bounds_ms), "+Inf"]
        sums = list(accumulate(histogram.counts))
        lines = [
            f'{name}_bucket{{{labels},le="{bound}"}} {count}\n'
            for bound, count in zip(bounds, sums, strict=True)
        ]
        lines.append(f"{name}_sum{{{labels}}} {histogram.sum_ms / 1000}\n")
        lines.append(f"{name}_count{{{labels}}} {sums[-1]}\n")
        yield "".join(lines)


def _head(name: str) -> str:
    family = FAMILIES[name]
    return f"# HELP {name} {family.help}\n# TYPE {name} {family.kind}\n"


def _labels(**values: object) -> str:
    return ",".join([f'{name}="{_escaped(str(value))}"' for name, value in values.items()])


def _escaped(value: str) -> str:
    if "\\" in value or '"' in value or "\n" in value:
        return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return value
