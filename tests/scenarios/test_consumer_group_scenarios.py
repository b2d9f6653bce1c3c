"""Every script in tests/scenarios/consumer_groups, played against a group coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest
from consumer_group_world import ConsumerGroupWorld
from script import check

SCRIPTS = sorted((Path(__file__).parent / "consumer_groups").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    check(path, ConsumerGroupWorld().run)


def test_there_are_scripts() -> None:
    assert SCRIPTS
