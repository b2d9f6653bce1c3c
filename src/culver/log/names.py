"""Names of the files in a data directory, and what they mean.

topic-0/00000000000000000000.log         record batches, the truth
topic-0/00000000000000000000.index       offset index, rebuilt from the log when missing
topic-0/00000000000000000000.timeindex   time index, likewise
topic-0/00000000000000000000.txnindex    aborted transactions whose end is in that segment, likewise
topic-0/00000000000000000042.snapshot    producer state just before offset 42
topic-0/00000000000000000000.unflushed   that segment is closed, and not known to be on disk: see culver.log.flush
topic-0/leader-epoch-checkpoint          which leader epoch begins at which offset
topic-0/partition.metadata               the topic's id
*.deleted                                on its way out; removed when nobody reads it any more
*.cleaned, *.swap                        the output of a compaction that is not yet in place
"""

from __future__ import annotations

LOG = ".log"
OFFSET_INDEX = ".index"
TIME_INDEX = ".timeindex"
ABORTED_INDEX = ".txnindex"
SNAPSHOT = ".snapshot"
DELETED = ".deleted"
STRAY = ".stray"
CLEANED = ".cleaned"
SWAP = ".swap"
PROGRESS = ".progress"
UNFLUSHED = ".unflushed"
TEMPORARY = ".new"
LEADER_EPOCHS = "leader-epoch-checkpoint"
INDEXES = (OFFSET_INDEX, TIME_INDEX, ABORTED_INDEX)
OFFSET_DIGITS = 20


def segment_name(base_offset: int, suffix: str) -> str:
    """The name of a file that belongs to an offset."""
    return f"{base_offset:020d}{suffix}"


def offset_of(name: str, suffix: str) -> int | None:
    """The offset in a file's name, or None when the name is not of this kind."""
    digits = name[:OFFSET_DIGITS]
    if name[OFFSET_DIGITS:] != suffix or len(digits) != OFFSET_DIGITS or not digits.isdecimal():
        return None
    return int(digits)


def partition_directory(topic: str, partition: int) -> str:
    """The name of a partition's directory."""
    return f"{topic}-{partition}"


def parse_partition_directory(name: str) -> tuple[str, int] | None:
    """Topic and partition of a directory name, or None when it is something else."""
    topic, dash, digits = name.rpartition("-")
    if not dash or not topic or not digits.isascii() or not digits.isdecimal():
        return None
    if len(digits) > 1 and digits[0] == "0":
        return None
    return topic, int(digits)
