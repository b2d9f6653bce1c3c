"""Generates the decoder of one message version: straight-line code, every length checked before it is used.

Fixed-width neighbours are read by one struct call, together with the length (or its first byte) that ends
their run. What runs off the buffer is MalformedRequest: fixed widths through struct.error and IndexError,
lengths and counts through comparison with what remains.
"""

from __future__ import annotations

import struct
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from culver.errors import MalformedRequest
from culver.protocol.fields import FIXED_BYTES, FIXED_CODES, Field
from culver.protocol.primitives import (
    ELEMENTS_MAX,
    ELEMENTS_MAX_OF_ANSWERS,
    STRING_LENGTH_MAX,
    finish_uvarint,
    read_uvarint,
    skip_tagged_fields,
)
from culver.protocol.source import SourceWriter, sized_code

if TYPE_CHECKING:
    from culver.protocol.schema import Message


def decoder_source(message: type[Message], version: int) -> tuple[str, dict[str, Any]]:
    """Source text that defines `decode(b, p)`, and the constants it needs."""
    writer = _DecoderWriter(message, version)
    writer.function()
    return writer.source(), writer.constants


class _DecoderWriter(SourceWriter):
    """Local names in what it writes: b the buffer, p a position in it, e a value's end, end the buffer's."""

    def __init__(self, message: type[Message], version: int) -> None:
        super().__init__(message, version)
        self._run: list[tuple[str, str, int]] = []
        is_request = message.__name__.endswith("Request")
        self._elements_max = ELEMENTS_MAX if is_request else ELEMENTS_MAX_OF_ANSWERS
        self.constants.update(
            MalformedRequest=MalformedRequest,
            StructError=struct.error,
            finish_uvarint=finish_uvarint,
            read_uvarint=read_uvarint,
            skip_tagged_fields=skip_tagged_fields,
            unpack_from=struct.unpack_from,
        )

    def function(self) -> None:
        with self.block("def decode(b, p):"):
            with self.block("try:"):
                self.line("end = len(b)")
                if _contains_array(self.message):
                    self.line(f"elements_left = {self._elements_max}")
                result = self._message(self.message, "")
                self.line(f"return {result}, p")
            with self.block("except (IndexError, StructError, UnicodeDecodeError) as error:"):
                self.line(f"raise MalformedRequest(f'{self._title}: {{error}}') from error")

    @property
    def _title(self) -> str:
        return f"{self.message.__name__} v{self.version}"

    def _refuse(self, problem: str, path: str = "") -> None:
        where = f"{self._title} {path}".rstrip()
        self.line(f"raise MalformedRequest({f'{where}: {problem}'!r})")

    # Runs of fixed-width values.

    def _flush(self) -> None:
        run, self._run = self._run, []
        if not run:
            return
        names = ", ".join(name for name, _, _ in run)
        if len(run) == 1 and run[0][1] == "B":
            self.line(f"{names} = b[p]")
            self.line("p += 1")
            return
        unpack = self.struct_method("".join(code for _, code, _ in run), "unpack_from")
        self.line(f"{names}{',' if len(run) == 1 else ''} = {unpack}(b, p)")
        self.line(f"p += {sum(size for _, _, size in run)}")

    def _length(self, field: Field, path: str) -> str:
        """Reads the length or count before a value. Null is 0 in versions with varints, -1 in the others."""
        length = self.fresh("n")
        if self.flexible:
            self._run.append((length, "B", 1))
            self._flush()
            with self.block(f"if {length} > 127:"):
                self.line(f"{length}, p = finish_uvarint(b, p, {length})")
                if field.kind == "string":
                    with self.block(f"if {length} > {STRING_LENGTH_MAX + 1}:"):
                        self._refuse("string too long", path)
        else:
            code = sized_code(field.kind)
            self._run.append((length, code, 2 if code == "h" else 4))
            self._flush()
        return length

    # Values.

    def _message(self, message: type[Message], path: str) -> str:
        """Reads all of `message`, and returns the expression that constructs it."""
        values: dict[str, str] = {}
        for field in message.SCHEMA.fields:
            if not field.present(self.version):
                values[field.name] = self._default(field)
            elif field.tag is not None:
                values[field.name] = self.fresh(field.name)
        for field in self.untagged(message):
            values[field.name] = self.fresh(field.name)
            self._value(field, values[field.name], f"{path}.{field.name}".lstrip("."))
        if self.flexible:
            self._tagged_section(message, values, path)
        else:
            self._flush()
        arguments = ", ".join(values[field.name] for field in message.SCHEMA.fields)
        return f"{self.constant(message.__name__, message)}({arguments})"

    def _default(self, field: Field) -> str:
        if field.empty_by_default:
            assert isinstance(field.element, type)
            return f"{self.constant(field.element.__name__, field.element)}()"
        return "[]" if field.default == () else repr(field.default)

    def _value(self, field: Field, target: str, path: str) -> None:
        if field.kind in FIXED_CODES:
            self._run.append((target, FIXED_CODES[field.kind], FIXED_BYTES[field.kind]))
        elif field.kind == "struct":
            self._struct(field, target, path)
        elif field.kind == "array":
            self._array(field, target, path)
        else:
            self._sized(field, target, path)

    def _sized(self, field: Field, target: str, path: str) -> None:
        """A string, bytes or records: a length, then as many bytes."""
        length = self._length(field, path)
        with self._unless_null(field, length, target, path):
            self.line(f"e = p + {length}{' - 1' if self.flexible else ''}")
            with self.block("if e > end:"):
                self._refuse("longer than what remains", path)
            if field.kind == "string":
                self.line(f"{target} = str(b[p:e], 'utf-8')")
            elif field.kind == "bytes":
                self.line(f"{target} = bytes(b[p:e])")
            else:
                self.line(f"{target} = b[p:e] if type(b) is memoryview else memoryview(b)[p:e]")
            self.line("p = e")

    def _unless_null(self, field: Field, length: str, target: str, path: str) -> Any:
        """Opens the branch for a value that is there, after dealing with null and lengths below it."""
        if self.flexible:
            if field.nullable(self.version):
                with self.block(f"if not {length}:"):
                    self.line(f"{target} = None")
                return self.block("else:")
            with self.block(f"if not {length}:"):
                self._refuse("null", path)
            return nullcontext()
        if field.nullable(self.version):
            with self.block(f"if {length} == -1:"):
                self.line(f"{target} = None")
            return self._not_negative("elif", length, path)
        return self._not_negative("if", length, path)

    def _not_negative(self, keyword: str, length: str, path: str) -> Any:
        with self.block(f"{keyword} {length} < 0:"):
            self._refuse("a negative length", path)
        return self.block("else:")

    def _array(self, field: Field, target: str, path: str) -> None:
        of = field.element
        assert of is not None
        least_bytes = self.least_bytes(of)
        if least_bytes == 0:
            raise TypeError(f"{path}: an element without bytes leaves the count of an array unbounded")
        length = self._length(field, path)
        with self._unless_null(field, length, target, path):
            if self.flexible:
                self.line(f"{length} -= 1")
            factor = "" if least_bytes == 1 else f" * {least_bytes}"
            with self.block(f"if {length}{factor} > end - p:"):
                self._refuse("more elements than what remains can hold", path)
            self.line(f"elements_left -= {length}")
            with self.block("if elements_left < 0:"):
                self._refuse(f"more than {self._elements_max} elements", path)
            if isinstance(of, Field) and of.kind in FIXED_CODES:
                # A struct format with a count in it: the elements are read by one call.
                code = FIXED_CODES[of.kind]
                if len(code) > 1:
                    self.line(f"{target} = [bytes(b[i:i + 16]) for i in range(p, p + {length} * 16, 16)]")
                else:
                    self.line(f"{target} = list(unpack_from(f'>{{{length}}}{code}', b, p))")
                self.line(f"p += {length}{factor}")
                return
            self.line(f"{target} = []")
            with self.block(f"for _ in range({length}):"):
                if isinstance(of, Field):
                    element = self.fresh("element")
                    self._value(of, element, path)
                    self._flush()
                else:
                    element = self._message(of, path)
                self.line(f"{target}.append({element})")

    def _struct(self, field: Field, target: str, path: str) -> None:
        of = field.element
        assert of is not None
        assert not isinstance(of, Field)
        if not field.nullable(self.version):
            self.line(f"{target} = {self._message(of, path)}")
            return
        present = self.fresh("present")
        self._run.append((present, "b", 1))
        self._flush()
        with self.block(f"if {present} < {0 if field.tag is None else 1}:"):
            self.line(f"{target} = None")
        with self.block("else:"):
            self.line(f"{target} = {self._message(of, path)}")

    # Tagged fields.

    def _tagged_section(self, message: type[Message], values: dict[str, str], path: str) -> None:
        count = self.fresh("tags")
        self._run.append((count, "B", 1))
        self._flush()
        fields = self.tagged(message)
        for field in fields:
            self.line(f"{values[field.name]} = {self._default(field)}")
        with self.block(f"if {count}:"):
            if not fields:
                self.line(f"p = skip_tagged_fields(b, p, {count})")
                return
            with self.block(f"if {count} > 127:"):
                self.line(f"{count}, p = finish_uvarint(b, p, {count})")
            with self.block(f"if {count} * 2 > end - p:"):
                self._refuse("more tagged fields than what remains can hold", path)
            self._known_tags(fields, values, count, path)

    def _known_tags(self, fields: list[Field], values: dict[str, str], count: str, path: str) -> None:
        previous, tag, tag_end = self.fresh("previous"), self.fresh("tag"), self.fresh("tag_end")
        self.line(f"{previous} = -1")
        with self.block(f"for _ in range({count}):"):
            self.line(f"{tag}, p = read_uvarint(b, p)")
            with self.block(f"if {tag} <= {previous}:"):
                self._refuse("tags repeated or out of order", path)
            self.line(f"{previous} = {tag}")
            self.line(f"{tag_end}, p = read_uvarint(b, p)")
            self.line(f"{tag_end} += p")
            with self.block(f"if {tag_end} > end:"):
                self._refuse("a tagged field longer than what remains", path)
            keyword = "if"
            for field in fields:
                with self.block(f"{keyword} {tag} == {field.tag}:"):
                    field_path = f"{path}.{field.name}".lstrip(".")
                    self._value(field, values[field.name], field_path)
                    self._flush()
                    with self.block(f"if p != {tag_end}:"):
                        self._refuse("a tagged field of another size than it claims", field_path)
                keyword = "elif"
            with self.block("else:"):
                self.line(f"p = {tag_end}")


def _contains_array(message: type[Message]) -> bool:
    for field in message.SCHEMA.fields:
        of = field.element
        if field.kind == "array" or (isinstance(of, type) and _contains_array(of)):
            return True
    return False
