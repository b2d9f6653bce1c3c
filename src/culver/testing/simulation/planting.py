"""Bugs that are put into a broker on purpose, for as long as a run takes: real classes are patched.

with bug("truncate to the high watermark"):
    assert not run_seed(3).passed
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

Patch = tuple[Any, str, Any]
"""Owner, attribute, and what is to stand there."""

_bugs: dict[str, Callable[[], list[Patch]]] = {}


def named(name: str) -> Callable[[Callable[[], list[Patch]]], Callable[[], list[Patch]]]:
    """Marks a function that makes a bug's patches."""

    def note(patches: Callable[[], list[Patch]]) -> Callable[[], list[Patch]]:
        _bugs[name] = patches
        return patches

    return note


def names(module: str) -> list[str]:
    """Of the bugs that are written down in a module."""
    return [name for name, patches in _bugs.items() if patches.__module__ == module]


@contextlib.contextmanager
def bug(name: str) -> Iterator[None]:
    """With this bug in every broker of this process."""
    patches = _bugs[name]()
    before = [(owner, attribute, owner.__dict__[attribute]) for owner, attribute, _ in patches]
    try:
        for owner, attribute, replacement in patches:
            setattr(owner, attribute, replacement)
        yield
    finally:
        for owner, attribute, original in before:
            setattr(owner, attribute, original)
