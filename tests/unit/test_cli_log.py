"""`culver log`: what it prints about sound and damaged files, and its exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from culver.cli.failure import ExitCode
from culver.cli.main import run
from culver.protocol.compression import Codec
from culver.protocol.records import Record, encode_batch

SEGMENT = "00000000000000000000.log"
TIMESTAMP_MS = 1_769_860_800_123


def batch(base_offset: int, *values: bytes | None, compression: Codec = Codec.NONE, **more: Any) -> bytes:
    records = [
        Record(base_offset + delta, TIMESTAMP_MS, b"k%d" % delta, value, [("trace", b"a1")])
        for delta, value in enumerate(values)
    ]
    return bytes(encode_batch(records, base_offset=base_offset, compression=compression, **more))


BATCHES = [
    batch(0, b"one", None, producer_id=7, producer_epoch=1, base_sequence=3),
    batch(2, b"three" * 200, b"\xff", compression=Codec.ZSTD),
    batch(4, b"five"),
]


@pytest.fixture
def data_dir(tmp_path: Path) -> Path:
    """A data directory with two sound partitions, one of them empty."""
    for partition, content in ((0, b"".join(BATCHES)), (1, b"")):
        directory = tmp_path / f"orders-{partition}"
        directory.mkdir()
        (directory / SEGMENT).write_bytes(content)
    (tmp_path / "metadata.sqlite").touch()
    return tmp_path


@pytest.fixture
def segment(data_dir: Path) -> Path:
    return data_dir / "orders-0" / SEGMENT


def flip(segment: Path, position: int) -> None:
    content = bytearray(segment.read_bytes())
    content[position] ^= 1
    segment.write_bytes(content)


def test_dump_prints_batches(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", str(segment)]) == ExitCode.OK
    head, first, second, third = capsys.readouterr().out.splitlines()
    assert head == f"{segment}  ({segment.stat().st_size} bytes)"
    assert first.startswith(f"  at 0: offsets 0 to 1, 2 records, {len(BATCHES[0])} bytes, none, ")
    assert first.endswith("producer 7 epoch 1 sequence 3")
    assert "2026-01-31T12:00:00.123Z" in first
    assert second.startswith(f"  at {len(BATCHES[0])}: offsets 2 to 3, 2 records, ")
    assert ", zstd, " in second
    assert "offsets 4 to 4" in third


def test_dump_prints_records_on_demand(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "dump", str(data_dir), "--records"]) == ExitCode.OK
    printed = capsys.readouterr().out
    assert "      0  2026-01-31T12:00:00.123Z  'k0' = 'one'  trace='a1'\n" in printed
    assert "'k1' = null  trace='a1'\n" in printed
    assert "... (1000 bytes)  trace='a1'\n" in printed
    assert f"{data_dir / 'orders-1' / SEGMENT}  (0 bytes)\n" in printed


def test_dump_as_json_is_one_object_per_batch(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        run(["log", "dump", str(segment.parent), "-r", "-o", "json", "--from", "3", "-n", "1"]) == ExitCode.OK
    )
    (line,) = capsys.readouterr().out.splitlines()
    shown = json.loads(line)
    assert (shown["base_offset"], shown["last_offset"], shown["compression"]) == (2, 3, "zstd")
    assert (shown["crc_ok"], shown["faults"]) == (True, [])
    assert shown["records"][1] == {
        "offset": 3,
        "timestamp": TIMESTAMP_MS,
        "key": "k1",
        "value": "\\xff",
        "headers": [["trace", "a1"]],
    }


def test_verify_finds_sound_files_sound(data_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["log", "verify", str(data_dir)]) == ExitCode.OK
    size = sum(map(len, BATCHES))
    assert capsys.readouterr().out == f"2 partitions, 2 segments, {size} bytes: 0 with damage\n"


def test_verify_explains_damage_and_goes_on_behind_it(
    data_dir: Path, segment: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    position = len(BATCHES[0])
    flip(segment, position + 70)
    segment.write_bytes(segment.read_bytes()[:-2])
    assert run(["log", "verify", str(data_dir)]) == ExitCode.CORRUPT
    printed = capsys.readouterr()
    changed, torn, summary = printed.out.splitlines()
    assert changed.startswith(f"{segment} at {position}: DAMAGED: CRC-32C of the content is 0x")
    assert torn.startswith(f"{segment} at {position + len(BATCHES[1])}: DAMAGED: ")
    assert torn.endswith("a write that was cut off")
    assert summary.endswith(": 1 with damage")
    assert printed.err.startswith(f"culver: damage in {segment.parent}\n")
    assert "does not serve that partition" in printed.err


def test_dump_marks_damage_in_its_place(segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(segment, len(BATCHES[0]) + 70)
    assert run(["log", "dump", str(segment)]) == ExitCode.CORRUPT
    printed = capsys.readouterr()
    assert [line.startswith("      DAMAGED: CRC-32C") for line in printed.out.splitlines()] == [
        False,
        False,
        False,
        True,
        False,
    ]
    assert printed.err.startswith("culver: 1 of 3 batches are damaged\n")


def test_verify_as_json(data_dir: Path, segment: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flip(segment, 70)
    assert run(["log", "verify", "--quick", "-o", "json", str(data_dir)]) == ExitCode.CORRUPT
    damaged, empty = json.loads(capsys.readouterr().out)
    assert (damaged["sound"], damaged["path"], damaged["segments"]) == (False, str(segment.parent), 1)
    assert [(fault["file"], fault["position"]) for fault in damaged["faults"]] == [(str(segment), 0)]
    assert (empty["sound"], empty["size_bytes"], empty["faults"]) == (True, 0, [])


def test_bytes_that_are_no_log_are_called_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / SEGMENT).write_bytes(b"This is no log but a letter to someone who expected one. " * 3)
    assert run(["log", "dump", str(tmp_path)]) == ExitCode.CORRUPT
    assert "bytes that are no batch\n      DAMAGED: magic byte is" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["dump", "verify"])
def test_paths_without_logs_are_not_found(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["log", command, str(tmp_path / "missing")]) == ExitCode.NOT_FOUND
    assert "does not exist" in capsys.readouterr().err
    assert run(["log", command, str(tmp_path)]) == ExitCode.NOT_FOUND
    assert "holds no segment files" in capsys.readouterr().err
