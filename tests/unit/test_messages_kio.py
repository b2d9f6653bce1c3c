"""Our codecs and kio's write the same bytes and read each other's, for every version that kio knows."""

from __future__ import annotations

import dataclasses
import datetime
import importlib
import io
import types
import typing
import uuid
from random import Random
from typing import Any

import pytest

from culver.protocol.schema import ZERO_UUID, Field, Message, decoder, encoder
from message_values import (
    all_message_versions,
    random_integer,
    random_length,
    random_primitive,
    title,
)

kio_serial = pytest.importorskip("kio.serial")
kio_errors = importlib.import_module("kio.schema.errors")

ROUNDS = 12

# Records of internal topics, which no client reads.
STATE_MODULES = {"group_state", "consumer_group_state", "transaction_state"}


def kio_class(message: type[Message], version: int) -> type[Any] | None:
    """kio's class for the same message and version, if it has one."""
    module = message.__module__.rpartition(".")[2]
    if module in STATE_MODULES:
        return None
    kind = "request" if message.__name__.endswith("Request") else "response"
    if module == "consumer_protocol":
        module, kind = (
            "consumer_protocol_" + message.__name__.removeprefix("ConsumerProtocol").lower(),
            "data",
        )
    try:
        found = importlib.import_module(f"kio.schema.{module}.v{version}.{kind}")
    except ModuleNotFoundError:
        return None
    return getattr(found, message.__name__, None)


def nested_class(hint: Any) -> type[Any]:
    """The dataclass inside tuple[X, ...] | None and the like."""
    if dataclasses.is_dataclass(hint):
        return typing.cast(type[Any], hint)
    for argument in typing.get_args(hint):
        if argument not in (..., types.NoneType):
            return nested_class(argument)
    raise AssertionError(f"no class in {hint}")


def pair(ours: type[Message], theirs: type[Any], version: int, rng: Random) -> tuple[Message, Any]:
    """The same random message twice: in our class and in kio's, whose fields come in the same order."""
    our_fields = [field for field in ours.SCHEMA.fields if field.present(version)]
    their_fields = dataclasses.fields(theirs)
    assert len(our_fields) == len(their_fields), (ours, theirs)
    hints = typing.get_type_hints(theirs)
    our_values, their_values = {}, {}
    for field, their_field in zip(our_fields, their_fields, strict=True):
        if field.tag is not None and rng.random() < 0.4:
            continue
        hint = hints[their_field.name]
        kafka_type = their_field.metadata.get("kafka_type", "")
        our_value, their_value = pair_of_values(field, kafka_type, hint, version, rng)
        if field.kind == "struct" and field.tag is not None and their_value == nested_class(hint)():
            # A tagged struct that says nothing is not sent; for us that is None.
            our_value = None
        our_values[field.name] = our_value
        their_values[their_field.name] = their_value
    return ours(**our_values), theirs(**their_values)


def pair_of_values(field: Field, kafka_type: str, hint: Any, version: int, rng: Random) -> tuple[Any, Any]:
    if field.nullable(version) and rng.random() < 0.3:
        return None, None
    element = field.element
    if field.kind == "struct":
        assert isinstance(element, type)
        return pair(element, nested_class(hint), version, rng)
    if field.kind != "array":
        return pair_of_primitives(field.kind, kafka_type, hint, rng)
    if isinstance(element, Field):
        pairs = [
            pair_of_primitives(element.kind, kafka_type, hint, rng) for _ in range(random_length(rng, 150))
        ]
    else:
        assert element is not None
        pairs = [pair(element, nested_class(hint), version, rng) for _ in range(rng.choice((0, 1, 1, 2, 3)))]
    return [ours for ours, _ in pairs], tuple(theirs for _, theirs in pairs)


def pair_of_primitives(kind: str, kafka_type: str, hint: Any, rng: Random) -> tuple[Any, Any]:
    """kio dresses up some integers as durations, points in time or error codes."""
    if kafka_type == "error_code":
        code = rng.choice(list(kio_errors.ErrorCode))
        return code.value, code
    if kafka_type.startswith("timedelta"):
        milliseconds = random_integer("int32", rng)
        return milliseconds, datetime.timedelta(milliseconds=milliseconds)
    if kafka_type == "datetime_i64":
        milliseconds = rng.randrange(1 << 41)
        moment = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
        return milliseconds, moment + datetime.timedelta(milliseconds=milliseconds)
    value = random_primitive(kind, rng)
    if kind == "uuid":
        return value, None if value == ZERO_UUID else uuid.UUID(bytes=value)
    if kind == "records":
        return value, bytes(value)
    return value, value


def kio_encode(theirs: Any) -> bytes:
    buffer = io.BytesIO()
    kio_serial.entity_writer(type(theirs))(buffer, theirs)
    return buffer.getvalue()


def kio_decode(theirs: type[Any], data: bytes) -> tuple[Any, int]:
    return typing.cast(tuple[Any, int], kio_serial.entity_reader(theirs)(data, 0))


KNOWN_TO_KIO = [
    (message, version)
    for message, version in all_message_versions()
    if kio_class(message, version) is not None
]


@pytest.mark.parametrize(("message", "version"), KNOWN_TO_KIO, ids=title)
def test_same_bytes_both_ways(message: type[Message], version: int) -> None:
    theirs = kio_class(message, version)
    assert theirs is not None
    rng = Random(f"{message.__name__} {version}")
    for _ in range(ROUNDS):
        our_message, their_message = pair(message, theirs, version, rng)
        our_bytes = b"".join(encoder(message, version)(our_message))
        their_bytes = kio_encode(their_message)
        assert our_bytes == their_bytes
        assert decoder(message, version)(their_bytes, 0) == (our_message, len(their_bytes))
        assert kio_decode(theirs, our_bytes) == (their_message, len(our_bytes))


def test_kio_knows_all_but_the_records_of_internal_topics() -> None:
    unknown = {message for message, version in all_message_versions()} - {
        message for message, _ in KNOWN_TO_KIO
    }
    assert {message.__module__.rpartition(".")[2] for message in unknown} == STATE_MODULES
    versions_without = [
        (message, version)
        for message, version in all_message_versions()
        if message not in unknown and (message, version) not in KNOWN_TO_KIO
    ]
    assert versions_without == []
