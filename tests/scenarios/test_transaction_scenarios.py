"""Every script in tests/scenarios/transactions, played against a transaction coordinator."""

from __future__ import annotations

from pathlib import Path

import pytest
from script import check
from transaction_world import TransactionWorld

SCRIPTS = sorted((Path(__file__).parent / "transactions").glob("*.txt"))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path) -> None:
    check(path, TransactionWorld().run)


def test_there_are_scripts() -> None:
    assert SCRIPTS
