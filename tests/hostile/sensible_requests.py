"""A sensible request for every API and version, made from the message definitions: what attacks start from."""

from __future__ import annotations

from collections.abc import Iterator
from copy import copy
from typing import Any

from culver.protocol.apis import APIS, Api
from culver.protocol.schema import Field, Message
from hostile.victim import PREY, record_batch

# Values by field name where the zero of the field's kind would make the request pointless.
VALUES: dict[str, Any] = {
    "name": PREY,
    "topic": PREY,
    "topic_name": PREY,
    "resource_name": PREY,
    "resource_type": 2,
    "group_id": "hostile-group",
    "key": "hostile-group",
    "member_id": "hostile-member",
    "protocol_type": "consumer",
    "client_software_name": "hostile",
    "client_software_version": "1",
    "session_timeout_ms": 10_000,
    "rebalance_timeout_ms": 10_000,
    "acks": 1,
    "timeout_ms": 1000,
    "num_partitions": 1,
    "replication_factor": 1,
    "count": 2,
    "validate_only": True,
    "timestamp": -1,
    "max_bytes": 1000,
    "partition_max_bytes": 1000,
    "min_bytes": 0,
    "max_wait_ms": 0,
    "replica_id": -1,
    "session_epoch": -1,
    "current_leader_epoch": -1,
    "committed_offset": 3,
    "response_partition_limit": 10,
    "endpoint_type": 1,
    "transactional_id": None,
    "cluster_id": None,
    "replica_state": None,
    "cursor": None,
    "configs": [],
}
# An array of plain strings takes these.
STRINGS: dict[str, str] = {
    "topic_names": "no-such-topic",
    "groups": "hostile-group",
    "groups_names": "no-such-group",
    "coordinator_keys": "hostile-group",
    "configuration_keys": "retention.ms",
    "states_filter": "Stable",
    "types_filter": "classic",
}
# The prey stays where it is, whatever is asked.
OTHER_NAMES = {"DeleteTopicsRequest": "no-such-topic", "CreateTopicsRequest": "hostile-new"}


def every_version() -> list[tuple[Api, int]]:
    return [
        (api, version)
        for api in APIS.values()
        for version in range(api.min_version, api.max_version + 1)
        if api.decodable(version)
    ]


def sensible_request(api: Api, version: int) -> Any:
    return _message(api.request, version, OTHER_NAMES.get(api.request.__name__, PREY))


def _message(message: type[Message], version: int, topic: str) -> Any:
    values = {
        field.name: _value(field, version, topic)
        for field in message.SCHEMA.fields
        if field.present(version) and field.tag is None
    }
    return message(**values)


def _value(field: Field, version: int, topic: str) -> Any:
    if field.name in VALUES:
        value = VALUES[field.name]
        if value is None and field.kind == "string" and not field.nullable(version):
            return "hostile"
        return topic if value == PREY and field.name in ("name", "topic") else value
    if field.kind == "array":
        element = field.element
        if isinstance(element, Field):
            return [STRINGS.get(field.name, "x")] if element.kind == "string" else [0]
        assert element is not None
        return [_message(element, version, topic)]
    if field.kind == "records":
        return memoryview(record_batch())
    if field.kind == "struct":
        return None
    if field.kind in ("string", "bytes"):
        return "hostile" if field.kind == "string" else b"hostile"
    return {"bool": False, "uuid": bytes(16)}.get(field.kind, 0)


def swollen_requests(api: Api, version: int, elements: int) -> Iterator[Any]:
    """The sensible request with so many elements in all: in its outermost array, and in its innermost."""
    for depth in (0, -1):
        request = sensible_request(api, version)
        arrays = _arrays(request)
        if not arrays:
            return
        holder, name = arrays[depth]
        first = getattr(holder, name)[0]
        count = (elements - len(arrays)) // (1 + len(_arrays(first)) if isinstance(first, Message) else 1)
        setattr(holder, name, [_variant(first, number) for number in range(count)])
        yield request


def _arrays(message: Message) -> list[tuple[Message, str]]:
    """Each array that has an element, with the message that holds it, outermost first."""
    found: list[tuple[Message, str]] = []
    for field in message.SCHEMA.fields:
        value = getattr(message, field.name)
        if isinstance(value, list) and value:
            found.append((message, field.name))
            if isinstance(value[0], Message):
                found += _arrays(value[0])
    return found


def _variant(element: Any, number: int) -> Any:
    """An element like this one, but another: brokers drop those that are the same."""
    if isinstance(element, str):
        return f"n{number}"
    if isinstance(element, int):
        return number
    variant = copy(element)
    for name in ("name", "topic", "resource_name", "member_id", "partition_index", "partition", "index"):
        value = getattr(variant, name, None)
        if value is not None:
            setattr(variant, name, _variant(value, number))
            break
    return variant
