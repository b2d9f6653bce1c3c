"""What the console keeps between requests: answers that are a moment old, and what pipelines have reported."""

from __future__ import annotations

import asyncio

from culver.core.broker_report import BrokerReport
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.groups import GroupListing
from culver.gateway.cluster.transactions import TransactionListing
from culver.gateway.console.log_search import LogSearch
from culver.gateway.console.members import Member
from culver.gateway.console.pipeline_reports import PipelineReports
from culver.gateway.console.recent import Recent
from culver.gateway.console.topic_figures import Disk, Figures
from culver.gateway.console.topic_rates import TopicRates
from culver.gateway.producing import Producing
from culver.gateway.reading.partition_reader import Readers

# A list of ten thousand groups is asked for once in so long, however many look at it.
_LISTS_MAX_AGE_S = 2.0
# Walks through topics that run at a time; further ones wait for their turn.
_WALKS_AT_ONCE = 4
# Exports that read at a time: they take turns, and leave the walks above to those who wait for a page.
_EXPORTS_AT_ONCE = 2
# Live tails and exports that may be open at a time; further ones are refused.
STREAMS_MAX = 100


class ConsoleState:
    """One for the gateway; endpoints reach it as `services.console`."""

    def __init__(
        self, cluster: Cluster, readers: Readers, producing: Producing, log_store: str | None
    ) -> None:
        self.figures = Figures(cluster)
        self.rates = TopicRates(cluster)
        self.groups: Recent[list[GroupListing]] = Recent(_LISTS_MAX_AGE_S)
        self.transactions: Recent[list[TransactionListing]] = Recent(_LISTS_MAX_AGE_S)
        self.members: Recent[dict[int, Member]] = Recent(_LISTS_MAX_AGE_S)
        self.broker_reports: Recent[dict[int, BrokerReport]] = Recent(_LISTS_MAX_AGE_S)
        self.disks: Recent[dict[int, Disk | Exception]] = Recent(_LISTS_MAX_AGE_S)
        self.pipelines = PipelineReports(cluster, readers, producing)
        self.log_search = LogSearch(log_store)
        self.walks = asyncio.Semaphore(_WALKS_AT_ONCE)
        self.exports = asyncio.Semaphore(_EXPORTS_AT_ONCE)
        self.streams = 0

    async def close(self) -> None:
        await self.log_search.close()
        await self.pipelines.close()
