"""Answers made comparable: what two brokers cannot have in common (ids, addresses, times) gets a name."""

from __future__ import annotations

import re
import time
from typing import Any

from culver.errors import ErrorCode, KafkaError
from culver.protocol.records import decode_records, iterate_headers, verify_crc
from culver.protocol.schema import ZERO_UUID, Message

UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
NOW_WITHIN_MS = 10 * 60 * 1000
DECOMPRESSED_BYTES_MAX = 1 << 24

IGNORED_FIELDS = {"throttle_time_ms"}
NODE_FIELDS = {"node_id", "leader_id", "controller_id", "broker_id", "preferred_read_replica"}
NODE_LIST_FIELDS = {
    "replica_nodes",
    "isr_nodes",
    "offline_replicas",
    "eligible_leader_replicas",
    "last_known_elr",
    "broker_ids",
}
TEXT_FIELDS = {"error_message", "batch_index_error_message", "documentation"}
# With how much a group begins to count is its broker's affair.
GROUP_EPOCH_FIELDS = {"member_epoch", "group_epoch", "assignment_epoch"}
MEMBER_FIELDS = {"member_id", "leader"}
TIME_FIELDS = {
    "timestamp",
    "log_append_time_ms",
    "last_timestamp",
    "base_timestamp",
    "max_timestamp",
    "transaction_start_time_ms",
}
ADDRESS_FIELDS = {"host", "client_host"}
INDEX_LIST_FIELDS = {"partitions", "subscribed_topic_names"}
# Brokers build these from hash tables: their order carries no meaning.
SORT_KEYS = (
    "name",
    "topic",
    "topic_name",
    "topic_id",
    "group_id",
    "key",
    "api_key",
    "member_id",
    "transactional_id",
    "partition_index",
    "partition",
    "index",
    "producer_id",
)


