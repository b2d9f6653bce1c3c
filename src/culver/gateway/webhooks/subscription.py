"""A webhook subscription: what is stored of it, what a client may ask for, and what is shown of it.

Secrets and the values of headers go in and never come out again: `Shown` has only enough to tell them apart.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from culver.gateway import private_topics
from culver.gateway.webhooks.signature import key_of, masked, new_secret
from culver.gateway.webhooks.target_check import target_of

# Where subscriptions are kept. It holds their secrets, so it is no topic for a webhook.
STORE_TOPIC = private_topics.WEBHOOKS

Name = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9_-][a-zA-Z0-9._-]*$", min_length=1, max_length=100)]
TopicName = Annotated[str, Meta(pattern=r"^[a-zA-Z0-9._-]+$", min_length=1, max_length=249)]
Group = Annotated[str, Meta(min_length=1, max_length=249)]
Secret = Annotated[str, Meta(max_length=200)]
Format = Literal["json", "raw"]
From = Literal["earliest", "latest"]
Batch = Annotated[int, Meta(ge=1, le=10_000)]
Concurrency = Annotated[int, Meta(ge=1, le=1000)]
TimeoutMs = Annotated[int, Meta(ge=1, le=300_000)]
_Url = Annotated[str, Meta(max_length=4000)]
_TimeMs = Annotated[int, Meta(ge=0, le=2**53)]
_Offset = Annotated[int, Meta(ge=0, le=2**63 - 1)]
_PauseMs = Annotated[int, Meta(ge=1, le=86_400_000)]

_TOPICS_MAX = 1000
_SECRETS_MAX = 5
_HEADERS_MAX = 50
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,100}")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]{0,4000}")
# Set by us or by HTTP itself.
_RESERVED_HEADERS = frozenset(
    {"connection", "content-encoding", "content-length", "content-type", "expect", "host", "keep-alive"}
    | {"te", "trailer", "transfer-encoding", "upgrade"}
)
_RESERVED_PREFIXES = ("webhook-", "culver-", "proxy-")
_HIDDEN = "…"


class Retry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How often a call is tried (0: for ever), and the bounds of the pauses between."""

    tries: Annotated[int, Meta(ge=0, le=1000)] = 15
    first_ms: _PauseMs = 1000
    max_ms: _PauseMs = 300_000


class Start(msgspec.Struct, frozen=True):
    """Where a topic begins for a webhook: offsets by partition. They are those of one topic, not of its name."""

    topic_id: str
    offsets: tuple[_Offset, ...]


