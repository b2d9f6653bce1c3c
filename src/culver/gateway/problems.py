"""Turns what goes wrong into HTTP answers: our own errors, Kafka's error codes, and what nobody expected."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.types import ExceptionHandler

from culver.errors import ErrorCode, KafkaError
from culver.gateway.errors import HttpError, Problem
from culver.gateway.routing import json_response
from culver.wire_client import Unreachable

_PROBLEMS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: Problem.TOPIC_NOT_FOUND,
    ErrorCode.UNKNOWN_TOPIC_ID: Problem.TOPIC_NOT_FOUND,
    ErrorCode.GROUP_ID_NOT_FOUND: Problem.GROUP_NOT_FOUND,
    ErrorCode.RESOURCE_NOT_FOUND: Problem.NOT_FOUND,
    ErrorCode.TRANSACTIONAL_ID_NOT_FOUND: Problem.NOT_FOUND,
    ErrorCode.TOPIC_ALREADY_EXISTS: Problem.TOPIC_EXISTS,
    ErrorCode.NON_EMPTY_GROUP: Problem.CONFLICT,
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: Problem.CONFLICT,
    ErrorCode.REASSIGNMENT_IN_PROGRESS: Problem.CONFLICT,
    ErrorCode.MESSAGE_TOO_LARGE: Problem.RECORD_TOO_LARGE,
    ErrorCode.RECORD_LIST_TOO_LARGE: Problem.RECORD_TOO_LARGE,
    ErrorCode.INVALID_RECORD: Problem.INVALID_RECORD,
    ErrorCode.INVALID_TIMESTAMP: Problem.INVALID_RECORD,
    ErrorCode.INVALID_TOPIC_EXCEPTION: Problem.INVALID_VALUE,
    ErrorCode.INVALID_PARTITIONS: Problem.INVALID_VALUE,
    ErrorCode.INVALID_REPLICATION_FACTOR: Problem.INVALID_VALUE,
    ErrorCode.INVALID_REPLICA_ASSIGNMENT: Problem.INVALID_VALUE,
    ErrorCode.INVALID_CONFIG: Problem.INVALID_VALUE,
    ErrorCode.INVALID_GROUP_ID: Problem.INVALID_VALUE,
    ErrorCode.INVALID_REGULAR_EXPRESSION: Problem.INVALID_VALUE,
    ErrorCode.INVALID_REQUEST: Problem.INVALID_VALUE,
    ErrorCode.OFFSET_OUT_OF_RANGE: Problem.INVALID_VALUE,
    ErrorCode.POLICY_VIOLATION: Problem.NOT_ALLOWED_BY_CLUSTER,
    ErrorCode.TOPIC_DELETION_DISABLED: Problem.NOT_ALLOWED_BY_CLUSTER,
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: Problem.NOT_ALLOWED_BY_CLUSTER,
    ErrorCode.GROUP_AUTHORIZATION_FAILED: Problem.NOT_ALLOWED_BY_CLUSTER,
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: Problem.NOT_ALLOWED_BY_CLUSTER,
    ErrorCode.UNSUPPORTED_VERSION: Problem.NOT_SUPPORTED_BY_CLUSTER,
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: Problem.TOO_MANY_REQUESTS,
    ErrorCode.BROKER_NOT_AVAILABLE: Problem.CLUSTER_UNREACHABLE,
    ErrorCode.NETWORK_EXCEPTION: Problem.CLUSTER_UNREACHABLE,
    ErrorCode.REQUEST_TIMED_OUT: Problem.CLUSTER_TIMEOUT,
}
_TEXTS = {int(problem): problem.text for problem in Problem}
RETRY_AFTER_SECONDS = 1


class ErrorAnswer(msgspec.Struct):
    """The body of every error."""

    error_code: int
    message: str


def problem_of(error: KafkaError) -> Problem:
    """The row of the HTTP table for an error code of the cluster."""
    found = _PROBLEMS.get(error.code)
    if found is not None:
        return found
    return Problem.CLUSTER_FAILED_FOR_NOW if error.retriable else Problem.CLUSTER_FAILED


def http_error(error: KafkaError) -> HttpError:
    """The same error for an HTTP client."""
    problem = problem_of(error)
    headers = {"retry-after": str(RETRY_AFTER_SECONDS)} if problem.status in (429, 503) else {}
    return HttpError(problem, str(error), headers=headers)


def unreachable(error: Unreachable) -> HttpError:
    """No broker answered."""
    return HttpError(
        Problem.CLUSTER_UNREACHABLE, str(error), headers={"retry-after": str(RETRY_AFTER_SECONDS)}
    )


def error_response(error: HttpError) -> Response:
    """The answer that tells of an error."""
    return json_response(
        ErrorAnswer(int(error.problem), error.message), status=error.status, headers=error.headers
    )


def _on_http_error(_: HTTPConnection, error: Exception) -> Response:
    assert isinstance(error, HttpError)
    return error_response(error)


def _on_kafka_error(_: HTTPConnection, error: Exception) -> Response:
    assert isinstance(error, KafkaError)
    return error_response(http_error(error))


def _on_unreachable(_: HTTPConnection, error: Exception) -> Response:
    assert isinstance(error, Unreachable)
    return error_response(unreachable(error))


def _on_starlette_error(_: HTTPConnection, error: Exception) -> Response:
    """What Starlette refuses by itself: no such path, no such method."""
    assert isinstance(error, HTTPException)
    status = HTTPStatus(error.status_code)
    message = _TEXTS.get(status, status.phrase)
    return json_response(ErrorAnswer(status, message), status=status, headers=error.headers or {})


def _on_fault(_: HTTPConnection, __: Exception) -> Response:
    """A fault of ours. It is raised again behind this answer, and uvicorn logs it with its traceback."""
    return error_response(HttpError(Problem.INTERNAL))


EXCEPTION_HANDLERS: Mapping[type[Exception], ExceptionHandler] = {
    HttpError: _on_http_error,
    KafkaError: _on_kafka_error,
    Unreachable: _on_unreachable,
    HTTPException: _on_starlette_error,
    Exception: _on_fault,
}
