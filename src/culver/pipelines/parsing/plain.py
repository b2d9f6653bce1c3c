"""Parse lines of free text by the column: the time they begin with, and a level near their beginning."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

# One of RE2, which takes time linear in the line whatever it holds.
_TIME = (
    r"(?s)^\s*[\[(]?(?P<time>\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:\s?(?:Z|UTC|[+-]\d\d:?\d\d))?)"
    r"[\])]?(?:[\s:,|-]+(?P<rest>.*))?$"
)
_NAMES = "TRACE|DEBUG|INFO|NOTICE|WARNING|WARN|ERROR|SEVERE|FATAL|CRITICAL|PANIC|ALERT|EMERG"
# In capitals anywhere between blanks and brackets; otherwise only where it is clearly meant.
_LEVEL = (
    rf"^(?:(?s:.*?)(?:^|[\s\[(|<])(?P<capitals>{_NAMES})(?:[\s\])|>:,]|$)"
    rf"|(?s:.*?)\[(?P<bracketed>(?i:{_NAMES}))\]"
    rf"|(?P<leading>(?i:{_NAMES})):)"
)
_LEVEL_WITHIN_CHARACTERS = 120


def parse_plain(lines: pa.Array) -> tuple[list[str | None], list[str | None], list[str]]:
    """The times, levels and messages of lines; a message is the line without the time it begins with."""
    parts = pc.extract_regex(lines, _TIME)
    times = _normal(pc.struct_field(parts, "time"))
    rest = pc.struct_field(parts, "rest")
    has_rest = pc.fill_null(pc.not_equal(rest, ""), False)
    messages = pc.if_else(has_rest, rest, lines)
    heads = pc.utf8_slice_codeunits(messages, 0, _LEVEL_WITHIN_CHARACTERS)
    found = pc.extract_regex(heads, _LEVEL)
    level = pc.coalesce(
        *(_nonempty(pc.struct_field(found, name)) for name in ("capitals", "bracketed", "leading"))
    )
    return times.to_pylist(), level.to_pylist(), messages.to_pylist()


def _normal(times: pa.Array) -> pa.Array:
    """Spelled as ISO 8601 does, so that they are read by the column."""
    times = pc.replace_substring(times, "/", "-")
    times = pc.replace_substring_regex(times, r"\s?(?:UTC|Z)$", "Z")
    return pc.replace_substring_regex(times, r"\s([+-]\d\d:?\d\d)$", r"\1")


def _nonempty(texts: pa.Array) -> pa.Array:
    return pc.if_else(pc.equal(texts, ""), None, texts)
