"""The manifest of an archive: which offsets of a topic are in which Parquet files, committed one step at a time.

orders/manifest/00000000000000000003.json    the third commit: segments, each a stretch of offsets and its files
orders/4/00000000000000120000-4f1c....parquet   records of partition 4 from offset 120000 on
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from itertools import pairwise

import msgspec

from culver.pipelines.log_store.durable_files import create_exclusively

FORMAT = 1
MANIFEST_DIRECTORY = "manifest"
_COMMIT_NAME = re.compile(r"\d{20}\.json")


class ArchiveError(Exception):
    """An archive that cannot be used; the text says what to do."""


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """One Parquet file. The path is relative to the archive of the topic, with slashes."""

    path: str
    records: int
    bytes: int
    first_offset: int
    last_offset: int
    timestamp_ms_min: int
    timestamp_ms_max: int


class Segment(msgspec.Struct, frozen=True, kw_only=True):
    """The offsets start <= offset < end of a partition, all of which that held a record are in the files, in order."""

    partition: int
    start: int
    end: int
    files: list[ArchivedFile] = msgspec.field(default_factory=list)


class ArchiveCommit(msgspec.Struct, frozen=True, kw_only=True):
    """One step of archiving; the whole of it holds or none."""

    format: int = FORMAT
    topic: str
    partitions: int
    at_ms: int
    segments: list[Segment]


class Gap(msgspec.Struct, frozen=True, kw_only=True):
    """Offsets that are in no segment although later ones are: retention was faster."""

    partition: int
    start: int
    end: int


class ArchiveManifest:
    """The manifest of one topic's archive, below the directory of all of them."""

    def __init__(self, directory: str, topic: str) -> None:
        self.topic = topic
        self.path = os.path.join(os.path.abspath(directory), topic)
        self._commits_path = os.path.join(self.path, MANIFEST_DIRECTORY)
        self._commits: list[ArchiveCommit] = []

    @property
    def exists(self) -> bool:
        return os.path.isdir(self._commits_path)

    def create(self) -> None:
        os.makedirs(self._commits_path, exist_ok=True)

    def refresh(self) -> None:
        """Read the commits that have come since. Raises ArchiveError when one cannot be read."""
        if not self.exists:
            raise ArchiveError(f"there is no archive of topic {self.topic} in {os.path.dirname(self.path)}")
        names = sorted(name for name in os.listdir(self._commits_path) if _COMMIT_NAME.fullmatch(name))
        for number, name in enumerate(names[len(self._commits) :], len(self._commits)):
            path = os.path.join(self._commits_path, name)
            if name != _commit_name(number):
                raise ArchiveError(
                    f"{path} has no commit before it: put {_commit_name(number)} back from a copy"
                )
            with open(path, "rb") as file:
                data = file.read()
            try:
                commit = msgspec.json.decode(data, type=ArchiveCommit)
            except msgspec.MsgspecError as error:
                raise ArchiveError(f"{path} is damaged ({error}): put it back from a copy") from error
            if commit.format > FORMAT:
                raise ArchiveError(f"{path} was written by a later Culver: use that one")
            self._commits.append(commit)

    def commit(self, partitions: int, segments: list[Segment], at_ms: int) -> None:
        """Add segments. Raises ArchiveError when somebody else has added some meanwhile."""
        data = msgspec.json.format(
            msgspec.json.encode(
                ArchiveCommit(topic=self.topic, partitions=partitions, at_ms=at_ms, segments=segments)
            ),
            indent=1,
        )
        path = os.path.join(self._commits_path, _commit_name(len(self._commits)))
        if not create_exclusively(path, data):
            raise ArchiveError(
                f"another process archives topic {self.topic} to {self.path}: let one of them do it"
            )
        self.refresh()

    @property
    def partitions(self) -> int:
        """How many partitions the topic had when it was last archived."""
        return self._commits[-1].partitions if self._commits else 0

    def segments(self) -> dict[int, list[Segment]]:
        """By partition, in order of offsets."""
        found: dict[int, list[Segment]] = {}
        for commit in self._commits:
            for segment in commit.segments:
                found.setdefault(segment.partition, []).append(segment)
        return {partition: found[partition] for partition in sorted(found)}

    def ends(self) -> dict[int, int]:
        """By partition, the offset up to which it is archived."""
        return {partition: segments[-1].end for partition, segments in self.segments().items()}

    def gaps(self) -> list[Gap]:
        """What is missing between segments; what was gone before the first is not known."""
        return [
            Gap(partition=partition, start=before.end, end=after.start)
            for partition, segments in self.segments().items()
            for before, after in pairwise(segments)
            if before.end < after.start
        ]

    def files(self) -> Iterable[ArchivedFile]:
        for segments in self.segments().values():
            for segment in segments:
                yield from segment.files

    def parquet_files(self) -> list[str]:
        """The files that count, for Spark, DuckDB and others."""
        return [local_path(self.path, file.path) for file in self.files()]

    @property
    def records(self) -> int:
        return sum(file.records for file in self.files())


def _commit_name(number: int) -> str:
    return f"{number:020d}.json"


def local_path(root: str, path: str) -> str:
    return os.path.join(root, *path.split("/"))
