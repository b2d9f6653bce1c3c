"""Our message declarations against the schemas that Kafka's jars carry, field by field in every version."""

from __future__ import annotations

import json
import re
import zipfile
from typing import Any, NamedTuple

import pytest
from anchors import Unavailable, kafka

from culver.protocol.apis import APIS
from culver.protocol.schema import ZERO_UUID, Field, Message
from message_values import all_messages

pytestmark = pytest.mark.interop

MESSAGES = all_messages()
JARS = ("kafka-clients", "kafka-group-coordinator", "kafka-transaction-coordinator")

IMPLICIT_DEFAULTS: dict[str, Any] = {
    "bool": False,
    "string": "",
    "bytes": b"",
    "uuid": ZERO_UUID,
    "array": (),
    "float64": 0.0,
    "records": None,
    "struct": None,
}

VERSIONS_END = 1 << 15


class FieldInVersion(NamedTuple):
    """One field as one version has it, by whichever side it was declared."""

    path: str
    kind: str
    nullable: bool
    tag: int | None
    default: Any


@pytest.fixture(scope="module")
def schemas() -> dict[str, dict[str, Any]]:
    """The JSON schemas in the jars, by message name."""
    try:
        directory = kafka.jars()
    except Unavailable as reason:
        pytest.skip(str(reason))
    found = {}
    for jar in JARS:
        with zipfile.ZipFile(directory / f"{jar}-{kafka.VERSION}.jar") as archive:
            for name in archive.namelist():
                if name.startswith("common/message/") and name.endswith(".json"):
                    text = re.sub(r"^\s*//.*$", "", archive.read(name).decode(), flags=re.MULTILINE)
                    schema = json.loads(text)
                    found[schema["name"]] = schema
    return found


def versions(text: str | None) -> range:
    """The versions that "3", "3-5", "3+" or "none" stand for."""
    if text is None or text == "none":
        return range(0)
    first, _, last = text.rstrip("+").partition("-")
    if text.endswith("+"):
        return range(int(first), VERSIONS_END)
    return range(int(first), int(last or first) + 1)


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def kafka_default(kind: str, field: dict[str, Any]) -> Any:
    default = field.get("default")
    if default is None:
        return IMPLICIT_DEFAULTS.get(kind, 0)
    if default == "null":
        return None
    if kind == "bool":
        return str(default).lower() == "true"
    return default if kind == "string" else int(str(default), 0)


def kafka_fields(
    fields: list[dict[str, Any]], shared: dict[str, Any], version: int, path: str = ""
) -> list[FieldInVersion]:
    result = []
    for field in fields:
        # A tagged field need not repeat its versions.
        if version not in versions(field.get("versions", field.get("taggedVersions"))):
            continue
        type_name = field["type"].removeprefix("[]")
        is_struct = type_name[0].isupper()
        is_array = field["type"].startswith("[]")
        kind = "array" if is_array else "struct" if is_struct else type_name
        name = path + snake_case(field["name"])
        tag = field["tag"] if version in versions(field.get("taggedVersions")) else None
        nullable = version in versions(field.get("nullableVersions"))
        shown = f"array of {'struct' if is_struct else type_name}" if is_array else kind
        result.append(FieldInVersion(name, shown, nullable, tag, kafka_default(kind, field)))
        if is_struct:
            result += kafka_fields(field.get("fields") or shared[type_name], shared, version, f"{name}.")
    return result


def our_fields(message: type[Message], version: int, path: str = "") -> list[FieldInVersion]:
    result = []
    for field in message.SCHEMA.fields:
        if not field.present(version):
            continue
        name = path + field.name
        of = field.element
        shown = field.kind
        if field.kind == "array":
            shown = f"array of {of.kind if isinstance(of, Field) else 'struct'}"
        result.append(FieldInVersion(name, shown, field.nullable(version), field.tag, field.default))
        if isinstance(of, type):
            result += our_fields(of, version, f"{name}.")
    return result


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_every_field_is_as_kafka_has_it(message: type[Message], schemas: dict[str, dict[str, Any]]) -> None:
    schema = schemas[message.__name__]
    shared = {struct["name"]: struct["fields"] for struct in schema.get("commonStructs", [])}
    ours = message.SCHEMA
    assert ours.versions is not None
    first, last = ours.versions
    for version in range(first, last + 1):
        assert our_fields(message, version) == kafka_fields(schema["fields"], shared, version), (
            f"version {version}"
        )
        flexible = ours.flexible_since is not None and version >= ours.flexible_since
        assert flexible == (version in versions(schema["flexibleVersions"])), f"version {version}"


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_all_stable_versions_are_declared(message: type[Message], schemas: dict[str, dict[str, Any]]) -> None:
    name = message.__name__
    request = schemas.get(name.replace("Response", "Request"), schemas[name])
    valid = versions(request["validVersions"])
    last = valid[-1] - bool(request.get("latestVersionUnstable"))
    assert message.SCHEMA.versions == (valid[0], last)


@pytest.mark.parametrize("key", APIS)
def test_the_table_has_kafkas_keys_and_versions(key: int, schemas: dict[str, dict[str, Any]]) -> None:
    api = APIS[key]
    assert schemas[f"{api.name}Request"]["apiKey"] == key == api.request.SCHEMA.api_key
    assert schemas[f"{api.name}Response"]["apiKey"] == key == api.response.SCHEMA.api_key
    declared = api.request.SCHEMA.versions
    # Produce advertises three versions more than there are, as Kafka does.
    assert (api.min_version, api.max_version) == ((0, 13) if api.name == "Produce" else declared)
