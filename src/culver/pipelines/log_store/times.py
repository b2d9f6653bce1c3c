"""Moments as callers give them: datetimes, microseconds, ISO 8601 text, or an age such as 2h."""

from __future__ import annotations

import re
import time
from datetime import UTC, datetime

from culver.pipelines.log_store.errors import QueryError

Moment = datetime | int | str | None

_AGE = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)(?:\s+ago)?", re.IGNORECASE)
_UNIT_US = {
    "ms": 1_000,
    "s": 1_000_000,
    "m": 60_000_000,
    "h": 3_600_000_000,
    "d": 86_400_000_000,
    "w": 604_800_000_000,
}


def moment_us(moment: Moment, default: int) -> int:
    """Microseconds since 1970; `default` for None. Times without a zone are UTC. Raises QueryError."""
    if moment is None:
        return default
    if isinstance(moment, int):
        return moment
    if isinstance(moment, str):
        text = moment.strip()
        if age := _AGE.fullmatch(text):
            return time.time_ns() // 1000 - round(float(age[1]) * _UNIT_US[age[2].lower()])
        if text.lower() == "now":
            return time.time_ns() // 1000
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise QueryError(
                f"{text!r} is no time",
                "give an ISO 8601 time such as 2026-11-15T08:00Z, or an age such as 2h",
            ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.replace(microsecond=0).timestamp()) * 1_000_000 + moment.microsecond
