"""An administrator's client in a simulation: creates topics, moves partitions, elects leaders, changes settings."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from typing import Any

from culver.errors import ErrorCode
from culver.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from culver.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from culver.protocol.messages.elect_leaders import ElectLeadersRequest
from culver.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from culver.protocol.schema import Message
from culver.testing.history import Partition
from culver.testing.simulation.client import Client, Disconnected
from culver.testing.simulation.plan import TopicPlan

_CREATE_VERSION = 7
_REASSIGN_VERSION = 0
_ELECT_VERSION = 2
_ALTER_VERSION = 1
_TOPIC = 2
_SET = 0
_PREFERRED = 0


class Administrator:
    """Asks any broker; most of what it asks is allowed to fail."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._under_way = 0

    @property
    def done(self) -> bool:
        return self._under_way == 0

    def create_topics(self, topics: Sequence[TopicPlan]) -> None:
        for topic in topics:
            self._begin(self._create(topic))

    async def _create(self, topic: TopicPlan) -> None:
        """Until it is there."""
        request = CreateTopicsRequest(
            topics=[
                CreatableTopic(
                    name=topic.name,
                    num_partitions=topic.partitions,
                    replication_factor=topic.factor,
                    assignments=[],
                    configs=[
                        CreatableTopicConfig(name=name, value=value) for name, value in topic.config.items()
                    ],
                )
            ]
        )
        while True:
            answer = await self._ask(request, _CREATE_VERSION)
            if answer is not None and answer.topics[0].error_code in (
                ErrorCode.NONE,
                ErrorCode.TOPIC_ALREADY_EXISTS,
            ):
                return
            await self._client.pause(100, 400)

    def move(self, partition: Partition, replicas: Sequence[int]) -> None:
        """Have a partition moved to other brokers."""
        wanted = ReassignablePartition(partition_index=partition[1], replicas=list(replicas))
        topic = ReassignableTopic(name=partition[0], partitions=[wanted])
        self._begin(self._ask(AlterPartitionReassignmentsRequest(topics=[topic]), _REASSIGN_VERSION))

    def elect_preferred(self) -> None:
        self._begin(
            self._ask(ElectLeadersRequest(election_type=_PREFERRED, topic_partitions=None), _ELECT_VERSION)
        )

    def set_topic_config(self, topic: str, name: str, value: str) -> None:
        resource = AlterConfigsResource(
            resource_type=_TOPIC,
            resource_name=topic,
            configs=[AlterableConfig(name=name, config_operation=_SET, value=value)],
        )
        request = IncrementalAlterConfigsRequest(resources=[resource], validate_only=False)
        self._begin(self._ask(request, _ALTER_VERSION))

    def _begin(self, work: Coroutine[Any, Any, Any]) -> None:
        async def run() -> None:
            try:
                await work
            finally:
                self._under_way -= 1

        self._under_way += 1
        self._client.process.start(run())

    async def _ask(self, request: Message, version: int) -> Any:
        """The answer of some broker, or None."""
        try:
            await self._client.refresh()
            connection = await self._client.any_broker()
            return await connection.ask(request, version)
        except Disconnected:
            return None
