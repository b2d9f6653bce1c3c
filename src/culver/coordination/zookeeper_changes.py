"""Changes to the metadata store as ZooKeeper transactions, and what their results mean."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, NodeExistsError, NoNodeError

from culver.coordination.store import Change, Check, Conflict, Create, Delete, Put, StoreError

# A server drops the connection on a request of a megabyte (jute.maxbuffer) and more.
CHANGE_BYTES_MAX = 1_000_000
_OVERHEAD_BYTES = 80


def why_too_large(changes: Sequence[Change]) -> StoreError | None:
    """The error for changes that no server would take in one transaction."""
    size = sum(len(change.path) + _value_bytes(change) + _OVERHEAD_BYTES for change in changes)
    if size <= CHANGE_BYTES_MAX:
        return None
    return StoreError(
        f"a change of {size} bytes is too large for ZooKeeper, which takes {CHANGE_BYTES_MAX}: make it in parts"
    )


def transaction_of(kazoo: KazooClient, root: str, changes: Sequence[Change]) -> Any:
    """All of the changes, yet to be committed."""
    transaction = kazoo.transaction()
    for change in changes:
        _add(transaction, root, change)
    return transaction


def _add(transaction: Any, root: str, change: Change) -> None:
    path = root + change.path
    if isinstance(change, Create):
        transaction.create(path, change.value, ephemeral=change.ephemeral)
    elif isinstance(change, Check):
        transaction.check(path, change.expected_version)
    else:
        version = -1 if change.expected_version is None else change.expected_version
        if isinstance(change, Put):
            transaction.set_data(path, change.value, version)
        else:
            assert isinstance(change, Delete)
            transaction.delete(path, version)


def conflict_in(changes: Sequence[Change], results: Sequence[Any]) -> StoreError | None:
    """What a transaction's results say: of one that failed, those around the culprit are marked as rolled back."""
    for change, result in zip(changes, results, strict=True):
        if isinstance(result, NodeExistsError):
            return Conflict(change.path, "exists already")
        if isinstance(result, NoNodeError):
            return Conflict(change.path, "is missing")
        if isinstance(result, BadVersionError):
            return Conflict(change.path, "was changed by another")
    failed = [result for result in results if isinstance(result, Exception)]
    return StoreError("; ".join(error_text(error) for error in failed)) if failed else None


def _value_bytes(change: Change) -> int:
    return len(change.value) if isinstance(change, (Create, Put)) else 0


def error_text(error: Exception) -> str:
    """kazoo's exceptions often say nothing but what they are called."""
    return f"ZooKeeper: {type(error).__name__}{f' ({error})' if str(error) else ''}"
