"""What the group coordinator is given from outside: its settings, and a look at the topics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """One field per broker setting (same name, with underscores), in units that the coordinator uses;
    the defaults are Kafka's."""

    # A member may ask for a session timeout within these bounds.
    group_min_session_timeout_ms: int = 6_000
    group_max_session_timeout_ms: int = 1_800_000
    # How long a new group waits for further members before its first rebalance.
    group_initial_rebalance_delay_ms: int = 3_000
    group_max_size: int = 2**31 - 1
    # Groups whose broker assigns: members send heartbeats this often, and are removed after that long without.
    group_consumer_session_timeout_ms: int = 45_000
    group_consumer_heartbeat_interval_ms: int = 5_000
    group_consumer_max_size: int = 2**31 - 1
    # The first one is taken unless members ask for another.
    group_consumer_assignors: tuple[str, ...] = ("uniform", "range")
    # Which ways a group may change its kind while it has members: disabled, upgrade, downgrade, bidirectional.
    group_consumer_migration_policy: str = "bidirectional"
    # What a member offers when it joins: more would never fit into the group's record.
    message_max_bytes: int = 1_048_588
    # How long a member that does not know its id yet may be kept waiting in JoinGroup.
    group_new_member_join_timeout_ms: int = 300_000
    offset_metadata_max_bytes: int = 4_096
    offsets_retention_ms: int = 7 * 24 * 3_600_000
    offsets_retention_check_interval_ms: int = 600_000
    offsets_topic_num_partitions: int = 50


class Topics(Protocol):
    """What the coordinator has to know of topics; the broker answers from its cluster image."""

    def topic_name(self, topic_id: bytes) -> str | None: ...

    def topic_id(self, name: str) -> bytes | None: ...

    def partition_exists(self, name: str, partition: int) -> bool: ...

    def partition_count(self, name: str) -> int:
        """How many partitions a topic that exists has."""

    def names(self) -> Iterable[str]:
        """All topics."""
