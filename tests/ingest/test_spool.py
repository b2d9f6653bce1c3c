"""Lines on disk: in order, through crashes at any byte, and gone when they have arrived."""

from __future__ import annotations

from pathlib import Path

import pytest

from culver.ingest.spool import Spool, SpoolFull

SMALL = 200  # bytes a segment, so that there are many


def spool(directory: Path, **more: object) -> Spool:
    return Spool(directory, **{"max_bytes": 1 << 20, "segment_bytes": SMALL, **more})  # type: ignore[arg-type]


def put(target: Spool, *numbers: int) -> None:
    for number in numbers:
        target.append([("source", b"line %d" % number, number)])


def entry_on_disk(directory: Path) -> bytes:
    alone = spool(directory)
    put(alone, 0)
    alone.close()
    (file,) = directory.iterdir()
    return file.read_bytes()


def texts(target: Spool, limit: int = 1000) -> list[bytes]:
    return [line.text for line in target.read(limit)]


def test_what_goes_in_comes_out_in_order(tmp_path: Path) -> None:
    target = spool(tmp_path)
    put(target, *range(30))
    lines = target.read(1000)
    assert [line.text for line in lines] == [b"line %d" % number for number in range(30)]
    assert (lines[7].source, lines[7].received_ms) == ("source", 7)
    assert texts(target) == []
    put(target, 30)
    assert texts(target) == [b"line 30"]


def test_after_a_restart_it_goes_on_behind_what_has_arrived(tmp_path: Path) -> None:
    target = spool(tmp_path)
    put(target, *range(20))
    lines = target.read(9)
    target.acknowledge(lines[-1].state)
    target.close()
    again = spool(tmp_path, state=lines[-1].state)
    put(again, 20)
    assert texts(again) == [b"line %d" % number for number in range(9, 21)]


def test_segments_that_have_arrived_go(tmp_path: Path) -> None:
    target = spool(tmp_path)
    put(target, *range(30))
    files = len(list(tmp_path.iterdir()))
    lines = target.read(1000)
    target.acknowledge(lines[-1].state)
    assert files > 3
    assert len(list(tmp_path.iterdir())) == 1
    assert target.waiting_bytes <= SMALL


def test_every_unfinished_tail_is_cut_off(tmp_path: Path) -> None:
    target = spool(tmp_path / "whole", segment_bytes=1 << 20)
    put(target, 0, 1, 2)
    target.close()
    (file,) = (tmp_path / "whole").iterdir()
    data = file.read_bytes()
    one = len(data) // 3
    for length in range(len(data) + 1):
        directory = tmp_path / str(length)
        directory.mkdir()
        (directory / file.name).write_bytes(data[:length])
        cut = spool(directory, segment_bytes=1 << 20)
        put(cut, 9)
        assert texts(cut) == [b"line %d" % number for number in range(length // one)] + [b"line 9"]
        cut.close()


def test_a_full_spool_refuses_and_takes_more_when_there_is_room(tmp_path: Path) -> None:
    target = spool(tmp_path / "full", max_bytes=300)
    kept = 300 // len(entry_on_disk(tmp_path / "one"))
    put(target, *range(kept))
    with pytest.raises(SpoolFull):
        put(target, kept)
    lines = target.read(1000)
    assert len(lines) == kept
    target.acknowledge(lines[-1].state)
    put(target, kept)
    assert texts(target) == [b"line %d" % kept]


def test_a_line_larger_than_a_segment(tmp_path: Path) -> None:
    target = spool(tmp_path, max_bytes=1 << 24)
    big = b"x" * (3 << 20)
    target.append([("source", big, 0)])
    put(target, 1)
    assert texts(target) == [big, b"line 1"]
