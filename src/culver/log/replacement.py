"""Putting compacted segments in the place of the originals, so that a crash at any step loses nothing.

1. X.log.cleaned is written and synced                  (a crash: it is thrown away)
2. it is renamed to X.log.swap, the directory synced    (the commit point)
3. the originals are renamed to *.deleted
4. X.log.swap is renamed to X.log                       (a crash after 2: recovery does 3 and 4)

If there are aborted transactions in it X.txnindex.swap is made durable before 2 and renamed last. It has to be there:
the first original's index might come back after a power cut, and knows nothing of the others. Without step 2 it does
no harm, since it speaks of everything that was aborted in the first original, too.
"""

from __future__ import annotations

from culver.filesystem import FileSystem
from culver.log import names
from culver.log.batches import BatchWalk
from culver.log.segment import Segment
from culver.logging import get_logger

_log = get_logger("culver.log")

_LEFTOVERS = (names.DELETED, names.CLEANED, names.TEMPORARY)


def write_swap(fs: FileSystem, segment: Segment, cleaned: str) -> None:
    """Step 2, but for syncing the directory."""
    if segment.aborted:
        fs.write_atomic(_aborted_path(segment) + names.SWAP, segment.aborted.to_bytes())
    fs.rename(cleaned, segment.path + names.SWAP)


def put_in_place(fs: FileSystem, segment: Segment) -> None:
    """Step 4."""
    fs.rename(segment.path + names.SWAP, segment.path)
    if segment.aborted:
        fs.rename(_aborted_path(segment) + names.SWAP, _aborted_path(segment))


def remove_swap(fs: FileSystem, segment: Segment) -> None:
    """Take step 2 back."""
    fs.remove(segment.path + names.SWAP)
    if segment.aborted:
        fs.remove(_aborted_path(segment) + names.SWAP)


def _aborted_path(segment: Segment) -> str:
    return segment.path.removesuffix(names.LOG) + names.ABORTED_INDEX


def finish_replacements(fs: FileSystem, directory: str, listing: list[str]) -> list[str]:
    """Complete what a crash interrupted, drop leftovers; returns the names that remain."""
    swaps = [name for name in listing if name.endswith(names.SWAP)]
    leftovers = [name for name in listing if name.endswith(_LEFTOVERS)]
    if not swaps and not leftovers:
        return listing
    for name in swaps:
        base_offset = names.offset_of(name, names.LOG + names.SWAP)
        if base_offset is not None:
            _finish_swap(fs, directory, base_offset, listing)
    for name in swaps:
        if names.offset_of(name, names.ABORTED_INDEX + names.SWAP) is not None:
            fs.rename(f"{directory}/{name}", f"{directory}/{name.removesuffix(names.SWAP)}")
    for name in leftovers:
        fs.remove(f"{directory}/{name}")
    return fs.list(directory)


def _finish_swap(fs: FileSystem, directory: str, base_offset: int, listing: list[str]) -> None:
    swap = f"{directory}/{names.segment_name(base_offset, names.LOG + names.SWAP)}"
    file = fs.open(swap)
    try:
        walk = BatchWalk(file, 0, file.size(), base_offset)
        for _ in walk:
            pass
    finally:
        file.close()
    for name in listing:
        offset = names.offset_of(name, names.LOG)
        if offset is not None and base_offset < offset < walk.next_offset:
            fs.remove(f"{directory}/{name}")
    for suffix in (*names.INDEXES, names.UNFLUSHED):
        name = names.segment_name(base_offset, suffix)
        if name in listing:
            fs.remove(f"{directory}/{name}")
    fs.rename(swap, f"{directory}/{names.segment_name(base_offset, names.LOG)}")
    _log.info("finished an interrupted compaction", log=directory, base_offset=base_offset)
