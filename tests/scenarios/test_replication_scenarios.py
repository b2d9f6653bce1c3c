"""Every script in tests/scenarios/replication, played by a cluster of toy logs and real decisions."""

from __future__ import annotations

from pathlib import Path

import pytest
from replication_world import ReplicationWorld
from script import check

SCRIPTS = sorted((Path(__file__).parent / "replication").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    check(path, ReplicationWorld().run)


def test_there_are_scripts() -> None:
    assert SCRIPTS
