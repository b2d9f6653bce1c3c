"""What the brokers of a chaos run leave on their disks: the replicas of a partition, and whether they are sound."""

from __future__ import annotations

from pathlib import Path

from culver.filesystem import OsFileSystem
from culver.log import names
from culver.log.inspect import inspect_partition
from culver.protocol.records import iterate_headers
from culver.testing.checker import Violation
from culver.testing.cluster import PartitionState
from culver.testing.history import Partition, Replica


def replicas_of(
    directory: Path, key: Partition, state: PartitionState | None, records: list[tuple[int, bytes]]
) -> tuple[list[Replica], list[Violation]]:
    """Each in-sync broker's copy of a partition of which these records could be read; and what is wrong with it."""
    high_watermark = records[-1][0] + 1 if records else 0
    found: list[Replica] = []
    wrong: list[Violation] = []
    for number in () if state is None else state.replicas:
        replica, violations = _replica(directory, key, number, high_watermark)
        replica.leader = state is not None and number == state.leader
        found.append(replica)
        wrong += violations
    return found, wrong


def _replica(
    directory: Path, key: Partition, number: int, high_watermark: int
) -> tuple[Replica, list[Violation]]:
    folder = directory / f"broker-{number}" / names.partition_directory(*key)
    wrong = [
        Violation("damage", f"{finding.path} at {finding.position}: {finding.text}")
        for finding in inspect_partition(OsFileSystem(), str(folder))
        if finding.is_fault
    ]
    data = b"".join(path.read_bytes() for path in sorted(folder.glob(f"*{names.LOG}")))
    start = end = 0
    for at, (_, header) in enumerate(iterate_headers(data)):
        start = header.base_offset if at == 0 else start
        end = header.last_offset + 1
    if end < high_watermark:
        text = f"broker {number} is in sync and has {key} up to {end} of {high_watermark}"
        wrong.append(Violation("short", text))
    return Replica(number, start, end, high_watermark, data), wrong
