"""One broker for the tests with foreign programs, and names that only one test uses.

`CULVER_TEST_BOOTSTRAP=host:port` points the tests at any running broker instead, Apache Kafka for one: that
shows that what they claim is Kafka's behaviour.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Callable, Iterator

import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from culver.testing import Broker

SETTINGS = {"group.initial.rebalance.delay.ms": 0}
_serial_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def broker_or_none() -> Iterator[Broker | None]:
    """The broker under test, or None when it runs elsewhere."""
    if os.environ.get("CULVER_TEST_BOOTSTRAP"):
        yield None
        return
    with Broker(config=SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="session")
def bootstrap(broker_or_none: Broker | None) -> str:
    if broker_or_none is None:
        return os.environ["CULVER_TEST_BOOTSTRAP"]
    return broker_or_none.bootstrap_servers


@pytest.fixture(scope="session")
def unique() -> Callable[[str], str]:
    """A function that makes a name nobody else uses, for a topic or a group."""

    def make(stem: str) -> str:
        return f"{re.sub(r'[^a-zA-Z0-9._-]+', '-', stem)}-{os.getpid()}-{next(_serial_numbers)}"

    return make


@pytest.fixture(scope="session")
def new_topic(bootstrap: str, unique: Callable[[str], str]) -> Callable[..., str]:
    """A function that creates a topic: new_topic("stem", partitions, {"setting": "value"})."""

    def create(stem: str, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = unique(stem)
        with AdminClient({"bootstrap.servers": bootstrap}) as admin:
            wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
            admin.create_topics([wanted])[name].result()
        return name

    return create
