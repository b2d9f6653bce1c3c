"""Understand conditions on columns, as after WHERE in SQL, and run them with Arrow; nothing is ever evaluated.

    level = 'ERROR' AND service IN ('api', 'web')        host LIKE 'db-%' OR host IS NULL
    NOT (fields.status < 500)                            ts BETWEEN '2026-11-15T08:00Z' AND '2026-11-15T09:00Z'

`fields.NAME` is the value of that name in the JSON of the column `fields`; compared with a number it is a number.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from culver.pipelines.log_store.errors import QueryError
from culver.pipelines.parsing.events import EVENT_SCHEMA, level_name

FIELDS = "fields."
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<string>'(?:[^']|'')*')
      | (?P<number>[+-]?\d+(?:\.\d+)?(?![\w.]))
      | (?P<name>"(?:[^"]+)"|@?[A-Za-z_][\w.@-]*)
      | (?P<symbol><=|>=|<>|!=|==|[=<>(),])
    )""",
    re.VERBOSE,
)
_COMPARISONS = {"=": "=", "==": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_DEPTH_MAX = 50
_EXAMPLE = "for instance: level = 'ERROR' AND service IN ('api', 'web') AND fields.status >= 500"

Literal = str | int | float


@dataclass(frozen=True, slots=True)
class Comparison:
    """column OP value; the operator is one of = != < <= > >= LIKE."""

    column: str
    operator: str
    value: Literal


@dataclass(frozen=True, slots=True)
class Among:
    """column IN (values)."""

    column: str
    values: tuple[Literal, ...]


@dataclass(frozen=True, slots=True)
class Missing:
    """column IS NULL."""

    column: str


@dataclass(frozen=True, slots=True)
class Not:
    inner: Condition


@dataclass(frozen=True, slots=True)
class All:
    parts: tuple[Condition, ...]


@dataclass(frozen=True, slots=True)
class Any:
    parts: tuple[Condition, ...]


Condition = Comparison | Among | Missing | Not | All | Any


def parse_where(text: str) -> Condition | None:
    """The condition, or None when there is none. Raises QueryError."""
    if not text.strip():
        return None
    parser = _Parser(text)
    condition = parser.either(0)
    parser.expect_end()
    return condition


def columns_of(condition: Condition) -> set[str]:
    """The columns that a condition looks at, `fields.NAME` as it stands."""
    match condition:
        case Comparison() | Among() | Missing():
            return {condition.column}
        case Not():
            return columns_of(condition.inner)
        case _:
            return set().union(*(columns_of(part) for part in condition.parts))


def may_match(condition: Condition, values: Mapping[str, list[str | None]], ts_min: int, ts_max: int) -> bool:
    """Whether a file with these listed values and times may hold a row for which the condition is true."""
    match condition:
        case All():
            return all(may_match(part, values, ts_min, ts_max) for part in condition.parts)
        case Any():
            return any(may_match(part, values, ts_min, ts_max) for part in condition.parts)
        case Among() if condition.column in values:
            return any(value in values[condition.column] for value in condition.values)
        case Missing() if condition.column in values:
            return None in values[condition.column]
        case Comparison(column="ts", value=int(moment)):
            return {"=": ts_min <= moment <= ts_max, "<": ts_min < moment, "<=": ts_min <= moment}.get(
                condition.operator,
                {">": ts_max > moment, ">=": ts_max >= moment}.get(condition.operator, True),
            )
        case Comparison(operator="=") if condition.column in values:
            return condition.value in values[condition.column]
        case _:
            return True


class _Parser:
    """Recursive descent over the tokens of one condition."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens: list[tuple[str, str]] = []
        self._position = 0
        position = 0
        text = text.rstrip()
        while position < len(text):
            match = _TOKEN.match(text, position)
            if match is None or match.lastgroup is None:
                raise self._failure(f"what begins at {text[position:].strip()[:20]!r} has no meaning here")
            self._tokens.append((match.lastgroup, match[match.lastgroup]))
            position = match.end()

    def expect_end(self) -> None:
        if self._position < len(self._tokens):
            raise self._failure(f"unexpected {self._tokens[self._position][1]!r}")

    def either(self, depth: int) -> Condition:
        parts = [self._both(depth)]
        while self._take_word("OR"):
            parts.append(self._both(depth))
        return parts[0] if len(parts) == 1 else Any(tuple(parts))

    def _both(self, depth: int) -> Condition:
        parts = [self._one(depth)]
        while self._take_word("AND"):
            parts.append(self._one(depth))
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _one(self, depth: int) -> Condition:
        if depth > _DEPTH_MAX:
            raise self._failure("too many parentheses or NOTs within each other")
        if self._take_word("NOT"):
            return Not(self._one(depth + 1))
        if self._take_symbol("("):
            inside = self.either(depth + 1)
            self._expect_symbol(")")
            return inside
        return self._predicate(self._column())

    def _predicate(self, column: str) -> Condition:
        if self._take_word("IS"):
            negated = self._take_word("NOT")
            if not self._take_word("NULL"):
                raise self._failure("IS is followed by NULL or NOT NULL")
            return Not(Missing(column)) if negated else Missing(column)
        negated = self._take_word("NOT")
        condition: Condition
        if self._take_word("IN"):
            self._expect_symbol("(")
            values = [self._literal(column)]
            while self._take_symbol(","):
                values.append(self._literal(column))
            self._expect_symbol(")")
            condition = Among(column, tuple(values))
        elif self._take_word("LIKE"):
            condition = Comparison(column, "LIKE", self._pattern(column))
        elif self._take_word("BETWEEN"):
            least = self._literal(column)
            if not self._take_word("AND"):
                raise self._failure("BETWEEN needs AND")
            condition = All(
                (Comparison(column, ">=", least), Comparison(column, "<=", self._literal(column)))
            )
        elif negated:
            raise self._failure("NOT here is followed by IN, LIKE or BETWEEN")
        else:
            condition = Comparison(column, self._operator(column), self._literal(column))
        return Not(condition) if negated else condition

    def _column(self) -> str:
        kind, text = self._next("a column")
        if kind != "name":
            raise self._failure(f"{text} stands where a column is expected")
        name = text.strip('"')
        if name.startswith(FIELDS) and len(name) > len(FIELDS):
            return name
        if name.lower() in EVENT_SCHEMA.names:
            return name.lower()
        raise self._failure(
            f"there is no column {name}; there are {', '.join(EVENT_SCHEMA.names)}, and fields.NAME for others"
        )

    def _operator(self, column: str) -> str:
        kind, text = self._next(f"a comparison after {column}")
        if kind != "symbol" or text not in _COMPARISONS:
            raise self._failure(f"{text} stands where a comparison is expected")
        return _COMPARISONS[text]

    def _pattern(self, column: str) -> str:
        if not _is_text(column):
            raise self._failure(f"LIKE is for text, and {column} is none")
        kind, text = self._next("a pattern after LIKE")
        if kind != "string":
            raise self._failure("LIKE is followed by a pattern in single quotes")
        return _unquoted(text)

    def _literal(self, column: str) -> Literal:
        kind, text = self._next(f"a value for {column}")
        if kind not in ("string", "number"):
            raise self._failure(f"{text} stands where a value is expected; text goes in single quotes")
        if column == "ts":
            return self._moment(_unquoted(text))
        if column in ("partition", "offset"):
            if kind != "number" or "." in text:
                raise self._failure(f"{column} is a whole number")
            return int(text)
        if column == "level":
            return level_name(_unquoted(text)) or _unquoted(text)
        if kind == "number" and column.startswith(FIELDS):
            return float(text)
        return _unquoted(text)

    def _moment(self, text: str) -> int:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise self._failure(f"{text!r} is no ISO 8601 time such as '2026-11-15T08:00Z'") from None
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        seconds = moment.replace(microsecond=0).timestamp()
        return int(seconds) * 1_000_000 + moment.microsecond

    def _next(self, expected: str) -> tuple[str, str]:
        if self._position == len(self._tokens):
            raise self._failure(f"{expected} is missing at its end")
        self._position += 1
        return self._tokens[self._position - 1]

    def _take_word(self, word: str) -> bool:
        return self._take("name", word)

    def _take_symbol(self, symbol: str) -> bool:
        return self._take("symbol", symbol)

    def _take(self, kind: str, text: str) -> bool:
        if self._position < len(self._tokens):
            found_kind, found = self._tokens[self._position]
            if found_kind == kind and found.upper() == text:
                self._position += 1
                return True
        return False

    def _expect_symbol(self, symbol: str) -> None:
        if not self._take_symbol(symbol):
            raise self._failure(f"{symbol} is missing")

    def _failure(self, reason: str) -> QueryError:
        return QueryError(f"the condition {self._text!r} cannot be understood: {reason}", _EXAMPLE)


def _unquoted(text: str) -> str:
    return text[1:-1].replace("''", "'") if text.startswith("'") else text


def _is_text(column: str) -> bool:
    return column.startswith(FIELDS) or str(EVENT_SCHEMA.field(column).type) == "string"
