"""What a message declaration is made of: fields, their wire kinds and the versions they exist in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from culver.protocol.primitives import ZERO_UUID

if TYPE_CHECKING:
    from culver.protocol.schema import Message

# struct codes of the kinds whose width is known beforehand; neighbours of these are read in one go.
FIXED_CODES = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "float64": "d",
    "uuid": "16s",
}
FIXED_BYTES = {
    "bool": 1,
    "int8": 1,
    "int16": 2,
    "uint16": 2,
    "int32": 4,
    "uint32": 4,
    "int64": 8,
    "float64": 8,
    "uuid": 16,
}


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a message.

    It is on the wire in versions `since` to `until`; null is allowed from `nullable_since`. With a `tag` it
    travels in the tagged section, and only when it differs from its default.
    """

    kind: str
    default: Any
    since: int = 0
    until: int | None = None
    nullable_since: int | None = None
    tag: int | None = None
    element: type[Message] | Field | None = None
    name: str = ""

    def present(self, version: int) -> bool:
        return self.since <= version and (self.until is None or version <= self.until)

    def nullable(self, version: int) -> bool:
        return self.nullable_since is not None and self.nullable_since <= version

    @property
    def empty_by_default(self) -> bool:
        """Whether the default is an empty message: None has no place on the wire, or is not what absence means."""
        return self.kind == "struct" and (self.tag is None) == (self.nullable_since is None)


class Schema(NamedTuple):
    """All that a message class declares. A part of other messages has neither key nor versions."""

    fields: tuple[Field, ...]
    api_key: int | None
    versions: tuple[int, int] | None
    flexible_since: int | None


# A field specifier returns Any: a type checker sees the annotation, the metaclass sees the Field.
# To a type checker a field is optional in the constructor exactly when its specifier names a default.


def boolean(
    *, default: bool = False, since: int = 0, until: int | None = None, tag: int | None = None
) -> Any:
    return Field("bool", default, since, until, None, tag)


def int8(*, default: int = 0, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    return Field("int8", default, since, until, None, tag)


def int16(*, default: int = 0, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    return Field("int16", default, since, until, None, tag)


def uint16(*, default: int = 0, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    return Field("uint16", default, since, until, None, tag)


def int32(*, default: int = 0, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    return Field("int32", default, since, until, None, tag)


def uint32(*, default: int = 0, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    return Field("uint32", default, since, until, None, tag)


def int64(*, default: int = 0, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    return Field("int64", default, since, until, None, tag)


def float64(*, default: float = 0.0, since: int = 0, until: int | None = None, tag: int | None = None) -> Any:
    return Field("float64", default, since, until, None, tag)


def uuid(
    *, default: bytes = ZERO_UUID, since: int = 0, until: int | None = None, tag: int | None = None
) -> Any:
    """16 bytes, big end first."""
    return Field("uuid", default, since, until, None, tag)


def string(
    *,
    default: str | None = "",
    since: int = 0,
    until: int | None = None,
    nullable_since: int | None = None,
    tag: int | None = None,
) -> Any:
    return Field("string", default, since, until, nullable_since, tag)


def bytes_(
    *,
    default: bytes | None = b"",
    since: int = 0,
    until: int | None = None,
    nullable_since: int | None = None,
    tag: int | None = None,
) -> Any:
    return Field("bytes", default, since, until, nullable_since, tag)


def records(
    *,
    default: bytes | None = None,
    since: int = 0,
    until: int | None = None,
    nullable_since: int | None = None,
) -> Any:
    """Record batches: decoded to a view into the input, encoded from a buffer or several, never copied."""
    return Field("records", default, since, until, nullable_since)


def array(
    of: type[Message] | Any,
    *,
    default: tuple[()] | None = (),
    since: int = 0,
    until: int | None = None,
    nullable_since: int | None = None,
    tag: int | None = None,
) -> Any:
    """A list of messages, or of a primitive: `array(int32())`. Each message gets an empty list of its own."""
    return Field("array", default, since, until, nullable_since, tag, of)


def struct(
    of: type[Message],
    *,
    default: None = None,
    since: int = 0,
    until: int | None = None,
    nullable_since: int | None = None,
    tag: int | None = None,
) -> Any:
    """A nested message, or None: null on the wire where that is allowed, otherwise, where it is tagged, left out.

    Neither nullable nor tagged, there is no None. Nullable and tagged, None is a null that is sent: what is left
    out is an empty message.
    """
    return Field("struct", default, since, until, nullable_since, tag, of)
