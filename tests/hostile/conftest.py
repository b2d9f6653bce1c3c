"""One broker for all attacks that need no special settings; every test ends with a look at its health."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hostile.victim import Victim, victim_broker

# What a broker that has been through all this may hold. It starts with about 40 MB, and what large requests needed for
# a moment is not all given back to the system: it levels off at about 130 MB.
RESIDENT_MIB_MAX = 250


@pytest.fixture(scope="session")
def shared_victim() -> Iterator[Victim]:
    with victim_broker() as victim:
        yield victim
        # What is on the disk is whole: the broker starts again from it.
        victim.broker.restart()


@pytest.fixture
def victim(shared_victim: Victim) -> Iterator[Victim]:
    yield shared_victim
    shared_victim.check()
    assert shared_victim.resident_bytes() < RESIDENT_MIB_MAX << 20
