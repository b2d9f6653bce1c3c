"""The table of error codes, and the exceptions that carry them."""

from __future__ import annotations

import pickle

import kio.schema.errors
import pytest

from culver.errors import ERRORS, ConfigError, ErrorCode, KafkaError, MalformedRequest


def test_the_table_has_every_code_from_minus_one_without_a_gap() -> None:
    assert sorted(ERRORS) == list(range(-1, 134))


def test_every_row_has_a_text_of_its_own() -> None:
    texts = [info.text for info in ERRORS.values()]
    assert all(texts)
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("code", "name", "retriable"),
    [
        (-1, "UNKNOWN_SERVER_ERROR", False),
        (1, "OFFSET_OUT_OF_RANGE", False),
        (2, "CORRUPT_MESSAGE", True),
        (3, "UNKNOWN_TOPIC_OR_PARTITION", True),
        (10, "MESSAGE_TOO_LARGE", False),
        (27, "REBALANCE_IN_PROGRESS", False),
        (45, "OUT_OF_ORDER_SEQUENCE_NUMBER", False),
        (56, "KAFKA_STORAGE_ERROR", True),
        (87, "INVALID_RECORD", False),
        (100, "UNKNOWN_TOPIC_ID", True),
        (133, "SHARE_SESSION_LIMIT_REACHED", True),
    ],
)
def test_well_known_rows(code: int, name: str, retriable: bool) -> None:
    info = ERRORS[code]
    assert (info.code, info.name, info.retriable) == (ErrorCode(code), name, retriable)


def test_an_independent_table_agrees() -> None:
    known = {int(code): (code.name.upper(), code.retriable) for code in kio.schema.errors.ErrorCode}
    ours = {int(code): (code.name, code.retriable) for code in ErrorCode}
    differing = {
        code: (row, known[code]) for code, row in ours.items() if code in known and row != known[code]
    }
    assert len(known) > 100
    assert differing == {}


def test_an_error_says_its_code_and_falls_back_on_the_text_of_the_table() -> None:
    plain = KafkaError(ErrorCode.NOT_COORDINATOR)
    assert plain.message == ErrorCode.NOT_COORDINATOR.text
    assert plain.retriable
    exact = KafkaError(ErrorCode.INVALID_RECORD, "record 3 has no key")
    assert str(exact) == "INVALID_RECORD: record 3 has no key"
    assert not exact.retriable


def test_a_configuration_error_names_its_setting() -> None:
    error = ConfigError("retention.ms", "retention.ms: 'soon' is not a number")
    assert error.code is ErrorCode.INVALID_CONFIG
    assert error.name == "retention.ms"
    assert str(error) == "retention.ms: 'soon' is not a number"


def test_errors_survive_the_way_to_another_process() -> None:
    error = pickle.loads(pickle.dumps(KafkaError(ErrorCode.CORRUPT_MESSAGE, "torn")))
    assert (error.code, error.message) == (ErrorCode.CORRUPT_MESSAGE, "torn")
    config = pickle.loads(pickle.dumps(ConfigError("a", "b")))
    assert (config.name, config.message, config.code) == ("a", "b", ErrorCode.INVALID_CONFIG)


def test_a_malformed_request_is_no_kafka_error() -> None:
    assert not issubclass(MalformedRequest, KafkaError)
