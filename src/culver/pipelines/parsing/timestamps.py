"""Read the times that log lines carry: ISO 8601 by the column, other spellings one by one."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from email.utils import parsedate_to_datetime
from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc

from culver.pipelines.parsing.events import TIMESTAMP

DAY_US = 86_400_000_000
# Earlier than any log that is still looked at: such a time is a clock that was never set.
EARLIEST_US = 946_684_800_000_000  # 2000-01-01
LATEST_US = 253_402_214_400_000_000  # the last day of the year 9999

_ISO = (
    r"^\d{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12]\d|3[01])[T ](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d"
    r"(?:[.,]\d{1,9})?(?:Z|[+-](?:0\d|1[0-4]):?[0-5]\d)?$"
)
_ZONE = r"(?:Z|[+-]\d\d:?\d\d)$"
_MONTHS = {
    name: number
    for number, name in enumerate(
        ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"), 1
    )
}
_CLF = re.compile(r"(\d\d)/([A-Z][a-z]{2})/(\d{4}):(\d\d):(\d\d):(\d\d)(?: ([+-])(\d\d)(\d\d))?", re.ASCII)
_BSD = re.compile(r"([A-Z][a-z]{2}) +(\d{1,2}) (\d\d):(\d\d):(\d\d)", re.ASCII)
_NUMBER = re.compile(r"\d{1,19}(?:\.\d{1,9})?", re.ASCII)
_SLASHED = re.compile(r"(\d{4})/(\d\d)/(\d\d)", re.ASCII)


def read_times(times: Sequence[str | int | None], recorded_us: Sequence[int]) -> pa.Array:
    """Microseconds since 1970 of each line: its own time if that can be, otherwise when it was recorded."""
    texts = pa.array([time if type(time) is str else None for time in times], pa.string())
    found = _iso_times(texts)
    if found.null_count:
        odd = {
            number: other_time_us(time) if isinstance(time, str) else time
            for number, (time, known) in enumerate(zip(times, found.is_valid().to_pylist(), strict=True))
            if time is not None and not known
        }
        if odd:
            read: list[int | None] = found.to_pylist()
            for number, micros in odd.items():
                read[number] = micros if micros is None or abs(micros) <= LATEST_US else None
            found = pa.array(read, pa.int64())
    recorded = pa.array(recorded_us, pa.int64())
    # A time after the record was written is a wrong clock, which would hide the line in a partition to come.
    is_plausible = pc.and_(
        pc.greater_equal(found, EARLIEST_US), pc.less_equal(found, pc.add(recorded, DAY_US))
    )
    return pc.if_else(pc.fill_null(is_plausible, False), found, recorded)


def _iso_times(texts: pa.Array) -> pa.Array:
    """Microseconds of those texts that are ISO 8601 times, without zone taken as UTC; null for the others."""
    texts = pc.if_else(pc.match_substring_regex(texts, _ISO), texts, None)
    texts = pc.replace_substring(texts, ",", ".")
    texts = pc.replace_substring_regex(texts, r"(\.\d{6})\d+", r"\1")
    zoned = pc.match_substring_regex(texts, _ZONE)
    texts = pc.if_else(zoned, texts, pc.binary_join_element_wise(texts, "Z", ""))
    try:
        return texts.cast(TIMESTAMP).cast(pa.int64())
    except pa.ArrowInvalid:  # 30 February and the like
        return pa.nulls(len(texts), pa.int64())


@lru_cache(maxsize=4096)
def other_time_us(text: str) -> int | None:
    """Microseconds of a time in any spelling but those of one column; None when it is no time."""
    text = text.strip()
    if len(text) > 64:
        return None
    if _NUMBER.fullmatch(text):
        return epoch_us(float(text) if "." in text else int(text))
    if (clf := clf_time_us(text)) is not None:
        return clf
    text = _SLASHED.sub(r"\1-\2-\3", text, count=1)
    for read in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            return _micros(read(text))
        except (ValueError, TypeError, OverflowError, IndexError):
            continue
    return None


def epoch_us(number: float) -> int | None:
    """Microseconds from a number of seconds, milliseconds, microseconds or nanoseconds, told by its size."""
    if isinstance(number, float) and not math.isfinite(number):
        return None
    size = abs(number)
    if size < 1e11:
        return round(number * 1_000_000)
    if size < 1e14:
        return round(number * 1000)
    if size < 1e17:
        return round(number)
    return round(number / 1000) if size < 1e20 else None


@lru_cache(maxsize=4096)
def clf_time_us(text: str) -> int | None:
    """15/Nov/2026:16:00:00 +0100, as in access logs."""
    match = _CLF.fullmatch(text)
    if match is None or match[2] not in _MONTHS:
        return None
    day, month, year, hour, minute, second, sign, zone_hours, zone_minutes = match.groups()
    offset = timedelta(hours=int(zone_hours or 0), minutes=int(zone_minutes or 0))
    try:
        zone = timezone(-offset if sign == "-" else offset)
        return _micros(
            datetime(int(year), _MONTHS[month], int(day), int(hour), int(minute), int(second), tzinfo=zone)
        )
    except (ValueError, OverflowError):
        return None


def bsd_time_us(text: str, recorded_us: int) -> int | None:
    """Nov 15 16:00:00, as in RFC 3164: UTC, and the latest year in which it was not yet to come."""
    return _bsd_time_us(text, recorded_us // DAY_US)


@lru_cache(maxsize=4096)
def _bsd_time_us(text: str, recorded_day: int) -> int | None:
    match = _BSD.fullmatch(text)
    if match is None or match[1] not in _MONTHS:
        return None
    month, day, hour, minute, second = _MONTHS[match[1]], *(int(part) for part in match.groups()[1:])
    try:
        recorded = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(days=recorded_day)
    except OverflowError:
        return None
    for year in (recorded.year + 1, recorded.year, recorded.year - 1):
        try:
            moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        except ValueError:  # 29 February of another year, or nonsense
            continue
        if moment <= recorded + timedelta(days=2):
            return _micros(moment)
    return None


def _micros(moment: datetime) -> int:
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return int(moment.replace(microsecond=0).timestamp()) * 1_000_000 + moment.microsecond
