"""ConsumerGroupDescribe, and consumer groups in ListGroups and DescribeGroups.

ConsumerGroupDescribe 0-1: since 1 whether a member speaks the classic or the consumer protocol.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from culver.core.consumer_group import NOTHING, ConsumerGroup
from culver.core.consumer_group_member import Member
from culver.core.group_settings import Topics
from culver.errors import ErrorCode
from culver.protocol.messages.consumer_group_describe import Assignment, DescribedGroup, TopicPartitions
from culver.protocol.messages.consumer_group_describe import Member as DescribedMember

_CLASSIC_MEMBER = 0
_CONSUMER_MEMBER = 1


def describe_consumer_group(group: ConsumerGroup, assignor: str, topics: Topics) -> DescribedGroup:
    """One group with its members: what each has, and what it is to have."""
    return DescribedGroup(
        error_code=ErrorCode.NONE,
        group_id=group.group_id,
        group_state=group.state.value,
        group_epoch=group.epoch,
        assignment_epoch=group.assignment_epoch,
        assignor_name=assignor,
        members=[_member(group, member, topics) for member in group.members.values()],
    )


def consumer_group_error(group_id: str, error: ErrorCode, message: str | None = None) -> DescribedGroup:
    """The answer for a group that cannot be described."""
    return DescribedGroup(
        error_code=error,
        error_message=message,
        group_id=group_id,
        group_state="",
        group_epoch=0,
        assignment_epoch=0,
        assignor_name="",
        members=[],
    )


def _member(group: ConsumerGroup, member: Member, topics: Topics) -> DescribedMember:
    metadata = member.metadata
    return DescribedMember(
        member_id=member.member_id,
        instance_id=metadata.instance_id,
        rack_id=metadata.rack_id,
        member_epoch=member.current.epoch,
        client_id=metadata.client_id,
        client_host=metadata.client_host,
        subscribed_topic_names=list(metadata.topics),
        subscribed_topic_regex=metadata.pattern or "",
        assignment=_assignment(_held(member), topics),
        target_assignment=_assignment(group.targets.get(member.member_id, NOTHING), topics),
        member_type=_CONSUMER_MEMBER if metadata.classic is None else _CLASSIC_MEMBER,
    )


def _held(member: Member) -> dict[bytes, set[int]]:
    """What it has, with what it has yet to give up."""
    held: dict[bytes, set[int]] = {}
    for partitions in (member.current.assigned, member.current.revoking):
        for topic, epochs in partitions.items():
            held.setdefault(topic, set()).update(epochs)
    return held


def _assignment(partitions: Mapping[bytes, Iterable[int]], topics: Topics) -> Assignment:
    """Without topics that exist no longer: there is no name to show for them."""
    named = [(topics.topic_name(topic), topic, indexes) for topic, indexes in partitions.items()]
    return Assignment(
        topic_partitions=[
            TopicPartitions(topic_id=topic, topic_name=name, partitions=sorted(indexes))
            for name, topic, indexes in named
            if name is not None
        ]
    )
