"""Message classes: declared once with typed fields, compiled per version into flat codec functions.

    class Topic(Message):
        name: str = string()
        partitions: list[int] = array(int32())

    class ExampleRequest(Message, api_key=99, versions=(0, 3), flexible_since=2):
        topics: list[Topic] = array(Topic)
        rack: str | None = string(since=3, nullable_since=3, default=None)

    request, end = decoder(ExampleRequest, 3)(buffer, position)
    buffers = encoder(ExampleRequest, 3)(request)

A part that has no versions of its own, such as Topic, is compiled into the message that contains it.
Nothing is compiled before it is first asked for. A field that is absent from a version keeps its default when
decoded and is left out when encoded.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from dataclasses import replace
from typing import Any, ClassVar, TypeVar, dataclass_transform

import msgspec

from culver.protocol.decoder_source import decoder_source
from culver.protocol.encoder_source import encoder_source
from culver.protocol.fields import (
    Field,
    Schema,
    array,
    boolean,
    bytes_,
    float64,
    int8,
    int16,
    int32,
    int64,
    records,
    string,
    struct,
    uint16,
    uint32,
    uuid,
)
from culver.protocol.primitives import ZERO_UUID, Buffer

__all__ = [
    "ZERO_UUID",
    "Buffer",
    "Field",
    "Message",
    "Schema",
    "array",
    "boolean",
    "bytes_",
    "decoder",
    "encoder",
    "float64",
    "int8",
    "int16",
    "int32",
    "int64",
    "records",
    "string",
    "struct",
    "uint16",
    "uint32",
    "uuid",
]


@dataclass_transform(
    kw_only_default=True,
    field_specifiers=(
        array,
        boolean,
        bytes_,
        float64,
        int8,
        int16,
        int32,
        int64,
        records,
        string,
        struct,
        uint16,
        uint32,
        uuid,
    ),
)
class MessageType(msgspec.StructMeta):
    """Takes the Field objects out of a class body and leaves their defaults to msgspec.

    msgspec gives slots and a constructor, comparison and repr in C; its own serialisation is not used.
    Messages hold no cycles, so they are kept out of the garbage collector's sight.
    """

    def __new__(
        mcls,
        name: str,
        bases: tuple[type, ...],
        namespace: dict[str, Any],
        *,
        api_key: int | None = None,
        versions: tuple[int, int] | None = None,
        flexible_since: int | None = None,
    ) -> MessageType:
        fields = [replace(value, name=key) for key, value in namespace.items() if isinstance(value, Field)]
        for field in fields:
            if field.empty_by_default:
                assert isinstance(field.element, type)
                namespace[field.name] = msgspec.field(default_factory=field.element)
            else:
                namespace[field.name] = [] if field.default == () else field.default
        namespace["SCHEMA"] = Schema(tuple(fields), api_key, versions, flexible_since)
        return super().__new__(mcls, name, bases, namespace, gc=False)


class Message(msgspec.Struct, metaclass=MessageType):
    """Base of everything that goes over the wire; see the module's text."""

    SCHEMA: ClassVar[Schema]


M = TypeVar("M", bound=Message)

_decoders: dict[tuple[type[Message], int], Callable[[Buffer, int], tuple[Any, int]]] = {}
_encoders: dict[tuple[type[Message], int], Callable[[Any], list[Buffer]]] = {}


def decoder(message: type[M], version: int) -> Callable[[Buffer, int], tuple[M, int]]:
    """The function that reads `message` from a buffer at a position: (message, position after it).

    Whatever does not fit raises MalformedRequest. Bytes after the message are the caller's business.
    """
    found = _decoders.get((message, version))
    if found is None:
        _check_version(message, version)
        source, constants = decoder_source(message, version)
        found = _decoders[message, version] = _compile("decode", message, version, source, constants)
    return found


def encoder(message: type[M], version: int) -> Callable[[M], list[Buffer]]:
    """The function that turns a message into the buffers to be sent one after another."""
    found = _encoders.get((message, version))
    if found is None:
        _check_version(message, version)
        source, constants = encoder_source(message, version)
        found = _encoders[message, version] = _compile("encode", message, version, source, constants)
    return found


def _check_version(message: type[Message], version: int) -> None:
    versions = message.SCHEMA.versions
    if versions is None:
        raise TypeError(f"{message.__name__} is a part of other messages and has no versions of its own")
    first, last = versions
    if not first <= version <= last:
        raise ValueError(f"{message.__name__} has versions {first} to {last}, not {version}")


def _compile(
    verb: str, message: type[Message], version: int, source: str, constants: dict[str, Any]
) -> Callable[..., Any]:
    filename = f"<culver {verb} {message.__name__} v{version}>"
    # So that tracebacks and debuggers can show the generated lines.
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), constants)
    function: Callable[..., Any] = constants[verb]
    return function
