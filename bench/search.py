"""Rows: parsing and storing log lines, and searching them, against DuckDB's scan of the same Parquet files."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import Any

from bench.session import QUICK, Session, progress, settle

GROUP = "logs"
STORE_LABEL = "parse, store and index, 2 processes"
PROCESSES = 2
LINES_PER_BATCH = 200_000
LINES = (1_000_000, 10_000_000)
LINES_QUICK = (400_000,)
BATCH_US = 1_800_000_000
START_US = int(datetime(2026, 11, 1, tzinfo=UTC).timestamp()) * 1_000_000
NEEDLE = "zanzibar7351"
# Culver's latency divided by that of DuckDB, which has to read every line.
TARGET_RARE = 0.05
ROUNDS_SEARCH = 9
ROUNDS_SCAN = 3

WORDS = (
    *(
        "request",
        "served",
        "upstream",
        "timeout",
        "deadline",
        "exceeded",
        "connection",
        "reset",
        "by",
        "peer",
    ),
    *(
        "payment",
        "order",
        "placed",
        "user",
        "session",
        "expired",
        "cache",
        "miss",
        "retry",
        "attempt",
        "queue",
    ),
    *("depth", "worker", "started", "stopped", "checkpoint", "written", "flush", "batch", "committed"),
)
SERVICES = ("api", "web", "billing", "search", "auth", "worker")
LEVELS = ("INFO",) * 18 + ("WARN", "ERROR")


@dataclass(frozen=True)
class Question:
    """A search, and the same for DuckDB."""

    label: str
    text: str
    where: str
    sql: str
    target: float | None = None


QUESTIONS = (
    Question("a rare term", NEEDLE, "", f"contains(raw, '{NEEDLE}')", TARGET_RARE),
    Question("a term that is not there", "nosuchterm", "", "contains(raw, 'nosuchterm')", TARGET_RARE),
    Question(
        "a phrase in one of 5000 lines",
        '"deadline exceeded retry"',
        "",
        "contains(raw, 'deadline exceeded retry')",
    ),
    Question("a common term, the newest 50", "timeout", "", "contains(raw, 'timeout')"),
    Question(
        "a common term among errors of a service",
        "timeout",
        "level = 'ERROR' AND service = 'auth'",
        "contains(raw, 'timeout') AND level = 'ERROR' AND service = 'auth'",
    ),
)


def labels() -> list[str]:
    return [STORE_LABEL, *(f"search {question.label}" for question in QUESTIONS)]


def run(session: Session) -> None:
    if "Culver" not in session.names or not any(session.wanted(GROUP, label) for label in labels()):
        return
    session.report.settings["log search"] = (
        f"files of {LINES_PER_BATCH} lines, a mix of JSON, logfmt and text of about 150 B; in place of Kafka stands "
        "DuckDB, which scans the same Parquet files with two threads; both warm, in one process"
    )
    for lines in LINES_QUICK if session.scale is QUICK else LINES:
        path = session.directory / f"logs-{lines}"
        _measure(session, path, lines)
        shutil.rmtree(path)


def _measure(session: Session, path: Path, lines: int) -> None:
    size = f"{lines / 1e6:g} M lines"
    progress(f"{GROUP}: {size} are made, parsed and stored")
    rate = _fill(path, lines)
    session.compare(
        GROUP, f"{STORE_LABEL}, {size}", "k lines/s", {"Culver": [rate / 1000]}, higher_is_better=True
    )
    settle()
    from culver.pipelines.log_store.store import LogStore

    store = LogStore(str(path), create=False)
    for question in QUESTIONS:
        label = f"search {question.label}, {size}"
        if not session.wanted(GROUP, label):
            continue
        found = [store.find(question.text, where=question.where).events.num_rows, _scan(store, question)]
        if found[0] != found[1]:
            raise AssertionError(f"{label}: Culver found {found[0]} lines, DuckDB {found[1]}")
        ours = _milliseconds(partial(store.find, question.text, where=question.where), ROUNDS_SEARCH)
        theirs = _milliseconds(partial(_scan, store, question), ROUNDS_SCAN)
        session.compare(
            GROUP,
            label,
            "ms",
            {"Culver": ours, "Kafka": theirs},
            higher_is_better=False,
            target=question.target,
        )
    command = [sys.executable, "-m", "culver", "search", NEEDLE, "--store", str(path), "-o", "json"]
    whole = _milliseconds(lambda: subprocess.run(command, check=True, capture_output=True), ROUNDS_SCAN)
    session.compare(
        GROUP, f"culver search, start to end, {size}", "ms", {"Culver": whole}, higher_is_better=False
    )


def _milliseconds(work: Callable[[], Any], rounds: int) -> list[float]:
    taken = []
    for _ in range(rounds):
        begun = time.perf_counter()
        work()
        taken.append((time.perf_counter() - begun) * 1000)
    return taken


def _scan(store: Any, question: Question) -> int:
    import duckdb

    with duckdb.connect(config={"threads": PROCESSES}) as database:
        query = f"SELECT * FROM read_parquet(?) WHERE {question.sql} ORDER BY ts DESC LIMIT 50"
        return len(database.sql(query, params=[store.parquet_files()]).to_arrow_table())


def _fill(path: Path, lines: int) -> float:
    """Store so many lines as tasks of a pipeline would; lines per second, the making of lines not counted."""
    from culver.pipelines.log_store.entries import FileEntry
    from culver.pipelines.log_store.store import LogStore

    store = LogStore(str(path))
    batches = lines // LINES_PER_BATCH
    seconds = []
    with ProcessPoolExecutor(PROCESSES, mp_context=get_context("spawn")) as pool:
        tasks = [pool.submit(_store_batch, str(path), number, batches) for number in range(batches)]
        for number, task in enumerate(tasks):
            written, taken = task.result()
            store.commit("bench", number, [FileEntry.from_json(entry) for entry in written])
            seconds.append(taken)
    return PROCESSES * LINES_PER_BATCH / median(seconds)


def _store_batch(path: str, number: int, batches: int) -> tuple[list[str], float]:
    import pyarrow as pa

    from culver.pipelines.log_store.store import LogStore
    from culver.pipelines.parsing.lines import parse_lines

    lines = pa.array(_lines(number, needle=number == batches // 2), pa.binary())
    recorded = pa.array([START_US + (number + 1) * BATCH_US] * len(lines), pa.timestamp("us", "UTC"))
    begun = time.perf_counter()
    written = LogStore(path).write_files(parse_lines(lines, recorded))
    return [entry.to_json() for entry in written], time.perf_counter() - begun


def _lines(number: int, needle: bool) -> list[str]:
    chance = random.Random(number)
    step_us = BATCH_US // LINES_PER_BATCH
    made = []
    for row in range(LINES_PER_BATCH):
        micros = START_US + number * BATCH_US + row * step_us
        moment = datetime.fromtimestamp(micros // 1_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
        ts = f"{moment}.{micros % 1_000_000:06d}Z"
        level, service = chance.choice(LEVELS), chance.choice(SERVICES)
        text = " ".join(chance.choices(WORDS, k=7))
        trace = f"{chance.getrandbits(64):016x}"
        if needle and row == LINES_PER_BATCH // 3:
            text = f"{text} {NEEDLE}"
        if row % 4 < 2:
            made.append(
                f'{{"ts":"{ts}","level":"{level}","service":"{service}","msg":"{text}","trace":"{trace}"}}'
            )
        elif row % 4 == 2:
            made.append(f'ts={ts} level={level} service={service} msg="{text}" trace={trace}')
        else:
            made.append(f"{ts} {level} [{service}] {text} trace={trace}")
    return made
