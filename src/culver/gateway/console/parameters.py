"""Reads what the console's requests ask for, and says what is wrong with it: numbers, choices, times, pages."""

from __future__ import annotations

import base64
import re
import time
from collections.abc import Collection, Sequence
from datetime import UTC, datetime

from starlette.requests import Request

from culver.gateway.errors import HttpError, Problem
from culver.gateway.routing import Parameter

PAGE_MAX = 500
PAGE_DEFAULT = 50
_LAST_NUMBER = 2**63 - 1
# The protocol has room for twice as much, of which brokers use some when they repeat a name in what they say of it.
_NAME_BYTES_MAX = 2**14
_AGE = re.compile(r"-?(\d{1,9}(?:\.\d{1,6})?)\s*(ms|s|m|h|d|w)(?:\s+ago)?", re.IGNORECASE)
_UNIT_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}


def number_parameter(
    name: str, doc: str, default: int | None = None, *, least: int = 0, most: int = _LAST_NUMBER
) -> Parameter:
    """A whole number of the query, as `number` reads it."""
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Parameter(name, doc, schema if default is None else {**schema, "default": default})


PAGING = (
    number_parameter("offset", "How many to leave out.", 0),
    number_parameter("limit", "How many at most.", PAGE_DEFAULT, least=1, most=PAGE_MAX),
)

PARTITIONS = Parameter(
    "partition",
    "Which partitions, with commas between; all by default.",
    {"type": "string", "pattern": "^([0-9]{1,9}(,[0-9]{1,9})*)?$"},
)


def choice_parameter(name: str, doc: str, choices: Sequence[str], default: str = "") -> Parameter:
    """A word of the query, one of these. An empty one counts as none."""
    schema = {"type": "string", "enum": [*choices, ""]}
    return Parameter(name, doc, {**schema, "default": default} if default else schema)


def refused(message: str) -> HttpError:
    """The error for a parameter that cannot be used."""
    return HttpError(Problem.INVALID_VALUE, message)


def number(request: Request, name: str, default: int, *, least: int = 0, most: int = _LAST_NUMBER) -> int:
    """A whole number of the query, between these."""
    text = request.query_params.get(name, "")
    return default if text == "" else whole_number(text, name, least, most)


def whole_number(text: str, name: str, least: int = 0, most: int = _LAST_NUMBER) -> int:
    if not re.fullmatch(r"-?[0-9]{1,19}", text) or not least <= int(text) <= most:
        raise refused(f"{name}={text[:40]} is not valid: expected a whole number from {least} to {most}")
    return int(text)


def choice(request: Request, name: str, choices: Sequence[str], default: str) -> str:
    """A word of the query, one of these."""
    text = request.query_params.get(name, "") or default
    if text not in choices:
        raise refused(f"{name}={text[:40]} is not valid: expected {', '.join(filter(None, choices))}")
    return text


def flag(request: Request, name: str, default: bool = False) -> bool:
    """true or false."""
    return choice(request, name, ("true", "false"), str(default).lower()) == "true"


def words(request: Request, name: str, length_max: int = 500) -> str:
    """Free text of the query, within reason."""
    text = request.query_params.get(name, "")
    if len(text) > length_max:
        raise refused(f"{name} is too long: it may have {length_max} characters")
    return text


def numbers(request: Request, name: str) -> list[int] | None:
    """Whole numbers with commas between them; None for no such parameter."""
    text = request.query_params.get(name, "")
    if text == "":
        return None
    return sorted({whole_number(part, name, most=2**31 - 1) for part in text.split(",")})


def paging(request: Request) -> tuple[int, int]:
    """Which part of a list is wanted: offset and limit."""
    return number(request, "offset", 0), number(request, "limit", PAGE_DEFAULT, least=1, most=PAGE_MAX)


def moment_ms(text: str | int, name: str = "time") -> int:
    """Milliseconds since 1970 from a number, an ISO 8601 time (UTC if it names no zone) or an age such as 2h."""
    text = str(text).strip()
    if re.fullmatch(r"[0-9]{1,15}", text):
        return int(text)
    if text.lower() == "now":
        return time.time_ns() // 1_000_000
    if age := _AGE.fullmatch(text):
        return max(0, time.time_ns() // 1_000_000 - round(float(age[1]) * _UNIT_MS[age[2].lower()]))
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        return round(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise refused(
            f"{name}={text[:40]} is no time: expected milliseconds since 1970, an ISO 8601 time such as "
            "2026-11-15T08:00:00Z, or an age such as 2h"
        ) from None


def matching(names: Collection[str], wanted: str) -> list[str]:
    """Those that have the text in them, whatever its case."""
    folded = wanted.casefold()
    return [name for name in names if folded in name.casefold()]


def path_name(request: Request, name: str) -> str:
    """The name of a group or of a transactional id in the path, whatever letters it has."""
    text: str = request.path_params[name]
    # A broker closes the connection over a longer one, which is everybody's.
    if len(text.encode()) > _NAME_BYTES_MAX:
        raise refused(f"{name} is too long: it may have {_NAME_BYTES_MAX} bytes")
    return text


def path_number(request: Request, name: str, most: int = _LAST_NUMBER) -> int:
    """A number in the path."""
    return whole_number(request.path_params[name], name, most=most)


def topic_id_text(topic_id: bytes) -> str | None:
    """A topic's id as Kafka's tools write it; None when the cluster has none."""
    if not any(topic_id):
        return None
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


TOPIC = Parameter("topic", "The name of a topic.", where="path", required=True)
GROUP = Parameter("group", "The id of a group.", where="path", required=True)
