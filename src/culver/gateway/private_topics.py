"""Topics that no client of the gateway reads or writes: they hold secrets, and the gateway acts on what is in them."""

from __future__ import annotations

from culver.core.names import OWN_TOPICS_PREFIX
from culver.gateway.errors import HttpError, Problem

# The subscriptions of webhooks, with the secrets that sign their calls.
WEBHOOKS = f"{OWN_TOPICS_PREFIX}webhooks"
PRIVATE_TOPICS = frozenset({WEBHOOKS})
# The same for librdkafka: to a consumer with a pattern these topics do not exist.
PATTERNS_TO_HIDE = ",".join(f"^{name}$" for name in sorted(PRIVATE_TOPICS))


def why_private(topic: str) -> str | None:
    """Why a client may neither read nor write the topic; None when it may."""
    if topic not in PRIVATE_TOPICS:
        return None
    return f"topic {topic} holds secrets of the gateway: it is neither read nor written over HTTP"


def refuse_private(topic: str) -> None:
    """HttpError(403) for a topic that is no client's business."""
    reason = why_private(topic)
    if reason is not None:
        raise HttpError(Problem.FORBIDDEN, reason)
