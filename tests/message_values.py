"""Random messages: every field of a version gets a value that its wire kind can carry."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from random import Random
from typing import Any

from culver.protocol import messages as message_modules
from culver.protocol.schema import Field, Message

INTEGER_BITS = {"int8": (8, True), "int16": (16, True), "int32": (32, True), "int64": (64, True)} | {
    "uint16": (16, False),
    "uint32": (32, False),
}


def all_messages() -> list[type[Message]]:
    """Every message of Kafka's that has versions of its own, whether or not the broker serves it."""
    return [
        value
        for module in pkgutil.iter_modules(message_modules.__path__)
        if module.name not in ("broker_hello", "broker_report")
        for value in vars(import_module(f"{message_modules.__name__}.{module.name}")).values()
        if isinstance(value, type) and issubclass(value, Message) and value.SCHEMA.versions is not None
    ]


def versions_of(message: type[Message]) -> range:
    assert message.SCHEMA.versions is not None
    first, last = message.SCHEMA.versions
    return range(first, last + 1)


def all_message_versions() -> list[tuple[type[Message], int]]:
    return [(message, version) for message in all_messages() for version in versions_of(message)]


def title(argument: Any) -> str:
    return argument.__name__ if isinstance(argument, type) else str(argument)


def random_message(message: type[Message], version: int, rng: Random) -> Any:
    """A message with all fields of `version` filled at random, and the others left at their defaults."""
    values = {
        field.name: random_value(field, version, rng)
        for field in message.SCHEMA.fields
        if field.present(version) and not (field.tag is not None and rng.random() < 0.5)
    }
    return message(**values)


def random_value(field: Field, version: int, rng: Random) -> Any:
    if field.nullable(version) and rng.random() < 0.3:
        return None
    if field.kind == "array":
        element = field.element
        if isinstance(element, Field):
            return [random_value(element, version, rng) for _ in range(random_length(rng, long=150))]
        assert element is not None
        return [random_message(element, version, rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    if field.kind == "struct":
        assert field.element is not None
        assert not isinstance(field.element, Field)
        return random_message(field.element, version, rng)
    return random_primitive(field.kind, rng)


def random_primitive(kind: str, rng: Random) -> Any:
    if kind in INTEGER_BITS:
        return random_integer(kind, rng)
    if kind == "bool":
        return rng.random() < 0.5
    if kind == "float64":
        return rng.uniform(-1e9, 1e9)
    if kind == "uuid":
        return rng.randbytes(16)
    if kind == "string":
        return "".join(rng.choices("abc.-_ÄßЖ中🕊", k=random_length(rng, long=5000)))
    data = rng.randbytes(random_length(rng, long=20_000))
    return memoryview(bytearray(data)) if kind == "records" else data


def random_integer(kind: str, rng: Random) -> int:
    bits, signed = INTEGER_BITS[kind]
    lowest = -(1 << (bits - 1)) if signed else 0
    highest = lowest + (1 << bits) - 1
    return rng.choice((lowest, highest, 0, 1, rng.randint(lowest, highest)))


def random_length(rng: Random, long: int) -> int:
    """Short mostly, but now and then about or beyond what one byte of a varint can say."""
    return rng.choice((0, 1, 2, 5, 9, 9, 20, 126, 127, 128)) if rng.random() < 0.95 else rng.randint(0, long)
