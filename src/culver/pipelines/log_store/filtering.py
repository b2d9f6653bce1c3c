"""Run a condition over a table of events with Arrow's compute functions."""

from __future__ import annotations

from typing import Any as Anything

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from culver.pipelines.log_store.errors import QueryError
from culver.pipelines.log_store.where import FIELDS, All, Among, Any, Comparison, Condition, Missing, Not
from culver.pipelines.parsing.events import TIMESTAMP


def mask_of(condition: Condition, events: pa.Table) -> pa.ChunkedArray:
    """Which rows the condition is true for; null, as in SQL, where it can be neither true nor false."""
    match condition:
        case All():
            return _folded(pc.and_kleene, condition.parts, events)
        case Any():
            return _folded(pc.or_kleene, condition.parts, events)
        case Not():
            return pc.invert(mask_of(condition.inner, events))
        case Missing():
            return pc.is_null(_column(condition.column, events, False))
        case Among():
            parts = tuple(Comparison(condition.column, "=", value) for value in condition.values)
            return _folded(pc.or_kleene, parts, events)
        case Comparison():
            return _compared(condition, events)


def _folded(combine: Anything, parts: tuple[Condition, ...], events: pa.Table) -> pa.ChunkedArray:
    mask = mask_of(parts[0], events)
    for part in parts[1:]:
        mask = combine(mask, mask_of(part, events))
    return mask


def _compared(comparison: Comparison, events: pa.Table) -> pa.ChunkedArray:
    column = _column(comparison.column, events, isinstance(comparison.value, float))
    try:
        if comparison.operator == "LIKE":
            return pc.match_like(column, comparison.value)
        value = pa.scalar(comparison.value, TIMESTAMP if comparison.column == "ts" else column.type)
    except (
        pa.ArrowException,
        OverflowError,
    ) as error:  # a number that has no room, a pattern that is too long
        raise QueryError(
            f"the condition on {comparison.column} cannot be run: {error}", "simplify it"
        ) from None
    compare = {
        "=": pc.equal,
        "!=": pc.not_equal,
        "<": pc.less,
        "<=": pc.less_equal,
        ">": pc.greater,
        ">=": pc.greater_equal,
    }[comparison.operator]
    return compare(column, value)


def _column(name: str, events: pa.Table, as_number: bool) -> pa.ChunkedArray:
    if not name.startswith(FIELDS):
        return events[name]
    key = name[len(FIELDS) :]
    values = [_field(text, key) for text in events["fields"].to_pylist()]
    if as_number:
        return pa.chunked_array([pa.array([_number(value) for value in values], pa.float64())])
    return pa.chunked_array([pa.array([_text(value) for value in values], pa.string())])


def _field(text: str | None, key: str) -> Anything:
    if text is None:
        return None
    try:
        fields = msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return None
    if not isinstance(fields, dict):
        return None
    if key in fields:
        return fields[key]
    for part in key.split("."):  # user.id within {"user": {"id": 7}}
        if not isinstance(fields, dict):
            return None
        fields = fields.get(part)
    return fields


def _number(value: Anything) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _text(value: Anything) -> str | None:
    if value is None or isinstance(value, str):
        return value
    return msgspec.json.encode(value).decode()
