"""The tables of the APIs that the broker serves: key, name, versions, message classes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module

from culver.protocol.schema import Message

API_VERSIONS_KEY = 18


@dataclass(frozen=True)
class Api:
    """One API. Its message classes are imported when first asked for, which keeps the start quick."""

    key: int
    name: str
    min_version: int
    max_version: int

    @cached_property
    def request(self) -> type[Message]:
        return self._message_class("Request")

    @cached_property
    def response(self) -> type[Message]:
        return self._message_class("Response")

    def _message_class(self, suffix: str) -> type[Message]:
        module = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", self.name).lower()
        found: type[Message] = getattr(
            import_module(f"culver.protocol.messages.{module}"), self.name + suffix
        )
        return found

    def decodable(self, version: int) -> bool:
        """Whether there is a definition for this version; Produce advertises more than it has."""
        versions = self.request.SCHEMA.versions
        return versions is not None and versions[0] <= version <= versions[1]

    def flexible(self, version: int) -> bool:
        since = self.request.SCHEMA.flexible_since
        return since is not None and version >= since

    def request_header_version(self, version: int) -> int:
        return 2 if self.flexible(version) else 1

    def response_header_version(self, version: int) -> int:
        # A client reads the answer to ApiVersions before it knows what the broker speaks, so that one never
        # has tagged fields in its header.
        return 1 if self.flexible(version) and self.key != API_VERSIONS_KEY else 0


# What clients are told of.
APIS: dict[int, Api] = {
    api.key: api
    for api in (
        # librdkafka stops compressing unless it finds Produce 0 to 2 advertised; they are refused if sent.
        Api(0, "Produce", 0, 13),
        Api(1, "Fetch", 4, 18),
        Api(2, "ListOffsets", 1, 11),
        Api(3, "Metadata", 0, 13),
        Api(8, "OffsetCommit", 2, 10),
        Api(9, "OffsetFetch", 1, 10),
        Api(10, "FindCoordinator", 0, 6),
        Api(11, "JoinGroup", 0, 9),
        Api(12, "Heartbeat", 0, 4),
        Api(13, "LeaveGroup", 0, 5),
        Api(14, "SyncGroup", 0, 5),
        Api(15, "DescribeGroups", 0, 6),
        Api(16, "ListGroups", 0, 5),
        Api(API_VERSIONS_KEY, "ApiVersions", 0, 4),
        Api(19, "CreateTopics", 2, 7),
        Api(20, "DeleteTopics", 1, 6),
        Api(21, "DeleteRecords", 0, 2),
        Api(22, "InitProducerId", 0, 5),
        Api(23, "OffsetForLeaderEpoch", 2, 4),
        Api(24, "AddPartitionsToTxn", 0, 5),
        Api(25, "AddOffsetsToTxn", 0, 4),
        Api(26, "EndTxn", 0, 5),
        Api(27, "WriteTxnMarkers", 1, 2),
        Api(28, "TxnOffsetCommit", 0, 5),
        Api(32, "DescribeConfigs", 1, 4),
        Api(33, "AlterConfigs", 0, 2),
        Api(35, "DescribeLogDirs", 1, 5),
        Api(37, "CreatePartitions", 0, 3),
        Api(42, "DeleteGroups", 0, 2),
        Api(43, "ElectLeaders", 0, 2),
        Api(44, "IncrementalAlterConfigs", 0, 1),
        Api(45, "AlterPartitionReassignments", 0, 1),
        Api(46, "ListPartitionReassignments", 0, 0),
        Api(47, "OffsetDelete", 0, 0),
        Api(60, "DescribeCluster", 0, 2),
        Api(61, "DescribeProducers", 0, 0),
        Api(64, "UnregisterBroker", 0, 0),
        Api(65, "DescribeTransactions", 0, 0),
        Api(66, "ListTransactions", 0, 2),
        Api(68, "ConsumerGroupHeartbeat", 0, 1),
        Api(69, "ConsumerGroupDescribe", 0, 1),
        Api(75, "DescribeTopicPartitions", 0, 0),
    )
}

# What only brokers of the same cluster, and Culver's gateway, say: served, but never advertised. Keys far above Kafka's
# own.
BROKER_HELLO_KEY = 30_000
BROKER_REPORT_KEY = 30_001
PRIVATE_APIS: dict[int, Api] = {
    api.key: api
    for api in (Api(BROKER_HELLO_KEY, "BrokerHello", 0, 0), Api(BROKER_REPORT_KEY, "BrokerReport", 0, 0))
}
