"""Filters on records, as people type them into the message browser.

    timeout -debug "payment refused"     these words in key, value or headers, and not that one
    key:42  value:abc  header:abc  header.trace:abc  partition:3
    .user.id=42  .status!=ok  .amount>=10  .name~smith      fields of a value that is JSON; ~ is "contains"

All terms must hold. Upper and lower case are the same.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from culver.gateway.reading.record import Record

Filter = Callable[[Record], bool]
# The same of a value that has been read as JSON.
_OfJson = Callable[[Any], bool]

LENGTH_MAX = 1000
_TERMS_MAX = 20
_TERM = re.compile(r'\s*(-?)((?:"(?:[^"\\]|\\.)*"|[^\s"])+)')
_QUOTED = re.compile(r'"((?:[^"\\]|\\.)*)"')
_FIELD = re.compile(r"\.([\w.\[\]@$-]+?)(!=|>=|<=|=|>|<|~)(.*)", re.DOTALL)
_NAMED = re.compile(r"(key|value|partition|header)(?:\.([^:\s]+))?:(.*)", re.DOTALL)
_STEP = re.compile(r"[^.\[\]]+|\[\d+\]")
# What a value that is no JSON is read as: it has none of the fields.
_NO_JSON = object()

_Looked = TypeVar("_Looked")


class FilterError(ValueError):
    """A filter that cannot be understood; the text says why."""


def parse_filter(text: str) -> Filter:
    """A function that says whether a record is wanted. Raises FilterError."""
    if len(text) > LENGTH_MAX:
        raise FilterError(f"a filter has {LENGTH_MAX} characters at most")
    terms: list[Filter] = []
    fields: list[_OfJson] = []
    position = 0
    while text[position:].strip():
        found = _TERM.match(text, position)
        if found is None:
            raise FilterError(f"a quotation mark is not closed: {text[position:].strip()}")
        position = found.end()
        if field := _FIELD.fullmatch(found[2]):
            of_json = _field_term(field[1], field[2], _unquoted(field[3]))
            fields.append(_negated(of_json) if found[1] else of_json)
        else:
            term = _term(found[2])
            terms.append(_negated(term) if found[1] else term)
    if len(terms) + len(fields) > _TERMS_MAX:
        raise FilterError(f"a filter has {_TERMS_MAX} terms at most")
    if fields:
        # Last, and once for all of them: reading JSON costs more than looking for a word.
        terms.append(_on_json(fields))
    return lambda record: all(term(record) for term in terms)


def _negated(term: Callable[[_Looked], bool]) -> Callable[[_Looked], bool]:
    return lambda looked_at: not term(looked_at)


def _term(text: str) -> Filter:
    named = _NAMED.fullmatch(text)
    if named is None or (named[2] is not None and named[1] != "header"):
        return _anywhere(_folded(_unquoted(text)))
    what, name, wanted = named[1], named[2], _unquoted(named[3])
    if what == "partition":
        if not wanted.isdecimal():
            raise FilterError(f"partition:{wanted} names no partition: expected a number")
        number = int(wanted)
        return lambda record: record.partition == number
    folded = _folded(wanted)
    if what == "key":
        return lambda record: _holds(record.key, folded)
    if what == "value":
        return lambda record: _holds(record.value, folded)
    return lambda record: any(
        _holds(value, folded) for header, value in record.headers if name is None or header == name
    )


def _unquoted(text: str) -> str:
    return _QUOTED.sub(lambda found: re.sub(r"\\(.)", r"\1", found[1]), text)


# --- words ---


def _folded(text: str) -> bytes:
    return text.casefold().encode()


def _holds(content: bytes | None, folded: bytes) -> bool:
    """Whether the word occurs. ASCII, which is most of what there is, needs no decoding."""
    if content is None:
        return False
    if content.isascii():
        return folded in content.lower()
    return folded in content.decode(errors="replace").casefold().encode()


def _anywhere(folded: bytes) -> Filter:
    return lambda record: (
        _holds(record.value, folded)
        or _holds(record.key, folded)
        or any(_holds(value, folded) or folded in _folded(name) for name, value in record.headers)
    )


# --- fields of JSON ---


def _on_json(fields: list[_OfJson]) -> Filter:
    def matches(record: Record) -> bool:
        value = _json_of(record.value)
        return all(field(value) for field in fields)

    return matches


def _json_of(content: bytes | None) -> Any:
    try:
        return _NO_JSON if content is None else msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _NO_JSON


def _field_term(path: str, operator: str, wanted: str) -> _OfJson:
    steps = [int(step[1:-1]) if step[0] == "[" else step for step in _STEP.findall(path)]
    compare = _comparison(operator, wanted)

    def matches(found: Any) -> bool:
        if found is _NO_JSON:
            return False
        for step in steps:
            try:
                found = found[step]
            except (KeyError, IndexError, TypeError):
                return False
        return compare(found)

    return matches


def _comparison(operator: str, wanted: str) -> Callable[[Any], bool]:
    folded = wanted.casefold()
    if operator == "~":
        return lambda found: folded in _said(found)
    if operator == "=":
        return lambda found: _said(found) == folded or _equal_numbers(found, wanted)
    if operator == "!=":
        return lambda found: not (_said(found) == folded or _equal_numbers(found, wanted))
    number = _number(wanted)
    if number is None:
        # Times and names have an order as well, that of their texts.
        return {
            ">": lambda found: isinstance(found, str) and found.casefold() > folded,
            ">=": lambda found: isinstance(found, str) and found.casefold() >= folded,
            "<": lambda found: isinstance(found, str) and found.casefold() < folded,
            "<=": lambda found: isinstance(found, str) and found.casefold() <= folded,
        }[operator]
    return {
        ">": lambda found: _is_number(found) and found > number,
        ">=": lambda found: _is_number(found) and found >= number,
        "<": lambda found: _is_number(found) and found < number,
        "<=": lambda found: _is_number(found) and found <= number,
    }[operator]


def _said(found: Any) -> str:
    if isinstance(found, str):
        return found.casefold()
    return msgspec.json.encode(found).decode().casefold()


def _equal_numbers(found: Any, wanted: str) -> bool:
    return _is_number(found) and found == _number(wanted)


def _is_number(found: Any) -> bool:
    return isinstance(found, int | float) and not isinstance(found, bool)


def _number(text: str) -> float | int | None:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return None
