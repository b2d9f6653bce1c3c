"""What a consumer group is to become: the hash of its topics, the topics of its patterns, its target assignment."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

from culver.core.assignors import ASSIGNORS, Subscriber
from culver.core.consumer_group import NOTHING, ConsumerGroup
from culver.core.consumer_group_records import Partitions
from culver.core.group_settings import Topics
from culver.core.patterns import matching_topics


def metadata_hash(group: ConsumerGroup, topics: Topics) -> int:
    """A number that changes when a topic that the group reads comes, goes, is made anew or gets more partitions."""
    digest = blake2b(digest_size=8)
    any_topic = False
    for name in sorted(group.topic_counts):
        topic_id = topics.topic_id(name)
        if topic_id is not None:
            any_topic = True
            digest.update(topic_id + topics.partition_count(name).to_bytes(4, "big"))
    return int.from_bytes(digest.digest(), "big", signed=True) if any_topic else 0


def resolved_pattern(pattern: str, topics: Topics) -> frozenset[str]:
    """The topics that a pattern stands for now."""
    return matching_topics(pattern, topics.names())


def target_assignment(group: ConsumerGroup, assignor: str, topics: Topics) -> dict[str, Partitions]:
    """What each member shall have."""
    ids: dict[str, bytes | None] = {}
    counts: dict[bytes, int] = {}
    for name in group.topic_counts:
        topic_id = ids[name] = topics.topic_id(name)
        if topic_id is not None:
            counts[topic_id] = topics.partition_count(name)
    # Members that subscribe alike share one set: comparing a thousand of them then costs nothing.
    wanted: dict[tuple[Sequence[str], str | None], frozenset[bytes]] = {}
    subscribers = []
    for member in group.members.values():
        metadata = member.metadata
        key = (metadata.topics, metadata.pattern)
        topic_ids = wanted.get(key)
        if topic_ids is None:
            found = (ids.get(name) for name in group.topics_of(metadata))
            topic_ids = wanted[key] = frozenset(topic_id for topic_id in found if topic_id is not None)
        held = group.targets.get(member.member_id, NOTHING)
        subscribers.append(Subscriber(member.member_id, metadata.instance_id, topic_ids, held))
    return dict(ASSIGNORS[assignor](subscribers, counts))
