"""Telemetry: gathers what the parts of the broker have counted into one report, for whoever asks.

Each part keeps its own numbers as plain attributes (the dispatcher requests, the server bytes, group commit flushes,
partitions what came in): recording costs next to nothing, and everything else is paid by the one who asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from culver import __version__
from culver.broker.loop_lag import LoopLag
from culver.broker.partition import NO_INTAKE, Intake, Partition
from culver.core.broker_report import ApiReport, BrokerReport, HistogramReport, TopicReport
from culver.core.cluster_events import ClusterEvents
from culver.core.histogram import BOUNDS_MS, Histogram
from culver.core.image import NO_LEADER

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.core.image_builder import ImageChange


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

    def report(self, since_event: int, *, detailed: bool) -> BrokerReport:
        """All there is to tell; the numbers that take a look at every partition only if they are wanted."""
        node = self._node
        server = node.server
        intake = self._intake()
        report = BrokerReport(
            broker=node.broker_id,
            cluster_id=node.image.cluster_id,
            version=__version__,
            at_ms=node.clock.now_ms(),
            started_at_ms=self._started_at_ms,
            controller=node.controller.active,
            received_bytes=server.received_bytes,
            sent_bytes=server.sent_bytes,
            messages_in=intake.messages,
            bytes_in=intake.produced_bytes,
            replicated_bytes_in=intake.replicated_bytes,
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
        )
        if not detailed:
            return report
        shape = _Shape(node)
        return structs.replace(
            report,
            detailed=True,
            partitions=shape.partitions,
            leaders=shape.leaders,
            under_replicated=shape.under_replicated,
            under_min_isr=shape.under_min_isr,
            offline=shape.offline,
            failed_logs=shape.failed_logs,
            topics=shape.topics,
        )

    def _intake(self) -> Intake:
        """All that has come in, of partitions held now or earlier. Asked every second, so it is quick."""
        partitions = list(self._node.partitions)
        former = self._node.partitions.former_intake
        for name in [name for name in former if name not in self._node.image.topics]:
            self._of_deleted_topics = self._of_deleted_topics.plus(former.pop(name))
        total = self._of_deleted_topics
        for intake in former.values():
            total = total.plus(intake)
        replicated_bytes = sum([partition.replicated_bytes for partition in partitions])
        internal_bytes = sum([partition.internal_bytes for partition in partitions])
        appended_bytes = sum([partition.appended_bytes for partition in partitions])
        return total.plus(
            Intake(
                sum([partition.produced_records for partition in partitions]),
                appended_bytes - replicated_bytes - internal_bytes,
                replicated_bytes,
            )
        )


class _Shape:
    """What one look at every partition gives."""

    def __init__(self, node: Node) -> None:
        self.partitions = self.leaders = self.under_replicated = self.under_min_isr = self.failed_logs = 0
        self.offline = 0
        self.topics: dict[str, TopicReport] = {}
        for topic in node.image.topics.values():
            self.offline += sum([partition.leader == NO_LEADER for partition in topic.partitions])
            intake = node.partitions.former_intake.get(topic.name)
            held = node.partitions.of_topic(topic.name)
            if intake is None and not held:
                continue
            messages, produced_bytes, _ = intake or NO_INTAKE
            log_bytes = {}
            for partition in held:
                more_messages, more_bytes, _ = partition.intake
                messages += more_messages
                produced_bytes += more_bytes
                log_bytes[partition.index] = partition.log.size_bytes
                self._look_at(partition)
            self.topics[topic.name] = TopicReport(messages, produced_bytes, log_bytes)

    def _look_at(self, partition: Partition) -> None:
        log, state = partition.log, partition.state
        self.partitions += 1
        self.failed_logs += log.failed is not None or log.corruption is not None
        if state is not None:
            self.leaders += 1
            self.under_replicated += len(state.isr) < len(state.replicas)
            self.under_min_isr += len(state.isr) < log.config.min_insync_replicas


def _histogram(histogram: Histogram) -> HistogramReport:
    return HistogramReport(list(histogram.counts), round(histogram.sum_ms, 3))
