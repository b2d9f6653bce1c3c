"""Positions as people write them on the command line."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from culver.cli.position import Kind, Position, parse_position, parse_time_ms

NOON = datetime(2026, 1, 31, 12, 0, tzinfo=UTC)
NOON_MS = 1_769_860_800_000


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("beginning", Position(Kind.BEGINNING)),
        ("earliest", Position(Kind.BEGINNING)),
        ("end", Position(Kind.END)),
        ("LATEST", Position(Kind.END)),
        ("0", Position(Kind.OFFSET, 0)),
        ("42", Position(Kind.OFFSET, 42)),
        ("-10", Position(Kind.LAST, 10)),
        ("@1769860800000", Position(Kind.TIME, NOON_MS)),
        ("@2026-01-31T12:00Z", Position(Kind.TIME, NOON_MS)),
        ("@2026-01-31T13:00+01:00", Position(Kind.TIME, NOON_MS)),
        ("@2h ago", Position(Kind.TIME, NOON_MS - 7_200_000)),
        ("@90s", Position(Kind.TIME, NOON_MS - 90_000)),
        ("@1.5 d ago", Position(Kind.TIME, NOON_MS - 129_600_000)),
        ("@now", Position(Kind.TIME, NOON_MS)),
        ("@today", Position(Kind.TIME, NOON_MS - 43_200_000)),
        ("@yesterday", Position(Kind.TIME, NOON_MS - 129_600_000)),
    ],
)
def test_a_position_is_understood(text: str, position: Position) -> None:
    assert parse_position(text, NOON) == position


def test_a_time_without_a_zone_is_local() -> None:
    local = datetime(2026, 1, 31, 12, 0).astimezone()
    assert parse_time_ms("2026-01-31T12:00") == round(local.timestamp() * 1000)


def test_today_begins_at_local_midnight() -> None:
    tokyo = timezone(timedelta(hours=9))
    assert parse_time_ms("today", NOON.astimezone(tokyo)) == NOON_MS - 21 * 3_600_000


@pytest.mark.parametrize(
    "text", ["", "first", "4.5", "+3", "@", "@tomorrow", "@2026-13-01", "@5y ago", "--1"]
)
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match=r"is no (position|time): expected .*such as|for instance"):
        parse_position(text, NOON)
