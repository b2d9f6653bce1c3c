"""`culver search`: results as a table and as JSON, and what it says when something is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from store_events import HOUR_US, START_US, event, events

from culver.cli.failure import ExitCode
from culver.cli.main import run
from culver.pipelines.log_store.store import LogStore


@pytest.fixture
def store(tmp_path: Path) -> LogStore:
    store = LogStore(str(tmp_path / "logs"))
    rows = [
        event(START_US, "payment timeout", level="ERROR", service="api", fields='{"status":504}'),
        event(START_US + HOUR_US, "order placed\nwith love", level="INFO", service="web"),
        event(START_US + 2 * HOUR_US, "order timeout", level="ERROR", service="web"),
    ]
    store.write_batch(events(rows), query_id="q", batch_id=0)
    return store


def search(store: LogStore, *arguments: str) -> int:
    return run(["search", "--store", store.path, *arguments])


def test_a_table_for_people(store: LogStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert search(store, "order") == ExitCode.OK
    output = capsys.readouterr()
    assert [line.split()[0] for line in output.out.splitlines()] == ["TIME", "2026-11-15", "2026-11-15"]
    assert "order placed with love" in output.out
    assert "2 lines of 3" in output.err


def test_json_for_programs(store: LogStore, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        search(store, "timeout", "--where", "fields.status >= 500 and service='api'", "-o", "json")
        == ExitCode.OK
    )
    [line] = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert (found["ts"], found["message"], found["fields"]) == (
        "2026-11-15T08:00:00Z",
        "payment timeout",
        {"status": 504},
    )


def test_times_and_limit(store: LogStore, capsys: pytest.CaptureFixture[str]) -> None:
    search(store, "--since", "2026-11-15T08:30Z", "--until", "2026-11-15T09:30Z", "-o", "json")
    assert [json.loads(line)["service"] for line in capsys.readouterr().out.splitlines()] == ["web"]
    search(store, "--limit", "1", "-o", "json")
    assert [json.loads(line)["message"] for line in capsys.readouterr().out.splitlines()] == ["order timeout"]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["(order"], ExitCode.USAGE, "a parenthesis is not closed"),
        (["--where", "colour = 'red'"], ExitCode.USAGE, "there is no column colour"),
        (["--since", "noon"], ExitCode.USAGE, "is no time"),
        (["--store", "nowhere"], ExitCode.NOT_FOUND, "there is no log store in"),
    ],
)
def test_wrong_usage_is_explained(
    store: LogStore, capsys: pytest.CaptureFixture[str], arguments: list[str], code: ExitCode, said: str
) -> None:
    assert search(store, *arguments) == code
    assert said in capsys.readouterr().err


def test_what_is_found_is_shown_although_a_file_is_damaged(
    store: LogStore, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = max(store.state().files.values(), key=lambda entry: entry.ts_min)
    Path(store.path, entry.index).write_bytes(b"damaged")
    assert search(store, "timeout", "-o", "json") == ExitCode.CORRUPT
    output = capsys.readouterr()
    assert "payment timeout" in output.out
    assert entry.index in output.err
    assert "culver pipeline logs --repair" in output.err
