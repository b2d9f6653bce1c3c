"""How far groups are behind: what they have committed, and where the partitions end."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.group_offsets import CommittedOffset
from culver.gateway.cluster.groups import committed_offsets
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.console.browsing import Bounds
from culver.gateway.console.places import bounds_of, view_with


@dataclass(frozen=True, slots=True)
class Progress:
    """The offsets of some groups, and the bounds of all partitions that they name."""

    committed: Mapping[str, Mapping[TopicPartition, CommittedOffset]]
    bounds: Mapping[TopicPartition, Bounds]
    errors: Mapping[TopicPartition, KafkaError]

    def lag(self, group: str) -> int | None:
        """Records that the group has yet to read, where it has committed something; None if that is not known."""
        offsets = self.committed.get(group)
        if offsets is None:
            return None
        lags = [
            behind(self.bounds[place], at.offset) for place, at in offsets.items() if place in self.bounds
        ]
        return sum(lags) if lags or not offsets else None


def behind(bounds: Bounds, committed: int) -> int:
    """Records from the commit to the end, without those that retention took before they were read."""
    return max(0, bounds.latest - max(committed, bounds.earliest))


async def progress_of(
    cluster: Cluster, groups: Collection[str], more: Collection[TopicPartition] = ()
) -> Progress:
    """The progress of groups; `more` partitions are looked at too."""
    committed = await committed_offsets(cluster, list(groups))
    places = {place for offsets in committed.values() for place in offsets} | set(more)
    # Topics that have been deleted keep their offsets for a while.
    view = await view_with(cluster, {place.topic for place in places})
    there = [
        place
        for place in sorted(places)
        if place.topic in view.topics and place.partition < len(view.topics[place.topic].partitions)
    ]
    bounds, errors = await bounds_of(cluster, there, committed=False)
    return Progress(committed, bounds, errors)
