"""Lists cut into parts, for requests that must not ask for all at once: a broker answers nobody else meanwhile."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


def in_parts(whole: Iterable[T], size: int) -> list[list[T]]:
    """A list cut into lists of at most `size`."""
    every = list(whole)
    return [every[start : start + size] for start in range(0, len(every), size)]
