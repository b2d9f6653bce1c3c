"""What an event is: the columns that every parser fills, the log store keeps and search returns."""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa

TIMESTAMP = pa.timestamp("us", tz="UTC")

EVENT_SCHEMA = pa.schema(
    [
        pa.field(
            "ts", TIMESTAMP, nullable=False
        ),  # when it happened; the record's time when the line says nothing
        pa.field("level", pa.string()),  # one of LEVELS, or the line's own word in capitals
        pa.field("service", pa.string()),
        pa.field("host", pa.string()),
        pa.field("message", pa.string(), nullable=False),
        pa.field("format", pa.string(), nullable=False),  # which parser understood it; `plain` when none did
        pa.field("fields", pa.string()),  # a JSON object of everything else
        pa.field("raw", pa.string(), nullable=False),  # the whole line
        pa.field("topic", pa.string()),  # where it was read from, if from a topic
        pa.field("partition", pa.int32()),
        pa.field("offset", pa.int64()),
    ]
)

LEVELS = ("TRACE", "DEBUG", "INFO", "WARN", "ERROR", "FATAL")

_LEVEL_NAMES = {
    **{name: name for name in LEVELS},
    **dict.fromkeys(("FINE", "FINER", "FINEST", "VERBOSE", "TRC", "SILLY"), "TRACE"),
    **dict.fromkeys(("DBG", "DEB", "D"), "DEBUG"),
    **dict.fromkeys(("INF", "INFORMATION", "INFORMATIONAL", "NOTICE", "NOTE", "I"), "INFO"),
    **dict.fromkeys(("WARNING", "WRN", "W"), "WARN"),
    **dict.fromkeys(("ERR", "SEVERE", "FAILURE", "E"), "ERROR"),
    **dict.fromkeys(
        ("CRITICAL", "CRIT", "EMERG", "EMERGENCY", "PANIC", "ALERT", "DPANIC", "F", "C"), "FATAL"
    ),
}
# Bunyan and pino count in tens; Python's logging stops at 50.
_NUMBERED_LEVELS = {10: "TRACE", 20: "DEBUG", 30: "INFO", 40: "WARN", 50: "ERROR", 60: "FATAL"}
_LEVEL_CHARACTERS_MAX = 32


def level_name(level: object) -> str | None:
    """The one name of a level that programs spell in many ways; None when it is no level."""
    if isinstance(level, str):
        return _named(level) if len(level) <= 2 * _LEVEL_CHARACTERS_MAX else None
    if isinstance(level, int | float) and not isinstance(level, bool):
        return _NUMBERED_LEVELS.get(int(level)) if abs(level) < 1e6 else None
    return None


@lru_cache(maxsize=1024)
def _named(level: str) -> str | None:
    word = level.strip().upper()
    if not word or len(word) > _LEVEL_CHARACTERS_MAX:
        return None
    if word.isdigit() and word.isascii():
        return _NUMBERED_LEVELS.get(int(word), word)
    return _LEVEL_NAMES.get(word, word)
