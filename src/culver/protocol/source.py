"""The text of a generated codec as it is written: lines, indentation, names, precompiled struct formats."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from struct import Struct
from typing import TYPE_CHECKING, Any

from culver.protocol.fields import FIXED_BYTES, Field

if TYPE_CHECKING:
    from culver.protocol.schema import Message


class SourceWriter:
    """Collects the lines of one function and the constants that it refers to."""

    def __init__(self, message: type[Message], version: int) -> None:
        self.message = message
        self.version = version
        since = message.SCHEMA.flexible_since
        self.flexible = since is not None and version >= since
        self.constants: dict[str, Any] = {}
        self._lines: list[str] = []
        self._depth = 0
        self._names: dict[str, int] = {}

    def line(self, text: str) -> None:
        self._lines.append("    " * self._depth + text)

    @contextmanager
    def block(self, header: str) -> Iterator[None]:
        self.line(header)
        self._depth += 1
        yield
        self._depth -= 1

    def source(self) -> str:
        return "\n".join(self._lines) + "\n"

    def fresh(self, stem: str) -> str:
        """A local name that nothing else in this function uses."""
        count = self._names[stem] = self._names.get(stem, 0) + 1
        return f"{stem}_{count}"

    def constant(self, name: str, value: Any) -> str:
        """The name by which generated code reaches `value`."""
        candidate, count = name, 1
        while candidate in self.constants and self.constants[candidate] is not value:
            count += 1
            candidate = f"{name}_{count}"
        self.constants[candidate] = value
        return candidate

    def struct_method(self, codes: str, method: str) -> str:
        """The name of pack or unpack_from of a big-endian struct, made once per format."""
        name = f"{method}_{codes.replace('?', 'o')}"
        if name not in self.constants:
            self.constants[name] = getattr(Struct(">" + codes), method)
        return name

    def untagged(self, message: type[Message]) -> list[Field]:
        return [f for f in message.SCHEMA.fields if f.present(self.version) and f.tag is None]

    def tagged(self, message: type[Message]) -> list[Field]:
        fields = [f for f in message.SCHEMA.fields if f.present(self.version) and f.tag is not None]
        if fields and not self.flexible:
            raise TypeError(f"{message.__name__}.{fields[0].name} is tagged in a version without tags")
        return sorted(fields, key=lambda field: field.tag or 0)

    def least_bytes(self, of: type[Message] | Field) -> int:
        """The fewest bytes that a value can take, by which a claimed count is checked."""
        if not isinstance(of, Field):
            return sum(map(self.least_bytes, self.untagged(of))) + self.flexible
        if of.kind in FIXED_BYTES:
            return FIXED_BYTES[of.kind]
        if of.kind == "struct":
            return 1
        if self.flexible:
            return 1
        return 2 if of.kind == "string" else 4


def sized_code(kind: str) -> str:
    """The struct code of the length before a string, bytes, records or array in versions without varints."""
    return "h" if kind == "string" else "i"
