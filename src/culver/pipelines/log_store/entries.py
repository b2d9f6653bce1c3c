"""What the manifest holds: entries of files, commits, and the state that all commits together make."""

from __future__ import annotations

from typing import Any

import msgspec

FORMAT = 1
# The values of these columns are listed per file as long as they are few, so that a search can pass it over.
LISTED_COLUMNS = ("level", "service", "host")
LISTED_VALUES_MAX = 64
_RECENT_COMMITS = 256


class FileEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One Parquet file and its index, both immutable. Paths are relative to the store, with slashes."""

    path: str
    index: str
    rows: int
    row_group_rows: int
    bytes: int
    index_bytes: int
    crc32c: int
    index_crc32c: int
    ts_min: int  # microseconds since 1970
    ts_max: int
    # The distinct values of a listed column, None among them for null; a column with too many is left out.
    values: dict[str, list[str | None]] = msgspec.field(default_factory=dict)

    def to_json(self) -> str:
        """For the way from a task to the driver."""
        return msgspec.json.encode(self).decode()

    @classmethod
    def from_json(cls, text: str) -> FileEntry:
        return msgspec.json.decode(text, type=cls)


class Commit(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One change of the store. It is one file in the manifest, and the whole of it holds or none."""

    format: int = FORMAT
    id: str
    kind: str  # claim, batch, compaction, retention, repair
    at_ms: int
    query_id: str = ""
    epoch: int = 0
    batch_id: int = -1
    offsets: Any = None
    add: list[FileEntry] = msgspec.field(default_factory=list)
    remove: list[str] = msgspec.field(default_factory=list)


class QueryProgress(msgspec.Struct, frozen=True, kw_only=True):
    """How far a query has come, and the epoch of the writer that may take it further."""

    epoch: int = 0
    batch_id: int = -1
    offsets: Any = None


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The store as of one version. Immutable: readers keep the one they began with."""

    format: int = FORMAT
    version: int = 0
    files: dict[str, FileEntry] = msgspec.field(default_factory=dict)
    queries: dict[str, QueryProgress] = msgspec.field(default_factory=dict)
    recent: list[str] = msgspec.field(default_factory=list)  # the ids of the last commits, oldest first

    def after(self, commits: list[Commit]) -> State:
        """The state once these commits, the next ones in order, are applied."""
        files = dict(self.files)
        queries = dict(self.queries)
        for commit in commits:
            for path in commit.remove:
                files.pop(path, None)
            for entry in commit.add:
                files[entry.path] = entry
            if commit.query_id:
                queries[commit.query_id] = _advanced(queries.get(commit.query_id, QueryProgress()), commit)
        return State(
            version=self.version + len(commits),
            files=files,
            queries=queries,
            recent=[*self.recent, *(commit.id for commit in commits)][-_RECENT_COMMITS:],
        )

    @property
    def rows(self) -> int:
        return sum(entry.rows for entry in self.files.values())

    @property
    def bytes(self) -> int:
        return sum(entry.bytes + entry.index_bytes for entry in self.files.values())


def _advanced(progress: QueryProgress, commit: Commit) -> QueryProgress:
    epoch = max(progress.epoch, commit.epoch)
    if commit.batch_id <= progress.batch_id:
        return QueryProgress(epoch=epoch, batch_id=progress.batch_id, offsets=progress.offsets)
    return QueryProgress(epoch=epoch, batch_id=commit.batch_id, offsets=commit.offsets)
