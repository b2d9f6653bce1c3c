"""One question to every broker of the cluster, where each knows only its part of the answer."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from culver.gateway.cluster.cluster import Cluster
from culver.protocol.schema import Message
from culver.wire_client import Unreachable

R = TypeVar("R", bound=Message)

# A broker that is down must not hold up what the others have to say for long.
_TIMEOUT_MAX_MS = 5_000.0


async def ask_every_broker(cluster: Cluster, request: Message, response: type[R]) -> dict[int, R]:
    """The answers of the brokers that gave one. Unreachable when none did, KafkaError(UNSUPPORTED_VERSION)."""
    brokers = list((await cluster.view()).brokers)
    timeout_ms = min(cluster.timeout_ms, _TIMEOUT_MAX_MS)
    results = await asyncio.gather(
        *(
            cluster.ask(request, response, broker_id=broker_id, timeout_ms=timeout_ms)
            for broker_id in brokers
        ),
        return_exceptions=True,
    )
    answers: dict[int, R] = {}
    reasons: list[Unreachable] = []
    for broker_id, result in zip(brokers, results, strict=True):
        if isinstance(result, Unreachable):
            reasons.append(result)
        elif isinstance(result, BaseException):
            raise result
        else:
            answers[broker_id] = result
    if reasons and not answers:
        raise reasons[0]
    return answers
