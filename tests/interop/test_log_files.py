"""Culver's log files read by Kafka's own dump tool: batches, every index, producer snapshots, transactions."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from anchors import Unavailable, kafka

from culver.clock import ManualClock
from culver.config import TopicConfig
from culver.filesystem import OsFileSystem
from culver.log.partition_log import PartitionLog
from culver.log.transactions import UNVERIFIED_OK
from culver.protocol.compression import Codec
from culver.protocol.records import Record, encode_batch

pytestmark = pytest.mark.interop

NOW_MS = 1_700_000_000_000
BATCHES = 600


def write_log(directory: Path, *, compacted: bool) -> int:
    """A log of several segments, all codecs, an idempotent producer and some leader epochs; its end offset."""
    config = TopicConfig(
        segment_bytes=20_000,
        cleanup_policy=frozenset({"compact"}),
        min_cleanable_dirty_ratio=0.0,
    )
    log = PartitionLog.create(OsFileSystem(), ManualClock(NOW_MS), str(directory), config)
    for number in range(BATCHES):
        key = b"key %d" % (number % 50)
        values: list[bytes | None] = [b"value %d" % number * 5, None if number % 40 == 0 else b"second"]
        records = [Record(at, NOW_MS + number, key, value, ()) for at, value in enumerate(values)]
        batch = encode_batch(
            records,
            compression=Codec(number % 5),
            producer_id=3,
            producer_epoch=0,
            base_sequence=number * 2,
        )
        log.append(memoryview(batch), number // 100)
    if compacted:
        log.roll()
        task = log.begin_compaction()
        assert task is not None
        task.run()
        log.finish_compaction(task, None)
        assert task.bytes_after < task.bytes_before / 2
    log.close()
    return log.end_offset


@pytest.mark.parametrize("compacted", [False, True], ids=["as written", "compacted"])
def test_kafkas_dump_tool_finds_nothing_wrong(tmp_path: Path, compacted: bool) -> None:
    directory = tmp_path / "orders-0"
    end_offset = write_log(directory, compacted=compacted)
    files = sorted(
        str(path)
        for path in directory.iterdir()
        if path.suffix in {".log", ".index", ".timeindex", ".snapshot"}
    )
    assert {Path(file).suffix for file in files} == {".log", ".index", ".timeindex", ".snapshot"}
    try:
        result = kafka.run_tool(
            "org.apache.kafka.tools.DumpLogSegments", "--deep-iteration", "--files", ",".join(files)
        )
    except Unavailable as reason:
        pytest.skip(str(reason))
    output = result.stdout + result.stderr
    assert not re.search("mismatch|corrupt|isvalid: false|exception|not match", output, re.IGNORECASE)
    offsets = [int(found) for found in re.findall(r"^\| offset: (\d+) ", result.stdout, re.MULTILINE)]
    assert offsets == sorted(set(offsets))
    assert offsets[-1] == end_offset - 1
    if compacted:
        assert len(offsets) == 50
        assert "deleteHorizonMs: OptionalLong[" in result.stdout
    else:
        assert offsets == list(range(end_offset))


def dump(*files: Path) -> str:
    names = ",".join(str(file) for file in files)
    try:
        result = kafka.run_tool(
            "org.apache.kafka.tools.DumpLogSegments", "--print-data-log", "--files", names
        )
    except Unavailable as reason:
        pytest.skip(str(reason))
    return result.stdout


def write_transactions(directory: Path) -> list[tuple[int, int, int]]:
    """A log with three producers' transactions, in several segments: which of them were aborted, in order.

    Each is its producer, its first offset and the offset of its marker.
    """
    config = TopicConfig(segment_bytes=5_000)
    log = PartitionLog.create(OsFileSystem(), ManualClock(NOW_MS), str(directory), config)
    aborted = []
    for number in range(90):
        producer_id, epoch = 100 + number % 3, number // 3
        first_offset = log.end_offset
        for batch_number in range(2):
            batch = encode_batch(
                [Record(0, NOW_MS + number, None, b"x" * 100, ())],
                producer_id=producer_id,
                producer_epoch=epoch,
                base_sequence=batch_number,
                is_transactional=True,
            )
            log.append(memoryview(batch), 0, guard=UNVERIFIED_OK)
        marker_offset = log.end_offset
        log.append_marker(producer_id, epoch + 1, number % 4 != 0, 7, 2, 0)
        if number % 4 == 0:
            aborted.append((producer_id, first_offset, marker_offset))
    log.close()
    return aborted


def test_aborted_transactions_are_found_by_kafkas_dump_tool(tmp_path: Path) -> None:
    directory = tmp_path / "transactions-0"
    aborted = write_transactions(directory)
    indexes = sorted(directory.glob("*.txnindex"))
    assert len(indexes) > 3
    pattern = r"producerId: (\d+) firstOffset: (\d+) lastOffset: (\d+)"
    found = re.findall(pattern, dump(*indexes))
    assert [tuple(map(int, one)) for one in found] == aborted
    markers = dump(*sorted(directory.glob("*.log")))
    ends = re.findall(r"endTxnMarker: (\w+) coordinatorEpoch: (\d+)", markers)
    assert [end for end, _ in ends].count("ABORT") == len(aborted)
    assert {epoch for _, epoch in ends} == {"7"}


def test_open_transactions_are_in_the_producer_snapshots(tmp_path: Path) -> None:
    directory = tmp_path / "transactions-0"
    config = TopicConfig(segment_bytes=5_000)
    log = PartitionLog.create(OsFileSystem(), ManualClock(NOW_MS), str(directory), config)
    for producer_id in (1, 2):
        batch = encode_batch(
            [Record(0, NOW_MS, None, b"x", ())],
            producer_id=producer_id,
            producer_epoch=3,
            base_sequence=0,
            is_transactional=True,
        )
        log.append(memoryview(batch), 0, guard=UNVERIFIED_OK)
    log.append_marker(1, 4, True, 7, 2, 0)
    log.close()
    [snapshot] = directory.glob("*.snapshot")
    printed = dump(snapshot)
    found = re.findall(
        r"producerId: (\d+) producerEpoch: (\d+) coordinatorEpoch: (-?\d+) currentTxnFirstOffset: \S*?(\d+|empty)",
        printed,
    )
    assert found == [("1", "4", "7", "empty"), ("2", "3", "-1", "1")], printed
