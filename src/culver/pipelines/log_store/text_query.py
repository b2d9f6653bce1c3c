"""Understand what people type into a search: words, "phrases", prefix*, AND, OR, NOT and parentheses.

timeout payment            both words                 "connection reset"     next to each other, in this order
timeout OR refused         either                     deploy*                words that begin like this
timeout NOT (test OR dev)  the first without others   10.0.0.7               the parts next to each other
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from culver.pipelines.log_store.errors import QueryError

_TOKEN = re.compile(r'\s*(?:(?P<paren>[()])|"(?P<phrase>[^"]*)"(?P<phrase_prefix>\*?)|(?P<word>[^\s()"]+))')
_DEPTH_MAX = 50
_EXAMPLE = 'for instance: timeout AND (payment OR "order placed") NOT test*'


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str  # "(", ")", "AND", "OR", "NOT", "term"
    text: str = ""
    prefix: bool = False


def compile_text(query: str) -> str:
    """The query as FTS5 wants it; "" when it asks for everything. Raises QueryError."""
    tokens = _tokens(query)
    if not tokens:
        return ""
    parser = _Parser(tokens)
    compiled = parser.either(0)
    if parser.next is not None:
        raise _error(query, f"unexpected {parser.next.kind!r}")
    if compiled is None:
        raise _error(query, "no letters or digits to look for")
    return compiled


def _tokens(query: str) -> list[_Token]:
    tokens: list[_Token] = []
    position = 0
    query = query.replace("\0", " ").rstrip()
    while position < len(query):
        match = _TOKEN.match(query, position)
        if match is None:
            raise _error(query, "a quotation mark is not closed")
        position = match.end()
        if match["paren"]:
            tokens.append(_Token(match["paren"]))
        elif match["phrase"] is not None:
            tokens.append(_Token("term", match["phrase"], bool(match["phrase_prefix"])))
        elif match["word"] in ("AND", "OR", "NOT"):
            tokens.append(_Token(match["word"]))
        else:
            word = match["word"]
            tokens.append(_Token("term", word.rstrip("*"), word.endswith("*")))
    return tokens


def _error(query: str, reason: str) -> QueryError:
    return QueryError(f"the query {query!r} cannot be understood: {reason}", _EXAMPLE)


class _Parser:
    """Recursive descent; each method gives FTS5 text, or None for a term without letters or digits."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._position = 0

    @property
    def next(self) -> _Token | None:
        return self._tokens[self._position] if self._position < len(self._tokens) else None

    def _take(self, kind: str) -> bool:
        if self.next is not None and self.next.kind == kind:
            self._position += 1
            return True
        return False

    def either(self, depth: int) -> str | None:
        parts = [self._both(depth)]
        while self._take("OR"):
            parts.append(self._both(depth))
        return _joined(parts, " OR ")

    def _both(self, depth: int) -> str | None:
        wanted: list[str | None] = []
        unwanted: list[str | None] = []
        while True:
            if self._take("NOT"):
                unwanted.append(self._one(depth))
            else:
                wanted.append(self._one(depth))
            if not self._take("AND") and (self.next is None or self.next.kind in ("OR", ")")):
                break
        if not wanted:
            raise self._failure("NOT needs something to take away from: put a word before it")
        kept, dropped = _joined(wanted, " AND "), _joined(unwanted, " OR ")
        return kept if kept is None or dropped is None else f"({kept} NOT {dropped})"

    def _one(self, depth: int) -> str | None:
        if depth > _DEPTH_MAX:
            raise self._failure("too many parentheses within each other")
        token = self.next
        if token is None:
            raise self._failure("something is missing at its end")
        if self._take("("):
            inside = self.either(depth + 1)
            if not self._take(")"):
                raise self._failure("a parenthesis is not closed")
            return inside
        if not self._take("term"):
            raise self._failure(f"unexpected {token.kind!r}")
        # What the index splits at (dots, dashes, ...) is split here too: FTS5 does it within quotes.
        if not any(character.isalnum() for character in token.text):
            return None
        return f'"{token.text}"' + ("*" if token.prefix else "")

    def _failure(self, reason: str) -> QueryError:
        text = " ".join(token.text or token.kind for token in self._tokens)
        return _error(text, reason)


def _joined(parts: list[str | None], operator: str) -> str | None:
    present = [part for part in parts if part is not None]
    if len(present) < 2:
        return present[0] if present else None
    return f"({operator.join(present)})"
