"""The table of Kafka error codes, and the exceptions that carry them.

The exceptions a reader meets in Culver's own code:

    Exception
    ├── KafkaError         an answer with an error code; the connection goes on
    │   └── ConfigError    a setting that cannot be used: INVALID_CONFIG with the setting's name
    └── MalformedRequest   bytes that are no request at all; the connection is closed

Anything else that escapes a handler is a fault of the broker: the boundary logs it and answers with
UNKNOWN_SERVER_ERROR.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import NamedTuple

# In the table below: may a client simply try again?
RETRIABLE = True
FINAL = False


class ErrorCode(IntEnum):
    """Every error code of the protocol: its number, whether a retry may help, and what it says to a person.

    Numbers, names and retriability are the protocol's (Kafka 4.3); the texts are Culver's.
    """

    retriable: bool
    text: str

    def __new__(cls, code: int, retriable: bool = FINAL, text: str = "") -> ErrorCode:
        member = int.__new__(cls, code)
        member._value_ = code
        member.retriable = retriable
        member.text = text
        return member

    UNKNOWN_SERVER_ERROR = -1, FINAL, "the broker failed in a way it did not expect; its log says how"
    NONE = 0, FINAL, "no error"
    OFFSET_OUT_OF_RANGE = 1, FINAL, "the offset lies before the start or after the end of the partition"
    CORRUPT_MESSAGE = 2, RETRIABLE, "a record batch is damaged: its CRC, size or content does not fit"
    UNKNOWN_TOPIC_OR_PARTITION = 3, RETRIABLE, "this broker has no such topic or partition"
    INVALID_FETCH_SIZE = 4, FINAL, "the number of bytes asked for is not valid"
    LEADER_NOT_AVAILABLE = 5, RETRIABLE, "the partition has no leader at the moment; one is being elected"
    NOT_LEADER_OR_FOLLOWER = 6, RETRIABLE, "this broker does not lead the partition; refresh the metadata"
    REQUEST_TIMED_OUT = 7, RETRIABLE, "the request was not completed within its time limit"
    BROKER_NOT_AVAILABLE = 8, FINAL, "the broker cannot be reached"
    REPLICA_NOT_AVAILABLE = 9, RETRIABLE, "the broker holds no usable replica of the partition"
    MESSAGE_TOO_LARGE = 10, FINAL, "a record batch is larger than max.message.bytes allows"
    STALE_CONTROLLER_EPOCH = 11, FINAL, "the request comes from a controller that has been replaced"
    OFFSET_METADATA_TOO_LARGE = 12, FINAL, "the metadata of a committed offset is too long"
    NETWORK_EXCEPTION = 13, RETRIABLE, "the connection closed before the answer arrived"
    COORDINATOR_LOAD_IN_PROGRESS = 14, RETRIABLE, "the coordinator is still reading its state"
    COORDINATOR_NOT_AVAILABLE = 15, RETRIABLE, "no coordinator is available at the moment"
    NOT_COORDINATOR = 16, RETRIABLE, "this broker does not coordinate that group or transaction"
    INVALID_TOPIC_EXCEPTION = (
        17,
        FINAL,
        "the topic's name is not valid, or the topic may not be used this way",
    )
    RECORD_LIST_TOO_LARGE = 18, FINAL, "a record batch is larger than a whole segment may be"
    NOT_ENOUGH_REPLICAS = 19, RETRIABLE, "too few replicas are in sync to take the write"
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20, RETRIABLE, "written, but too few replicas stayed in sync"
    INVALID_REQUIRED_ACKS = 21, FINAL, "acks must be 0, 1 or -1"
    ILLEGAL_GENERATION = 22, FINAL, "the generation is not the group's current one; join again"
    INCONSISTENT_GROUP_PROTOCOL = 23, FINAL, "the member shares no assignment protocol with its group"
    INVALID_GROUP_ID = 24, FINAL, "the group id is not valid"
    UNKNOWN_MEMBER_ID = 25, FINAL, "the group has no member with that id; join again"
    INVALID_SESSION_TIMEOUT = 26, FINAL, "the session timeout is outside what the broker allows for groups"
    REBALANCE_IN_PROGRESS = 27, FINAL, "the group is rebalancing; join again"
    INVALID_COMMIT_OFFSET_SIZE = 28, FINAL, "the offset commit is too large to be stored"
    TOPIC_AUTHORIZATION_FAILED = 29, FINAL, "not allowed to do this with the topic"
    GROUP_AUTHORIZATION_FAILED = 30, FINAL, "not allowed to do this with the group"
    CLUSTER_AUTHORIZATION_FAILED = 31, FINAL, "not allowed to do this with the cluster"
    INVALID_TIMESTAMP = 32, FINAL, "a record's timestamp is further from now than the topic allows"
    UNSUPPORTED_SASL_MECHANISM = 33, FINAL, "the broker does not offer that SASL mechanism"
    ILLEGAL_SASL_STATE = 34, FINAL, "the request does not fit the state of the SASL exchange"
    UNSUPPORTED_VERSION = 35, FINAL, "the broker does not serve that version of the request"
    TOPIC_ALREADY_EXISTS = 36, FINAL, "a topic with that name exists already"
    INVALID_PARTITIONS = 37, FINAL, "the number of partitions is not valid"
    INVALID_REPLICATION_FACTOR = 38, FINAL, "the replication factor is below 1 or above the number of brokers"
    INVALID_REPLICA_ASSIGNMENT = 39, FINAL, "the assignment of replicas to brokers is not valid"
    INVALID_CONFIG = 40, FINAL, "a setting is unknown or its value is not valid"
    NOT_CONTROLLER = 41, RETRIABLE, "this broker is not the controller"
    INVALID_REQUEST = 42, FINAL, "the request contradicts itself or the protocol"
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43, FINAL, "the stored record format does not allow this request"
    POLICY_VIOLATION = 44, FINAL, "the request goes against a policy of the cluster"
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45, FINAL, "the producer's sequence number leaves a gap"
    DUPLICATE_SEQUENCE_NUMBER = 46, FINAL, "the producer's sequence number was written before"
    INVALID_PRODUCER_EPOCH = 47, FINAL, "the producer's epoch is older than the one last seen"
    INVALID_TXN_STATE = 48, FINAL, "the transaction is not in a state that allows this"
    INVALID_PRODUCER_ID_MAPPING = 49, FINAL, "the producer id does not belong to the transactional id"
    INVALID_TRANSACTION_TIMEOUT = 50, FINAL, "the transaction timeout is longer than the broker allows"
    CONCURRENT_TRANSACTIONS = 51, RETRIABLE, "an earlier step of the same transaction is still under way"
    TRANSACTION_COORDINATOR_FENCED = 52, FINAL, "the marker comes from a coordinator that has been replaced"
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53, FINAL, "not allowed to use the transactional id"
    SECURITY_DISABLED = 54, FINAL, "the broker runs without access control"
    OPERATION_NOT_ATTEMPTED = 55, FINAL, "skipped, because an earlier part of the same request failed"
    KAFKA_STORAGE_ERROR = 56, RETRIABLE, "the disk failed or is full; the broker's log says which file"
    LOG_DIR_NOT_FOUND = 57, FINAL, "the broker has no such data directory"
    SASL_AUTHENTICATION_FAILED = 58, FINAL, "the credentials were refused"
    UNKNOWN_PRODUCER_ID = 59, FINAL, "nothing is known of that producer id any more; start a new one"
    REASSIGNMENT_IN_PROGRESS = 60, FINAL, "the partition is being moved to other brokers"
    DELEGATION_TOKEN_AUTH_DISABLED = 61, FINAL, "delegation tokens are not in use here"
    DELEGATION_TOKEN_NOT_FOUND = 62, FINAL, "there is no such delegation token"
    DELEGATION_TOKEN_OWNER_MISMATCH = 63, FINAL, "the delegation token belongs to someone else"
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = (
        64,
        FINAL,
        "delegation tokens need a securely authenticated connection",
    )
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65, FINAL, "not allowed to use the delegation token"
    DELEGATION_TOKEN_EXPIRED = 66, FINAL, "the delegation token has expired"
    INVALID_PRINCIPAL_TYPE = 67, FINAL, "the kind of principal is not known"
    NON_EMPTY_GROUP = 68, FINAL, "the group still has members"
    GROUP_ID_NOT_FOUND = 69, FINAL, "there is no group with that id"
    FETCH_SESSION_ID_NOT_FOUND = 70, RETRIABLE, "the fetch session is not known any more; start a new one"
    INVALID_FETCH_SESSION_EPOCH = 71, RETRIABLE, "the fetch session is at another epoch; start a new one"
    LISTENER_NOT_FOUND = 72, RETRIABLE, "the leader has no listener of the kind the request came through"
    TOPIC_DELETION_DISABLED = 73, FINAL, "topics may not be deleted: delete.topic.enable is false"
    FENCED_LEADER_EPOCH = (
        74,
        RETRIABLE,
        "the leader epoch in the request is out of date; refresh the metadata",
    )
    UNKNOWN_LEADER_EPOCH = 75, RETRIABLE, "the leader epoch in the request is newer than the broker's"
    UNSUPPORTED_COMPRESSION_TYPE = 76, FINAL, "the compression codec is not known on one side"
    STALE_BROKER_EPOCH = 77, FINAL, "the broker has restarted since that request was made"
    OFFSET_NOT_AVAILABLE = 78, RETRIABLE, "a new leader does not yet know how far its replicas have come"
    MEMBER_ID_REQUIRED = 79, FINAL, "join again with the member id given in this answer"
    PREFERRED_LEADER_NOT_AVAILABLE = 80, RETRIABLE, "the partition's preferred leader is not available"
    GROUP_MAX_SIZE_REACHED = 81, FINAL, "the group has as many members as group.max.size allows"
    FENCED_INSTANCE_ID = 82, FINAL, "another member has taken over this group.instance.id"
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83, RETRIABLE, "no replica that could lead the partition is available"
    ELECTION_NOT_NEEDED = 84, RETRIABLE, "the partition already has the leader it should have"
    NO_REASSIGNMENT_IN_PROGRESS = 85, FINAL, "the partition is not being moved"
    GROUP_SUBSCRIBED_TO_TOPIC = 86, FINAL, "the group still subscribes to the topic"
    INVALID_RECORD = 87, FINAL, "a record breaks a rule of the format or of its topic"
    UNSTABLE_OFFSET_COMMIT = 88, RETRIABLE, "a transaction that commits these offsets is still open"
    THROTTLING_QUOTA_EXCEEDED = 89, RETRIABLE, "the quota is used up for now"
    PRODUCER_FENCED = 90, FINAL, "a newer producer uses the same transactional id"
    RESOURCE_NOT_FOUND = 91, FINAL, "the request names something that does not exist"
    DUPLICATE_RESOURCE = 92, FINAL, "the request names the same thing twice"
    UNACCEPTABLE_CREDENTIAL = 93, FINAL, "the credential does not meet the requirements"
    INCONSISTENT_VOTER_SET = 94, FINAL, "sender and receiver disagree on who may vote"
    INVALID_UPDATE_VERSION = 95, FINAL, "the version given for the update is not valid"
    FEATURE_UPDATE_FAILED = 96, FINAL, "the cluster's features could not be updated"
    PRINCIPAL_DESERIALIZATION_FAILURE = 97, FINAL, "the principal of a forwarded request cannot be read"
    SNAPSHOT_NOT_FOUND = 98, FINAL, "there is no such snapshot"
    POSITION_OUT_OF_RANGE = 99, FINAL, "the position lies outside the snapshot"
    UNKNOWN_TOPIC_ID = 100, RETRIABLE, "this broker has no topic with that id"
    DUPLICATE_BROKER_REGISTRATION = 101, FINAL, "another living broker uses that id"
    BROKER_ID_NOT_REGISTERED = 102, FINAL, "no broker with that id is registered"
    INCONSISTENT_TOPIC_ID = 103, RETRIABLE, "the topic's id is not the one the log was made for"
    INCONSISTENT_CLUSTER_ID = 104, FINAL, "the request was meant for another cluster"
    TRANSACTIONAL_ID_NOT_FOUND = 105, FINAL, "nothing is known of that transactional id"
    FETCH_SESSION_TOPIC_ID_ERROR = 106, RETRIABLE, "the fetch session mixes topic names and topic ids"
    INELIGIBLE_REPLICA = 107, FINAL, "a replica that may not join is in the proposed in-sync set"
    NEW_LEADER_ELECTED = 108, FINAL, "the partition changed as asked, and has a new leader"
    OFFSET_MOVED_TO_TIERED_STORAGE = 109, FINAL, "the offset is no longer on the broker's own disk"
    FENCED_MEMBER_EPOCH = (
        110,
        FINAL,
        "the member's epoch is out of date; give up its partitions and join again",
    )
    UNRELEASED_INSTANCE_ID = 111, FINAL, "another member still uses that instance id"
    UNSUPPORTED_ASSIGNOR = 112, FINAL, "the group does not know that assignor"
    STALE_MEMBER_EPOCH = 113, FINAL, "the member's epoch has moved on; retry after the next heartbeat"
    MISMATCHED_ENDPOINT_TYPE = 114, FINAL, "the request came to the wrong kind of endpoint"
    UNSUPPORTED_ENDPOINT_TYPE = 115, FINAL, "that kind of endpoint is not served"
    UNKNOWN_CONTROLLER_ID = 116, FINAL, "no controller has that id"
    UNKNOWN_SUBSCRIPTION_ID = 117, FINAL, "the telemetry subscription is unknown or out of date"
    TELEMETRY_TOO_LARGE = 118, FINAL, "the telemetry is larger than the broker takes"
    INVALID_REGISTRATION = 119, FINAL, "the broker's registration was refused"
    TRANSACTION_ABORTABLE = 120, FINAL, "the transaction failed; abort it and go on"
    INVALID_RECORD_STATE = 121, FINAL, "the record is not in a state that can be acknowledged"
    SHARE_SESSION_NOT_FOUND = 122, RETRIABLE, "the share session is not known any more; start a new one"
    INVALID_SHARE_SESSION_EPOCH = 123, RETRIABLE, "the share session is at another epoch; start a new one"
    FENCED_STATE_EPOCH = 124, FINAL, "the share group's state is at another epoch"
    INVALID_VOTER_KEY = 125, FINAL, "the voter key is not this replica's"
    DUPLICATE_VOTER = 126, FINAL, "that voter is in the set already"
    VOTER_NOT_FOUND = 127, FINAL, "that voter is not in the set"
    INVALID_REGULAR_EXPRESSION = 128, FINAL, "the regular expression cannot be read"
    REBOOTSTRAP_REQUIRED = (
        129,
        FINAL,
        "what the client knows is too old; connect to the bootstrap servers again",
    )
    STREAMS_INVALID_TOPOLOGY = 130, FINAL, "the streams topology is not valid"
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131, FINAL, "the epoch of the streams topology is not valid"
    STREAMS_TOPOLOGY_FENCED = 132, FINAL, "the epoch of the streams topology is out of date"
    SHARE_SESSION_LIMIT_REACHED = 133, RETRIABLE, "the broker has no room for another share session"


class ErrorInfo(NamedTuple):
    """One row of the table."""

    code: ErrorCode
    name: str
    retriable: bool
    text: str


ERRORS: Mapping[int, ErrorInfo] = {
    int(code): ErrorInfo(code, code.name, code.retriable, code.text) for code in ErrorCode
}


class KafkaError(Exception):
    """A request, or part of one, that is answered with an error code."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(code, message)
        self.code = code
        self.message = message or code.text

    @property
    def retriable(self) -> bool:
        return self.code.retriable

    def __str__(self) -> str:
        return f"{self.code.name}: {self.message}"


class ConfigError(KafkaError):
    """A setting that is unknown or has a value that cannot be used."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(ErrorCode.INVALID_CONFIG, message)
        self.name = name

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> tuple[type[ConfigError], tuple[str, str]]:
        return (ConfigError, (self.name, self.message))


class MalformedRequest(Exception):
    """Bytes from the wire that cannot be parsed. There is no one to answer: the connection is closed."""
