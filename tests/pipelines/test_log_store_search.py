"""Search finds what a scan of everything would find, newest first, also while the store changes."""

from __future__ import annotations

import random
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from store_events import HOUR_US, START_US, batch, event, events, messages

from culver.pipelines import search as search_function
from culver.pipelines.log_store import files
from culver.pipelines.log_store.store import LogStore

WORDS = ["timeout", "payment", "order", "retry", "api-7", "10.0.0.7", "Time", "timer", "user_id"]
SERVICES = ["api", "web", "db", None]
LEVELS = ["INFO", "WARN", "ERROR", None]


def tokens_of(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


@dataclass
class Query:
    """A query as text and as a predicate over the words of a line."""

    text: str
    holds: Callable[[list[str]], bool]


def term(text: str, prefix: bool) -> Callable[[list[str]], bool]:
    wanted = tokens_of(text)

    def holds(tokens: list[str]) -> bool:
        for start in range(len(tokens) - len(wanted) + 1):
            window = tokens[start : start + len(wanted)]
            if window[:-1] == wanted[:-1] and (
                window[-1].startswith(wanted[-1]) if prefix else window[-1] == wanted[-1]
            ):
                return True
        return False

    return holds


def random_query(chance: random.Random, depth: int = 0) -> Query:
    kind = chance.choice(["word", "word", "phrase", "prefix"] + (["and", "or", "not"] if depth < 2 else []))
    if kind == "word":
        word = chance.choice(WORDS)
        return Query(word, term(word, False))
    if kind == "phrase":
        phrase = " ".join(chance.choices(WORDS, k=2))
        return Query(f'"{phrase}"', term(phrase, False))
    if kind == "prefix":
        word = chance.choice(["tim", "o", "pay", "10.0", "r"])
        return Query(f"{word}*", term(word, True))
    left, right = random_query(chance, depth + 1), random_query(chance, depth + 1)
    if kind == "and":
        return Query(
            f"({left.text}) ({right.text})", lambda tokens: left.holds(tokens) and right.holds(tokens)
        )
    if kind == "or":
        return Query(
            f"(({left.text}) OR ({right.text}))", lambda tokens: left.holds(tokens) or right.holds(tokens)
        )
    return Query(
        f"({left.text}) NOT ({right.text})", lambda tokens: left.holds(tokens) and not right.holds(tokens)
    )


def random_events(chance: random.Random, count: int) -> list[dict[str, Any]]:
    times = chance.sample(range(START_US, START_US + 3 * HOUR_US, 1_000_000), count)
    return [
        event(
            moment,
            " ".join(chance.choices(WORDS, k=chance.randrange(1, 6))),
            level=chance.choice(LEVELS),
            service=chance.choice(SERVICES),
            offset=number,
        )
        for number, moment in enumerate(times)
    ]


@pytest.mark.parametrize("compacted", [False, True])
def test_search_equals_a_scan_of_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, compacted: bool
) -> None:
    monkeypatch.setattr(files, "ROW_GROUP_ROWS", 16)
    chance = random.Random(7)
    rows = random_events(chance, 500)
    store = LogStore(str(tmp_path))
    for number in range(5):
        store.write_batch(events(rows[number * 100 : number * 100 + 100]), query_id="q", batch_id=number)
    if compacted:
        store.compact(target_rows=100)
        assert len(store.state().files) < 12
    rows.sort(key=lambda row: -row["ts"])
    for _ in range(60):
        query = random_query(chance) if chance.random() < 0.9 else Query("", lambda tokens: True)
        since, until = sorted(START_US + chance.randrange(3 * HOUR_US) for _ in range(2))
        if chance.random() < 0.5:
            since, until = START_US, START_US + 3 * HOUR_US
        level, service = chance.choice(LEVELS), chance.choice(SERVICES)
        where, passes = chance.choice(
            [
                ("", lambda row: True),
                (f"level = '{level}'", lambda row, level=level: level is not None and row["level"] == level),
                (
                    f"service = '{service}' AND level IS NOT NULL",
                    lambda row, service=service: (
                        service is not None and row["service"] == service and row["level"] is not None
                    ),
                ),
                (
                    "level = 'ERROR' OR service IS NULL",
                    lambda row: row["level"] == "ERROR" or row["service"] is None,
                ),
                ("offset >= 200", lambda row: row["offset"] >= 200),
            ]
        )
        limit = chance.choice([1, 5, 50, 10_000])
        expected = [
            row["offset"]
            for row in rows
            if since <= row["ts"] < until and passes(row) and query.holds(tokens_of(row["raw"]))
        ][:limit]
        found = store.find(query.text, since, until, where, limit)
        assert found.problems == []
        assert found.events["offset"].to_pylist() == expected, (query.text, since, until, where, limit)


