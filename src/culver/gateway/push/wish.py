"""What a subscriber asks for: topics, group, where to start, credits; checked before anything is opened."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.errors import HttpError, Problem
from culver.gateway.private_topics import refuse_private
from culver.gateway.push import positions
from culver.gateway.push.starting import EARLIEST, LATEST, Start
from culver.gateway.push.window import UNACKNOWLEDGED_MAX

TOPICS_MAX = 100
GROUP_LENGTH_MAX = 255
# What a subscriber who acknowledges by hand gets when it names no number.
CREDITS_DEFAULT = 256
CREDITS_MAX = UNACKNOWLEDGED_MAX

EXPLICIT = "explicit"
AUTO = "auto"
_WORDS = {"latest": LATEST, "earliest": EARLIEST}


@dataclass(frozen=True, slots=True)
class Wish:
    """A subscription as it is asked for."""

    topics: tuple[str, ...]
    # None: on its own, storing nothing in the cluster.
    group: str | None
    # With a group: where partitions begin for which the group has stored nothing.
    start: Start
    # None: as fast as the connection takes them.
    credits: int | None
    acknowledged_by_hand: bool
    # With a group: what an earlier connection got, and what is hereby acknowledged.
    acknowledged: Mapping[TopicPartition, int] = field(default_factory=dict)
    # Several records in one message, where the connection knows such.
    batch: bool = False


def wish(
    *,
    topics: Sequence[str],
    group: str | None = None,
    start: str | Mapping[str, Mapping[str, int]] | None = None,
    last_event_id: str | None = None,
    credits: int | None = None,
    acknowledge: str | None = None,
    batch: bool = False,
) -> Wish:
    """The wish that these words make. HttpError when they make none."""
    _check_topics(topics)
    if group is not None and not 1 <= len(group) <= GROUP_LENGTH_MAX:
        raise _unusable(f"the name of a group has 1 to {GROUP_LENGTH_MAX} characters")
    if acknowledge not in (None, EXPLICIT, AUTO):
        raise _unusable(f"ack is {EXPLICIT!r} or {AUTO!r}, not {acknowledge[:80]!r}")
    by_hand = group is not None if acknowledge is None else acknowledge == EXPLICIT
    if credits is not None and not 0 <= credits <= CREDITS_MAX:
        raise _unusable(f"credits are a number from 0 to {CREDITS_MAX}")
    if credits is None and by_hand:
        credits = CREDITS_DEFAULT
    begin = _start(start)
    resumed = _positions(last_event_id) if last_event_id else {}
    if resumed and group is None:
        # A partition that the id does not name has come since: all of it is new.
        begin = Start(EARLIEST, resumed)
    return Wish(tuple(dict.fromkeys(topics)), group, begin, credits, by_hand, resumed if group else {}, batch)


def start_word(text: str) -> int:
    """LATEST, EARLIEST, or the time in ms after an @."""
    if text in _WORDS:
        return _WORDS[text]
    if text.startswith("@") and text[1:].isascii() and text[1:].isdigit() and len(text) < 16:
        return int(text[1:])
    raise _unusable(f"earliest, latest or @MILLISECONDS is expected, not {text[:80]!r}")


def _start(asked: str | Mapping[str, Mapping[str, int]] | None) -> Start:
    if asked is None:
        return Start()
    if isinstance(asked, str):
        return Start(LATEST, _positions(asked)) if ":" in asked else Start(start_word(asked))
    # The same map as text is checked by the same rules.
    text = ";".join(
        f"{topic}:{','.join(f'{p}={o}' for p, o in offsets.items())}" for topic, offsets in asked.items()
    )
    return Start(LATEST, _positions(text))


def _positions(text: str) -> dict[TopicPartition, int]:
    try:
        return positions.decode(text)
    except positions.BadPosition as error:
        raise _unusable(str(error)) from None


def _check_topics(topics: Sequence[str]) -> None:
    if not 1 <= len(topics) <= TOPICS_MAX:
        raise _unusable(f"1 to {TOPICS_MAX} topics can be subscribed to, not {len(topics)}")
    for topic in topics:
        if not positions.is_topic_name(topic):
            raise _unusable(f"{topic[:80]!r} cannot be the name of a topic")
        refuse_private(topic)


def _unusable(message: str) -> HttpError:
    return HttpError(Problem.INVALID_VALUE, message)
