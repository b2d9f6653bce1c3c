"""Every difference between Culver's answers and Kafka's that is left, each with its reason."""

from __future__ import annotations

from collections.abc import Iterable

from differential.compare import ABSENT, PRESENT, Difference
from differential.play import NO_ANSWER

ANYTHING = "*"
TEXT = "<text>"

# Kafka's internal errors: nobody can rely on them.
FAILS_INSIDE = "Kafka fails inside on this input; Culver has an answer for it"
SAYS_WHY = "Kafka gives the code only; Culver's message says what is wrong"
EMPTY_TOPIC = (
    "Kafka leaves a topic out of the answer if no partition of it was asked for; Culver answers as asked"
)
NOT_DECODED = (
    "records are not decoded on the way in unless the topic's configuration needs it: the batch header and "
    "CRC are checked, and what a producer put behind them is for its readers"
)
REPEATED = (
    "Kafka drops all but one of a partition's batches and says nothing; Culver appends and answers each"
)
CREATED_AT_ONCE = "Culver makes the topic before it answers; Kafka answers first and makes it afterwards"
NO_TIMEOUT = "the topic is made at once; Kafka hands the request to its controller and does not wait for it"
OWN_SETTING = "a setting that only Culver has"
ELR = "Kafka's metadata holds a cluster-wide default for this since it has eligible leader replicas"
STRICTER = "bytes that are no request close the connection in Culver; Kafka makes something of them"
NOT_A_BROKER = (
    "only brokers of the cluster, who know its secret, may speak as replicas; Kafka believes anybody"
)
NO_MARKERS = (
    "from a client only where no coordinator can do it: open for longer than transaction.max.timeout.ms"
)
WAITS = (
    "the request waits until what is open has ended, for five seconds at most; Kafka has the client ask again"
)
NO_LOG_START = "in an error the log start offset means nothing; which errors carry it differs"

# API keys that Kafka serves and Culver does not.
NOT_SERVED: dict[str, Iterable[int]] = {
    "SASL is not served yet": (17, 36),
    "access control lists are not served yet": (29, 30, 31),
    "a broker has one log directory": (34,),
    "delegation tokens are not planned": (38, 39, 40, 41),
    "quotas are not served yet": (48, 49),
    "SCRAM credentials are not served yet": (50, 51),
    "KRaft's own, which Culver does not have": (55, 57, 80, 81),
    "groups and metrics have no settings of their own yet": (74,),
    "share groups are not served yet": (76, 77, 78, 79, 83, 84, 85, 86, 87, 90, 91, 92),
    "streams groups are not planned": (88, 89),
}


def difference(script: str, step: str, field: str, kafka: str, culver: str, reason: str) -> Difference:
    return Difference(script, step, field, kafka, culver, reason)


def _api_versions() -> list[Difference]:
    rows = [
        difference("api versions*", ANYTHING, f"api_keys[{key}]", PRESENT, ABSENT, reason)
        for reason, keys in NOT_SERVED.items()
        for key in keys
    ]
    for feature in (
        "eligible.leader.replicas.version",
        "kraft.version",
        "metadata.version",
        "share.version",
        "streams.version",
    ):
        for field in (f"supported_features[{feature}]", f"finalized_features[{feature}]"):
            reason = "a feature of Kafka's own inside, or one that Culver does not serve"
            rows.append(difference("api versions", ANYTHING, field, PRESENT, ABSENT, reason))
    return rows


