"""A token bucket: bytes a second, a second's worth saved up, debts paid back."""

from __future__ import annotations

import pytest

from culver.core.token_bucket import UNLIMITED, TokenBucket


def test_a_second_s_worth_may_be_taken_at_once() -> None:
    bucket = TokenBucket()
    assert bucket.wait_ms(1000, 0) == 0
    bucket.take(999)
    assert bucket.wait_ms(1000, 0) == 0


def test_a_debt_is_waited_for() -> None:
    bucket = TokenBucket()
    bucket.wait_ms(1000, 0)
    bucket.take(3000)
    wait_ms = bucket.wait_ms(1000, 0)
    assert wait_ms == pytest.approx(2001)
    assert bucket.wait_ms(1000, 1000) == pytest.approx(1001)
    assert bucket.wait_ms(1000, wait_ms) == 0


def test_no_more_than_a_second_s_worth_is_saved() -> None:
    bucket = TokenBucket()
    bucket.wait_ms(1000, 0)
    bucket.take(1000)
    assert bucket.wait_ms(1000, 60_000) == 0
    bucket.take(2000)
    assert bucket.wait_ms(1000, 60_000) == pytest.approx(1001)


def test_over_time_the_rate_is_kept() -> None:
    bucket, now_ms, taken = TokenBucket(), 0.0, 0
    while now_ms < 10_000:
        wait_ms = bucket.wait_ms(5000, now_ms)
        if wait_ms:
            now_ms += wait_ms
        else:
            bucket.take(700)
            taken += 700
    assert 50_000 <= taken <= 56_000


def test_the_rate_may_change() -> None:
    bucket = TokenBucket()
    bucket.wait_ms(1000, 0)
    bucket.take(2000)
    assert bucket.wait_ms(100_000, 0) == pytest.approx(10.01)
    assert bucket.wait_ms(UNLIMITED, 0) == 0


def test_without_a_limit_nothing_is_counted() -> None:
    bucket = TokenBucket()
    for _ in range(3):
        bucket.take(1 << 40)
        assert bucket.wait_ms(UNLIMITED, 0) == 0
    assert bucket.wait_ms(1000, 0) == 0
