"""One look at the whole cluster: what the metrics are made of.

Every broker is asked at the same time for what it knows: its own report, the ends of the partitions that it leads, the
groups that it coordinates. One that is down or hangs takes nothing with it but its own part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field

from culver.core.broker_report import BrokerReport
from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.group_offsets import all_offsets
from culver.gateway.cluster.groups import describe_groups
from culver.gateway.cluster.offsets import EARLIEST, LATEST
from culver.gateway.cluster.view import ClusterView, TopicPartition
from culver.gateway.metrics.broker_reports import BrokerReports, NotCulver
from culver.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from culver.wire_client import Unreachable

# Prometheus gives up after ten seconds unless told otherwise: what is known by then should have been sent.
_BROKER_MAX_S = 4.0
_GROUPS_PER_REQUEST = 100
_WITHOUT_MEMBERS = frozenset({"Empty", "Dead"})


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """One group: its members, and what it has committed."""

    members: int
    committed: Mapping[TopicPartition, int]


@dataclass(slots=True)
class BrokerFigures:
    """What one broker has told. `up` once it has answered anything."""

    up: bool = False
    report: BrokerReport | None = None
    latest: Mapping[TopicPartition, int] = field(default_factory=dict)
    earliest: Mapping[TopicPartition, int] = field(default_factory=dict)
    groups: dict[str, GroupFigures] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """What all have told together."""

    view: ClusterView
    brokers: Mapping[int, BrokerFigures]
    latest: Mapping[TopicPartition, int]
    earliest: Mapping[TopicPartition, int]
    groups: Mapping[str, GroupFigures]


async def collect(cluster: Cluster, reports: BrokerReports) -> ClusterFigures:
    """Ask everyone. Raises Unreachable or KafkaError when not even the list of brokers can be had."""
    async with asyncio.timeout(_BROKER_MAX_S):
        view = await cluster.view()
    led: dict[int, list[TopicPartition]] = {number: [] for number in view.brokers}
    for topic in view.topics.values():
        for partition in topic.partitions:
            if partition.leader in led:
                led[partition.leader].append(TopicPartition(topic.name, partition.index))
    looks = {number: _Look(cluster, reports, number, places) for number, places in led.items()}
    await asyncio.gather(*(look.take() for look in looks.values()))
    brokers = {number: look.figures for number, look in looks.items()}
    return ClusterFigures(
        view,
        brokers,
        latest={place: at for figures in brokers.values() for place, at in figures.latest.items()},
        earliest={place: at for figures in brokers.values() for place, at in figures.earliest.items()},
        groups={name: group for figures in brokers.values() for name, group in figures.groups.items()},
    )


class _Look:
    """At one broker."""

    def __init__(
        self, cluster: Cluster, reports: BrokerReports, broker_id: int, led: Sequence[TopicPartition]
    ) -> None:
        self._cluster = cluster
        self._reports = reports
        self._broker_id = broker_id
        self._led = led
        self.figures = BrokerFigures()

    async def take(self) -> None:
        """Fills `figures` with what comes in time."""
        await asyncio.gather(
            self._in_time(self._report()), self._in_time(self._ends()), self._in_time(self._groups())
        )

    async def _in_time(self, question: Awaitable[None]) -> None:
        try:
            async with asyncio.timeout(_BROKER_MAX_S):
                await question
        except (TimeoutError, Unreachable, KafkaError, NotCulver):
            return  # it shows in what is missing, and in culver_up if nothing came

    async def _report(self) -> None:
        self.figures.report = await self._reports.ask(self._broker_id, detailed=True)
        self.figures.up = True

    async def _ends(self) -> None:
        latest, earliest = await asyncio.gather(self._offsets(LATEST), self._offsets(EARLIEST))
        self.figures.latest, self.figures.earliest = latest, earliest

    async def _offsets(self, which: int) -> dict[TopicPartition, int]:
        found = await self._cluster.list_offsets(dict.fromkeys(self._led, which), retry_ms=0)
        return {place: at.offset for place, at in found.items() if not isinstance(at, KafkaError)}

    async def _groups(self) -> None:
        answer = await self._cluster.ask(
            ListGroupsRequest(),
            ListGroupsResponse,
            broker_id=self._broker_id,
            timeout_ms=_BROKER_MAX_S * 1000,
        )
        self.figures.up = True
        names = [group.group_id for group in answer.groups]
        # Versions of the answer that do not tell the state leave it empty.
        busy = [group.group_id for group in answer.groups if group.group_state not in _WITHOUT_MEMBERS]
        members = {
            name: len(group.members) for name, group in (await describe_groups(self._cluster, busy)).items()
        }
        # One behind another: a broker that is asked for ten thousand groups at once keeps its other clients waiting.
        for at in range(0, len(names), _GROUPS_PER_REQUEST):
            some = names[at : at + _GROUPS_PER_REQUEST]
            for name, committed in (await all_offsets(self._cluster, self._broker_id, some)).items():
                if not isinstance(committed, KafkaError):
                    offsets = {place: found.offset for place, found in committed.items() if found.offset >= 0}
                    self.figures.groups[name] = GroupFigures(members.get(name, 0), offsets)
