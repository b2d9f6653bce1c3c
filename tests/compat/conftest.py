"""What the client tests share: one broker, a fresh topic and group name each, an admin client.

`CULVER_TEST_BOOTSTRAP=host:port` points the tests at any running broker instead, Apache Kafka for one: that
shows that what they claim is Kafka's behaviour. Tests that stop or kill the broker are skipped then.
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

# Kafka waits 3 s for more members before the first rebalance and lets no session be shorter than 6 s. Both
# are settings of the broker; the tests shorten them, and any broker they are pointed at should too.
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.min.session.timeout.ms": 1000,
    "log.retention.check.interval.ms": 200,
    "log.cleaner.backoff.ms": 200,
    "offsets.topic.num.partitions": 5,
    "transaction.state.log.num.partitions": 5,
}
_LONGEST_NAME_PART = 80
_serial_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def bootstrap() -> Iterator[str]:
    """The address of the broker under test."""
    elsewhere = os.environ.get("CULVER_TEST_BOOTSTRAP")
    if elsewhere:
        yield elsewhere
        return
    with Broker(config=SETTINGS) as broker:
        yield broker.bootstrap_servers


@pytest.fixture
def own_broker() -> Iterator[Broker]:
    """A Culver broker for one test, which may stop, kill and restart it."""
    if os.environ.get("CULVER_TEST_BOOTSTRAP"):
        pytest.skip("the test controls the broker's process, which is elsewhere")
    with Broker(config=SETTINGS) as broker:
        yield broker


@pytest.fixture
def admin(bootstrap: str) -> Iterator[AdminClient]:
    with AdminClient({"bootstrap.servers": bootstrap}) as client:
        yield client


def unique(request: pytest.FixtureRequest) -> str:
    """A name that no other test uses, made from the test's own. Valid for topics and groups."""
    test_name = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-")[:_LONGEST_NAME_PART]
    return f"{test_name}-{os.getpid()}-{next(_serial_numbers)}"


@pytest.fixture
def new_topic(request: pytest.FixtureRequest, admin: AdminClient) -> Callable[..., str]:
    """A function that creates a topic of this test's own: new_topic(3, {"cleanup.policy": "compact"})."""

    def create(partitions: int = 1, config: dict[str, str] | None = None) -> str:
        name = unique(request)
        wanted = NewTopic(name, num_partitions=partitions, replication_factor=1, config=config or {})
        admin.create_topics([wanted])[name].result()
        return name

    return create


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    """A topic of this test's own with one partition."""
    return new_topic()


@pytest.fixture
def group(request: pytest.FixtureRequest) -> str:
    """A group id of this test's own."""
    return unique(request)
