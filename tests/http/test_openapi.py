"""The OpenAPI document: complete, valid, and kept to by a running gateway whatever it is sent (schemathesis)."""

from __future__ import annotations

from typing import Any

import pytest
import schemathesis
from http_client import call
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import CheckFunction, not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from culver.gateway.app import ENDPOINTS
from culver.gateway.openapi import document
from culver.gateway.routing import Endpoint

CHECKS: list[CheckFunction] = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


@pytest.fixture(scope="module")
def http_options() -> dict[str, Any]:
    return {"topics": {"orders": 2}, "config": {"num.partitions": 1}}


@schemathesis.serializer("application/x-ndjson", "application/x-protobuf")
def _as_it_is(_: object, value: object) -> bytes:
    """Bodies that are no JSON: any text will do."""
    return value if isinstance(value, bytes) else str(value).encode()


def _streams(endpoint: Endpoint) -> bool:
    return any("text/event-stream" in answer.media_types for answer in endpoint.answers.values())


# A stream has no end that could be waited for; streams have their own tests.
STREAMS = [endpoint.path for endpoint in ENDPOINTS if _streams(endpoint)]

schema = schemathesis.openapi.from_dict(document(ENDPOINTS)).exclude(path=STREAMS)


@schema.parametrize()
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_every_answer_is_one_that_the_document_describes(case: schemathesis.Case, url: str) -> None:
    case.call_and_validate(base_url=url, checks=CHECKS, timeout=20)


def test_every_endpoint_is_in_the_document(url: str) -> None:
    paths = call(url, "GET", "/openapi.json").json["paths"]
    for endpoint in ENDPOINTS:
        path = endpoint.path.replace(":path}", "}")
        assert endpoint.method.lower() in paths[path], f"{endpoint.method} {endpoint.path}"


def test_every_operation_says_what_it_is_for_and_how_it_is_called() -> None:
    operations = [
        operation for methods in document(ENDPOINTS)["paths"].values() for operation in methods.values()
    ]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for operation in operations:
        assert operation["summary"].endswith(".")
        assert operation["tags"]
        assert all(parameter["description"] for parameter in operation["parameters"])
