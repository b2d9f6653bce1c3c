"""Groups that change their kind while in use: classic groups become consumer groups, and the other way round.

A classic group whose members are consumers becomes a consumer group when a member that speaks the consumer protocol
joins; its members go on with JoinGroup, SyncGroup and Heartbeat. It becomes a classic group again when the last member
that speaks the consumer protocol goes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from struct import Struct

from culver.core.consumer_group import NOTHING, ConsumerGroup
from culver.core.consumer_group_member import ClassicSide, Current, Member, MemberMetadata, MemberState
from culver.core.consumer_group_records import (
    Partitions,
    current_record,
    epoch_record,
    member_record,
    target_epoch_record,
    target_record,
)
from culver.core.consumer_group_writes import Draft
from culver.core.group import CONSUMER_PROTOCOL_TYPE, ClassicGroup, GroupState
from culver.core.group import Member as ClassicMember
from culver.core.group_records import group_record, group_tombstone
from culver.core.group_settings import GroupSettings, Topics
from culver.errors import ErrorCode, KafkaError, MalformedRequest
from culver.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from culver.protocol.schema import decoder, encoder

_INT16 = Struct(">h")
_NEWEST_VERSION = 3


# --- what consumers put into JoinGroup and SyncGroup ---


def decode_subscription(data: bytes) -> ConsumerProtocolSubscription:
    """What a consumer joins with; raises MalformedRequest for anything else."""
    value, _ = decoder(ConsumerProtocolSubscription, _version(data))(data, 2)
    return value


def encode_assignment(partitions: Partitions, subscription: bytes, topics: Topics) -> bytes:
    """An assignment as the consumer with this subscription understands it."""
    version = _version(subscription)
    named = [(topics.topic_name(topic), indexes) for topic, indexes in partitions.items()]
    value = ConsumerProtocolAssignment(
        assigned_partitions=[
            TopicPartition(topic=name, partitions=sorted(indexes))
            for name, indexes in sorted((name, indexes) for name, indexes in named if name is not None)
        ],
        user_data=None,
    )
    return _INT16.pack(version) + b"".join(encoder(ConsumerProtocolAssignment, version)(value))


def by_topic_id(items: Iterable[TopicPartition], topics: Topics) -> dict[bytes, frozenset[int]]:
    """Topics that exist no longer are left out."""
    found: dict[bytes, frozenset[int]] = {}
    for item in items:
        topic_id = topics.topic_id(item.topic)
        if topic_id is not None and item.partitions:
            found[topic_id] = found.get(topic_id, frozenset()) | frozenset(item.partitions)
    return found


def _version(data: bytes) -> int:
    if len(data) < 2:
        raise MalformedRequest("no version")
    version: int = _INT16.unpack_from(data)[0]
    if version < 0:
        raise MalformedRequest(f"version {version}")
    return min(version, _NEWEST_VERSION)


# --- classic -> consumer ---


def check_upgrade(classic: ClassicGroup, settings: GroupSettings) -> None:
    """Raise GROUP_ID_NOT_FOUND, as Kafka does, for a group that has to stay what it is."""
    if settings.group_consumer_migration_policy not in ("upgrade", "bidirectional"):
        reason = "groups in use do not change their kind here (group.consumer.migration.policy)"
    elif not classic.uses_consumer_protocol:
        reason = "its members are no consumers"
    elif len(classic.members) > settings.group_consumer_max_size:
        reason = "it has more members than a consumer group may have (group.consumer.max.size)"
    else:
        return
    raise KafkaError(
        ErrorCode.GROUP_ID_NOT_FOUND, f"the classic group {classic.group_id} cannot become one: {reason}"
    )


def upgrade(draft: Draft, classic: ClassicGroup, topics: Topics) -> ConsumerGroup:
    """The same members with the same partitions, in a consumer group. Writes nothing if it raises."""
    try:
        members = [_upgraded(classic, member, topics) for member in classic.members.values()]
    except MalformedRequest as error:
        raise KafkaError(
            ErrorCode.GROUP_ID_NOT_FOUND,
            f"the classic group {classic.group_id} cannot become one: a member's data are unreadable",
        ) from error
    group_id, epoch = classic.group_id, classic.generation
    group = draft.begin()
    if classic.saved is not None:
        draft.write_other([group_tombstone(group_id)])
    for member in members:
        draft.write(member_record(group_id, member.member_id, member.metadata))
    draft.write(epoch_record(group_id, epoch))
    for member in members:
        target = {topic: frozenset(epochs) for topic, epochs in member.current.assigned.items()}
        draft.write(target_record(group_id, member.member_id, target))
    draft.write(target_epoch_record(group_id, epoch))
    for member in members:
        draft.write(current_record(group_id, member.member_id, member.current))
    draft.is_last = True
    return group


def _upgraded(classic: ClassicGroup, member: ClassicMember, topics: Topics) -> Member:
    subscription = decode_subscription(member.metadata(classic.protocol_name) or member.protocols[0][1])
    assigned: dict[bytes, dict[int, int]] = {}
    if member.assignment:
        version = _version(member.assignment)
        given, _ = decoder(ConsumerProtocolAssignment, version)(member.assignment, 2)
        if given.user_data:
            raise KafkaError(
                ErrorCode.GROUP_ID_NOT_FOUND,
                f"the classic group {classic.group_id} cannot become one: it uses an assignor of its own",
            )
        assigned = {
            topic: dict.fromkeys(indexes, classic.generation)
            for topic, indexes in by_topic_id(given.assigned_partitions, topics).items()
        }
    metadata = MemberMetadata(
        member.instance_id,
        subscription.rack_id or None,
        member.client_id,
        member.client_host,
        tuple(sorted(set(subscription.topics))),
        None,
        member.rebalance_timeout_ms,
        None,
        ClassicSide(member.session_timeout_ms, member.protocols),
    )
    current = Current(classic.generation, classic.generation, MemberState.STABLE, assigned)
    return Member(member.member_id, metadata, current)


# --- consumer -> classic ---


def can_downgrade(group: ConsumerGroup, leaving: Collection[str], settings: GroupSettings) -> bool:
    """Whether those who stay are all classic members, and some of those who go are not."""
    staying = [member for member_id, member in group.members.items() if member_id not in leaving]
    return (
        settings.group_consumer_migration_policy in ("downgrade", "bidirectional")
        and 0 < len(staying) <= settings.group_max_size
        and all(member.metadata.classic is not None for member in staying)
        and any(group.members[member_id].metadata.classic is None for member_id in leaving)
    )


def downgraded(group: ConsumerGroup, leaving: Collection[str], topics: Topics, wall_ms: int) -> ClassicGroup:
    """The classic group that those who stay make up. They have their targets, and will be told to join again."""
    classic = ClassicGroup(group.group_id)
    classic.state = GroupState.STABLE
    classic.state_timestamp_ms = wall_ms
    classic.generation = group.epoch
    classic.protocol_type = CONSUMER_PROTOCOL_TYPE
    for member_id, member in group.members.items():
        side = member.metadata.classic
        if member_id in leaving or side is None:
            continue
        target = group.targets.get(member_id, NOTHING)
        classic.add(
            ClassicMember(
                member_id,
                member.metadata.instance_id,
                member.metadata.client_id,
                member.metadata.client_host,
                side.session_timeout_ms,
                member.metadata.rebalance_timeout_ms,
                side.protocols,
                encode_assignment(target, side.protocols[0][1], topics),
            )
        )
    classic.protocol_name = classic.select_protocol()
    classic.learn_subscriptions()
    return classic


def write_downgraded(draft: Draft, classic: ClassicGroup) -> None:
    """To be written behind the consumer group's end.

    Without a leader: whoever reads this back knows by that that the members have yet to join. Nobody else would find
    out that the partitions of those who went are nobody's.
    """
    assignments = {member.member_id: member.assignment for member in classic.members.values()}
    value = classic.to_saved_value(assignments)
    value.leader = None
    draft.write_other([group_record(classic.group_id, value)])
