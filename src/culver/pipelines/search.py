"""Search a log store from Python: `culver.pipelines.search("timeout", store="logs", since="2h")` gives Arrow."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import pyarrow as pa

from culver.pipelines.log_store.store import LogStore
from culver.pipelines.log_store.times import Moment


def search(
    text: str = "",
    *,
    store: str | os.PathLike[str],
    since: Moment = None,
    until: Moment = None,
    where: str = "",
    limit: int = 50,
) -> pa.Table:
    """The newest `limit` events of the store that match, newest first.

    `text`: words, "phrases", prefix*, AND, OR, NOT and parentheses; "" for all.
    `since`, `until`: datetimes, microseconds since 1970, ISO 8601 text (UTC unless it names its zone), or an age
    such as "2h"; since <= ts < until.
    `where`: a condition on columns, such as "level = 'ERROR' AND service = 'api' AND fields.status >= 500".

    Raises QueryError when a query cannot be understood, StoreNotFound when there is no store. Damaged files are named
    in a DamagedFileWarning, and the rest is searched.
    """
    return LogStore(os.fspath(store), create=False).search(text, since, until, where, limit)


class _CallableModule(ModuleType):
    """Lets `culver.pipelines.search(...)` be called, although that name is this module's as well."""

    def __call__(self, *arguments: Any, **options: Any) -> pa.Table:
        return search(*arguments, **options)


sys.modules[__name__].__class__ = _CallableModule
