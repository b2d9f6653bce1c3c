"""Diaries of client processes: what a history says of transactions whose client was killed at any moment."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from culver.testing.chaos.diary import Diary, DiaryReader
from culver.testing.chaos.report import copy_counts
from culver.testing.checker import judge
from culver.testing.history import Copying, History, Outcome

SENDS = [("accounts", 0, "t/0/0=-5"), ("accounts", 1, "t/0/1=5")]


@pytest.fixture
def diary(tmp_path: Path) -> Iterator[Diary]:
    """Of a client that has begun a transaction."""
    diary = Diary(tmp_path / "diary", 0.0)
    diary.write("ready")
    diary.write("begin", number=0, sends=SENDS, amounts=[-5, 5])
    yield diary
    diary.close()


@pytest.fixture
def history() -> History:
    return History()


@pytest.fixture
def reader(tmp_path: Path, history: History) -> DiaryReader:
    return DiaryReader(tmp_path / "diary", "t", "teller", history)


def test_what_was_never_to_be_committed_may_not_be_read(
    diary: Diary, reader: DiaryReader, history: History
) -> None:
    diary.write("written", number=0, offsets=[0, 0])
    reader.catch_up()
    assert history.transactions[0].outcome is Outcome.FAILED
    assert [send.outcome for send in history.sends] == [Outcome.OK, Outcome.OK]
    history.final = {("accounts", 0): [(0, b"t/0/0=-5")], ("accounts", 1): [(0, b"t/0/1=5")]}
    history.final_committed = {("accounts", 0): [], ("accounts", 1): []}
    assert judge(history).violations == []
    history.final_committed = dict(history.final)
    assert judge(history).kinds() == {"aborted read"}


def test_a_client_killed_while_it_commits_has_committed_all_or_nothing(
    diary: Diary, reader: DiaryReader, history: History
) -> None:
    diary.write("written", number=0, offsets=[0, 0])
    diary.write("commit", number=0)
    reader.catch_up()
    assert history.transactions[0].outcome is Outcome.UNKNOWN
    history.final = {("accounts", 0): [(0, b"t/0/0=-5")], ("accounts", 1): [(0, b"t/0/1=5")]}
    history.final_committed = dict(history.final)
    assert judge(history).violations == []
    history.final_committed[("accounts", 1)] = []
    assert judge(history).kinds() == {"torn", "sum"}


def test_what_was_committed_must_be_there(diary: Diary, reader: DiaryReader, history: History) -> None:
    reader.catch_up()
    diary.write("commit", number=0)
    diary.write("committed", number=0)
    reader.catch_up()
    assert reader.committed == 1
    assert history.transactions[0].outcome is Outcome.OK
    history.final = history.final_committed = {("accounts", 0): [], ("accounts", 1): []}
    assert judge(history).kinds() == {"transaction lost"}


def test_a_line_without_an_end_speaks_of_nothing_that_happened(
    tmp_path: Path, diary: Diary, reader: DiaryReader, history: History
) -> None:
    with (tmp_path / "diary").open("ab") as file:
        file.write(b'{"event":"commit","ms":3,"num')
    reader.catch_up()
    assert history.transactions[0].outcome is Outcome.FAILED
    with (tmp_path / "diary").open("ab") as file:
        file.write(b'ber":0}\n')
    reader.catch_up()
    assert history.transactions[0].outcome is Outcome.UNKNOWN


def test_a_copiers_reads_and_offsets_are_in_the_history(tmp_path: Path) -> None:
    history = History(copyings=[Copying("copiers", (("source", 0),), (("copies", 0),))])
    entries: list[dict[str, Any]] = [
        {"event": "placed", "ms": 1, "asked_ms": 0, "group": "copiers", "offsets": [["source", 0, -1]]},
        {
            "event": "begin",
            "ms": 2,
            "number": 0,
            "sends": [["copies", 0, "x/0/0|a"], ["copies", 0, "x/0/1|b"]],
            "group": "copiers",
            "reads": [["source", 0, 0, [0, 2]]],
            "offsets": [["source", 0, 3]],
        },
        {"event": "commit", "ms": 3, "number": 0},
        {"event": "committed", "ms": 4, "number": 0},
    ]
    (tmp_path / "diary").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    DiaryReader(tmp_path / "diary", "x", "copier", history).catch_up()
    assert [poll.records for poll in history.polls] == [[(0, b"a"), (2, b"b")]]
    assert history.committed_reads[0].offset == -1
    assert history.commits[0].outcome is Outcome.OK
    source = [(0, b"a"), (2, b"b"), (4, b"c")]
    history.final_committed = {("source", 0): source, ("copies", 0): [(0, b"x/0/0|a"), (1, b"x/0/1|b")]}
    assert copy_counts(history, history.copyings[0]) == {b"a": 1, b"b": 1, b"c": 0}
    assert "not copied" in judge(history).kinds()
