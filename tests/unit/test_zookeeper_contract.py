"""The contract of the metadata store, kept by ZooKeeper: the same claims against a real server."""

from __future__ import annotations

import uuid
from collections.abc import Iterator

import pytest
from metadata_stores import StoreWorld
from test_metadata_store import *  # noqa: F403
from zookeeper_world import TICK_TIME_MS, ZooKeeperWorld

from culver.testing import ZooKeeper


@pytest.fixture(scope="module")
def zookeeper() -> Iterator[ZooKeeper]:
    with ZooKeeper(tick_time_ms=TICK_TIME_MS) as zookeeper:
        yield zookeeper


@pytest.fixture
def world(zookeeper: ZooKeeper) -> Iterator[StoreWorld]:
    world = ZooKeeperWorld(zookeeper.address, f"/culver/{uuid.uuid4()}")
    yield world
    world.close()
