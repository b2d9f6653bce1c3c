"""Declares protobuf messages from a table of field numbers, so that no generated files are needed.

    SHAPES = declare("culver.example", {
        "Stream": {"labels": Field(1, "bytes"), "entries": Field(2, "Entry", repeated=True)},
        "Entry": {"line": Field(2, "bytes")},
    })
    stream = read(SHAPES["Stream"], body)

Text that strangers send is declared as `bytes`, which is the same on the wire: one log line that is not UTF-8 would
otherwise make the whole message unreadable. For the same reason a repeated message may be declared as repeated `bytes`
and read one by one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

# protobuf makes classes while the program runs, which a type checker cannot follow.
Shape: TypeAlias = Any

_NUMBERS = descriptor_pb2.FieldDescriptorProto
_SCALARS: dict[str, int] = {
    "bool": _NUMBERS.TYPE_BOOL,
    "bytes": _NUMBERS.TYPE_BYTES,
    "double": _NUMBERS.TYPE_DOUBLE,
    "fixed32": _NUMBERS.TYPE_FIXED32,
    "fixed64": _NUMBERS.TYPE_FIXED64,
    "int32": _NUMBERS.TYPE_INT32,
    "int64": _NUMBERS.TYPE_INT64,
    "string": _NUMBERS.TYPE_STRING,
    "uint32": _NUMBERS.TYPE_UINT32,
}


class Malformed(Exception):
    """The bytes are no message of the declared shape."""


class Field(NamedTuple):
    """One field: its number, and a scalar's name or that of another message of the same table."""

    number: int
    kind: str
    repeated: bool = False
    # Fields that share a name here exclude each other: WhichOneof(name) tells which was sent.
    oneof: str | None = None


def declare(package: str, messages: Mapping[str, Mapping[str, Field]]) -> dict[str, Shape]:
    """A class for each message. All fields that are not repeated know whether they were sent (HasField)."""
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto2")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        choices = list(dict.fromkeys(field.oneof for field in fields.values() if field.oneof))
        for choice in choices:
            message.oneof_decl.add(name=choice)
        for field_name, field in fields.items():
            label = _NUMBERS.LABEL_REPEATED if field.repeated else _NUMBERS.LABEL_OPTIONAL
            declared = message.field.add(name=field_name, number=field.number, label=label)
            if field.oneof:
                declared.oneof_index = choices.index(field.oneof)
            if field.kind in _SCALARS:
                declared.type = _SCALARS[field.kind]
            else:
                declared.type = _NUMBERS.TYPE_MESSAGE
                declared.type_name = f".{package}.{field.kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in messages
    }


def read(shape: Shape, encoded: bytes) -> Any:
    """The message in the bytes. Raises Malformed."""
    message = shape()
    try:
        message.ParseFromString(encoded)
    except (DecodeError, RecursionError) as error:
        raise Malformed(str(error)) from error
    return message


def text(encoded: bytes) -> str:
    """Text as it was sent; bytes that are not UTF-8 are kept as \\xNN."""
    return encoded.decode("utf-8", "backslashreplace")
