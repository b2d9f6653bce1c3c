"""Positions in a partition as people write them: beginning, end, 42, -10, @2026-11-15T08:00, '@2h ago'."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum

import click

_AGO = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)(?:\s+ago)?", re.IGNORECASE)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}

SYNTAX = "beginning|end|OFFSET|-N|@TIME"


class Kind(Enum):
    """What the number of a Position means."""

    BEGINNING = "the first record there is"
    END = "after the last record there is"
    OFFSET = "this offset"
    LAST = "this many records before the end"
    TIME = "the first record at or after this time, in ms since 1970"


@dataclass(frozen=True, slots=True)
class Position:
    """A place in each partition, to be turned into offsets by the broker."""

    kind: Kind
    number: int = 0


def parse_position(text: str, now: datetime | None = None) -> Position:
    """Read a position; ValueError says what is wrong with it."""
    word = text.strip().lower()
    if word in ("beginning", "earliest"):
        return Position(Kind.BEGINNING)
    if word in ("end", "latest"):
        return Position(Kind.END)
    if word.startswith("@"):
        return Position(Kind.TIME, parse_time_ms(text.strip()[1:], now))
    if re.fullmatch(r"\d+", word):
        return Position(Kind.OFFSET, int(word))
    if re.fullmatch(r"-\d+", word):
        return Position(Kind.LAST, -int(word))
    raise ValueError(
        f"{text!r} is no position: expected {SYNTAX}, for instance 42, -10, @2026-01-31T08:00, '@2h ago'"
    )


def parse_time_ms(text: str, now: datetime | None = None) -> int:
    """Milliseconds since 1970, from a number, an ISO 8601 time (local if it names no zone), or '2h ago'."""
    text = text.strip()
    now = now or datetime.now().astimezone()
    if re.fullmatch(r"\d+", text):
        return int(text)
    if ago := _AGO.fullmatch(text):
        return _to_ms(now) - round(float(ago[1]) * _UNIT_MS[ago[2].lower()])
    midnight = now.replace(hour=0, minute=0, second=0, microsecond=0)
    match text.lower():
        case "now":
            return _to_ms(now)
        case "today":
            return _to_ms(midnight)
        case "yesterday":
            return _to_ms(midnight - timedelta(days=1))
    try:
        return _to_ms(datetime.fromisoformat(text))
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: expected milliseconds since 1970, an ISO 8601 time such as "
            "2026-01-31T08:00, or an age such as '2h ago'"
        ) from None


def _to_ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


class PositionType(click.ParamType):  # type: ignore[type-arg]  # generic only in newer clicks
    """A command-line value that is a Position."""

    name = "position"

    def convert(
        self, value: str | Position, param: click.Parameter | None, ctx: click.Context | None
    ) -> Position:
        if isinstance(value, Position):
            return value
        try:
            return parse_position(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
