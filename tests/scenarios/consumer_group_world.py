"""The world of the group scenarios with consumer groups in it: members whose broker assigns, and topics that change.

A consumer remembers its epoch and what it was told to have. With its next heartbeat it has let go of, and taken, what
it was told; `holding=yes` lets it stay with what it had.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from group_printing import show_error, show_record
from group_world import Asked, GroupWorld, TopicTable, milliseconds

from culver.core.consumer_group_member import MemberState, Owned
from culver.core.consumer_group_records import (
    CurrentChange,
    EpochChange,
    MemberChange,
    OldTopicsChange,
    PatternChange,
    TargetChange,
    TargetEpochChange,
)
from culver.core.group_records import MetadataChange, decode_group_value
from culver.errors import ErrorCode
from culver.protocol.messages.consumer_group_describe import ConsumerGroupDescribeRequest
from culver.protocol.messages.consumer_group_heartbeat import (
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)
from culver.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from culver.protocol.schema import decoder, encoder

Partitions = frozenset[tuple[str, int]]


class ChangingTopics(TopicTable):
    """Topics with numbers of partitions that can change; t has four, u two and v one."""

    def __init__(self) -> None:
        super().__init__()
        self.counts = {"t": 4, "u": 2, "v": 1}

    def partition_exists(self, name: str, partition: int) -> bool:
        return name in self.names and 0 <= partition < self.counts[name]

    def partition_count(self, name: str) -> int:
        return self.counts[name]

    def all_names(self) -> set[str]:
        return set(self.names)


class TopicsOfWorld:
    """The coordinator's view of them."""

    def __init__(self, table: ChangingTopics) -> None:
        self._table = table
        self.topic_id = table.topic_id
        self.topic_name = table.topic_name
        self.partition_exists = table.partition_exists
        self.partition_count = table.partition_count
        self.names = table.all_names


@dataclass
class Consumer:
    """A consumer's own idea of the world."""

    member_id: str
    epoch: int = 0
    has: Partitions = frozenset()
    told: Partitions = frozenset()
    reported: Partitions | None = None