class Normaliser:
    """What one broker's values are called in a transcript. Ids are numbered in the order they appear."""

    def __init__(self, host: str, port: int, node_id: int) -> None:
        self._host = host
        self._port = port
        self._node_id = node_id
        self._topic_names: dict[bytes, str] = {}
        self._producers: dict[int, str] = {}
        self._members: dict[str, str] = {}
        self._first_epoch = 0

    def topic_is(self, topic_id: bytes, name: str) -> None:
        """From now on this id is shown as the name's."""
        self._topic_names[topic_id] = name

    def member_is_known(self, member_id: str) -> None:
        """Gives a member its number before it appears among others in an order of the broker's own."""
        self._member(member_id)

    def producer_is_known(self, producer_id: int) -> None:
        """The same for a producer."""
        self._producer(producer_id)

    def new_group(self) -> None:
        """Epochs of groups are counted from the first that a member is given from now on."""
        self._first_epoch = 0

    def message(self, message: Message, *, ordered: bool = False) -> dict[str, Any]:
        values = {}
        for field in message.SCHEMA.fields:
            if field.name in IGNORED_FIELDS:
                continue
            values[field.name] = self._value(field.name, getattr(message, field.name), ordered)
        return values

    def _value(self, name: str, value: Any, ordered: bool) -> Any:
        if isinstance(value, Message):
            return self.message(value, ordered=ordered)
        if name == "records":
            return None if value is None else self._records(value)
        if isinstance(value, list):
            if name in NODE_LIST_FIELDS:
                return [self._node(node) for node in value]
            items = [self._value(name, item, ordered) for item in value]
            if not ordered and items and isinstance(items[0], dict):
                items = _merged(items)
                items.sort(key=_sort_key)
            elif not ordered and name in INDEX_LIST_FIELDS:
                items.sort()
            return items
        if name in TEXT_FIELDS:
            return value if not value else "<text>"
        if name in NODE_FIELDS:
            return self._node(value)
        if name in ADDRESS_FIELDS:
            return "<host>" if value.lstrip("/") == self._host else value
        if name == "port":
            return "<port>" if value == self._port else value
        if name == "cluster_id":
            return "<cluster id>" if value else value
        if name == "topic_id":
            return self._topic(value)
        if name in MEMBER_FIELDS:
            return value if value is None else self._member(value)
        if name in GROUP_EPOCH_FIELDS:
            return self._group_epoch(name, value)
        if name == "producer_id":
            return self._producer(value)
        if name in TIME_FIELDS:
            return _time(value)
        if name == "session_id":
            return "<session>" if value else 0
        if name == "log_dir":
            return "<directory>"
        if name == "finalized_features_epoch":
            return "<epoch>" if value >= 0 else value
        if name in ("total_bytes", "usable_bytes"):
            return "<bytes>" if value > 0 else value
        if name.endswith("error_code"):
            return _error(value)
        if isinstance(value, bytes | bytearray | memoryview):
            return bytes(value).hex()
        return value

    def _node(self, node_id: int) -> str | int:
        return "<node>" if node_id == self._node_id else node_id

    def _topic(self, topic_id: bytes) -> str:
        if topic_id == ZERO_UUID:
            return "<no id>"
        name = self._topic_names.get(topic_id)
        return "<some id>" if name is None else f"<id of {name}>"

    def _member(self, member_id: str) -> str:
        found = UUID.search(member_id)
        if found is None:
            return member_id
        number = self._members.setdefault(found.group(), f"<uuid {len(self._members) + 1}>")
        return member_id.replace(found.group(), number)

    def _group_epoch(self, name: str, epoch: int) -> str | int:
        if name == "member_epoch" and epoch > 0:
            self._first_epoch = self._first_epoch or epoch
        return f"<first {epoch - self._first_epoch:+}>" if epoch > 0 else epoch

    def _producer(self, producer_id: int) -> str | int:
        if producer_id < 0:
            return producer_id
        return self._producers.setdefault(producer_id, f"<producer {len(self._producers) + 1}>")

    def _records(self, records: Any) -> list[Any]:
        """Each batch as its header and its records. What follows the last whole batch is counted."""
        data = memoryview(bytes(records))
        batches: list[Any] = []
        position = 0
        try:
            for start, header in iterate_headers(data):
                position = start + header.size_bytes
                shown = {
                    "base_offset": header.base_offset,
                    "partition_leader_epoch": header.partition_leader_epoch,
                    "attributes": header.attributes,
                    "last_offset_delta": header.last_offset_delta,
                    "base_timestamp": _time(header.base_timestamp),
                    "max_timestamp": _time(header.max_timestamp),
                    "producer_id": self._producer(header.producer_id),
                    "producer_epoch": header.producer_epoch,
                    "base_sequence": header.base_sequence,
                    "record_count": header.record_count,
                    "crc": "good" if verify_crc(data, header, start) else "bad",
                    "records": [
                        [record.offset, _time(record.timestamp), _text(record.key), _text(record.value)]
                        + [[_text(key), _text(value)] for key, value in record.headers]
                        for record in decode_records(data, DECOMPRESSED_BYTES_MAX, start)
                    ],
                }
                batches.append(shown)
        except KafkaError:
            batches.append(f"<{len(data) - position} bytes of an incomplete batch>")
        return batches


def _merged(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A response may give a topic's partitions in one piece or in several: it makes no difference."""
    if "partitions" not in items[0] or "topic_id" not in items[0]:
        return items
    merged: dict[Any, dict[str, Any]] = {}
    for item in items:
        key = (item.get("name"), item.get("topic"), item["topic_id"])
        if key in merged and not item.get("error_code"):
            merged[key]["partitions"] += item["partitions"]
            merged[key]["partitions"].sort(key=_sort_key)
        else:
            merged[key if key not in merged else len(merged)] = item
    return list(merged.values())


def _sort_key(item: dict[str, Any]) -> tuple[str, ...]:
    return tuple(
        f"{item[key]:>12}" if isinstance(item[key], int) else str(item[key])
        for key in SORT_KEYS
        if key in item
    )


def _error(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _time(timestamp_ms: int) -> str | int:
    return "<now>" if abs(timestamp_ms - time.time() * 1000) < NOW_WITHIN_MS else timestamp_ms


def _text(value: Any) -> str | None:
    if value is None:
        return None
    data = value.encode(errors="surrogateescape") if isinstance(value, str) else bytes(value)
    shown = data.decode("latin-1")
    return shown if len(shown) <= 80 else f"<{len(shown)} bytes>"
