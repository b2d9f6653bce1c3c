"""What goes over the wire: the body of a call and its identity, and a dead letter with what is to be said about it."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

import msgspec

from culver.gateway.producing import Outgoing
from culver.gateway.push.encoding import record_json
from culver.gateway.reading.record import Record
from culver.gateway.webhooks.subscription import Subscription

# Headers of a dead letter begin with this; those of the record itself are kept behind them.
DEAD_LETTER_PREFIX = "culver.webhook."
_ID_BYTES = 15
_ERROR_CHARACTERS_MAX = 1000


def call_id(webhook: str, records: Sequence[Record]) -> str:
    """The same for the same records of the same webhook, and for no others, whichever gateway sends them.

    The time of a record is part of it: when a topic is deleted and made again, its offsets begin anew.
    """
    content = [webhook, [(each.topic, each.partition, each.offset, each.timestamp_ms) for each in records]]
    digest = hashlib.sha256(msgspec.json.encode(content)).digest()
    return f"msg_{base64.b32encode(digest[:_ID_BYTES]).decode().lower()}"


def body_of(subscription: Subscription, records: Sequence[Record]) -> tuple[bytes, dict[str, str]]:
    """The body of a call and the headers that say what it is."""
    if subscription.format == "raw":
        (record,) = records
        headers = {
            "content-type": "application/octet-stream",
            "culver-topic": record.topic,
            "culver-partition": str(record.partition),
            "culver-offset": str(record.offset),
            "culver-timestamp": str(record.timestamp_ms),
        }
        if record.key is not None:
            headers["culver-key-base64"] = base64.b64encode(record.key).decode()
        return record.value or b"", headers
    name = msgspec.json.encode(subscription.name)
    joined = b",".join(map(record_json, records))
    return b'{"webhook":%b,"records":[%b]}' % (name, joined), {"content-type": "application/json"}


def dead_letter(
    subscription: Subscription, record: Record, *, tries: int, status: int | None, error: str, now_ms: int
) -> Outgoing:
    """The record as it was, with headers that say where it came from and why it is here."""
    said = {
        "name": subscription.name,
        "topic": record.topic,
        "partition": str(record.partition),
        "offset": str(record.offset),
        "timestamp": str(record.timestamp_ms),
        "tries": str(tries),
        "status": "" if status is None else str(status),
        "error": error[:_ERROR_CHARACTERS_MAX],
        "failed-at": str(now_ms),
    }
    ours = tuple((DEAD_LETTER_PREFIX + name, text.encode()) for name, text in said.items())
    return Outgoing(
        subscription.dead_letter_topic, record.value, record.key, ours + record.headers, timestamp_ms=now_ms
    )


def sample(subscription: Subscription, now_ms: int) -> Record:
    """A record that nobody wrote, for trying a receiver: at offset -1 of the first topic."""
    return Record(
        topic=subscription.topics[0],
        partition=0,
        offset=-1,
        timestamp_ms=now_ms,
        timestamp_type=0,
        key=b"test",
        value=msgspec.json.encode({"test": True, "webhook": subscription.name}),
        headers=(("culver.test", b"true"),),
    )