@dataclass
class ConsumerGroupWorld(GroupWorld):
    consumers: dict[str, Consumer] = field(default_factory=dict)
    owns: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.topics = ChangingTopics()
        self.do_restart([], {})

    # --- members ---

    def do_enter(self, names: list[str], options: dict[str, str]) -> None:
        """Join: a full heartbeat with epoch 0."""
        for name in names:
            old = self.consumers.get(name)
            member_id = options.get("member", name if old is None else old.member_id)
            self.consumers[name] = Consumer(member_id)
            self._beat(name, {"topics": "t", "rebalance": "60s", "owned": "none", "epoch": "0", **options})

    def do_beat(self, names: list[str], options: dict[str, str]) -> None:
        """A heartbeat, with what changed since the last one."""
        for name in names:
            consumer = self.consumers[name]
            if options.get("holding") != "yes":
                consumer.has = consumer.told
            self._beat(name, options)

    def do_exit(self, names: list[str], options: dict[str, str]) -> None:
        for name in names:
            self._beat(name, {"epoch": "-1", **options})

    def _beat(self, name: str, options: dict[str, str]) -> None:
        consumer = self.consumers[name]
        owned: Partitions | None = None
        if options.get("owned") == "none":
            owned = frozenset()
        elif "owned" in options:
            owned = frozenset(_partition(word) for word in options["owned"].split(","))
        elif consumer.has != consumer.reported or options.get("full") == "yes":
            owned = consumer.has
        consumer.reported = consumer.has if owned is None else owned
        topics = options.get("topics")
        request = ConsumerGroupHeartbeatRequest(
            group_id=options.get("group", "g"),
            member_id=consumer.member_id,
            member_epoch=int(options.get("epoch", consumer.epoch)),
            instance_id=options.get("instance"),
            rack_id=options.get("rack"),
            rebalance_timeout_ms=milliseconds(options["rebalance"]) if "rebalance" in options else -1,
            subscribed_topic_names=None if topics is None else [t for t in topics.split(",") if t],
            subscribed_topic_regex=options.get("pattern"),
            server_assignor=options.get("assignor"),
            topic_partitions=None if owned is None else _by_topic(owned),
        )
        handle = self.coordinator.handle_consumer_group_heartbeat
        self._ask(name, "beat", handle, request, options, 1)

    def do_describe_consumers(self, words: list[str], options: dict[str, str]) -> None:
        request = ConsumerGroupDescribeRequest(group_ids=words or ["g"], include_authorized_operations=False)
        handle = self.coordinator.handle_consumer_group_describe
        self._ask("admin", "describe-consumers", handle, request, options, 1)

    # --- classic members: they say what they have, and are assigned real partitions ---

    def do_join(self, names: list[str], options: dict[str, str]) -> None:
        self.owns = options.get("owns", "")
        super().do_join(names, options)

    def _subscription(self, topics: str) -> bytes:
        value = ConsumerProtocolSubscription(
            topics=[topic for topic in topics.split(",") if topic],
            owned_partitions=[
                TopicPartition(topic=topic, partitions=[index])
                for topic, index in (_partition(word) for word in self.owns.split(",") if word)
            ],
        )
        return b"\x00\x01" + b"".join(encoder(ConsumerProtocolSubscription, 1)(value))

    def _assignment(self, text: str) -> bytes:
        """`t-0,t-1`; any other text is the data of an assignor of its own."""
        words = [word for word in text.split(",") if "-" in word]
        value = ConsumerProtocolAssignment(
            assigned_partitions=[
                TopicPartition(topic=topic, partitions=[index])
                for topic, index in (_partition(word) for word in words)
            ],
            user_data=None if words else text.encode(),
        )
        return b"\x00\x01" + b"".join(encoder(ConsumerProtocolAssignment, 1)(value))

    # --- topics ---

    def do_topic(self, words: list[str], _options: dict[str, str]) -> None:
        """`topic t 6`: there is a topic t with six partitions now."""
        name, count = words
        self.topics.names.add(name)
        self.topics.counts[name] = int(count)
        self.coordinator.on_topics_changed([name])

    def do_delete_topic(self, words: list[str], options: dict[str, str]) -> None:
        super().do_delete_topic(words, options)
        self.coordinator.on_topics_changed(words)

    # --- inside ---

    def _topics(self) -> Any:
        return TopicsOfWorld(self.topics) if isinstance(self.topics, ChangingTopics) else self.topics

    def _setting(self, value: str) -> Any:
        return int(value) if value.isdecimal() else value

    def _show_record(self, record: Any) -> str:
        return show_consumer_record(record)

    def _reply(self, token: Asked, response: Any) -> None:
        if token.what == "beat":
            self.printed.append(f"{token.client}: {self._heard(token.client, response)}")
        elif token.what == "describe-consumers":
            self.printed += show_described(response)
        elif token.what == "describe":
            self.printed += [f"{group.group_id}: {group.group_state}" for group in response.groups]
        elif token.what == "sync" and not response.error_code and response.assignment[:1] == b"\x00":
            self.printed.append(f"{token.client} sync: {show_assignment(response.assignment)}")
        else:
            super()._reply(token, response)

    def _heard(self, name: str, response: ConsumerGroupHeartbeatResponse) -> str:
        if response.error_code:
            return show_error(response.error_code)
        consumer = self.consumers[name]
        consumer.member_id = response.member_id or consumer.member_id
        consumer.epoch = response.member_epoch
        if response.assignment is None:
            return f"epoch {response.member_epoch}"
        consumer.told = frozenset(
            (item.topic_id.decode().rstrip("."), index)
            for item in response.assignment.topic_partitions
            for index in item.partitions
        )
        return f"epoch {response.member_epoch} has {show_partitions(consumer.told)}"


