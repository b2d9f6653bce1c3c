"""The messages that a receiver sends over a WebSocket, each checked as a whole before anything is done.

{"type": "subscribe", "topics": ["orders"], "group": "mailer", "credits": 100}
{"type": "ack", "ids": ["orders:0:17"]}
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from culver.gateway.push.wish import CREDITS_MAX

DELAY_MAX_MS = 3_600_000
_IDS_MAX = 100_000

Ids = Annotated[list[str], msgspec.Meta(max_length=_IDS_MAX)]
Whole = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class Said(msgspec.Struct, tag_field="type", forbid_unknown_fields=True, frozen=True):
    """Something a receiver says."""


class Subscribe(Said, tag="subscribe", frozen=True):
    """The first message, and the only one of its kind."""

    topics: list[str]
    group: str | None = None
    start: str | dict[str, dict[str, Whole]] | None = msgspec.field(name="from", default=None)
    last_event_id: str | None = None
    credits: Annotated[int, msgspec.Meta(ge=0, le=CREDITS_MAX)] | None = None
    ack: Literal["explicit", "auto"] | None = None
    batch: bool = False


class Credit(Said, tag="credit", frozen=True):
    """Takes so many records more."""

    n: Annotated[int, msgspec.Meta(ge=1, le=CREDITS_MAX)]


class Ack(Said, tag="ack", frozen=True):
    """Has done with these records, or with one and all that were sent before it."""

    ids: Ids = []
    upto: str | None = None


class Nack(Said, tag="nack", frozen=True):
    """Wants these records again, after a while."""

    ids: Ids
    delay_ms: Annotated[int, msgspec.Meta(ge=0, le=DELAY_MAX_MS)] = 1000


class Pause(Said, tag="pause", frozen=True):
    """Wants no records for now."""


class Resume(Said, tag="resume", frozen=True):
    """Goes on."""


class Seek(Said, tag="seek", frozen=True):
    """Wants a partition from another place on."""

    topic: str
    partition: Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
    offset: Whole | Literal["earliest", "latest"]


Message = Subscribe | Credit | Ack | Nack | Pause | Resume | Seek
_decoder: msgspec.json.Decoder[Message] = msgspec.json.Decoder(Message)


def decode(text: str) -> Message:
    """The message. msgspec.MsgspecError says what is wrong with it."""
    return _decoder.decode(text)
