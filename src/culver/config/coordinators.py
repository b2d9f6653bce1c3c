"""The settings of a broker that concern groups, idempotent producers and transactions."""

from __future__ import annotations

from culver.config.setting import (
    DAY_MS,
    INT_MAX,
    MIB,
    Section,
    Settings,
    integer,
    long,
    short,
    string,
    strings,
)


class CoordinatorSettings(Settings):
    """What coordinators work by; a part of BrokerConfig."""

    _groups = Section("Groups and committed offsets")

    group_min_session_timeout_ms: int = integer(
        default=6_000, minimum=0, doc="The shortest session timeout a member may ask for."
    )
    group_max_session_timeout_ms: int = integer(
        default=1_800_000, minimum=0, doc="The longest session timeout a member may ask for."
    )
    group_initial_rebalance_delay_ms: int = integer(
        default=3_000,
        minimum=0,
        doc="How long an empty group waits for more members after the first, to spare them a rebalance each.",
    )
    group_max_size: int = integer(default=INT_MAX, minimum=1, doc="Members that a group may have.")
    offset_metadata_max_bytes: int = integer(
        default=4096, minimum=0, doc="The longest text a client may store with a committed offset."
    )
    offsets_retention_minutes: int = integer(
        default=10_080,
        minimum=1,
        doc="How long committed offsets outlive the last member of their group, or the last commit of a "
        "consumer without one.",
    )
    offsets_retention_check_interval_ms: int = long(
        default=600_000, minimum=1, doc="How often to look for committed offsets that have expired."
    )
    offsets_topic_num_partitions: int = integer(
        default=50,
        minimum=1,
        doc="Partitions of the internal topic `__consumer_offsets`. Fixed once the topic is there.",
    )
    offsets_topic_replication_factor: int = short(
        default=3,
        minimum=1,
        doc="Replicas of the internal topic `__consumer_offsets`; as many as there are brokers, if fewer.",
    )
    offsets_topic_segment_bytes: int = integer(
        default=100 * MIB,
        minimum=MIB,
        doc="Segment size of the internal topic `__consumer_offsets`. Small, so that it starts quickly.",
    )

    group_consumer_session_timeout_ms: int = integer(
        default=45_000,
        minimum=1,
        doc="After how long without a heartbeat a member is removed, in groups whose assignment the broker makes "
        "(`group.protocol=consumer`).",
    )
    group_consumer_heartbeat_interval_ms: int = integer(
        default=5_000, minimum=1, doc="How often members of such groups are told to send heartbeats."
    )
    group_consumer_max_size: int = integer(
        default=INT_MAX, minimum=1, doc="Members that such a group may have."
    )
    group_consumer_assignors: tuple[str, ...] = strings(
        default=("uniform", "range"),
        choices=("uniform", "range"),
        doc="How partitions may be spread over such a group's members; the first one unless a member asks.",
    )
    group_consumer_migration_policy: str = string(
        default="bidirectional",
        choices=("disabled", "downgrade", "upgrade", "bidirectional"),
        doc="Whether a group may change, while in use, between classic members and those of "
        "`group.protocol=consumer`.",
    )

    _producers = Section("Producers and transactions")

    producer_id_expiration_ms: int = integer(
        default=DAY_MS,
        minimum=1,
        doc="How long a partition remembers an idempotent producer that has stopped writing.",
    )
    producer_id_expiration_check_interval_ms: int = integer(
        default=600_000, minimum=1, doc="How often to look for producers to forget."
    )
    transactional_id_expiration_ms: int = integer(
        default=7 * DAY_MS,
        minimum=1,
        doc="How long a transactional id is remembered after its last transaction.",
    )
    transaction_max_timeout_ms: int = integer(
        default=900_000,
        minimum=1,
        doc="The longest time a transaction may take; producers that ask for more are refused. One that is open "
        "longer in a partition hangs: no coordinator knows it, and `culver txn abort` ends it.",
    )
    transaction_remove_expired_transaction_cleanup_interval_ms: int = integer(
        default=3_600_000, minimum=1, doc="How often to look for transactional ids to forget."
    )
    transaction_state_log_num_partitions: int = integer(
        default=50,
        minimum=1,
        doc="Partitions of the internal topic `__transaction_state`. Fixed once the topic is there.",
    )
    transaction_state_log_replication_factor: int = short(
        default=3,
        minimum=1,
        doc="Replicas of the internal topic `__transaction_state`; as many as there are brokers, if fewer.",
    )
    transaction_state_log_min_isr: int = integer(
        default=2,
        minimum=1,
        doc="`min.insync.replicas` of the internal topic `__transaction_state`; never more than its replicas.",
    )
    transaction_state_log_segment_bytes: int = integer(
        default=100 * MIB,
        minimum=MIB,
        doc="Segment size of the internal topic `__transaction_state`. Small, so that it starts quickly.",
    )
