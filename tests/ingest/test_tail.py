"""Files that are followed: every line once, in order, through rotations and restarts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from culver.ingest.source import State
from culver.ingest.tail import Tail

LINE_MAX_BYTES = 100


class Follower:
    """A tail, what it has handed out, and where it would go on after a crash."""

    def __init__(self, path: Path, *, from_end: bool = False) -> None:
        self.path = path
        self.lines: list[bytes] = []
        self.state: State | None = None
        self.tail = Tail(path, LINE_MAX_BYTES, lambda: 0, from_end=from_end)

    def read(self, limit: int = 1000) -> list[bytes]:
        found = self.tail.read(limit)
        if found:
            self.state = {**found[-1].state, "saved_ms": 0}
        self.lines += [line.text for line in found]
        return [line.text for line in found]

    def restart(self) -> None:
        self.tail.close()
        self.tail = Tail(self.path, LINE_MAX_BYTES, lambda: 0, self.state)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.log"


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def test_lines_come_as_they_are_written(path: Path) -> None:
    follower = Follower(path)
    assert follower.read() == []  # not there yet
    append(path, "one\ntwo\nthr")
    assert follower.read() == [b"one", b"two"]
    assert follower.read() == []
    append(path, "ee\r\n\nfive\n")
    assert follower.read() == [b"three", b"", b"five"]


def test_long_lines_come_in_pieces(path: Path) -> None:
    append(path, "x" * 250 + "\ny\n")
    assert [len(line) for line in Follower(path).read()] == [100, 100, 50, 1]


def test_it_goes_on_where_it_stopped(path: Path) -> None:
    append(path, "".join(f"{number}\n" for number in range(10)))
    follower = Follower(path)
    follower.read(4)
    follower.restart()
    follower.read(3)
    append(path, "last\n")
    follower.restart()
    follower.read()
    assert follower.lines == [b"%d" % number for number in range(10)] + [b"last"]


def test_a_line_without_its_end_is_read_again_after_a_restart(path: Path) -> None:
    append(path, "one\ntw")
    follower = Follower(path)
    follower.read()
    follower.restart()
    append(path, "o\n")
    assert follower.read() == [b"two"]


def test_a_renamed_file_is_read_to_its_end_first(path: Path) -> None:
    append(path, "one\n")
    follower = Follower(path)
    follower.read()
    append(path, "two\n")
    path.rename(path.with_name("app.log.1"))
    append(path.with_name("app.log.1"), "three\nfour without an end")
    append(path, "five\n")
    assert follower.read() == [b"two", b"three", b"four without an end", b"five"]


def test_a_renamed_file_is_followed_until_another_has_its_name(path: Path) -> None:
    append(path, "one\n")
    follower = Follower(path)
    follower.read()
    path.rename(path.with_name("app.log.1"))
    assert follower.read() == []
    append(path.with_name("app.log.1"), "two\n")
    assert follower.read() == [b"two"]
    append(path, "three\n")
    assert follower.read() == [b"three"]


def test_a_file_that_is_deleted_while_it_is_read_is_not_lost(path: Path) -> None:
    append(path, "one\ntwo\n")
    follower = Follower(path)
    follower.read(1)
    path.unlink()
    append(path, "three\n")
    assert follower.read() == [b"two", b"three"]


def test_a_file_that_is_cut_is_read_from_its_beginning(path: Path) -> None:
    append(path, "one\ntwo\n")
    follower = Follower(path)
    follower.read()
    os.truncate(path, 0)
    append(path, "new\n")
    assert follower.read() == [b"new"]


@pytest.mark.parametrize("rotations", [1, 2, 3])
def test_rotations_while_nobody_looked(path: Path, rotations: int) -> None:
    append(path, "read\nunread\n")
    follower = Follower(path)
    follower.read(1)
    follower.tail.close()
    expected = [b"read", b"unread"]
    for rotation in range(rotations):
        for number in range(rotation + 1, 0, -1):
            older = path.with_name(f"app.log.{number}")
            if older.exists():
                older.rename(path.with_name(f"app.log.{number + 1}"))
        path.rename(path.with_name("app.log.1"))
        append(path, f"after {rotation}\n")
        os.utime(path, ns=(0, 10**18 + rotation))
        expected.append(b"after %d" % rotation)
    os.utime(path.with_name(f"app.log.{rotations}"), ns=(0, 10**17))
    follower.restart()
    follower.read()
    assert follower.lines == expected


def test_another_file_with_the_same_inode_is_not_taken_for_the_one_that_was_read(path: Path) -> None:
    append(path, "one\ntwo\n")
    follower = Follower(path)
    follower.read()
    path.write_text("six\nsev\n")  # the same inode and size, another content
    follower.restart()
    assert follower.read() == [b"six", b"sev"]


def test_from_the_end(path: Path) -> None:
    append(path, "old\n")
    follower = Follower(path, from_end=True)
    assert follower.read() == []
    append(path, "new\n")
    assert follower.read() == [b"new"]
