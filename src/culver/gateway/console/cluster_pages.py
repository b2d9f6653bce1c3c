"""/api/cluster and /api/brokers: the cluster at a glance."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver import __version__
from culver.core.broker_report import BrokerReport
from culver.errors import KafkaError
from culver.gateway.cluster.groups import list_groups
from culver.gateway.cluster.view import ClusterView, PartitionView, TopicPartition
from culver.gateway.console.members import Member, ask_members
from culver.gateway.console.places import is_internal
from culver.gateway.console.topic_figures import Disk, LogDirectory
from culver.gateway.metrics.broker_reports import NotCulver
from culver.gateway.routing import Answer, Endpoint, json_response
from culver.gateway.services import Services, services_of
from culver.logging import get_logger
from culver.wire_client import Unreachable

_log = get_logger("culver.gateway.console")


class Counts(msgspec.Struct, frozen=True):
    """How much there is of everything. Brokers are those that are up. None: not known."""

    brokers: int
    brokers_down: int
    topics: int
    internal_topics: int
    partitions: int
    groups: int | None
    under_replicated: int
    offline: int


class Features(msgspec.Struct, frozen=True):
    """What pages have something to show."""

    log_search: bool
    pipelines: bool
    transactions: bool


class ClusterAnswer(msgspec.Struct, frozen=True):
    """The cluster at a glance."""

    cluster_id: str | None
    is_culver: bool
    software: str
    gateway_version: str
    controller_id: int | None
    bootstrap: str
    counts: Counts
    features: Features


class BrokerAnswer(msgspec.Struct, frozen=True):
    """One broker. What only Culver's brokers tell is None for others; `error`: it could not be asked about disks."""

    id: int
    host: str
    port: int
    rack: str | None
    is_up: bool
    is_controller: bool
    leaders: int
    replicas: int
    under_replicated: int
    offline_replicas: int
    bytes: int | None
    log_dirs: list[LogDirectory]
    software: str | None
    version: str | None
    started_at_ms: int | None
    connections: int | None
    error: str | None


class BrokersAnswer(msgspec.Struct, frozen=True):
    """All brokers, by id."""

    items: list[BrokerAnswer]


@dataclass(slots=True)
class Health:
    """How many partitions are not as they should be."""

    partitions: int = 0
    under_replicated: int = 0
    offline: int = 0

    @classmethod
    def of(cls, partitions: Iterable[PartitionView]) -> Health:
        health = cls()
        for partition in partitions:
            health.partitions += 1
            health.under_replicated += len(partition.isr) < len(partition.replicas)
            health.offline += partition.leader < 0
        return health


def _all_partitions(view: ClusterView) -> Iterator[tuple[TopicPartition, PartitionView]]:
    for topic in view.topics.values():
        for partition in topic.partitions:
            yield TopicPartition(topic.name, partition.index), partition


async def members_of(services: Services) -> dict[int, Member]:
    """All brokers, as they were a moment ago."""
    return await services.console.members.get("", lambda: ask_members(services.cluster))


async def reports_of(services: Services, members: Mapping[int, Member]) -> dict[int, BrokerReport]:
    """What brokers tell of themselves: those of them that are up, Culver's, and answer."""
    living = frozenset(broker_id for broker_id, member in members.items() if member.is_up)

    async def ask(broker_id: int) -> BrokerReport | None:
        try:
            return await services.reports.ask(broker_id, detailed=False)
        except (Unreachable, NotCulver):
            return None
        except Exception:  # noqa: BLE001 - the boundary: the page is worth showing without what one broker tells
            _log.exception("a broker's report cannot be used", broker=broker_id)
            return None

    async def ask_all() -> dict[int, BrokerReport]:
        reports = await asyncio.gather(*(ask(broker_id) for broker_id in sorted(living)))
        return {report.broker: report for report in reports if report is not None}

    return await services.console.broker_reports.get(living, ask_all)


def _software(reports: Iterable[BrokerReport]) -> str:
    versions = sorted({report.version for report in reports})
    return f"Culver {', '.join(versions)}" if versions else "Kafka-protocol cluster"


async def cluster(request: Request) -> Response:
    services = services_of(request)
    view = await services.cluster.view()
    health = Health.of(partition for _, partition in _all_partitions(view))
    internal = sum(is_internal(topic) for topic in view.topics.values())
    groups: int | None
    try:
        groups = len(await services.console.groups.get("", lambda: list_groups(services.cluster)))
    except (KafkaError, Unreachable):
        groups = None
    members = await members_of(services)
    reports = await reports_of(services, members)
    living = sum(member.is_up for member in members.values())
    return json_response(
        ClusterAnswer(
            cluster_id=view.cluster_id,
            is_culver=bool(reports),
            software=_software(reports.values()),
            gateway_version=__version__,
            controller_id=view.controller_id if view.controller_id >= 0 else None,
            bootstrap=services.settings.bootstrap,
            counts=Counts(
                brokers=living,
                brokers_down=len(members) - living,
                topics=len(view.topics) - internal,
                internal_topics=internal,
                partitions=health.partitions,
                groups=groups,
                under_replicated=health.under_replicated,
                offline=health.offline,
            ),
            features=Features(
                log_search=services.settings.log_store is not None, pipelines=True, transactions=True
            ),
        )
    )


async def brokers(request: Request) -> Response:
    services = services_of(request)
    view = await services.cluster.view()
    members = await members_of(services)
    living = frozenset(broker_id for broker_id, member in members.items() if member.is_up)
    disks, reports = await asyncio.gather(
        services.console.disks.get(living, lambda: services.console.figures.disks(None, living)),
        reports_of(services, members),
    )
    return json_response(
        BrokersAnswer(
            [
                _broker(view, broker_id, member, disks.get(broker_id), reports.get(broker_id))
                for broker_id, member in members.items()
            ]
        )
    )


def _broker(
    view: ClusterView,
    broker_id: int,
    member: Member,
    disk: Disk | Exception | None,
    report: BrokerReport | None,
) -> BrokerAnswer:
    held = [partition for _, partition in _all_partitions(view) if broker_id in partition.replicas]
    return BrokerAnswer(
        id=broker_id,
        host=member.address.host,
        port=member.address.port,
        rack=member.address.rack,
        is_up=member.is_up,
        is_controller=broker_id == view.controller_id,
        leaders=sum(partition.leader == broker_id for partition in held),
        replicas=len(held),
        under_replicated=sum(broker_id not in partition.isr for partition in held),
        offline_replicas=sum(broker_id in partition.offline for partition in held),
        bytes=sum(disk.replica_bytes.values()) if isinstance(disk, Disk) else None,
        log_dirs=list(disk.directories) if isinstance(disk, Disk) else [],
        software=_software([report]) if report else None,
        version=report.version if report else None,
        started_at_ms=report.started_at_ms if report else None,
        connections=report.connections if report else None,
        error=str(disk) if isinstance(disk, Exception) else None,
    )


ROUTES = [
    Endpoint(
        "GET",
        "/api/cluster",
        cluster,
        "The cluster at a glance: brokers, topics, groups, and what is not as it should be.",
        "console",
        answers={200: Answer("The cluster.", ClusterAnswer)},
        errors=(503,),
    ),
    Endpoint(
        "GET",
        "/api/brokers",
        brokers,
        "All brokers, what they lead and hold, and what it takes on their disks.",
        "console",
        answers={200: Answer("The brokers.", BrokersAnswer)},
        errors=(503,),
    ),
]