class Subscription(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook as it is stored: the value of a record in the topic of subscriptions, its key being the name."""

    name: Name
    topics: Annotated[tuple[TopicName, ...], Meta(min_length=1, max_length=_TOPICS_MAX)]
    group: Group
    url: _Url
    secrets: Annotated[tuple[Secret, ...], Meta(min_length=1, max_length=_SECRETS_MAX)]
    dead_letter_topic: TopicName
    batch: Batch = 1
    concurrency: Concurrency = 8
    timeout_ms: TimeoutMs = 15_000
    retry: Retry = Retry()
    headers: Annotated[dict[str, str], Meta(max_length=_HEADERS_MAX)] = {}
    from_: From = msgspec.field(default="latest", name="from")
    format: Format = "json"
    paused: bool = False
    paused_because: Annotated[str, Meta(max_length=4000)] | None = None
    # Taken down when the webhook is given the topic, so that "latest" is that moment, whoever reads the topic later.
    starts: dict[str, Start] = {}
    created_ms: _TimeMs = 0
    changed_ms: _TimeMs = 0

    def start(self, topic: str, topic_id: str, partition: int) -> int:
        """Where a partition begins for which the group has committed nothing. What came later begins at 0."""
        start = self.starts.get(topic)
        if start is None or start.topic_id != topic_id or partition >= len(start.offsets):
            return 0
        return start.offsets[partition]


class Wanted(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """A webhook as a client asks for it. What is left out takes its default, or stays as it is (see `merged`)."""

    topics: Annotated[list[TopicName], Meta(min_length=1, max_length=_TOPICS_MAX)]
    url: _Url
    name: Name | UnsetType = UNSET
    group: Group | UnsetType = UNSET
    secret: Secret | Annotated[list[Secret], Meta(min_length=1, max_length=_SECRETS_MAX)] | UnsetType = UNSET
    batch: Batch = 1
    concurrency: Concurrency = 8
    timeout_ms: TimeoutMs = 15_000
    retry: Retry = Retry()
    dead_letter_topic: TopicName | UnsetType = UNSET
    headers: Annotated[dict[str, str], Meta(max_length=_HEADERS_MAX)] | UnsetType = UNSET
    from_: From = msgspec.field(default="latest", name="from")
    format: Format = "json"
    paused: bool = False


class Shown(msgspec.Struct, kw_only=True):
    """A webhook as clients see it."""

    name: str
    topics: tuple[str, ...]
    group: str
    url: str
    secrets: list[str]
    batch: int
    concurrency: int
    timeout_ms: int
    retry: Retry
    dead_letter_topic: str
    headers: dict[str, str]
    from_: str = msgspec.field(name="from")
    format: str
    paused: bool
    paused_because: str | None
    created_ms: int
    changed_ms: int


def merged(
    name: str,
    wanted: Wanted,
    existing: Subscription | None,
    *,
    now_ms: int,
    starts: Mapping[str, Start],
) -> Subscription:
    """The subscription that is wanted. ValueError says what is wrong with it.

    Secret and headers may be left out of a replacement: nobody can read them back to repeat them.
    """
    if existing is not None and wanted.secret is UNSET:
        keys = existing.secrets
    else:
        keys = _secrets(wanted.secret)
    headers = wanted.headers
    if headers is UNSET:
        headers = existing.headers if existing is not None else {}
    subscription = Subscription(
        name=name,
        topics=tuple(dict.fromkeys(wanted.topics)),
        group=default_group(name) if wanted.group is UNSET else wanted.group,
        url=wanted.url,
        secrets=keys,
        dead_letter_topic=(
            f"webhook-{name}-dlq" if wanted.dead_letter_topic is UNSET else wanted.dead_letter_topic
        ),
        batch=wanted.batch,
        concurrency=wanted.concurrency,
        timeout_ms=wanted.timeout_ms,
        retry=wanted.retry,
        headers=headers,
        from_=wanted.from_,
        format=wanted.format,
        paused=wanted.paused,
        starts=dict(starts),
        created_ms=existing.created_ms if existing is not None else now_ms,
        changed_ms=now_ms,
    )
    _check(subscription)
    return subscription


_decode = msgspec.json.Decoder(Subscription).decode


def stored(name: str, value: bytes) -> Subscription:
    """The webhook that a record of the topic holds. ValueError when it holds none: anybody may have written it."""
    try:
        subscription = _decode(value)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(str(error)) from None
    if subscription.name != name:
        raise ValueError("the name in it is another than its key")
    _check(subscription)
    return subscription


def default_group(name: str) -> str:
    """The group of a webhook that names none."""
    return f"webhook-{name}"


def shown(subscription: Subscription) -> Shown:
    """What clients may see."""
    fields = {
        field: getattr(subscription, field)
        for field in Shown.__struct_fields__
        if field not in ("secrets", "headers")
    }
    return Shown(
        secrets=[masked(secret) for secret in subscription.secrets],
        headers=dict.fromkeys(subscription.headers, _HIDDEN),
        **fields,
    )


def _secrets(given: str | list[str] | UnsetType) -> tuple[str, ...]:
    if given is UNSET:
        return (new_secret(),)
    return (given,) if isinstance(given, str) else tuple(given)


def _check(subscription: Subscription) -> None:
    """What the types do not say. ValueError."""
    target_of(subscription.url)
    for topic in (*subscription.topics, subscription.dead_letter_topic):
        if topic == STORE_TOPIC:
            raise ValueError(f"{STORE_TOPIC} holds the secrets of webhooks: nothing is sent from it or to it")
        if topic in (".", ".."):
            raise ValueError(f"{topic!r} is no name of a topic")
    if subscription.dead_letter_topic in subscription.topics:
        raise ValueError(
            f"the dead-letter topic {subscription.dead_letter_topic} is one of the webhook's own: its letters would "
            "come back"
        )
    if subscription.format == "raw" and subscription.batch != 1:
        raise ValueError("a batch of several records needs the format json: raw is the value of one record")
    if subscription.retry.first_ms > subscription.retry.max_ms:
        raise ValueError("retry.first_ms is longer than retry.max_ms")
    for secret in subscription.secrets:
        key_of(secret)
    _check_headers(subscription.headers)


def _check_headers(headers: Mapping[str, str]) -> None:
    lowered = set()
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"{name!r} is no name of an HTTP header")
        lower = name.lower()
        if lower in _RESERVED_HEADERS or lower.startswith(_RESERVED_PREFIXES):
            raise ValueError(f"the header {name} is not for a webhook to set")
        if lower in lowered:
            raise ValueError(f"the header {name} is given twice")
        lowered.add(lower)
        # The value may be a password: it is not repeated.
        if not _HEADER_VALUE.fullmatch(value):
            raise ValueError(f"the value of header {name} is not printable ASCII, or too long")
