"""Culver's log files read by Kafka's own dump tool: batches, indexes, time indexes and producer snapshots."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from anchors import Unavailable, kafka

from culver.clock import ManualClock
from culver.config import TopicConfig
from culver.filesystem import OsFileSystem
from culver.log.partition_log import PartitionLog
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
