"""Records that brokers write for themselves, in words: transaction markers, and those of the internal topics."""

from __future__ import annotations

import base64
from struct import Struct
from struct import error as struct_error
from typing import Any, NamedTuple

from culver.core.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from culver.errors import MalformedRequest
from culver.protocol.messages import consumer_group_state as consumer_groups
from culver.protocol.messages import group_state as groups
from culver.protocol.messages import transaction_state as transactions
from culver.protocol.records import Record
from culver.protocol.schema import Field, Message, decoder

_INT16 = Struct(">h")
_TWO_INT16 = Struct(">hh")
_MARKER_VALUE = Struct(">hi")
_MARKERS = {0: "abort", 1: "commit"}

_Kind = tuple[str, type[Message], type[Message]]

_OFFSET: _Kind = ("offset", groups.OffsetCommitKey, groups.OffsetCommitValue)
# Topic: what the number before a key stands for.
_KINDS: dict[str, dict[int, _Kind]] = {
    GROUP_OFFSETS_TOPIC: {
        0: _OFFSET,
        1: _OFFSET,
        2: ("group", groups.GroupMetadataKey, groups.GroupMetadataValue),
        3: (
            "consumer group",
            consumer_groups.ConsumerGroupMetadataKey,
            consumer_groups.ConsumerGroupMetadataValue,
        ),
        4: (
            "subscribed topics",
            consumer_groups.ConsumerGroupPartitionMetadataKey,
            consumer_groups.ConsumerGroupPartitionMetadataValue,
        ),
        5: (
            "member",
            consumer_groups.ConsumerGroupMemberMetadataKey,
            consumer_groups.ConsumerGroupMemberMetadataValue,
        ),
        6: (
            "target epoch",
            consumer_groups.ConsumerGroupTargetAssignmentMetadataKey,
            consumer_groups.ConsumerGroupTargetAssignmentMetadataValue,
        ),
        7: (
            "target assignment",
            consumer_groups.ConsumerGroupTargetAssignmentMemberKey,
            consumer_groups.ConsumerGroupTargetAssignmentMemberValue,
        ),
        8: (
            "current assignment",
            consumer_groups.ConsumerGroupCurrentMemberAssignmentKey,
            consumer_groups.ConsumerGroupCurrentMemberAssignmentValue,
        ),
        16: (
            "pattern",
            consumer_groups.ConsumerGroupRegularExpressionKey,
            consumer_groups.ConsumerGroupRegularExpressionValue,
        ),
    },
    TRANSACTION_STATE_TOPIC: {
        0: ("transaction", transactions.TransactionLogKey, transactions.TransactionLogValue)
    },
}
# Numbers that have names.
_TRANSACTION_STATES = (
    "empty",
    "ongoing",
    "prepare-commit",
    "prepare-abort",
    "complete-commit",
    "complete-abort",
    "dead",
    "prepare-epoch-fence",
)
_MEMBER_STATES = {0: "stable", 1: "unrevoked-partitions", 2: "unreleased-partitions"}
_NAMED = {
    (transactions.TransactionLogValue, "transaction_status"): dict(enumerate(_TRANSACTION_STATES)),
    (consumer_groups.ConsumerGroupCurrentMemberAssignmentValue, "state"): _MEMBER_STATES,
}


class Marker(NamedTuple):
    """The end of a transaction in a partition."""

    # "commit", "abort", or "control type N" for one that is no transaction's.
    outcome: str
    # None where the marker has none.
    coordinator_epoch: int | None


class StateRecord(NamedTuple):
    """A record of an internal topic: what it is about, its key, its value; no value means that it is gone."""

    kind: str
    key: dict[str, Any]
    value: dict[str, Any] | None


def marker_of(record: Record) -> Marker | None:
    """What a record of a control batch says; None when it is cut short."""
    try:
        _, kind = _TWO_INT16.unpack_from(record.key or b"")
        if kind not in _MARKERS:
            return Marker(f"control type {kind}", None)
        _, coordinator_epoch = _MARKER_VALUE.unpack_from(record.value or b"")
    except struct_error:
        return None
    return Marker(_MARKERS[kind], coordinator_epoch)


def state_record(topic: str, record: Record) -> StateRecord | None:
    """What a record of an internal topic says; None for other topics, and for what this version cannot read."""
    kinds = _KINDS.get(topic)
    if kinds is None or record.key is None:
        return None
    try:
        (number,) = _INT16.unpack_from(record.key)
        kind, key, value = kinds[number]
        return StateRecord(
            kind,
            _decoded(key, 0, bytes(record.key)),
            None if record.value is None else _decoded_value(value, bytes(record.value)),
        )
    except (struct_error, KeyError, MalformedRequest, ValueError):
        return None


def _decoded_value(message: type[Message], data: bytes) -> dict[str, Any]:
    (version,) = _INT16.unpack_from(data)
    return {"version": version} | _decoded(message, version, data)


def _decoded(message: type[Message], version: int, data: bytes) -> dict[str, Any]:
    """Of data that starts with a number which says what it is."""
    found, _ = decoder(message, version)(data, _INT16.size)
    return _as_json(found, version)


def _as_json(message: Message, version: int) -> dict[str, Any]:
    shown = {}
    for field in message.SCHEMA.fields:
        if not field.present(version):
            continue
        value = getattr(message, field.name)
        names = _NAMED.get((type(message), field.name), {})
        shown[field.name] = names.get(value, value) if names else _value(field, value, version)
    return shown


def _value(field: Field, value: Any, version: int) -> Any:
    if isinstance(value, Message):
        return _as_json(value, version)
    if isinstance(value, list):
        of = field.element
        return [
            _value(of, each, version) if isinstance(of, Field) else _as_json(each, version) for each in value
        ]
    if field.kind == "uuid":
        # As Kafka's tools print an id.
        return base64.urlsafe_b64encode(value).decode().rstrip("=")
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    return value
