"""Which segments retention takes away: too old, too much, or before the log's start."""

from __future__ import annotations

from culver.config import TopicConfig
from culver.filesystem import FileSystem
from culver.log.segment import NO_TIMESTAMP, Segment, SegmentList


def segments_to_delete(
    fs: FileSystem,
    segments: SegmentList,
    config: TopicConfig,
    start_offset: int,
    high_watermark: int,
    stable_offset: int,
    end_offset: int,
    now_ms: int,
) -> int:
    """How many segments, counted from the oldest, may go; all of them when even the active one is expired.

    Only what is below the high watermark goes: what is not yet agreed on cannot be too old. Nor can what belongs to a
    transaction that has not ended, unless somebody has deleted it.
    """
    due = _before_start(segments, _below(segments, high_watermark, end_offset), start_offset)
    if "delete" in config.cleanup_policy:
        candidates = segments.items[: _below(segments, stable_offset, end_offset)]
        due = max(due, _too_large(segments, candidates, config.retention_bytes))
        due = max(due, _too_old(fs, candidates, config.retention_ms, now_ms))
    return due


def _below(segments: SegmentList, offset: int, end_offset: int) -> int:
    """How many segments there are below an offset."""
    count = 0
    while (
        count < len(segments)
        and segments.end_offset_of(count, end_offset) <= offset
        and segments.items[count].size_bytes
    ):
        count += 1
    return count


def _before_start(segments: SegmentList, candidates: int, start_offset: int) -> int:
    due = 0
    # Never the active one: the log's start may be its end.
    while due < min(candidates, len(segments) - 1) and segments.end_offset_of(due, 0) <= start_offset:
        due += 1
    return due


def _too_large(segments: SegmentList, candidates: list[Segment], retention_bytes: int) -> int:
    if retention_bytes < 0:
        return 0
    excess = sum(segment.size_bytes for segment in segments.items) - retention_bytes
    due = 0
    for segment in candidates:
        excess -= segment.size_bytes
        if excess < 0:
            break
        due += 1
    return due


def _too_old(fs: FileSystem, candidates: list[Segment], retention_ms: int, now_ms: int) -> int:
    if retention_ms < 0:
        return 0
    due = 0
    for segment in candidates:
        newest_ms = segment.largest_timestamp_ms()
        if newest_ms == NO_TIMESTAMP:
            # Its records carry no time: that of the file has to do.
            newest_ms = fs.modified_ms(segment.path)
        if now_ms - newest_ms <= retention_ms:
            break
        due += 1
    return due