def _partition(word: str) -> tuple[str, int]:
    topic, _, index = word.partition("-")
    return topic, int(index)


def _by_topic(partitions: Partitions) -> list[TopicPartitions]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(partitions):
        topics.setdefault(topic, []).append(index)
    return [
        TopicPartitions(topic_id=topic.encode().ljust(16, b"."), partitions=indexes)
        for topic, indexes in topics.items()
    ]


# --- printing ---


def show_partitions(partitions: Any) -> str:
    return " ".join(f"{topic}-{index}" for topic, index in sorted(partitions)) or "nothing"


def _pairs(partitions: Any) -> list[tuple[str, int]]:
    return [(topic.decode().rstrip("."), index) for topic, indexes in partitions.items() for index in indexes]


def _owned(owned: Owned) -> str:
    return show_partitions(_pairs(owned))


def show_assignment(data: bytes) -> str:
    if not data:
        return "nothing"
    value, _ = decoder(ConsumerProtocolAssignment, int.from_bytes(data[:2], "big"))(data, 2)
    if value.user_data:
        return bytes(value.user_data).decode()
    return show_partitions(
        (item.topic, index) for item in value.assigned_partitions for index in item.partitions
    )


def show_consumer_record(record: Any) -> str:
    change = record.change
    match change:
        case EpochChange():
            return f"{change.group_id} " + ("is gone" if change.epoch is None else f"epoch {change.epoch}")
        case OldTopicsChange():
            return f"{change.group_id} topics of old are gone"
        case MemberChange():
            if change.metadata is None:
                return f"member {change.member_id} is gone"
            said = change.metadata
            kind = " classic" if said.classic is not None else ""
            wants = ",".join(said.topics) + (f" ~{said.pattern}" if said.pattern else "")
            return f"member {change.member_id}{kind} wants {wants or 'nothing'}"
        case TargetEpochChange():
            return "target " + ("is gone" if change.epoch is None else f"of epoch {change.epoch}")
        case TargetChange():
            if change.partitions is None:
                return f"target of {change.member_id} is gone"
            return f"target of {change.member_id}: {show_partitions(_pairs(change.partitions))}"
        case CurrentChange():
            current = change.current
            if current is None:
                return f"{change.member_id} has nothing"
            state = "" if current.state is MemberState.STABLE else f" {current.state.name}"
            revoking = f" gives up {_owned(current.revoking)}" if current.revoking else ""
            return f"{change.member_id} epoch {current.epoch}{state} has {_owned(current.assigned)}{revoking}"
        case MetadataChange() if change.value is not None:
            value = decode_group_value(change.value)
            members = ", ".join(f"{m.member_id}={show_assignment(m.assignment)}" for m in value.members)
            return f"classic group {change.group_id} generation {value.generation} [{members}]"
        case PatternChange():
            return f"pattern {change.pattern}: " + (
                "is gone" if change.topics is None else ",".join(sorted(change.topics)) or "nothing"
            )
    return show_record(record)


def show_described(response: Any) -> list[str]:
    lines = []
    for group in response.groups:
        if group.error_code != ErrorCode.NONE:
            lines.append(f"{group.group_id}: {show_error(group.error_code)}")
            continue
        lines.append(
            f"{group.group_id}: {group.group_state} epoch {group.group_epoch} "
            f"target {group.assignment_epoch} {group.assignor_name}"
        )
        for member in group.members:
            kind = "classic " if member.member_type == 0 else ""
            instance = f"/{member.instance_id}" if member.instance_id else ""
            wants = f" of {_shown(member.target_assignment)}"
            lines.append(
                f"  {kind}{member.member_id}{instance} epoch {member.member_epoch} "
                f"has {_shown(member.assignment)}{wants}"
            )
    return lines


def _shown(assignment: Any) -> str:
    return show_partitions(
        (item.topic_name, index) for item in assignment.topic_partitions for index in item.partitions
    )