def test_files_out_of_question_are_not_opened(tmp_path: Path) -> None:
    store = LogStore(str(tmp_path))
    for number in range(16):
        level = "ERROR" if number == 12 else "INFO"
        store.write_batch(
            events([event(START_US + number * HOUR_US, "same words", level=level)]),
            query_id="q",
            batch_id=number,
        )
    assert store.find("words", where="level = 'ERROR'").files_searched == 1
    assert store.find("words", since=START_US + 15 * HOUR_US).files_searched == 1
    by_time = store.find("words", until=START_US + 3 * HOUR_US)
    assert (by_time.files_searched, by_time.files_passed_over) == (3, 13)
    assert store.find("words", limit=1).files_searched < 16


def test_escapes_of_structured_lines_part_words(tmp_path: Path) -> None:
    store = LogStore(str(tmp_path))
    raw = r'{"msg":"first\nsecond\tthird \"quoted\"","path":"C:\\new","name":"caf\u00e9"}'
    message = 'first\nsecond\tthird "quoted" café'
    row = event(START_US, message, raw=raw) | {"format": "json"}
    plain = event(START_US, r"plain C:\new")
    store.write_batch(events([row, plain]), query_id="q", batch_id=0)
    for word in ("second", "third", '"second third"', "quoted", "new", "café", "cafe", "CAFÉ", '"msg first"'):
        assert message in messages(store, word), word
    assert messages(store, "nsecond") == []
    assert len(messages(store, "new")) == 2


def test_the_function_for_python_gives_arrow(tmp_path: Path) -> None:
    LogStore(str(tmp_path)).write_batch(batch(0), query_id="q", batch_id=0)
    found = search_function("line3", store=tmp_path, where="level = 'info'")  # type: ignore[operator]
    assert isinstance(found, pa.Table)
    assert found["message"].to_pylist() == ["batch0 line3 everywhere"]


def test_searches_see_whole_batches_while_the_store_is_written_compacted_and_expired(tmp_path: Path) -> None:
    path = str(tmp_path)
    rows = 20
    store = LogStore(path)
    store.write_batch(batch(0, rows), query_id="q", batch_id=0)
    done = threading.Event()

    def write() -> None:
        writer = LogStore(path)
        for number in range(1, 25):
            writer.write_batch(batch(number, rows), query_id="q", batch_id=number)

    def compact() -> None:
        compactor = LogStore(path)
        while not done.is_set():
            compactor.compact()

    def expire() -> None:
        expirer = LogStore(path)
        while not done.is_set():
            expirer.expire(START_US + HOUR_US)  # the first four batches go, as soon as all of a file is older

    newest = 0
    searches = 0
    with ThreadPoolExecutor(3) as pool:
        others = [pool.submit(compact), pool.submit(expire)]
        writer = pool.submit(write)
        writer.add_done_callback(lambda _: done.set())
        while not done.is_set() or searches < 5:
            found = store.find("everywhere", limit=100_000)
            assert found.problems == []
            texts = found.events["message"].to_pylist()
            assert len(texts) == len(set(texts))
            numbers = [int(text.split()[0].removeprefix("batch")) for text in texts]
            counts = {number: numbers.count(number) for number in set(numbers)}
            assert set(counts.values()) <= {rows}, counts
            kept = {number for number in counts if number >= 4}
            assert kept == set(range(4, max(kept, default=3) + 1))
            assert max(kept, default=0) >= newest
            newest = max(kept, default=0)
            searches += 1
    for work in (writer, *others):
        work.result()
    store.compact()
    store.expire(START_US + HOUR_US)
    assert len(messages(store)) == 21 * rows
    assert len(store.state().files) == 6
