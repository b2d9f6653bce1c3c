"""Which names topics may have, and when two names are too close to live side by side."""

from __future__ import annotations

import re
from collections.abc import Iterable

from culver.errors import ErrorCode, KafkaError

MAX_NAME_LENGTH = 249
_LEGAL = re.compile(r"[a-zA-Z0-9._-]+", re.ASCII)

GROUP_OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_STATE_TOPIC = "__transaction_state"
CLUSTER_METADATA_TOPIC = "__cluster_metadata"  # not Culver's, but tools that know Kafka take it for Kafka's
# Topics in which the gateway and pipelines keep what they need; to Kafka's clients they are topics like others.
OWN_TOPICS_PREFIX = "__culver_"
INTERNAL_TOPICS = frozenset({GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC})


def is_valid_topic_name(name: str) -> bool:
    """Whether `name` may become part of a path: a partition's directory carries it."""
    return len(name) <= MAX_NAME_LENGTH and name not in (".", "..") and _LEGAL.fullmatch(name) is not None


def validate_topic_name(name: str) -> None:
    """Raise INVALID_TOPIC_EXCEPTION, with the reason, for a name that no topic may have."""
    if is_valid_topic_name(name):
        return
    if not name:
        reason = "it is empty"
    elif name in (".", ".."):
        reason = "'.' and '..' are directories"
    elif len(name) > MAX_NAME_LENGTH:
        reason = f"it has {len(name)} characters, {MAX_NAME_LENGTH} at most are allowed"
    else:
        reason = f"only ASCII letters, digits, '.', '_' and '-' are allowed, not {name!r}"
    raise KafkaError(ErrorCode.INVALID_TOPIC_EXCEPTION, f"that cannot be a topic's name: {reason}")


def collision_key(name: str) -> str:
    """Names with the same key collide: metric names turn '.' into '_', so a.b and a_b would be one."""
    return name.replace(".", "_")


def colliding_topic(name: str, existing: Iterable[str]) -> str | None:
    """Another topic whose name differs from `name` only by '.' against '_', if there is one."""
    if "." not in name and "_" not in name:
        return None
    key = collision_key(name)
    for other in existing:
        if other != name and len(other) == len(name) and collision_key(other) == key:
            return other
    return None
