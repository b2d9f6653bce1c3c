"""Which topics there are to write to: asked once in a while, and created where the cluster does that by itself.

librdkafka waits half a minute for a topic that does not exist, in case it is about to. A client of HTTP should hear at
once. So the cluster is asked first, with the same wish that a producer sends: create it, if you do.
"""

from __future__ import annotations

import asyncio
import time
from functools import partial

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

REMEMBERED_SECONDS = 5.0
_TOPICS_MAX = 10_000
# The topic is there, or will be in a moment.
_FINE = (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE)


class KnownTopics:
    """The topics that were there a moment ago."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._until_s: dict[str, float] = {}
        self._asking: dict[str, asyncio.Task[None]] = {}

    def __contains__(self, topic: str) -> bool:
        return self._until_s.get(topic, 0.0) > time.monotonic()

    async def check(self, topic: str) -> KafkaError | None:
        """Why the topic cannot be written to, if it cannot. Unreachable when there is no cluster to ask."""
        if topic in self:
            return None
        task = self._asking.get(topic)
        if task is None:
            # Many requests may want the same new topic: one question for them all, whichever of them goes away.
            task = self._asking[topic] = asyncio.ensure_future(self._ask(topic))
            task.add_done_callback(partial(self._asked, topic))
        try:
            await asyncio.shield(task)
        except KafkaError as error:
            return error
        return None

    def _asked(self, topic: str, task: asyncio.Task[None]) -> None:
        del self._asking[topic]
        if not task.cancelled():
            task.exception()  # looked at, even if all who wanted to know have gone

    def forget(self, topic: str) -> None:
        self._until_s.pop(topic, None)

    async def _ask(self, topic: str) -> None:
        request = MetadataRequest(topics=[MetadataRequestTopic(name=topic)], allow_auto_topic_creation=True)
        answer = await self._cluster.ask(request, MetadataResponse)
        for found in answer.topics:
            if found.name == topic and found.error_code not in _FINE:
                raise KafkaError(ErrorCode(found.error_code), f"topic {topic}")
        if len(self._until_s) >= _TOPICS_MAX:
            self._until_s.clear()
        self._until_s[topic] = time.monotonic() + REMEMBERED_SECONDS
