"""Where reading begins or ends, as options say it, and what that is in offsets once a cluster has been asked."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from culver.errors import ErrorCode, KafkaError
from culver.spark.fetching import EARLIEST, LATEST, NO_OFFSET, BlockingCluster, TopicPartition
from culver.spark.option_values import InvalidOption

if TYPE_CHECKING:
    from culver.spark.options import ReadOptions, Subscription

Offsets = dict[TopicPartition, int]


@dataclass(frozen=True)
class Position:
    """One of these: a word or a timestamp for all partitions, offsets or timestamps for each."""

    everywhere: int | None = None
    timestamp_ms: int | None = None
    offsets: Mapping[TopicPartition, int] | None = None
    timestamps_ms: Mapping[TopicPartition, int] | None = None

    @property
    def mentions_latest(self) -> bool:
        return self.everywhere == LATEST or (self.offsets is not None and LATEST in self.offsets.values())

    @property
    def mentions_earliest(self) -> bool:
        return self.everywhere == EARLIEST or (self.offsets is not None and EARLIEST in self.offsets.values())


EARLIEST_EVERYWHERE = Position(everywhere=EARLIEST)
LATEST_EVERYWHERE = Position(everywhere=LATEST)


def subscribed_partitions(cluster: BlockingCluster, subscription: Subscription) -> list[TopicPartition]:
    """The partitions that there are now, in order. Raises KafkaError for a topic or partition that does not exist."""
    if subscription.pattern is not None:
        pattern = re.compile(subscription.pattern)
        found = {name: parts for name, parts in cluster.metadata().items() if pattern.fullmatch(name)}
    else:
        found = cluster.metadata(subscription.assigned or subscription.topics or ())
    if subscription.assigned is None:
        return sorted((name, partition) for name, parts in found.items() for partition in parts)
    for name, wanted in subscription.assigned.items():
        if missing := sorted(set(wanted) - found[name].keys()):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"option assign: topic {name} has {len(found[name])} partitions, so there is no {missing[0]}",
            )
    return sorted((name, partition) for name, wanted in subscription.assigned.items() for partition in wanted)


def latest_offsets(
    cluster: BlockingCluster, places: Collection[TopicPartition], options: ReadOptions
) -> Offsets:
    """Where each partition ends for this reader: the last stable offset with read_committed."""
    return cluster.list_offsets(dict.fromkeys(places, LATEST), read_committed=options.settings.read_committed)


def earliest_offsets(cluster: BlockingCluster, places: Collection[TopicPartition]) -> Offsets:
    return cluster.list_offsets(dict.fromkeys(places, EARLIEST))


def starting_offsets(
    cluster: BlockingCluster, places: Collection[TopicPartition], options: ReadOptions
) -> Offsets:
    found = _resolve(cluster, places, options.starting, "starting", options)
    if missing := sorted(place for place, offset in found.items() if offset == NO_OFFSET):
        if not options.latest_when_no_timestamp:
            topic, partition = missing[0]
            raise InvalidOption(
                "startingTimestamp",
                f"every record of {topic}-{partition} is older; "
                "set startingOffsetsByTimestampStrategy to latest to begin at the end of such partitions",
            )
        found |= latest_offsets(cluster, missing, options)
    return found


def ending_offsets(
    cluster: BlockingCluster, places: Collection[TopicPartition], options: ReadOptions
) -> Offsets:
    found = _resolve(cluster, places, options.ending, "ending", options)
    missing = [place for place, offset in found.items() if offset == NO_OFFSET]
    return found | latest_offsets(cluster, missing, options)


def _resolve(
    cluster: BlockingCluster,
    places: Collection[TopicPartition],
    position: Position,
    side: str,
    options: ReadOptions,
) -> Offsets:
    committed = options.settings.read_committed
    if position.offsets is not None:
        _check_complete(f"{side}Offsets", places, position.offsets)
        words = {place: offset for place, offset in position.offsets.items() if offset < 0}
        return {**position.offsets, **cluster.list_offsets(words, read_committed=committed)}
    if position.timestamps_ms is not None:
        _check_complete(f"{side}OffsetsByTimestamp", places, position.timestamps_ms)
        return cluster.list_offsets(position.timestamps_ms, read_committed=committed)
    question = position.everywhere if position.everywhere is not None else position.timestamp_ms
    assert question is not None
    return cluster.list_offsets(dict.fromkeys(places, question), read_committed=committed)


def _check_complete(
    name: str, places: Collection[TopicPartition], given: Mapping[TopicPartition, int]
) -> None:
    """Neither a partition too few nor one too many, as in Spark's Kafka source: both are mistakes."""
    wanted = set(places)
    if missing := sorted(wanted - given.keys()):
        raise InvalidOption(name, f"says nothing about {_names(missing)}; use -2 for earliest, -1 for latest")
    if surplus := sorted(given.keys() - wanted):
        raise InvalidOption(name, f"names {_names(surplus)}, which the job does not read")


def _names(places: list[TopicPartition]) -> str:
    shown = ", ".join(f"{topic}-{partition}" for topic, partition in places[:5])
    return shown + (f" and {len(places) - 5} more" if len(places) > 5 else "")


def to_json(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[str, int]]:
    """As Spark's Kafka source writes offsets. Always in the same order: Spark compares offsets as text."""
    found: dict[str, dict[str, int]] = {}
    for (topic, partition), offset in sorted(offsets.items()):
        found.setdefault(topic, {})[str(partition)] = offset
    return found


def from_json(offsets: Mapping[str, Mapping[str, int]]) -> Offsets:
    return {
        (topic, int(partition)): offset
        for topic, partitions in offsets.items()
        for partition, offset in partitions.items()
    }
