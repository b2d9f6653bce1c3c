"""Generates the encoder of one message version: fixed-width neighbours are packed by one struct call.

Where a later version of a field may be null but this one may not, None is encoded as empty, so that a handler
need not know in which version null came in.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from culver.protocol.fields import FIXED_CODES, Field
from culver.protocol.primitives import uvarint
from culver.protocol.source import SourceWriter, sized_code

if TYPE_CHECKING:
    from culver.protocol.schema import Message


def encoder_source(message: type[Message], version: int) -> tuple[str, dict[str, Any]]:
    """Source text that defines `encode(message)`, and the constants it needs."""
    writer = _EncoderWriter(message, version)
    writer.function()
    return writer.source(), writer.constants


class _EncoderWriter(SourceWriter):
    """Local names in what it writes: w the buffer being filled, out the buffers before it."""

    def __init__(self, message: type[Message], version: int) -> None:
        super().__init__(message, version)
        self._run: list[tuple[str, str]] = []
        self._buffer = "w"
        self._has_records = _contains_records(message)
        self.constants.update(uvarint=uvarint, pack=struct.pack)

    def function(self) -> None:
        with self.block("def encode(message):"):
            self.line("w = bytearray()")
            if self._has_records:
                self.line("out = []")
            self._message(self.message, "message")
            self._flush()
            if self._has_records:
                # Without tagged fields the last records may be the very end of the message.
                with self.block("if w:"):
                    self.line("out.append(w)")
                self.line("return out")
            else:
                self.line("return [w]")

    # Runs of fixed-width values. The code "x" is a constant zero byte and takes no expression.

    def _flush(self, length: str = "", code: str = "") -> None:
        """Packs what has gathered, and after it `length` as one value of struct code `code`."""
        run = [*self._run, (length, code)] if code else self._run
        self._run = []
        codes = "".join(c for _, c in run)
        if codes == "B":
            self.line(f"{self._buffer}.append({length})")
        elif codes and not codes.strip("x"):
            self.line(f"{self._buffer} += {bytes(len(codes))!r}")
        elif run:
            pack = self.struct_method(codes, "pack")
            self.line(f"{self._buffer} += {pack}({', '.join(e for e, c in run if c != 'x')})")

    def _flush_with_length(self, field: Field, length: str) -> None:
        """`length` is that of the value; the wire has one more in versions with varints."""
        if not self.flexible:
            self._flush(length, sized_code(field.kind))
            return
        run = self._run
        size = self.fresh("n")
        self.line(f"{size} = {length} + 1")
        with self.block(f"if {size} < 128:"):
            self._flush(size, "B")
        with self.block("else:"):
            self._run = run
            self._flush()
            self.line(f"{self._buffer} += uvarint({size})")

    def _flush_with_null(self, field: Field) -> None:
        if self.flexible:
            self._flush("", "x")
        else:
            self._flush("-1", sized_code(field.kind))

    # Values.

    def _message(self, message: type[Message], name: str) -> None:
        for field in self.untagged(message):
            self._value(field, f"{name}.{field.name}")
        if self.flexible:
            self._tagged_section(message, name)

    def _value(self, field: Field, expression: str) -> None:
        if field.kind in FIXED_CODES:
            self._run.append((expression, FIXED_CODES[field.kind]))
            return
        value = self.fresh("v")
        self.line(f"{value} = {expression}")
        if field.kind == "struct":
            self._struct(field, value)
            return
        with self._unless_null(field, value):
            if field.kind == "array":
                self._array(field, value)
            elif field.kind == "records":
                self._records(field, value)
            else:
                if field.kind == "string":
                    self.line(f"{value} = {value}.encode()")
                self._flush_with_length(field, f"len({value})")
                self.line(f"{self._buffer} += {value}")

    @contextmanager
    def _unless_null(self, field: Field, value: str) -> Iterator[None]:
        """Encodes null where that is allowed; the body of the with statement encodes what is not null."""
        if not field.nullable(self.version):
            if field.nullable_since is not None:
                empty = {"string": "''", "array": "[]"}.get(field.kind, "b''")
                with self.block(f"if {value} is None:"):
                    self.line(f"{value} = {empty}")
            yield
            return
        run = self._run
        with self.block(f"if {value} is None:"):
            self._flush_with_null(field)
        with self.block("else:"):
            self._run = run
            yield

    def _array(self, field: Field, value: str) -> None:
        of = field.element
        assert of is not None
        self._flush_with_length(field, f"len({value})")
        if isinstance(of, Field) and of.kind in FIXED_CODES:
            code = FIXED_CODES[of.kind]
            if len(code) > 1:
                self.line(f"{self._buffer} += b''.join({value})")
            else:
                self.line(f"{self._buffer} += pack(f'>{{len({value})}}{code}', *{value})")
            return
        element = self.fresh("o")
        with self.block(f"for {element} in {value}:"):
            if isinstance(of, Field):
                self._value(of, element)
            else:
                self._message(of, element)
            self._flush()

    def _records(self, field: Field, value: str) -> None:
        if self._buffer != "w":
            raise TypeError(f"{field.name}: records in a tagged field")
        with self.block(f"if not isinstance({value}, (list, tuple)):"):
            self.line(f"{value} = [{value}]")
        self._flush_with_length(field, f"sum(map(len, {value}))")
        self.line("out.append(w)")
        self.line(f"out += {value}")
        self.line("w = bytearray()")

    def _struct(self, field: Field, value: str) -> None:
        of = field.element
        assert of is not None
        assert not isinstance(of, Field)
        if not field.nullable(self.version):
            self._message(of, value)
            self._flush()
            return
        run = self._run
        with self.block(f"if {value} is None:"):
            # In a tagged field the mark is an unsigned varint, so null is 0 there.
            self._flush("-1" if field.tag is None else "0", "b")
        with self.block("else:"):
            self._run = run
            self._flush("1", "b")
            self._message(of, value)
            self._flush()

    # Tagged fields.

    def _tagged_section(self, message: type[Message], name: str) -> None:
        fields = self.tagged(message)
        if not fields:
            self._run.append(("", "x"))
            return
        conditions = [self._differs_from_default(field, f"{name}.{field.name}") for field in fields]
        run = self._run
        with self.block(f"if {' or '.join(conditions)}:"):
            self._flush()
            section, count = self.fresh("section"), self.fresh("tags")
            self.line(f"{section} = bytearray()")
            self.line(f"{count} = 0")
            outer = self._buffer
            for field, condition in zip(fields, conditions, strict=True):
                with self.block(f"if {condition}:"):
                    self._buffer = self.fresh("tagged")
                    self.line(f"{self._buffer} = bytearray()")
                    self._value(field, f"{name}.{field.name}")
                    self._flush()
                    self.line(f"{count} += 1")
                    tag = uvarint(field.tag or 0)
                    self.line(f"{section} += {tag!r} + uvarint(len({self._buffer})) + {self._buffer}")
            self._buffer = outer
            self.line(f"{outer} += uvarint({count}) + {section}")
        with self.block("else:"):
            self._run = run
            self._flush("", "x")

    def _differs_from_default(self, field: Field, expression: str) -> str:
        if field.empty_by_default:
            assert isinstance(field.element, type)
            return f"{expression} != {self.constant(f'empty_{field.name}', field.element())}"
        if field.default is None:
            return f"{expression} is not None"
        if field.kind == "array":
            return f"{expression} != []" if field.nullable(self.version) else expression
        return f"{expression} != {field.default!r}"


def _contains_records(message: type[Message]) -> bool:
    for field in message.SCHEMA.fields:
        if field.kind == "records":
            return True
        of = field.element
        if of is not None and not isinstance(of, Field) and _contains_records(of):
            return True
    return False
