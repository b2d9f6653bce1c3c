"""Every script in tests/scenarios/groups, played against a group coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest
from group_world import GroupWorld
from script import check

SCRIPTS = sorted((Path(__file__).parent / "groups").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    check(path, GroupWorld().run)


def test_there_are_scripts() -> None:
    assert SCRIPTS
