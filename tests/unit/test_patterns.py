"""Patterns that consumers subscribe with."""

from __future__ import annotations

import pytest

from culver.core.patterns import MAX_PATTERN_LENGTH, check_pattern, matching_topics
from culver.errors import ErrorCode, KafkaError

NAMES = ["orders", "orders-eu", "my-orders", "__consumer_offsets", "__transaction_state"]


def test_a_pattern_matches_the_whole_name() -> None:
    assert matching_topics("orders", NAMES) == {"orders"}
    assert matching_topics("orders.*", NAMES) == {"orders", "orders-eu"}
    assert matching_topics("^orders$", NAMES) == {"orders"}
    assert matching_topics("(?i)ORDERS|my-.*", NAMES) == {"orders", "my-orders"}


def test_internal_topics_are_nobodys() -> None:
    assert matching_topics(".*", NAMES) == {"orders", "orders-eu", "my-orders"}


@pytest.mark.parametrize(
    "pattern", ["(", "[a", "(?=lookahead)", r"(a)\1", "a**", "(a{900}){900}", "x" * (MAX_PATTERN_LENGTH + 1)]
)
def test_what_is_no_pattern_or_too_large_a_one_is_refused(pattern: str) -> None:
    with pytest.raises(KafkaError) as refusal:
        check_pattern(pattern)
    assert refusal.value.code is ErrorCode.INVALID_REGULAR_EXPRESSION


def test_a_pattern_that_backtracking_never_finishes_takes_no_time() -> None:
    # With Python's own expressions this would take longer than the universe has been there.
    assert matching_topics("(a+)+(a+)+(a+)+c", ["a" * 249] * 100) == frozenset()
