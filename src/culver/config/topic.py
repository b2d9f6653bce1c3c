"""The settings of a topic, all of Kafka 4.3's and Culver's own, and how a topic gets its values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from culver.config.broker import (
    CLEANUP_POLICIES,
    COMPRESSION_TYPES,
    FLUSH_MODES,
    TIMESTAMP_TYPES,
    BrokerConfig,
)
from culver.config.setting import (
    DAY_MS,
    GIB,
    HOUR_MS,
    LONG_MAX,
    MIB,
    MINUTE_MS,
    Section,
    Setting,
    Settings,
    boolean,
    double,
    integer,
    long,
    string,
    strings,
    unknown_setting,
)
from culver.errors import ConfigError


def _throttled_fault(replicas: tuple[str, ...]) -> str | None:
    if replicas in ((), ("*",)):
        return None
    for replica in replicas:
        partition, colon, broker = replica.partition(":")
        if not (colon and partition.isdecimal() and broker.isdecimal()):
            return f"{replica!r} is no replica; write PARTITION:BROKER, separated by commas, or * for all"
    return None


def _tiered_fault(enabled: bool) -> str | None:
    return "this broker has no tiered storage; leave it false" if enabled else None


class TopicConfig(Settings):
    """The effective configuration of one topic: its own settings, then the broker's, then the defaults."""

    _retention = Section("Retention")

    cleanup_policy: frozenset[str] = strings(
        default=frozenset({"delete"}),
        choices=CLEANUP_POLICIES,
        synonyms=("log.cleanup.policy",),
        doc="What happens to old records. `delete`: whole segments go by age and size. `compact`: of each "
        "key the last record stays. Both may be given; with neither, everything stays for ever.",
    )
    retention_ms: int = long(
        default=7 * DAY_MS,
        minimum=-1,
        synonyms=("log.retention.ms", "log.retention.minutes", "log.retention.hours"),
        doc="With `cleanup.policy=delete`, how old a segment's newest record may get. -1: any age.",
    )
    retention_bytes: int = long(
        default=-1,
        synonyms=("log.retention.bytes",),
        doc="With `cleanup.policy=delete`, how large a partition may get before its oldest segments go. "
        "-1: any size.",
    )
    file_delete_delay_ms: int = long(
        default=MINUTE_MS,
        minimum=0,
        synonyms=("log.segment.delete.delay.ms",),
        doc="How long the files of a dropped segment stay on disk, out of use.",
    )

    _segments = Section("Segments and indexes")

    segment_bytes: int = integer(
        default=GIB,
        minimum=MIB,
        synonyms=("log.segment.bytes",),
        doc="The largest segment. Retention and compaction work on whole, finished segments.",
    )
    segment_ms: int = long(
        default=7 * DAY_MS,
        minimum=1,
        synonyms=("log.roll.ms", "log.roll.hours"),
        doc="A segment that is this old is finished even when it is not full.",
    )
    segment_jitter_ms: int = long(
        default=0,
        minimum=0,
        synonyms=("log.roll.jitter.ms", "log.roll.jitter.hours"),
        doc="At most this much is taken off `segment.ms` at random, so that logs do not all roll at once.",
    )
    index_interval_bytes: int = integer(
        default=4096,
        minimum=0,
        synonyms=("log.index.interval.bytes",),
        doc="One index entry for so many bytes of records. Smaller: seeks read less, indexes are larger.",
    )
    segment_index_bytes: int = integer(
        default=10 * MIB,
        minimum=4,
        synonyms=("log.index.size.max.bytes",),
        doc="The largest index. A segment whose index is full is finished.",
    )
    preallocate: bool = boolean(
        default=False,
        synonyms=("log.preallocate",),
        doc="Accepted for Kafka's tools. No effect: segments grow as they are written.",
    )
    internal_segment_bytes: int | None = integer(
        default=None,
        internal=True,
        minimum=1,
        doc="For tests: a segment size below what `segment.bytes` allows. Wins over it.",
    )

    _durability = Section("Durability")

    flush: str = string(
        name="culver.flush",
        default="replicated",
        choices=FLUSH_MODES,
        synonyms=("culver.flush",),
        doc="When an acknowledged write is on disk. `always`: before any acknowledgement. `replicated`: "
        "before one to acks=all, unless other in-sync replicas hold the record. `os`: when the system gets "
        "round to it.",
    )
    flush_messages: int = long(
        default=LONG_MAX,
        minimum=1,
        synonyms=("log.flush.interval.messages",),
        doc="Flush after so many records, whatever `culver.flush` says.",
    )
    flush_ms: int = long(
        default=LONG_MAX,
        minimum=0,
        synonyms=("log.flush.interval.ms", "log.flush.scheduler.interval.ms"),
        doc="Flush records that have waited for so long, whatever `culver.flush` says.",
    )
    min_insync_replicas: int = integer(
        default=1,
        minimum=1,
        synonyms=("min.insync.replicas",),
        doc="How many replicas must be in sync for a write with acks=all to be taken.",
    )
    unclean_leader_election_enable: bool = boolean(
        default=False,
        synonyms=("unclean.leader.election.enable",),
        doc="Whether a replica that is not in sync may lead when no other is left. It may lose records.",
    )

    _records = Section("Records")

    max_message_bytes: int = integer(
        default=MIB + 12,
        minimum=0,
        synonyms=("message.max.bytes",),
        doc="The largest record batch, as it comes from the producer, compressed or not.",
    )
    message_timestamp_type: str = string(
        default="CreateTime",
        choices=TIMESTAMP_TYPES,
        synonyms=("log.message.timestamp.type",),
        doc="Whose clock stamps the records: the producer's, or the broker's when it appends them.",
    )
    message_timestamp_before_max_ms: int = long(
        default=LONG_MAX,
        minimum=0,
        synonyms=("log.message.timestamp.before.max.ms",),
        doc="With `CreateTime`, how far a record's time may lie in the past.",
    )
    message_timestamp_after_max_ms: int = long(
        default=HOUR_MS,
        minimum=0,
        synonyms=("log.message.timestamp.after.max.ms",),
        doc="With `CreateTime`, how far a record's time may lie in the future.",
    )
    compression_type: str = string(
        default="producer",
        choices=COMPRESSION_TYPES,
        synonyms=("compression.type",),
        doc="The codec that batches are stored with. `producer`: the one they arrive with.",
    )
    compression_gzip_level: int = integer(
        default=-1,
        minimum=1,
        maximum=9,
        also=-1,
        synonyms=("compression.gzip.level",),
        doc="How hard gzip tries when the broker compresses. -1: as gzip does by itself.",
    )
    compression_lz4_level: int = integer(
        default=9,
        minimum=1,
        maximum=17,
        synonyms=("compression.lz4.level",),
        doc="How hard lz4 tries when the broker compresses.",
    )
    compression_zstd_level: int = integer(
        default=3,
        minimum=-131072,
        maximum=22,
        synonyms=("compression.zstd.level",),
        doc="How hard zstd tries when the broker compresses.",
    )

    _compaction = Section("Compaction")

    delete_retention_ms: int = long(
        default=DAY_MS,
        minimum=0,
        synonyms=("log.cleaner.delete.retention.ms",),
        doc="How long a tombstone stays after compaction, for consumers that read from the start to see it.",
    )
    min_cleanable_dirty_ratio: float = double(
        default=0.5,
        minimum=0,
        maximum=1,
        synonyms=("log.cleaner.min.cleanable.ratio",),
        doc="The part of a log that must be new since the last compaction before the next one.",
    )
    min_compaction_lag_ms: int = long(
        default=0,
        minimum=0,
        synonyms=("log.cleaner.min.compaction.lag.ms",),
        doc="How long a record is safe from compaction.",
    )
    max_compaction_lag_ms: int = long(
        default=LONG_MAX,
        minimum=1,
        synonyms=("log.cleaner.max.compaction.lag.ms",),
        doc="How long a record may wait for compaction, however little is new.",
    )

    _replication = Section("Replication throttles")

    leader_replication_throttled_replicas: tuple[str, ...] = strings(
        default=(),
        check=_throttled_fault,
        doc="Replicas whose leader throttles them: PARTITION:BROKER, or *.",
    )
    follower_replication_throttled_replicas: tuple[str, ...] = strings(
        default=(), check=_throttled_fault, doc="Replicas that throttle themselves: PARTITION:BROKER, or *."
    )

    _tiered = Section("Tiered storage (known, without effect)")

    remote_storage_enable: bool = boolean(
        default=False, check=_tiered_fault, doc="Kafka's tiered storage, which Culver does not have."
    )
    remote_log_copy_disable: bool = boolean(default=False, doc="Accepted for Kafka's tools. No effect.")
    remote_log_delete_on_disable: bool = boolean(default=False, doc="Accepted for Kafka's tools. No effect.")
    local_retention_ms: int = long(
        default=-2,
        minimum=-2,
        synonyms=("log.local.retention.ms",),
        doc="Accepted for Kafka's tools. No effect: all records are local.",
    )
    local_retention_bytes: int = long(
        default=-2,
        minimum=-2,
        synonyms=("log.local.retention.bytes",),
        doc="Accepted for Kafka's tools. No effect: all records are local.",
    )

    @classmethod
    def resolve(cls, broker: BrokerConfig, overrides: Mapping[str, str]) -> Self:
        """The configuration of a topic with these settings of its own, on this broker.

        ConfigError for an unknown name, a bad value, or values that contradict each other.
        """
        values: dict[str, Any] = {}
        for name, setting in cls.settings.items():
            if name not in overrides:
                values[setting.attribute] = broker_default(broker, setting)
        for name, text in overrides.items():
            setting = topic_setting(name)
            values[setting.attribute] = setting.parse(text)
        if values["internal_segment_bytes"] is not None:
            values["segment_bytes"] = values["internal_segment_bytes"]
        config = cls(**values)
        if config.min_compaction_lag_ms > config.max_compaction_lag_ms:
            raise ConfigError(
                "min.compaction.lag.ms",
                f"min.compaction.lag.ms ({config.min_compaction_lag_ms}) is more than max.compaction.lag.ms "
                f"({config.max_compaction_lag_ms}); lower the one or raise the other",
            )
        return config


def topic_setting(name: str) -> Setting:
    """The declaration of a topic setting; ConfigError for a name that is none."""
    setting = TopicConfig.settings.get(name)
    if setting is None:
        raise unknown_setting(name, TopicConfig.settings, "topic")
    return setting


def validate_topic_setting(name: str, value: str) -> Any:
    """The parsed value; KafkaError(INVALID_CONFIG) for a name or a value that cannot be used."""
    return topic_setting(name).parse(value)


def broker_default(broker: BrokerConfig, setting: Setting) -> Any:
    """The value that a topic setting has where the topic does not set it."""
    for synonym in setting.synonyms:
        value = getattr(broker, BrokerConfig.settings[synonym].attribute)
        if value is not None:
            unit = _units_ms(synonym)
            return value if unit == 1 else max(-1, value * unit)
    return setting.default


def _units_ms(synonym: str) -> int:
    """Some settings exist in coarser units too. A negative number means "for ever" in each of them."""
    if synonym.endswith(".hours"):
        return HOUR_MS
    return MINUTE_MS if synonym.endswith(".minutes") else 1
