"""Bodies as shippers send them: protobuf written by hand, byte by byte, and JSON as it was seen on the wire."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

# 15 November 2026, 16:00:00.123456789 UTC
TIME_NS = 1_794_758_400_123_456_789
TIME_ISO = "2026-11-15T16:00:00.123456789Z"
TRACE_ID = "5b8efff798038103d269b633813fc60c"
SPAN_ID = "eee19b7ec3c1b174"


# --- protobuf's wire format ---


def varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<Q", value)


def double(field: int, value: float) -> bytes:
    return varint(field << 3 | 1) + struct.pack("<d", value)


def sized(field: int, value: bytes | str) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


# --- OTLP ---


def any_value(value: Any) -> bytes:
    if isinstance(value, bool):
        return number(2, value)
    if isinstance(value, int):
        return number(3, value)
    if isinstance(value, float):
        return double(4, value)
    if isinstance(value, list):
        return sized(5, b"".join(sized(1, any_value(one)) for one in value))
    if isinstance(value, dict):
        return sized(6, attributes(1, value))
    return sized(1, value)


def attributes(field: int, values: Mapping[str, Any]) -> bytes:
    return b"".join(sized(field, sized(1, key) + sized(2, any_value(value))) for key, value in values.items())


def log_record(body: Any, **values: Any) -> bytes:
    """A LogRecord of everything that a record may have, unless it is told otherwise."""
    return b"".join(
        (
            fixed64(1, values.get("time_ns", TIME_NS)),
            number(2, values.get("severity", 13)),
            sized(3, values.get("severity_text", "WARN")),
            sized(5, any_value(body)),
            attributes(6, values.get("attributes", {"http.status_code": 402, "retry": False})),
            sized(9, bytes.fromhex(TRACE_ID)),
            sized(10, bytes.fromhex(SPAN_ID)),
            fixed64(11, TIME_NS + 5),
        )
    )


RESOURCE = {"service.name": "checkout", "host.name": "web-1", "service.version": "1.4"}


def export_request(*records: bytes, resource: Mapping[str, Any] = RESOURCE) -> bytes:
    scope = sized(1, sized(1, "checkout.cards") + sized(2, "0.9"))
    scope_logs = scope + b"".join(sized(2, record) for record in records)
    return sized(1, sized(1, attributes(1, resource)) + sized(2, scope_logs))


def otlp_json_value(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    return {"stringValue": value}


def otlp_json(*records: Mapping[str, Any], resource: Mapping[str, Any] = RESOURCE) -> dict[str, Any]:
    """An ExportLogsServiceRequest as the OpenTelemetry collector writes it in JSON."""
    pairs = [{"key": key, "value": otlp_json_value(value)} for key, value in resource.items()]
    scope = {"name": "checkout.cards", "version": "0.9"}
    return {
        "resourceLogs": [
            {
                "resource": {"attributes": pairs},
                "scopeLogs": [{"scope": scope, "logRecords": list(records)}],
                "schemaUrl": "https://opentelemetry.io/schemas/1.26.0",
            }
        ]
    }


def otlp_json_record(body: str) -> dict[str, Any]:
    """The same record as `log_record`."""
    return {
        "timeUnixNano": str(TIME_NS),
        "observedTimeUnixNano": str(TIME_NS + 5),
        "severityNumber": 13,
        "severityText": "WARN",
        "body": {"stringValue": body},
        "attributes": [
            {"key": "http.status_code", "value": {"intValue": "402"}},
            {"key": "retry", "value": {"boolValue": False}},
        ],
        "traceId": TRACE_ID.upper(),
        "spanId": SPAN_ID.upper(),
        "somethingNew": {"that": "is ignored"},
    }


# --- Loki ---


def push_request(labels: str, *entries: bytes) -> bytes:
    """A PushRequest before its compression."""
    return sized(1, sized(1, labels) + b"".join(sized(2, entry) for entry in entries))


def push_entry(line: bytes | str, time_ns: int = TIME_NS, **metadata: str) -> bytes:
    seconds, nanos = divmod(time_ns, 1_000_000_000)
    pairs = b"".join(sized(3, sized(1, name) + sized(2, value)) for name, value in metadata.items())
    return sized(1, number(1, seconds) + number(2, nanos)) + sized(2, line) + pairs


def promtail_labels() -> str:
    return '{app="checkout", filename="/var/log/checkout.log", host="web-1", level="warn"}'


# --- Elasticsearch ---

FILEBEAT_DOCUMENT = (
    '{"@timestamp":"2026-11-15T16:00:00.123Z","message":"card refused","log":{"offset":17,"level":"warn",'
    '"file":{"path":"/var/log/checkout.log"}},"service":{"name":"checkout"},"host":{"name":"web-1"},'
    '"agent":{"type":"filebeat","version":"8.19.0"},"ecs":{"version":"8.0.0"}}'
)
FLUENT_BIT_DOCUMENT = (
    '{"@timestamp":"2026-11-15T16:00:00.123Z","log":"card refused","level":"warn","hostname":"web-1",'
    '"service":"checkout","stream":"stderr"}'
)
