"""The messages of OTLP logs, in both of their encodings, read into one form.

Field numbers are those of opentelemetry-proto 1.x. In the JSON encoding names are in camel case, trace and span ids are
hexadecimal, and 64-bit numbers may be texts. Log records are read one by one, so that one bad record is refused alone.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import msgspec

from culver.gateway.ingest.events import BadEntry
from culver.gateway.ingest.protobuf import Field, Malformed, declare, read, text

NESTING_MAX = 32

_SHAPES = declare(
    "culver.otlp",
    {
        "AnyValue": {
            "string_value": Field(1, "bytes", oneof="value"),
            "bool_value": Field(2, "bool", oneof="value"),
            "int_value": Field(3, "int64", oneof="value"),
            "double_value": Field(4, "double", oneof="value"),
            "array_value": Field(5, "ArrayValue", oneof="value"),
            "kvlist_value": Field(6, "KeyValueList", oneof="value"),
            "bytes_value": Field(7, "bytes", oneof="value"),
        },
        "ArrayValue": {"values": Field(1, "AnyValue", repeated=True)},
        "KeyValueList": {"values": Field(1, "KeyValue", repeated=True)},
        "KeyValue": {"key": Field(1, "bytes"), "value": Field(2, "AnyValue")},
        "Scope": {
            "name": Field(1, "bytes"),
            "version": Field(2, "bytes"),
            "attributes": Field(3, "KeyValue", repeated=True),
        },
        "Resource": {"attributes": Field(1, "KeyValue", repeated=True)},
        "LogRecord": {
            "time_unix_nano": Field(1, "fixed64"),
            "severity_number": Field(2, "int32"),
            "severity_text": Field(3, "bytes"),
            "body": Field(5, "AnyValue"),
            "attributes": Field(6, "KeyValue", repeated=True),
            "flags": Field(8, "fixed32"),
            "trace_id": Field(9, "bytes"),
            "span_id": Field(10, "bytes"),
            "observed_time_unix_nano": Field(11, "fixed64"),
            "event_name": Field(12, "bytes"),
        },
        "ScopeLogs": {"scope": Field(1, "Scope"), "log_records": Field(2, "bytes", repeated=True)},
        "ResourceLogs": {
            "resource": Field(1, "Resource"),
            "scope_logs": Field(2, "ScopeLogs", repeated=True),
        },
        "ExportLogsServiceRequest": {"resource_logs": Field(1, "ResourceLogs", repeated=True)},
        "PartialSuccess": {
            "rejected_log_records": Field(1, "int64"),
            "error_message": Field(2, "string"),
        },
        "ExportLogsServiceResponse": {"partial_success": Field(1, "PartialSuccess")},
        "Status": {"code": Field(1, "int32"), "message": Field(2, "string")},
    },
)


class LogRecord(msgspec.Struct, frozen=True, gc=False):
    """One log record, from either encoding. Ids are hexadecimal; times are 0 and texts empty when not given."""

    time_ns: int = 0
    observed_time_ns: int = 0
    severity_number: int = 0
    severity_text: str = ""
    body: Any = None
    attributes: dict[str, Any] = {}
    flags: int = 0
    trace_id: str = ""
    span_id: str = ""
    event_name: str = ""


@dataclass(frozen=True, slots=True)
class Scope:
    """A part of a program that logs, and its log records, or for some the reason why they cannot be read."""

    resource: dict[str, Any]
    name: str
    version: str
    attributes: dict[str, Any]
    records: Iterable[LogRecord | BadEntry]


# --- protobuf ---


def read_protobuf(body: bytes) -> Iterator[Scope]:
    """What an ExportLogsServiceRequest holds. Raises Malformed."""
    for resource_logs in read(_SHAPES["ExportLogsServiceRequest"], body).resource_logs:
        resource = _attributes(resource_logs.resource.attributes)
        for scope_logs in resource_logs.scope_logs:
            scope = scope_logs.scope
            yield Scope(
                resource,
                text(scope.name),
                text(scope.version),
                _attributes(scope.attributes),
                map(_record, scope_logs.log_records),
            )


def _record(encoded: bytes) -> LogRecord | BadEntry:
    try:
        record = read(_SHAPES["LogRecord"], encoded)
        return LogRecord(
            record.time_unix_nano,
            record.observed_time_unix_nano,
            record.severity_number,
            text(record.severity_text),
            _any_value(record.body),
            _attributes(record.attributes),
            record.flags,
            record.trace_id.hex(),
            record.span_id.hex(),
            text(record.event_name),
        )
    except Malformed as error:
        return BadEntry(f"a log record cannot be read: {error}")
    except BadEntry as error:
        return error


def _attributes(pairs: Any, depth: int = 0) -> dict[str, Any]:
    return {text(pair.key): _any_value(pair.value, depth) for pair in pairs}


def _any_value(value: Any, depth: int = 0) -> Any:
    _check_nesting(depth)
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return text(value.string_value)
    if kind == "array_value":
        return [_any_value(one, depth + 1) for one in value.array_value.values]
    if kind == "kvlist_value":
        return _attributes(value.kvlist_value.values, depth + 1)
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return None if kind is None else getattr(value, kind)


def _check_nesting(depth: int) -> None:
    if depth > NESTING_MAX:
        raise BadEntry(f"a value is nested more than {NESTING_MAX} deep")


# --- JSON ---


class _Json(msgspec.Struct, rename="camel", gc=False):
    """Names as they are in the JSON encoding; those that are not known are passed over."""


class _JsonValue(_Json):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: float | str | None = None
    array_value: _JsonArray | None = None
    kvlist_value: _JsonPairs | None = None
    bytes_value: str | None = None


class _JsonPair(_Json):
    key: str
    value: _JsonValue | None = None


class _JsonArray(_Json):
    values: list[_JsonValue] = []


class _JsonPairs(_Json):
    values: list[_JsonPair] = []


class _JsonScope(_Json):
    name: str = ""
    version: str = ""
    attributes: list[_JsonPair] = []


class _JsonResource(_Json):
    attributes: list[_JsonPair] = []


class _JsonLogRecord(_Json):
    time_unix_nano: int | str | None = None
    observed_time_unix_nano: int | str | None = None
    severity_number: int | None = None
    severity_text: str | None = None
    body: _JsonValue | None = None
    attributes: list[_JsonPair] | None = None
    flags: int | None = None
    trace_id: str | None = None
    span_id: str | None = None
    event_name: str | None = None


class _JsonScopeLogs(_Json):
    scope: _JsonScope = msgspec.field(default_factory=_JsonScope)
    log_records: list[msgspec.Raw] = []


class _JsonResourceLogs(_Json):
    resource: _JsonResource = msgspec.field(default_factory=_JsonResource)
    scope_logs: list[_JsonScopeLogs] = []


class _JsonRequest(_Json):
    resource_logs: list[_JsonResourceLogs] = []


_REQUEST_DECODER = msgspec.json.Decoder(_JsonRequest)
_RECORD_DECODER = msgspec.json.Decoder(_JsonLogRecord)


def read_json(body: bytes) -> Iterator[Scope]:
    """What an ExportLogsServiceRequest in JSON holds. Raises Malformed."""
    try:
        request = _REQUEST_DECODER.decode(body)
    except (msgspec.MsgspecError, RecursionError, UnicodeError) as error:
        raise Malformed(str(error)) from error
    for resource_logs in request.resource_logs:
        resource = _json_attributes(resource_logs.resource.attributes)
        for scope_logs in resource_logs.scope_logs:
            scope = scope_logs.scope
            attributes = _json_attributes(scope.attributes)
            records = map(_json_record, scope_logs.log_records)
            yield Scope(resource, scope.name, scope.version, attributes, records)


def _json_record(encoded: msgspec.Raw) -> LogRecord | BadEntry:
    try:
        record = _RECORD_DECODER.decode(encoded)
        return LogRecord(
            int(record.time_unix_nano or 0),
            int(record.observed_time_unix_nano or 0),
            record.severity_number or 0,
            record.severity_text or "",
            _json_value(record.body),
            _json_attributes(record.attributes or ()),
            record.flags or 0,
            (record.trace_id or "").lower(),
            (record.span_id or "").lower(),
            record.event_name or "",
        )
    except (msgspec.MsgspecError, RecursionError, ValueError) as error:
        return BadEntry(f"a log record cannot be read: {error}")
    except BadEntry as error:
        return error


def _json_attributes(pairs: Iterable[_JsonPair], depth: int = 0) -> dict[str, Any]:
    return {pair.key: _json_value(pair.value, depth) for pair in pairs}


def _json_value(value: _JsonValue | None, depth: int = 0) -> Any:
    _check_nesting(depth)
    if value is None:
        return None
    if value.string_value is not None:
        return value.string_value
    try:
        if value.int_value is not None:
            return int(value.int_value)
        if value.double_value is not None:
            return float(value.double_value)
    except ValueError as error:
        raise BadEntry(f"a number cannot be read: {error}") from error
    if value.array_value is not None:
        return [_json_value(one, depth + 1) for one in value.array_value.values]
    if value.kvlist_value is not None:
        return _json_attributes(value.kvlist_value.values, depth + 1)
    return value.bytes_value if value.bool_value is None else value.bool_value


# --- answers ---


def export_answer(refused: int, reason: str) -> Any:
    """An ExportLogsServiceResponse; partial_success stays unset when everything was taken, as the protocol asks."""
    answer = _SHAPES["ExportLogsServiceResponse"]()
    if refused:
        answer.partial_success.rejected_log_records = refused
        answer.partial_success.error_message = reason
    return answer


def status_answer(message: str) -> Any:
    """A google.rpc.Status, which is what every error of OTLP/HTTP has as its body."""
    return _SHAPES["Status"](message=message)
