"""Patterns that consumers subscribe with: RE2's, matched in time that grows with the length of the name only.

Python's own expressions backtrack: a client could stop the broker's one thread with a short one. google-re2 is imported
when the first pattern comes, since most brokers never see one.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from culver.core.names import INTERNAL_TOPICS
from culver.errors import ErrorCode, KafkaError

# It becomes the key of a record, with a 16-bit length in UTF-8, at most 4 bytes a character.
MAX_PATTERN_LENGTH = 8_000
# RE2 keeps within this, compiled form and cache of states together; larger patterns are refused.
_MAX_COMPILED_BYTES = 256 << 10


def check_pattern(pattern: str) -> None:
    """Raise INVALID_REGULAR_EXPRESSION, with the reason, for what is no pattern."""
    _compile(pattern)


def matching_topics(pattern: str, names: Iterable[str]) -> frozenset[str]:
    """The names that match as a whole. Internal topics never do: nobody who asks for everything means them."""
    matches = _compile(pattern).fullmatch
    return frozenset(name for name in names if name not in INTERNAL_TOPICS and matches(name) is not None)


def compile_pattern(pattern: str) -> Any:
    """An object whose `fullmatch` takes a name; raises INVALID_REGULAR_EXPRESSION for what is no pattern."""
    return _compile(pattern)


@lru_cache(maxsize=128)
def _compile(pattern: str) -> Any:
    if len(pattern) > MAX_PATTERN_LENGTH:
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION,
            f"the pattern has {len(pattern)} characters, {MAX_PATTERN_LENGTH} at most are allowed",
        )
    import re2

    options = re2.Options()
    options.log_errors = False
    options.max_mem = _MAX_COMPILED_BYTES
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0] if error.args else error
        if isinstance(reason, bytes):
            reason = reason.decode(errors="replace")
        raise KafkaError(
            ErrorCode.INVALID_REGULAR_EXPRESSION, f"{pattern!r} is no regular expression: {reason}"
        ) from error
