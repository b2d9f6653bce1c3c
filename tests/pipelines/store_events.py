"""Events for the tests of the log store, and the questions that a test asks of a store again and again."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa

from culver.pipelines.log_store.store import LogStore
from culver.pipelines.parsing.events import EVENT_SCHEMA

HOUR_US = 3_600_000_000
START_US = int(datetime(2026, 11, 15, 8, tzinfo=UTC).timestamp()) * 1_000_000


def event(ts: int, message: str, **columns: Any) -> dict[str, Any]:
    return {"ts": ts, "message": message, "raw": message, "format": "plain", **columns}


def events(rows: Sequence[dict[str, Any]]) -> pa.Table:
    return pa.table(
        {field.name: pa.array([row.get(field.name) for row in rows], field.type) for field in EVENT_SCHEMA}
    )


def batch(number: int, rows: int = 10) -> pa.Table:
    """A batch whose lines name it, a second apart; every fourth batch begins a new hour."""
    first = START_US + (number // 4) * HOUR_US + (number % 4) * rows * 1_000_000
    return events(
        [
            event(first + row * 1_000_000, f"batch{number} line{row} everywhere", level="INFO")
            for row in range(rows)
        ]
    )


def messages(store: LogStore, text: str = "", **options: Any) -> list[str]:
    found: list[str] = store.search(text, limit=100_000, **options)["message"].to_pylist()
    return found


def stored_files(path: str | os.PathLike[str]) -> set[str]:
    """What lies below data/, in the spelling of the manifest."""
    root = Path(path)
    return {str(file.relative_to(root)) for file in (root / "data").rglob("*") if file.is_file()}


def named_files(store: LogStore) -> set[str]:
    """What the manifest names."""
    return {path for entry in store.state().files.values() for path in (entry.path, entry.index)}
