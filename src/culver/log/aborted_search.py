"""Finding aborted transactions in a log: in the indexes of its segments, which are made again when they are missing."""

from __future__ import annotations

from collections.abc import Iterator

from culver.filesystem import FileSystem
from culver.log import names
from culver.log.aborted_index import AbortedIndex
from culver.log.batches import CONTROL, TRANSACTIONAL
from culver.log.indexes import IndexDamaged
from culver.log.segment import Segment, SegmentList
from culver.log.transactions import AbortedTransaction
from culver.logging import get_logger
from culver.protocol.control_records import EndMarker, decode_end_marker

_log = get_logger("culver.log")


def aborted_index(fs: FileSystem, segments: SegmentList, at: int, log_end_offset: int) -> AbortedIndex:
    """The index of one segment: as it is in memory, in its file, or as its batches say."""
    segment = segments.items[at]
    if segment.aborted is None:
        try:
            data = fs.read(segment.path.removesuffix(names.LOG) + names.ABORTED_INDEX)
            index = AbortedIndex.from_bytes(data, segment.base_offset)
            # A truncation may have cut off what it speaks of, and a power cut brought back the file.
            index.truncate(segments.end_offset_of(at, log_end_offset))
        except FileNotFoundError:
            index = rebuild_index(segments, at)
        except IndexDamaged as damage:
            _log.warning("index damaged, rebuilding it", segment=segment.path, damage=str(damage))
            index = rebuild_index(segments, at)
        segment.aborted = index
    return segment.aborted


def believe_index(
    fs: FileSystem, segments: SegmentList, count: int, log_end_offset: int, listing: list[str]
) -> None:
    """After a clean stop that left so many entries: have those of the active segment in memory, and nowhere else."""
    at = len(segments) - 1
    active = segments.active
    if not count:
        active.aborted = AbortedIndex()
    elif len(aborted_index(fs, segments, at, log_end_offset)) != count:
        active.aborted = rebuild_index(segments, at)
    remove_index_file(fs, active, listing)


def remove_index_file(fs: FileSystem, segment: Segment, listing: list[str]) -> None:
    """A file that lacks what is appended from now on must not come back, or it would be believed one day."""
    name = names.segment_name(segment.base_offset, names.ABORTED_INDEX)
    path = f"{segment.directory}/{name}"
    if name in listing and fs.exists(path):
        fs.remove(path)
        fs.sync_directory(segment.directory)


def collect_aborted(
    fs: FileSystem, segments: SegmentList, from_offset: int, up_to_offset: int, log_end_offset: int
) -> tuple[list[AbortedTransaction], bool]:
    """Those that reach into [from, up to), and whether there is any other from that segment on."""
    found: list[AbortedTransaction] = []
    clear = True
    for at in range(segments.index_of(from_offset), len(segments)):
        index = segments.items[at].aborted
        if index is None:
            index = aborted_index(fs, segments, at, log_end_offset)
        if len(index):
            clear = False
            if index.collect(from_offset, up_to_offset, found):
                break
    found.sort(key=lambda one: one.first_offset)
    return found, clear


def rebuild_index(segments: SegmentList, at: int) -> AbortedIndex:
    """The index of one segment, from its batches and those of segments before it.

    What was stable when a transaction ended is not found out: 0 says that there may be others further on.
    """
    aborted: list[AbortedTransaction] = []
    begun: dict[int, int] = {}
    ended: set[int] = set()
    # Producer id -> its first marker in the segment, and where the transaction begins as far as is known.
    unresolved: dict[int, tuple[int, int | None]] = {}
    for offset, producer_id, marker in _transactional(segments.items[at]):
        if marker is None:
            begun.setdefault(producer_id, offset)
            continue
        first = begun.pop(producer_id, None)
        if not marker.committed:
            if producer_id not in ended:
                unresolved[producer_id] = (offset, first)
            elif first is not None:
                aborted.append(AbortedTransaction(producer_id, first, offset, 0))
        ended.add(producer_id)
    resolved: list[tuple[int, int, int | None]] = []
    for segment in reversed(segments.items[:at]):
        if not unresolved:
            break
        begun, ended = _last_begun(segment)
        for producer_id, (offset, first) in list(unresolved.items()):
            first = begun.get(producer_id, first)
            unresolved[producer_id] = (offset, first)
            if producer_id in ended:
                resolved.append((producer_id, *unresolved.pop(producer_id)))
    resolved += [(producer_id, offset, first) for producer_id, (offset, first) in unresolved.items()]
    for producer_id, offset, first in resolved:
        if first is not None:  # otherwise compaction has left nothing of it, or it never was
            aborted.append(AbortedTransaction(producer_id, first, offset, 0))
    return AbortedIndex.of(sorted(aborted, key=lambda one: one.last_offset))


def _last_begun(segment: Segment) -> tuple[dict[int, int], set[int]]:
    """Where what each producer had open at the segment's end began in it, and who has a marker in it."""
    begun: dict[int, int] = {}
    ended: set[int] = set()
    for offset, producer_id, marker in _transactional(segment):
        if marker is None:
            begun.setdefault(producer_id, offset)
        else:
            begun.pop(producer_id, None)
            ended.add(producer_id)
    return begun, ended


def _transactional(segment: Segment) -> Iterator[tuple[int, int, EndMarker | None]]:
    """(offset, producer id, None or the marker) of what belongs to transactions."""
    for _, header, data in segment.walk(0):
        if header[9] < 0 or not header[5] & (TRANSACTIONAL | CONTROL):
            continue
        if not header[5] & CONTROL:
            yield header[0], header[9], None
        elif (marker := decode_end_marker(data)) is not None:
            yield header[0], header[9], marker
