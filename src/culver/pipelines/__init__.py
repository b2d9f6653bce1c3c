"""Ready-made pipelines on Spark: logs to a searchable store, transforms, archives."""

from __future__ import annotations

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """`culver.pipelines.search`, loaded when it is asked for: nothing else here needs pyarrow to be imported."""
    if name == "search":
        return importlib.import_module("culver.pipelines.search")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