DIFFERENCES: list[Difference] = [
    *_api_versions(),
    # --- frames ---
    *(
        difference("broken frames", step, "answer", "answered", "connection closed", STRICTER)
        for step in (
            "client id of length -2",
            "client id that is not UTF-8",
            "array of -2 elements",
            "the same tag twice",
        )
    ),
    # --- texts ---
    difference(ANYTHING, ANYTHING, "*error_message", "null", TEXT, SAYS_WHY),
    difference(ANYTHING, ANYTHING, "*error_message", "", TEXT, SAYS_WHY),
    difference("reassign partitions", "nothing*", "error_message", "", "null", "no error, no message"),
    # --- who poses as a broker ---
    *(
        difference(
            "fetch epochs", "from a replica*", field, kafka, "CLUSTER_AUTHORIZATION_FAILED", NOT_A_BROKER
        )
        for field, kafka in (
            ("error_code", "NONE"),
            ("*partitions[0].error_code", "NOT_LEADER_OR_FOLLOWER"),
        )
    ),
    *(
        difference("offset for leader epoch", "as a replica", field, kafka, culver, NOT_A_BROKER)
        for field, kafka, culver in (
            ("*error_code", "NONE", "CLUSTER_AUTHORIZATION_FAILED"),
            ("*leader_epoch", "0", "-1"),
            ("*end_offset", "3", "-1"),
        )
    ),
    *(
        difference(
            "markers from clients", ANYTHING, "*error_code", kafka, "CLUSTER_AUTHORIZATION_FAILED", NO_MARKERS
        )
        for kafka in ("NONE", "UNKNOWN_SERVER_ERROR", "UNKNOWN_TOPIC_OR_PARTITION")
    ),
    *(
        difference("partitions added in the way of brokers", step, field, kafka, culver, NOT_A_BROKER)
        for step, field, kafka, culver in (
            ("*, v*", "error_code", "NONE", "CLUSTER_AUTHORIZATION_FAILED"),
            ("*, v*", "results_by_transaction[*]", PRESENT, ABSENT),
            ("none", "answer", NO_ANSWER, "*CLUSTER_AUTHORIZATION_FAILED*"),
        )
    ),
    # --- metadata ---
    difference(
        "metadata by id",
        "by neither*",
        "*error_code",
        "UNKNOWN_SERVER_ERROR",
        "INVALID_REQUEST",
        FAILS_INSIDE,
    ),
    difference(
        "metadata creates topics",
        "first ask*",
        "*error_code",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "NONE",
        CREATED_AT_ONCE,
    ),
    difference("metadata creates topics", "first ask*", "*partitions[0]", ABSENT, PRESENT, CREATED_AT_ONCE),
    difference(
        "metadata creates topics",
        "two that collide",
        "*error_code",
        "UNKNOWN_TOPIC_OR_PARTITION",
        "INVALID_TOPIC_EXCEPTION",
        "the name collides with another; Kafka says so only in its log",
    ),
    difference(
        "describe topic partitions",
        "an empty name",
        "*error_code",
        "UNKNOWN_SERVER_ERROR",
        "INVALID_TOPIC_EXCEPTION",
        FAILS_INSIDE,
    ),
    difference(
        "describe topic partitions",
        "an empty name",
        "*topic_authorized_operations",
        "-2147483648",
        "3576",
        FAILS_INSIDE,
    ),
    difference(
        "find coordinator",
        "a share key",
        "*error_code",
        "COORDINATOR_NOT_AVAILABLE",
        "INVALID_REQUEST",
        "share groups are not served yet, and waiting for their coordinator would not help",
    ),
    # --- topics ---
    difference("create topics*", ANYTHING, "*configs[culver.flush]", ABSENT, PRESENT, OWN_SETTING),
    difference("create topics*", ANYTHING, "*configs[min.insync.replicas].config_source", "3", "5", ELR),
    *(
        difference("create topics", "*timeout*", field, kafka, culver, NO_TIMEOUT)
        for field, kafka, culver in (
            ("*error_code", "REQUEST_TIMED_OUT", "NONE"),
            ("*topic_id", "<no id>", "<some id>"),
            ("*num_partitions", "-1", "1"),
            ("*replication_factor", "-1", "1"),
            ("*configs[*]", ABSENT, PRESENT),
        )
    ),
    difference(
        "create topics with configs",
        "a number with spaces",
        "*configs[retention.ms].value",
        " 100000 ",
        "100000",
        "Culver keeps the number that it understood, Kafka the text that it was given",
    ),
    difference(
        "delete topics",
        "a topic by id and by name",
        "*topic_id",
        "<id of delete.other>",
        "<no id>",
        "the refusal names the topic as the request's last entry for it does",
    ),
    difference(
        "create partitions",
        "far too many",
        "*error_code",
        "UNKNOWN_SERVER_ERROR",
        "POLICY_VIOLATION",
        FAILS_INSIDE,
    ),
    # --- configuration ---
    difference("describe topic configs", ANYTHING, "*configs[culver.flush]", ABSENT, PRESENT, OWN_SETTING),
    difference("describe * configs", ANYTHING, "*configs[min.insync.replicas].config_source", "3", "5", ELR),
    difference(
        "describe * configs", ANYTHING, "*configs[min.insync.replicas].synonyms[*].source", "3", "5", ELR
    ),
    difference(
        "describe * configs",
        ANYTHING,
        "*configs[min.insync.replicas].synonyms[min.insync.replicas again]",
        PRESENT,
        ABSENT,
        ELR,
    ),
    difference(
        "describe broker configs",
        "the cluster's defaults",
        "*configs[min.insync.replicas]",
        PRESENT,
        ABSENT,
        ELR,
    ),
    *(
        difference(
            "describe broker configs",
            "known settings",
            f"*configs[{name}].read_only",
            "False",
            "True",
            "Culver reads this setting at the start only",
        )
        for name in ("max.connections", "producer.id.expiration.ms")
    ),
    difference(
        "describe broker configs",
        "known settings",
        "*configs[queued.max.request.bytes]*value",
        "-1",
        "268435456",
        "what half-sent requests may hold in memory has a bound by default",
    ),
    difference(
        "alter topic configs",
        "a resource twice",
        "answer",
        NO_ANSWER,
        "*INVALID_REQUEST*",
        FAILS_INSIDE,
    ),
    difference(
        "change topic configs",
        "* operation",
        "*error_code",
        "UNKNOWN_SERVER_ERROR",
        "INVALID_REQUEST",
        FAILS_INSIDE,
    ),
    difference(
        "change broker configs",
        "an unknown setting",
        "*error_code",
        "NONE",
        "INVALID_CONFIG",
        "Kafka keeps settings that it does not know, for plug-ins; in Culver such a name is a typing error",
    ),
    # --- produce ---
    difference(
        "produce to where nothing is", "a topic without partitions", "*", ABSENT, PRESENT, EMPTY_TOPIC
    ),
    difference("produce one partition twice", ANYTHING, "*again]", ABSENT, PRESENT, REPEATED),
    difference("produce one partition twice", "the same topic twice", "*base_offset", "1", "2", REPEATED),
    difference("produce one partition twice", "after that", "*base_offset", "2", "4", REPEATED),
    difference("produce bad batches", "null", "answer", NO_ANSWER, "*INVALID_RECORD*", FAILS_INSIDE),
    difference(
        "produce bad batches",
        "a length of 2147483647",
        "*error_code",
        "UNKNOWN_SERVER_ERROR",
        "INVALID_RECORD",
        FAILS_INSIDE,
    ),
    difference(
        "produce bad batches",
        "a codec nobody knows",
        "*error_code",
        "UNKNOWN_SERVER_ERROR",
        "UNSUPPORTED_COMPRESSION_TYPE",
        FAILS_INSIDE,
    ),
    *(
        difference(script, ANYTHING, "*log_start_offset", "-1", "0", NO_LOG_START)
        for script in ("produce bad batches", "produce too much", "sequences")
    ),
    *(
        difference("produce batches that are bad inside", step, field, kafka, culver, NOT_DECODED)
        for step, code in (
            ("a delta and a count of one more", "INVALID_RECORD"),
            ("a delta and a count of one less", "INVALID_RECORD"),
            ("records that are no records", "UNKNOWN_SERVER_ERROR"),
            ("no record bytes", "INVALID_RECORD"),
            ("record bytes left over", "INVALID_RECORD"),
            ("gzip that is none", "UNKNOWN_SERVER_ERROR"),
        )
        for field, kafka, culver in (("*error_code", code, "NONE"), ("*base_offset", "-1", "0"))
    ),
    *(
        difference(
            "produce batches that are bad inside",
            f"{step}, to a compacted topic",
            "*error_code",
            "UNKNOWN_SERVER_ERROR",
            code,
            FAILS_INSIDE,
        )
        for step, code in (
            ("records that are no records", "INVALID_RECORD"),
            ("gzip that is none", "CORRUPT_MESSAGE"),
        )
    ),
    difference(
        "produce batches that are bad inside",
        "gzip that is none, to a compacted topic",
        "*log_start_offset",
        "0",
        "-1",
        NO_LOG_START,
    ),
    difference(
        "produce times",
        "append time in the batch, to times.append",
        "*record_errors[*]",
        PRESENT,
        ABSENT,
        "what is wrong is wrong with the batch as a whole; Culver names its first record, Kafka every one",
    ),
    # --- transactions ---
    *(
        difference(
            "transactions that are taken over", "another producer comes, v*", field, kafka, culver, WAITS
        )
        for field, kafka, culver in (
            ("error_code", "CONCURRENT_TRANSACTIONS", "NONE"),
            ("producer_id", "-1", "<producer *>"),
            ("producer_epoch", "-1", "*"),
        )
    ),
    difference(
        "transactions with bad partitions",
        "produce to __consumer_offsets, v11",
        "*error_code",
        "TRANSACTION_ABORTABLE",
        "INVALID_TOPIC_EXCEPTION",
        "both are wrong with it; Kafka looks at the transaction first",
    ),
    difference("transaction offsets with bad input", "no partitions*", "*", ABSENT, PRESENT, EMPTY_TOPIC),
    # --- groups ---
    difference(
        "group with much metadata",
        "join with 2 MB of metadata",
        "error_code",
        "0",
        "10",
        "a group's record cannot be larger than message.max.bytes: Kafka finds out at the end of the rebalance",
    ),
    difference(
        "consumer group of two",
        "the second joins",
        "heartbeat_interval_ms",
        "5000",
        "500",
        "a member that waits for partitions of another is told to ask sooner",
    ),
    difference(
        "consumer groups with patterns",
        "a pattern",
        "assignment.*",
        ABSENT,
        PRESENT,
        "Kafka looks for matching topics after it has answered; Culver before",
    ),
    difference(
        "consumer groups and offsets",
        "fetch, no member with an epoch, v9",
        "*error_code",
        "UNKNOWN_SERVER_ERROR",
        "UNKNOWN_MEMBER_ID",
        FAILS_INSIDE,
    ),
    # --- fetch and offsets ---
    difference("fetch", "isolation level *", "error_code", "UNKNOWN_SERVER_ERROR", "NONE", FAILS_INSIDE),
    difference(
        "fetch",
        "isolation level *",
        "*[0].error_code",
        "UNKNOWN_SERVER_ERROR",
        "INVALID_REQUEST",
        FAILS_INSIDE,
    ),
    difference("fetch", "isolation level *", "*aborted_transactions", "[]", "null", FAILS_INSIDE),
    difference("fetch limits", "* limit -1", "*error_code", "UNKNOWN_SERVER_ERROR", "NONE", FAILS_INSIDE),
    *(
        difference("fetch limits", "* limit -1", f"*{field}", kafka, culver, FAILS_INSIDE)
        for field, kafka, culver in (
            ("high_watermark", "-1", "8"),
            ("last_stable_offset", "-1", "8"),
            ("log_start_offset", "-1", "0"),
            ("partitions[0].records[0]", ABSENT, PRESENT),
        )
    ),
    difference("fetch limits", "total limit -1", "*partitions[1].records[0]", PRESENT, ABSENT, FAILS_INSIDE),
    difference(
        "list offsets",
        "isolation level 2",
        "*error_code",
        "UNKNOWN_SERVER_ERROR",
        "INVALID_REQUEST",
        FAILS_INSIDE,
    ),
    difference("list offsets where nothing is", "no partitions", "*", ABSENT, PRESENT, EMPTY_TOPIC),
    difference("commit without members", "no partitions", "*", ABSENT, PRESENT, EMPTY_TOPIC),
    difference("offset delete", "no partitions", "*", ABSENT, PRESENT, EMPTY_TOPIC),
]
