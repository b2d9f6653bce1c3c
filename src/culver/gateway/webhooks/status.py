"""How a webhook is doing: what one gateway sees of it, and how far its group is behind."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.groups import committed_offsets
from culver.gateway.cluster.offsets import LATEST
from culver.gateway.cluster.view import ClusterView, TopicPartition
from culver.gateway.webhooks.subscription import Subscription


class Status(msgspec.Struct, kw_only=True):
    """What this gateway has to do with a webhook, since it runs it; only the lag is that of the whole cluster."""

    # Records that the receiver has not acknowledged; None when the cluster cannot be asked now.
    lag: int | None = None
    running: bool = False
    # Partitions that this gateway sends.
    partitions: list[str] = []
    in_flight: int = 0
    # Calls that failed and wait for their next try; how often the one tried most has failed; when the next is due.
    waiting: int = 0
    tries: int = 0
    next_retry_at_ms: int | None = None
    # The receiver fails whatever it is given, and is given little.
    receiver_down: bool = False
    last_error: str | None = None
    last_error_at_ms: int | None = None
    last_success_at_ms: int | None = None
    records_delivered: int = 0
    calls_failed: int = 0
    dead_letters: int = 0


async def lags(cluster: Cluster, subscriptions: Sequence[Subscription]) -> dict[str, int]:
    """The lag of each webhook by its name; those whose group cannot be asked now are left out. Raises Unreachable."""
    if not subscriptions:
        return {}
    view = await cluster.view()
    committed = await committed_offsets(cluster, [each.group for each in subscriptions])
    places = {place for each in subscriptions for place in _partitions(each, view)}
    ends = await cluster.list_offsets(dict.fromkeys(places, LATEST), committed=True)
    found: dict[str, int] = {}
    for each in subscriptions:
        offsets = committed.get(each.group)
        if offsets is None:
            continue
        lag = 0
        for place in _partitions(each, view):
            end = ends[place]
            if not isinstance(end, KafkaError):
                topic_id = view.topics[place.topic].topic_id.hex()
                start = each.start(place.topic, topic_id, place.partition)
                at = offsets[place].offset if place in offsets else start
                lag += max(0, end.offset - at)
        found[each.name] = lag
    return found


def _partitions(subscription: Subscription, view: ClusterView) -> list[TopicPartition]:
    topics = [view.topics[topic] for topic in subscription.topics if topic in view.topics]
    return [TopicPartition(topic.name, each.index) for topic in topics for each in topic.partitions]
