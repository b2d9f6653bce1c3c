"""What can go wrong with a log store, each with the text a person needs: what, to what, what to do.

LogStoreError
+-- StoreNotFound     there is no log store in that directory
+-- StoreTooNew       a later Culver wrote it
+-- WriterFenced      another writer has taken over this query
+-- BatchConflict     a batch does not fit what was committed under its id
+-- DamagedFile       a file that the manifest names is missing, cut off or corrupt
+-- QueryError        a text query or a condition that cannot be understood (also a ValueError)
+-- SearchTooLong     a search was told that it has taken long enough
"""

from __future__ import annotations

REPAIR = "`culver pipeline logs --repair` (LogStore.repair() in Python)"


class LogStoreError(Exception):
    """The base of all of them."""

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message}: {self.remedy}" if self.remedy else self.message


class StoreNotFound(LogStoreError):
    """There is no log store in that directory."""


class StoreTooNew(LogStoreError):
    """The store has a format that this version does not know."""


class WriterFenced(LogStoreError):
    """Another writer has claimed the same query since: this one must stop."""


class BatchConflict(LogStoreError):
    """A batch does not fit what was committed before, or what it refers to has gone."""


class DamagedFile(LogStoreError):
    """A file that the manifest names is missing, cut off or corrupt."""

    def __init__(self, path: str, reason: str, remedy: str) -> None:
        super().__init__(f"{path} {reason}", remedy)
        self.path = path

    @classmethod
    def index(cls, path: str, reason: str) -> DamagedFile:
        return cls(path, reason, f"{REPAIR} builds this index again from its Parquet file")

    @classmethod
    def parquet(cls, path: str, reason: str) -> DamagedFile:
        return cls(
            path,
            reason,
            f"{REPAIR} saves the row groups that can still be read and puts the file aside; "
            "a copy from a backup put back under this name is used again at once",
        )


class QueryError(LogStoreError, ValueError):
    """A text query or a condition that cannot be understood."""


class SearchTooLong(LogStoreError):
    """A search has not found everything when it was told that it has taken long enough."""
