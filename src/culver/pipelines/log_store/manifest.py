"""The manifest: a numbered sequence of commits, each one file that appears whole or not at all.

    manifest/00000000000000000041.commit.json       one change
    manifest/00000000000000000032.checkpoint.json   the state after change 32, so that readers need not begin at 1

A commit is made by creating the file with the next number, which only one writer can. Who loses looks at what the
winner has changed and tries again on top of it, or finds that it has been fenced. Readers take no lock: they list the
directory and read; when a file they saw listed has been cleaned away, they list again.
"""

from __future__ import annotations

import os
import re
import time
import uuid
from collections.abc import Callable
from typing import TypeVar

import msgspec

from culver.pipelines.log_store import durable_files
from culver.pipelines.log_store.entries import FORMAT, Commit, State
from culver.pipelines.log_store.errors import DamagedFile, StoreNotFound, StoreTooNew

COMMITS_PER_CHECKPOINT = 32
_DIRECTORY = "manifest"
_NAME = re.compile(r"(\d{20})\.(commit|checkpoint)\.json")
_READ_ATTEMPTS = 50
_READ_PAUSE_SECONDS = 0.01

Stored = TypeVar("Stored", State, Commit)
# Makes a commit for the state it will be put on top of; None when there is nothing to do. May raise to give up.
Change = Callable[[State], Commit | None]


def new_commit_id() -> str:
    return uuid.uuid4().hex[:16]


class Manifest:
    """The commits of one store. Any number of processes may use it at once."""

    def __init__(self, root: str) -> None:
        self.directory = os.path.join(root, _DIRECTORY)
        self._latest = State()

    def create(self) -> None:
        os.makedirs(self.directory, exist_ok=True)

    @property
    def exists(self) -> bool:
        return os.path.isdir(self.directory)

    def state(self) -> State:
        """The newest state there is."""
        for attempt in range(_READ_ATTEMPTS):
            try:
                state = self._read()
            except FileNotFoundError:
                state = None  # cleaned away between listing and reading
            if state is not None:
                self._latest = state
                return state
            if attempt > 2:
                time.sleep(_READ_PAUSE_SECONDS)
        raise DamagedFile(self.directory, "lacks some of its commits", "restore the directory from a backup")

    def commit(self, change: Change) -> State:
        """Make `change` the next commit; the state with it, or the newest one when there was nothing to do."""
        while True:
            state = self.state()
            commit = change(state)
            if commit is None:
                return state
            version = state.version + 1
            if not durable_files.create_exclusively(
                self._path(version, "commit"), msgspec.json.encode(commit)
            ):
                continue
            state = self.state()
            # A process that slept between looking and linking may have taken a number that was used and cleaned
            # away long ago. Nobody reads such a file, so it must not count as a commit.
            if commit.id not in state.recent:
                durable_files.remove(self._path(version, "commit"))
                continue
            self._checkpoint(state)
            return state

    def _read(self) -> State | None:
        """The newest state, or None when a listing shows a gap because files come and go meanwhile."""
        commits, checkpoints = self._listing()
        state = self._latest
        newest_checkpoint = max(checkpoints, default=0)
        if newest_checkpoint > state.version:
            state = _decode(self._path(newest_checkpoint, "checkpoint"), State)
        wanted = sorted(version for version in commits if version > state.version)
        if wanted != list(range(state.version + 1, state.version + 1 + len(wanted))):
            return None
        if not wanted:
            return state
        return state.after([_decode(self._path(version, "commit"), Commit) for version in wanted])

    def _listing(self) -> tuple[list[int], list[int]]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            raise StoreNotFound(
                f"there is no log store in {os.path.dirname(self.directory)}",
                "name the directory that `culver pipeline logs` writes to",
            ) from None
        found: dict[str, list[int]] = {"commit": [], "checkpoint": []}
        for name in names:
            if match := _NAME.fullmatch(name):
                found[match[2]].append(int(match[1]))
        return found["commit"], found["checkpoint"]

    def _checkpoint(self, state: State) -> None:
        """Sum the commits up now and then, and clean away those that two checkpoints have summed up."""
        commits, checkpoints = self._listing()
        if state.version - max(checkpoints, default=0) < COMMITS_PER_CHECKPOINT:
            return
        durable_files.write_bytes(self._path(state.version, "checkpoint"), msgspec.json.encode(state))
        keep_from = max(checkpoints, default=0)
        for version in commits:
            if version <= keep_from:
                durable_files.remove(self._path(version, "commit"))
        for version in checkpoints:
            if version < keep_from:
                durable_files.remove(self._path(version, "checkpoint"))

    def _path(self, version: int, kind: str) -> str:
        return os.path.join(self.directory, f"{version:020d}.{kind}.json")


def _decode(path: str, kind: type[Stored]) -> Stored:
    with open(path, "rb") as file:
        data = file.read()
    try:
        stored = msgspec.json.decode(data, type=kind)
    except msgspec.MsgspecError as error:
        raise DamagedFile(path, f"is damaged ({error})", "restore it from a backup") from error
    if stored.format > FORMAT:
        raise StoreTooNew(
            f"{path} has format {stored.format}, and this version of Culver knows only {FORMAT}",
            "use the version that wrote it, or a later one",
        )
    return stored
