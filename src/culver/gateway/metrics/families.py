"""Every metric that is exported of brokers, topics and groups: its name, its kind, and what it says.

The names that begin with `kafka_` are those of kafka_exporter, with its labels, so that dashboards and alerts made for
it work as they are. What the gateway counts of itself is declared in `gateway_metrics`.
"""

from __future__ import annotations

from typing import NamedTuple

GAUGE = "gauge"
COUNTER = "counter"
HISTOGRAM = "histogram"


class Family(NamedTuple):
    """One metric. All that have the same name differ in their labels."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help: str


_TOPIC = ("topic",)
_PARTITION = ("topic", "partition")
_GROUP = ("consumergroup",)
_GROUP_TOPIC = ("consumergroup", "topic")
_GROUP_PARTITION = ("consumergroup", "topic", "partition")
_BROKER = ("broker",)

_ALL = (
    # kafka_exporter's
    Family("kafka_brokers", GAUGE, (), "Number of brokers in the cluster."),
    Family("kafka_broker_info", GAUGE, ("id", "address"), "A broker of the cluster and its address."),
    Family("kafka_topic_partitions", GAUGE, _TOPIC, "Number of partitions of the topic."),
    Family(
        "kafka_topic_partition_current_offset",
        GAUGE,
        _PARTITION,
        "Where the partition ends: its newest offset.",
    ),
    Family("kafka_topic_partition_oldest_offset", GAUGE, _PARTITION, "Where the partition begins."),
    Family("kafka_topic_partition_in_sync_replica", GAUGE, _PARTITION, "Number of in-sync replicas."),
    Family("kafka_topic_partition_leader", GAUGE, _PARTITION, "The broker that leads the partition."),
    Family(
        "kafka_topic_partition_leader_is_preferred",
        GAUGE,
        _PARTITION,
        "1 if the leader is the first of the partition's replicas.",
    ),
    Family("kafka_topic_partition_replicas", GAUGE, _PARTITION, "Number of replicas."),
    Family(
        "kafka_topic_partition_under_replicated_partition",
        GAUGE,
        _PARTITION,
        "1 if a replica of the partition is not in sync.",
    ),
    Family("kafka_consumergroup_current_offset", GAUGE, _GROUP_PARTITION, "What the group has committed."),
    Family("kafka_consumergroup_current_offset_sum", GAUGE, _GROUP_TOPIC, "The same, summed over the topic."),
    Family("kafka_consumergroup_lag", GAUGE, _GROUP_PARTITION, "Offsets between the commit and the end."),
    Family("kafka_consumergroup_lag_sum", GAUGE, _GROUP_TOPIC, "The same, summed over the topic."),
    Family("kafka_consumergroup_members", GAUGE, _GROUP, "Number of members of the group."),
    # Culver's, of the cluster
    Family(
        "culver_consumergroup_lag_seconds",
        GAUGE,
        _GROUP_PARTITION,
        "For how long the first record that the group has not read has been there.",
    ),
    Family("culver_offline_partitions", GAUGE, (), "Number of partitions without a leader."),
    Family("culver_up", GAUGE, _BROKER, "1 if the broker answered when these metrics were gathered."),
    Family("culver_scrape_seconds", GAUGE, (), "How long it took to gather these metrics."),
    # Culver's, of brokers
    Family(
        "culver_broker_start_time_seconds",
        GAUGE,
        _BROKER,
        "When the broker was started, in seconds since 1970.",
    ),
    Family("culver_active_controller", GAUGE, _BROKER, "1 if the broker is the controller."),
    Family("culver_connections", GAUGE, _BROKER, "Open connections of clients and other brokers."),
    Family("culver_connections_opened_total", COUNTER, _BROKER, "Connections that have been opened."),
    Family("culver_received_bytes_total", COUNTER, _BROKER, "Bytes of all requests."),
    Family("culver_sent_bytes_total", COUNTER, _BROKER, "Bytes of all responses."),
    Family(
        "culver_messages_in_total", COUNTER, _BROKER, "Messages that producers wrote to partitions led here."
    ),
    Family("culver_bytes_in_total", COUNTER, _BROKER, "Bytes of the batches in which producers sent them."),
    Family("culver_replicated_bytes_in_total", COUNTER, _BROKER, "Bytes of batches fetched from leaders."),
    Family("culver_topic_messages_in_total", COUNTER, ("broker", "topic"), "Messages that producers wrote."),
    Family("culver_topic_bytes_in_total", COUNTER, ("broker", "topic"), "Bytes of the batches they came in."),
    Family("culver_log_size_bytes", GAUGE, ("broker", *_PARTITION), "Size of a replica's log on disk."),
    Family(
        "culver_request_duration_seconds",
        HISTOGRAM,
        ("broker", "api"),
        "From reading a request to handing the response to the socket; fetches wait for data in it.",
    ),
    Family(
        "culver_request_errors_total", COUNTER, ("broker", "api", "error"), "Errors in responses, by name."
    ),
    Family("culver_fsync_duration_seconds", HISTOGRAM, _BROKER, "How long flushes of logs to disk took."),
    Family(
        "culver_event_loop_lag_seconds",
        HISTOGRAM,
        _BROKER,
        "How much later than planned the event loop ran a timer.",
    ),
    Family(
        "culver_isr_shrinks_total",
        COUNTER,
        _BROKER,
        "Times in-sync replicas were lost, of partitions led here.",
    ),
    Family("culver_isr_expansions_total", COUNTER, _BROKER, "Times in-sync replicas came back, likewise."),
    Family(
        "culver_leader_elections_total",
        COUNTER,
        _BROKER,
        "Times the broker was elected leader of a partition.",
    ),
    Family("culver_partitions", GAUGE, _BROKER, "Replicas that the broker holds."),
    Family("culver_leaders", GAUGE, _BROKER, "Partitions that the broker leads."),
    Family("culver_under_replicated_partitions", GAUGE, _BROKER, "Those of them with replicas out of sync."),
    Family(
        "culver_under_min_isr_partitions",
        GAUGE,
        _BROKER,
        "Those with fewer than min.insync.replicas in sync.",
    ),
    Family("culver_failed_logs", GAUGE, _BROKER, "Logs that cannot be written or are corrupt."),
    Family("culver_groups", GAUGE, _BROKER, "Groups that the broker coordinates."),
    Family("culver_open_transactions", GAUGE, _BROKER, "Transactions under way that the broker coordinates."),
)

FAMILIES: dict[str, Family] = {family.name: family for family in _ALL}
