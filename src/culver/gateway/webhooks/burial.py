"""Dead letters: writes records that a receiver would not take to the dead-letter topic, until it has them safely."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.errors import HttpError
from culver.gateway.producing import Producing
from culver.gateway.webhooks.endpoint import Outcome
from culver.gateway.webhooks.ordering import Call
from culver.gateway.webhooks.patience import pause_ms
from culver.gateway.webhooks.payload import dead_letter
from culver.gateway.webhooks.store import create_topic_for_webhooks
from culver.gateway.webhooks.subscription import Retry, Subscription
from culver.logging import get_logger
from culver.wire_client import Unreachable

_log = get_logger("culver.gateway.webhooks")

_PAUSES = Retry(tries=0, first_ms=500, max_ms=30_000)
# A dead letter is larger than its record, by the headers that explain it: what one topic took, this one takes too.
_CONFIGS = {"max.message.bytes": str(64 << 20)}


class Burial:
    """The dead-letter topic of one webhook. `on_trouble` is called with what keeps a letter from it."""

    def __init__(
        self,
        subscription: Subscription,
        cluster: Cluster,
        producing: Producing,
        *,
        on_trouble: Callable[[str], object],
    ) -> None:
        self._subscription = subscription
        self._cluster = cluster
        self._producing = producing
        self._on_trouble = on_trouble

    async def bury(self, call: Call, outcome: Outcome) -> None:
        """Returns when every in-sync replica of the topic has the record of the call; tries for as long as it takes."""
        (record,) = call.records
        letter = dead_letter(
            self._subscription,
            record,
            tries=call.failures,
            status=outcome.status,
            error=outcome.error,
            now_ms=time.time_ns() // 1_000_000,
        )
        topic = self._subscription.dead_letter_topic
        failures = 0
        while True:
            try:
                if topic not in (await self._cluster.view()).topics:
                    await create_topic_for_webhooks(self._cluster, topic, _CONFIGS)
                (sent,) = await self._producing.send([letter], acks="all")
                if sent.error is not None:
                    raise sent.error
            except (KafkaError, Unreachable, HttpError) as error:
                self._on_trouble(f"dead-letter topic {topic}: {error}")
            except Exception as error:  # noqa: BLE001 - the boundary: its key would wait for ever, and nobody knew why
                _log.exception("dead letter cannot be written", webhook=self._subscription.name, topic=topic)
                self._on_trouble(f"dead-letter topic {topic}: a fault in the gateway: {type(error).__name__}")
            else:
                _log.warning(
                    "webhook record is a dead letter",
                    webhook=self._subscription.name,
                    topic=record.topic,
                    partition=record.partition,
                    offset=record.offset,
                    tries=call.failures,
                    error=outcome.error,
                    dead_letter_topic=topic,
                )
                return
            failures += 1
            await asyncio.sleep(pause_ms(_PAUSES, failures, random.random()) / 1000)
