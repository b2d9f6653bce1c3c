"""Where each source stands, in one small file that is replaced as a whole."""

from __future__ import annotations

import json
import os
from pathlib import Path

from culver.ingest.source import State


class CheckpointsUnreadable(Exception):
    """The file is there and makes no sense."""


class Checkpoints:
    """Saved when something has changed; a crash leaves the last saved ones."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._states: dict[str, State] = {}
        self._changed = False
        if path.exists():
            try:
                self._states = json.loads(path.read_text())["sources"]
            except (ValueError, KeyError, TypeError) as error:
                raise CheckpointsUnreadable(
                    f"{path} cannot be read ({error}): remove it to read all sources from their beginning again"
                ) from error

    def get(self, source: str) -> State | None:
        return self._states.get(source)

    def set(self, source: str, state: State, now_ms: int) -> None:
        self._states[source] = {**state, "saved_ms": now_ms}
        self._changed = True

    def save(self) -> None:
        if not self._changed:
            return
        self._changed = False
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w") as file:
            json.dump({"version": 1, "sources": self._states}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)
        directory = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
