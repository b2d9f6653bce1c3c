"""Telemetry: gathers what the parts of the broker have counted into one report, for whoever asks.

Each part keeps its own numbers as plain attributes (the dispatcher requests, the server bytes, group commit flushes,
partitions what came in): recording costs next to nothing, and everything else is paid by the one who asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from culver import __version__
from culver.broker.loop_lag import LoopLag
from culver.broker.partition import NO_INTAKE, Intake, Partition
from culver.core.broker_report import ApiReport, BrokerReport, HistogramReport, TopicReport
from culver.core.cluster_events import ClusterEvents
from culver.core.histogram import BOUNDS_MS, Histogram

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.core.image_builder import ImageChange

_PARTITIONS_PER_STEP = 200  # so that 10,000 partitions never hold up a request


class Telemetry:
    """What one broker tells of itself."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._started_at_ms = node.clock.now_ms()
        self.events = ClusterEvents(node.broker_id)
        self.loop_lag = LoopLag(node.scheduler, node.clock.monotonic_ms)
        self._of_deleted_topics = NO_INTAKE

    def start(self) -> None:
        self.loop_lag.start()

    def stop(self) -> None:
        self.loop_lag.stop()

    def image_changed(self, change: ImageChange) -> None:
        self.events.image_changed(change, self._node.clock.now_ms())

    def log_failed(self, partition: Partition) -> None:
        log = partition.log
        why = log.corruption or str(log.failed or "it cannot be written")
        self.events.log_failed(
            partition.topic, partition.topic_id, partition.index, why, self._node.clock.now_ms()
        )

    def report(self, since_event: int, *, detailed: bool, done: Callable[[BrokerReport], object]) -> None:
        """Tell `done` all there is to tell, with a detailed look at every partition only if that is wanted.

        It may be called before this returns. With thousands of partitions others are served in between.
        """
        self._forget_deleted_topics()
        look = _Look(self._node, self._of_deleted_topics, detailed=detailed)

        def go_on() -> None:
            if look.step():
                done(self._report(since_event, look))
            else:
                self._node.scheduler.call_soon(go_on)

        go_on()

    def _report(self, since_event: int, look: _Look) -> BrokerReport:
        node = self._node
        server = node.server
        return BrokerReport(
            broker=node.broker_id,
            cluster_id=node.image.cluster_id,
            version=__version__,
            at_ms=node.clock.now_ms(),
            started_at_ms=self._started_at_ms,
            controller=node.controller.active,
            received_bytes=server.received_bytes,
            sent_bytes=server.sent_bytes,
            messages_in=look.messages,
            bytes_in=look.produced_bytes,
            replicated_bytes_in=look.replicated_bytes,
            connections=len(server.connections),
            connections_opened=server.connections_opened,
            isr_shrinks=self.events.isr_shrinks,
            isr_expansions=self.events.isr_expansions,
            elections=self.events.elections,
            groups=node.groups.count,
            open_transactions=node.transactions.open_count,
            bounds_ms=list(BOUNDS_MS),
            flushes=_histogram(node.group_commit.flushes),
            loop_lag=_histogram(self.loop_lag.lags),
            apis={
                name: ApiReport(_histogram(api.latency), api.named_errors())
                for name, api in sorted(node.dispatcher.statistics.items())
            },
            last_event=self.events.last_number,
            events=self.events.since(since_event),
            detailed=look.detailed,
            partitions=look.partitions,
            leaders=look.leaders,
            under_replicated=look.under_replicated,
            under_min_isr=look.under_min_isr,
            failed_logs=look.failed_logs,
            topics=look.topics,
        )

    def _forget_deleted_topics(self) -> None:
        """What came in for them still counts for the broker."""
        former = self._node.partitions.former_intake
        for name in [name for name in former if name not in self._node.image.topics]:
            self._of_deleted_topics = self._of_deleted_topics.plus(former.pop(name))


class _Look:
    """At every partition, so many at a time. Inside a step everything is plain sums: it is asked for each second."""

    def __init__(self, node: Node, of_deleted_topics: Intake, *, detailed: bool) -> None:
        self.detailed = detailed
        self.messages, self.produced_bytes, self.replicated_bytes = of_deleted_topics
        self.partitions = self.leaders = self.under_replicated = self.under_min_isr = self.failed_logs = 0
        self.topics: dict[str, TopicReport] = {}
        self._left = list(node.partitions)
        for topic, intake in node.partitions.former_intake.items():
            self._add(topic, intake)

    def step(self) -> bool:
        """Whether that was the last one."""
        some, self._left = self._left[:_PARTITIONS_PER_STEP], self._left[_PARTITIONS_PER_STEP:]
        for partition in some:
            self._add(partition.topic, partition.intake)
            if self.detailed:
                self._look_at(partition)
        return not self._left

    def _add(self, topic: str, intake: Intake) -> None:
        messages, produced_bytes, replicated_bytes = intake
        self.messages += messages
        self.produced_bytes += produced_bytes
        self.replicated_bytes += replicated_bytes
        if self.detailed:
            known = self.topics.get(topic)
            if known is None:
                self.topics[topic] = TopicReport(messages, produced_bytes, {})
            else:
                known.messages_in += messages
                known.bytes_in += produced_bytes

    def _look_at(self, partition: Partition) -> None:
        log, state = partition.log, partition.state
        self.topics[partition.topic].log_bytes[partition.index] = log.size_bytes
        self.partitions += 1
        self.failed_logs += log.failed is not None or log.corruption is not None
        if state is not None:
            self.leaders += 1
            self.under_replicated += len(state.isr) < len(state.replicas)
            self.under_min_isr += len(state.isr) < log.config.min_insync_replicas


def _histogram(histogram: Histogram) -> HistogramReport:
    return HistogramReport(list(histogram.counts), round(histogram.sum_ms, 3))
