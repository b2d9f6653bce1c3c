"""The table of HTTP errors: number, status and what each says, in the numbering of Kafka's REST proxy.

An error is answered as {"error_code": 40401, "message": "..."}. The first three digits are the HTTP status; the rest
tells errors of the same status apart. Handlers raise HttpError; `problems` makes the answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum

_NOTHING: Mapping[str, str] = {}


class Problem(IntEnum):
    """Every error that the gateway answers with: its number and what it says when nothing more is known."""

    text: str

    def __new__(cls, code: int, text: str) -> Problem:
        member = int.__new__(cls, code)
        member._value_ = code
        member.text = text
        return member

    @property
    def status(self) -> int:
        return int(self) if self < 1000 else int(self) // 100

    BAD_REQUEST = 400, "the request cannot be understood"
    FORBIDDEN = 403, "the request comes from a place that may not make it"
    NOT_ALLOWED_BY_CLUSTER = 40301, "the cluster does not allow this"
    NOT_FOUND = 404, "there is nothing at this address"
    TOPIC_NOT_FOUND = 40401, "there is no such topic"
    PARTITION_NOT_FOUND = 40402, "the topic has no such partition"
    CONSUMER_NOT_FOUND = 40403, "there is no such consumer instance; it may have expired"
    GROUP_NOT_FOUND = 40405, "there is no such group"
    RECORD_NOT_FOUND = 40406, "there is no such record: it was removed, or is not written yet"
    METHOD_NOT_ALLOWED = 405, "this address does not take that method"
    NOT_ACCEPTABLE = 406, "none of the accepted media types can be given"
    CONSUMER_FORMAT_MISMATCH = 40601, "the consumer instance was made for another format"
    REQUEST_TIMEOUT = 408, "the request took too long to arrive"
    CONFLICT = 409, "the request does not fit the state of things"
    TOPIC_EXISTS = 40901, "a topic with that name exists already"
    CONSUMER_EXISTS = 40902, "a consumer instance with that name exists already in the group"
    CONSUMER_STATE = 40903, "subscription and assignment exclude each other"
    GROUP_ACTIVE = 40904, "the group has members; its offsets can be set when they have left"
    NO_LOG_STORE = 40905, "there is no log store to search"
    TRANSACTION_NOT_OPEN = 40906, "there is no open transaction to abort"
    PIPELINE_RUNNING = 40907, "the pipeline is running"
    TOO_LARGE = 413, "the body is larger than this server takes"
    RECORD_TOO_LARGE = 41301, "a record is larger than the topic allows"
    UNSUPPORTED_MEDIA_TYPE = 415, "the body's media type is not served here"
    UNSUPPORTED_ENCODING = 41501, "the body's Content-Encoding is not served here"
    UNPROCESSABLE = 422, "the request is well formed but cannot be carried out"
    INVALID_JSON = 42201, "the body is not the JSON that is expected here"
    INVALID_RECORD = 42202, "a record is not valid"
    INVALID_VALUE = 42203, "a parameter has a value that cannot be used"
    TOO_MANY_REQUESTS = 429, "too much is under way; try again later"
    HEAD_TOO_LARGE = 431, "the head of the request is larger than this server takes"
    INTERNAL = 500, "the gateway failed in a way it did not expect; its log says how"
    CLUSTER_FAILED = 50002, "the cluster answered with an error"
    CLUSTER_FAILED_FOR_NOW = 50003, "the cluster could not do it now; the same request may succeed later"
    NOT_SUPPORTED_BY_CLUSTER = 50101, "the cluster does not serve the requests that this needs"
    SEARCH_NOT_INSTALLED = 50102, "the search of log stores is not installed here"
    UNAVAILABLE = 503, "the gateway is not ready"
    CLUSTER_UNREACHABLE = 50301, "no broker of the cluster can be reached"
    CLUSTER_TIMEOUT = 50401, "the cluster did not answer in time"
    SEARCH_TIMEOUT = 50402, "the search took too long"


class HttpError(Exception):
    """Ends a request with an error: which one, what it is about, and headers such as Retry-After."""

    def __init__(self, problem: Problem, message: str = "", *, headers: Mapping[str, str] = _NOTHING) -> None:
        super().__init__(problem, message)
        self.problem = problem
        self.message = message or problem.text
        self.headers = headers

    @property
    def status(self) -> int:
        return self.problem.status

    def __str__(self) -> str:
        return f"{int(self.problem)}: {self.message}"
