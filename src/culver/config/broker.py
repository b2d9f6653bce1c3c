"""The settings of a broker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

from culver.config.address import address_fault, advertised_fault
from culver.config.coordinators import CoordinatorSettings
from culver.config.setting import (
    DAY_MS,
    GIB,
    HOUR_MS,
    INT_MAX,
    LONG_MAX,
    MIB,
    MINUTE_MS,
    Section,
    boolean,
    double,
    integer,
    long,
    string,
    strings,
)

CLEANUP_POLICIES = ("compact", "delete")
COMPRESSION_TYPES = ("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer")
TIMESTAMP_TYPES = ("CreateTime", "LogAppendTime")
FLUSH_MODES = ("always", "replicated", "os")

_NOTHING: Mapping[str, str] = {}


def _nonempty(text: str) -> str | None:
    return None if text else "it must not be empty"


class BrokerConfig(CoordinatorSettings):
    """What a broker was told, and Kafka's defaults for the rest.

    `static` holds the texts given at the start (file, environment, command line), `dynamic_default` and
    `dynamic` those set while running, for every broker and for this one. The attributes are the outcome.
    """

    static: Mapping[str, str] = _NOTHING
    dynamic_default: Mapping[str, str] = _NOTHING
    dynamic: Mapping[str, str] = _NOTHING

    _identity = Section("Identity and storage")

    node_id: int = integer(
        default=1,
        minimum=0,
        doc="The broker's number, which clients see in metadata. `broker.id` is the same setting.",
    )
    broker_rack: str | None = string(
        default=None, doc="Where the broker stands: a rack, a host, a zone. Replicas prefer different ones."
    )
    culver_coordination: str = string(
        name="culver.coordination",
        default="local",
        doc="Where the cluster's metadata lives. `local`: a file in the data directory. `local:FILE`: that file, "
        "shared by brokers on one machine. `zookeeper://HOST:PORT,HOST:PORT/PATH`: a ZooKeeper ensemble.",
    )
    culver_session_timeout_ms: int = integer(
        name="culver.session.timeout.ms",
        default=2_000,
        minimum=100,
        doc="How long the metadata store must hear nothing of a broker before it counts as dead. A ZooKeeper "
        "server raises it to twice its own tickTime.",
    )
    data_dir: str = string(
        default="./culver-data",
        check=_nonempty,
        doc="The directory with the logs and the broker's own state. One broker at a time may use it.",
    )
    log_level: str = string(
        default="warning",
        choices=("debug", "info", "warning", "error"),
        doc="The least important events that are written to standard error.",
    )
    log_format: str = string(
        default="text",
        choices=("text", "json"),
        doc="One line of `key=value` for each event, or one JSON object.",
    )

    _network = Section("Connections and limits")

    listen: str = string(
        default="127.0.0.1:9092",
        check=address_fault,
        doc="The address to accept clients on, as HOST:PORT. Port 0: a free one. An empty host: all.",
    )
    advertise: str | None = string(
        default=None,
        check=advertised_fault,
        doc="The address clients are told to connect to, as HOST:PORT. Not set: the one it listens on.",
    )
    max_connections: int = integer(
        default=INT_MAX, minimum=0, doc="Connections open at a time. Further ones are closed at once."
    )
    connections_max_idle_ms: int = long(
        default=600_000, doc="A connection on which nothing happens for this long is closed."
    )
    socket_request_max_bytes: int = integer(
        default=100 * MIB,
        minimum=1,
        doc="The largest request. A client that announces more is disconnected before it is read.",
    )
    culver_watchful_us: int = integer(
        name="culver.watchful.us",
        default=0,
        minimum=0,
        doc="Microseconds that the broker looks out for more requests before it lets its processor sleep. 50 "
        "to 100 halve the latency of single requests on many machines, where waking up takes about as long, but "
        "take a processor away from bulk traffic where there are few.",
    )
    queued_max_request_bytes: int = long(
        default=256 * MIB,
        minimum=-1,
        doc="Memory for requests that have arrived in part, over all connections; beyond it, reading waits. "
        "-1: twice `socket.request.max.bytes`.",
    )
    queued_max_response_bytes: int = long(
        default=256 * MIB,
        minimum=1,
        dynamic=True,
        doc="Responses waiting for slow clients, all together. Beyond it a fetch gets little at a time.",
    )
    max_decompressed_bytes: int = integer(
        default=100 * MIB,
        minimum=1,
        doc="The most that the records of one batch may take when decompressed. A batch that would take more "
        "is refused without being unpacked further.",
    )
    max_incremental_fetch_session_cache_slots: int = integer(
        default=1000,
        minimum=0,
        doc="Incremental fetch sessions kept at a time. A consumer without one repeats its whole list.",
    )
    fetch_max_bytes: int = integer(
        default=55 * MIB,
        minimum=1024,
        doc="The most record bytes in one fetch answer, whatever is asked for.",
    )

    _topics = Section("Topics")

    auto_create_topics_enable: bool = boolean(
        default=True, doc="Create a topic when a client asks for the metadata of one that is not there."
    )
    num_partitions: int = integer(
        default=1, minimum=1, doc="Partitions of a topic that is created without saying how many."
    )
    default_replication_factor: int = integer(
        default=1, minimum=1, doc="Replicas of each partition where the topic's creator does not say."
    )
    delete_topic_enable: bool = boolean(default=True, doc="Whether topics may be deleted.")

    _durability = Section("Durability")

    culver_flush: str = string(
        name="culver.flush",
        default="replicated",
        choices=FLUSH_MODES,
        dynamic=True,
        doc="When an acknowledged write is on disk. `always`: before any acknowledgement. `replicated`: "
        "before one to acks=all, unless other in-sync replicas hold the record. `os`: when the system gets "
        "round to it.",
    )
    log_flush_interval_messages: int = long(
        default=LONG_MAX, minimum=1, dynamic=True, doc="For topics that do not set `flush.messages`."
    )
    log_flush_interval_ms: int | None = long(
        default=None,
        minimum=0,
        dynamic=True,
        doc="For topics that do not set `flush.ms`. Not set: `log.flush.scheduler.interval.ms`.",
    )
    log_flush_scheduler_interval_ms: int = long(
        default=LONG_MAX, minimum=0, doc="How often to look for logs that are due to be flushed by time."
    )
    log_flush_offset_checkpoint_interval_ms: int = integer(
        default=MINUTE_MS,
        minimum=0,
        doc="How often to note how far each log is known to be on disk. After a crash the rest is checked.",
    )
    min_insync_replicas: int = integer(
        default=1, minimum=1, dynamic=True, doc="For topics that do not set `min.insync.replicas`."
    )
    unclean_leader_election_enable: bool = boolean(
        default=False, dynamic=True, doc="For topics that do not set `unclean.leader.election.enable`."
    )

    _replication = Section("Replication")

    replica_lag_time_max_ms: int = long(
        default=30_000,
        minimum=1,
        doc="A follower that has not been caught up for so long leaves the in-sync replicas.",
    )
    replica_fetch_wait_max_ms: int = integer(
        default=500, minimum=1, doc="How long a leader may keep a follower's fetch waiting for records."
    )
    replica_fetch_max_bytes: int = integer(
        default=MIB, minimum=0, doc="Record bytes that a follower asks for of one partition at a time."
    )
    replica_fetch_response_max_bytes: int = integer(
        default=10 * MIB, minimum=0, doc="Record bytes that a follower asks for of all partitions at a time."
    )
    replica_fetch_backoff_ms: int = integer(
        default=1_000,
        minimum=0,
        doc="How long a follower waits at most before it tries a failed fetch again.",
    )
    replica_socket_timeout_ms: int = integer(
        default=30_000, minimum=1, doc="How long a broker waits for another broker's answer."
    )
    replica_selector_class: str = string(
        default="rack",
        choices=("", "rack", "org.apache.kafka.common.replica.RackAwareReplicaSelector"),
        doc="Which replica serves a consumer. `rack`, or Kafka's class of that meaning: one in the consumer's "
        "own rack, if it says which and there is one in sync. Empty: always the leader.",
    )
    leader_replication_throttled_rate: int = long(
        default=LONG_MAX,
        minimum=1,
        dynamic=True,
        doc="Bytes a second that this broker sends to followers which are not in sync.",
    )
    follower_replication_throttled_rate: int = long(
        default=LONG_MAX,
        minimum=1,
        dynamic=True,
        doc="Bytes a second that this broker fetches for partitions in which it is not in sync.",
    )
    auto_leader_rebalance_enable: bool = boolean(
        default=True, doc="Whether leadership goes back to the first of the replicas by itself."
    )
    leader_imbalance_check_interval_seconds: int = long(
        default=300, minimum=1, doc="How often the controller looks whether leaders should go back."
    )
    leader_imbalance_per_broker_percentage: int = integer(
        default=10,
        minimum=0,
        doc="Leaders go back when more than this share of a broker's partitions is led by another.",
    )
    controlled_shutdown_enable: bool = boolean(
        default=True, doc="Whether a broker that stops hands its leaderships over first."
    )

    _segments = Section("Segments and indexes")

    log_segment_bytes: int = integer(
        default=GIB, minimum=MIB, dynamic=True, doc="For topics that do not set `segment.bytes`."
    )
    log_roll_ms: int | None = long(
        default=None,
        minimum=1,
        dynamic=True,
        doc="For topics that do not set `segment.ms`. Not set: `log.roll.hours`.",
    )
    log_roll_hours: int = integer(
        default=168, minimum=1, doc="Like `log.roll.ms`, in hours, and used when that is not set."
    )
    log_roll_jitter_ms: int | None = long(
        default=None,
        minimum=0,
        dynamic=True,
        doc="For topics that do not set `segment.jitter.ms`. Not set: `log.roll.jitter.hours`.",
    )
    log_roll_jitter_hours: int = integer(
        default=0, minimum=0, doc="Like `log.roll.jitter.ms`, in hours, and used when that is not set."
    )
    log_index_interval_bytes: int = integer(
        default=4096, minimum=0, dynamic=True, doc="For topics that do not set `index.interval.bytes`."
    )
    log_index_size_max_bytes: int = integer(
        default=10 * MIB, minimum=4, dynamic=True, doc="For topics that do not set `segment.index.bytes`."
    )
    log_preallocate: bool = boolean(
        default=False, dynamic=True, doc="For topics that do not set `preallocate`."
    )
    log_segment_delete_delay_ms: int = long(
        default=MINUTE_MS, minimum=0, dynamic=True, doc="For topics that do not set `file.delete.delay.ms`."
    )

    _retention = Section("Retention")

    log_cleanup_policy: frozenset[str] = strings(
        default=frozenset({"delete"}),
        choices=CLEANUP_POLICIES,
        dynamic=True,
        doc="For topics that do not set `cleanup.policy`.",
    )
    log_retention_ms: int | None = long(
        default=None,
        minimum=-1,
        dynamic=True,
        doc="For topics that do not set `retention.ms`. Not set: `log.retention.minutes`.",
    )
    log_retention_minutes: int | None = integer(
        default=None,
        doc="Like `log.retention.ms`, in minutes, and used when that is not set. Not set: the hours.",
    )
    log_retention_hours: int = integer(
        default=168, doc="Like `log.retention.ms`, in hours, and used when neither of the others is set."
    )
    log_retention_bytes: int = long(
        default=-1, dynamic=True, doc="For topics that do not set `retention.bytes`."
    )
    log_retention_check_interval_ms: int = long(
        default=5 * MINUTE_MS, minimum=1, doc="How often to look for segments that retention lets go."
    )
    log_local_retention_ms: int = long(
        default=-2, minimum=-2, dynamic=True, doc="For topics that do not set `local.retention.ms`."
    )
    log_local_retention_bytes: int = long(
        default=-2, minimum=-2, dynamic=True, doc="For topics that do not set `local.retention.bytes`."
    )

    _compaction = Section("Compaction")

    log_cleaner_enable: bool = boolean(default=True, doc="Whether topics with `cleanup.policy=compact` are.")
    log_cleaner_backoff_ms: int = long(
        default=15_000, minimum=0, doc="How long to wait when no log has enough to compact."
    )
    log_cleaner_dedupe_buffer_size: int = long(
        default=128 * MIB,
        minimum=MIB,
        doc="Memory for the keys of one compaction, in bytes. With more keys, it takes several runs.",
    )
    log_cleaner_min_cleanable_ratio: float = double(
        default=0.5,
        minimum=0,
        maximum=1,
        dynamic=True,
        doc="For topics that do not set `min.cleanable.dirty.ratio`.",
    )
    log_cleaner_delete_retention_ms: int = long(
        default=DAY_MS, minimum=0, dynamic=True, doc="For topics that do not set `delete.retention.ms`."
    )
    log_cleaner_min_compaction_lag_ms: int = long(
        default=0, minimum=0, dynamic=True, doc="For topics that do not set `min.compaction.lag.ms`."
    )
    log_cleaner_max_compaction_lag_ms: int = long(
        default=LONG_MAX, minimum=1, dynamic=True, doc="For topics that do not set `max.compaction.lag.ms`."
    )

    _records = Section("Records")

    message_max_bytes: int = integer(
        default=MIB + 12, minimum=0, dynamic=True, doc="For topics that do not set `max.message.bytes`."
    )
    log_message_timestamp_type: str = string(
        default="CreateTime",
        choices=TIMESTAMP_TYPES,
        dynamic=True,
        doc="For topics that do not set `message.timestamp.type`.",
    )
    log_message_timestamp_before_max_ms: int = long(
        default=LONG_MAX,
        minimum=0,
        dynamic=True,
        doc="For topics that do not set `message.timestamp.before.max.ms`.",
    )
    log_message_timestamp_after_max_ms: int = long(
        default=HOUR_MS,
        minimum=0,
        dynamic=True,
        doc="For topics that do not set `message.timestamp.after.max.ms`.",
    )
    compression_type: str = string(
        default="producer",
        choices=COMPRESSION_TYPES,
        dynamic=True,
        doc="For topics that do not set `compression.type`.",
    )
    compression_gzip_level: int = integer(
        default=-1,
        minimum=1,
        maximum=9,
        also=-1,
        dynamic=True,
        doc="For topics that do not set `compression.gzip.level`.",
    )
    compression_lz4_level: int = integer(
        default=9,
        minimum=1,
        maximum=17,
        dynamic=True,
        doc="For topics that do not set `compression.lz4.level`.",
    )
    compression_zstd_level: int = integer(
        default=3,
        minimum=-131072,
        maximum=22,
        dynamic=True,
        doc="For topics that do not set `compression.zstd.level`.",
    )

    @property
    def broker_id(self) -> int:
        """The older name of `node_id`."""
        return self.node_id

    @classmethod
    def from_text(cls, static: Mapping[str, str]) -> Self:
        """A configuration from checked names and texts; ConfigError for a value that cannot be used."""
        return cls(static=dict(static)).with_dynamic({}, {})

    def with_dynamic(self, dynamic_default: Mapping[str, str], dynamic: Mapping[str, str]) -> Self:
        """The same broker with other run-time settings: `dynamic` wins, then `dynamic_default`."""
        texts = {**self.static, **dynamic_default, **dynamic}
        values = {
            self.settings[name].attribute: self.settings[name].parse(text) for name, text in texts.items()
        }
        return type(self)(
            static=self.static, dynamic_default=dict(dynamic_default), dynamic=dict(dynamic), **values
        )
