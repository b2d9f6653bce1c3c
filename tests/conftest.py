"""What holds for every test: it leaves no process, thread or open file behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from culver.testing import leaks

pytest_plugins = ["pytester"]


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    with leaks.forbidden():
        yield
