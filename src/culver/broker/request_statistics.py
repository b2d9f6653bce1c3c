"""Requests counted by API: how long they took, and the errors that their answers told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

from culver.core.histogram import Histogram
from culver.errors import ErrorCode
from culver.protocol.schema import Message

# Their answers are looked through for errors by nobody: too many pass by. Their handlers count what they refuse.
_COUNT_THEIR_OWN = frozenset({"ProduceResponse", "FetchResponse"})
_ERROR_CODE = "error_code"

CountErrors: TypeAlias = Callable[[Message], object]


class ApiStatistics:
    """Requests of one API, in whatever version."""

    __slots__ = ("errors", "latency")

    def __init__(self) -> None:
        self.latency = Histogram()
        self.errors: Counter[int] = Counter()

    def failed(self, code: int) -> None:
        """One error was told, of a whole request or of one partition, topic or group in it."""
        self.errors[code] += 1

    def named_errors(self) -> dict[str, int]:
        return {_name(code): count for code, count in sorted(self.errors.items())}


def error_counter(response: type[Message], statistics: ApiStatistics) -> CountErrors | None:
    """What looks through a response for errors; None where there are none, or the handler counts them."""
    if response.__name__ in _COUNT_THEIR_OWN:
        return None
    places = _places(response)
    if not places.own and not places.parts:
        return None
    return lambda message: _count(message, places, statistics.errors)


class _Places(NamedTuple):
    """Where a message holds error codes: in itself, and in its parts by field."""

    own: bool
    parts: tuple[tuple[str, _Places], ...]


def _places(message: type[Message]) -> _Places:
    own = False
    parts = []
    for field in message.SCHEMA.fields:
        if field.name == _ERROR_CODE:
            own = True
        elif isinstance(field.element, type):
            inner = _places(field.element)
            if inner.own or inner.parts:
                parts.append((field.name, inner))
    return _Places(own, tuple(parts))


def _count(message: Any, places: _Places, errors: Counter[int]) -> None:
    if places.own and message.error_code:
        errors[message.error_code] += 1
    for name, inner in places.parts:
        found = getattr(message, name)
        if found is None:
            continue
        for part in found if isinstance(found, list) else (found,):
            _count(part, inner, errors)


def _name(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return f"ERROR_{code}"
