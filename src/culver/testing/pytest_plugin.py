"""The pytest plugin: a broker for the session and a fresh topic for each test.

It loads by itself once Culver is installed.

    def test_orders(culver_broker, culver_topic):
        producer = Producer({"bootstrap.servers": culver_broker.bootstrap_servers})
        producer.produce(culver_topic, b"first")

`culver_broker` is one `culver.testing.Broker` for the whole session, started when the first test asks for
it. Broker settings: override the fixture `culver_broker_options` in your conftest.py to return the keyword
arguments of `Broker`.

`culver_topic` is the name of a topic that only this test uses: one partition, unless the test says
`@pytest.mark.culver_topic(partitions=3, config={"cleanup.policy": "compact"})`. A test that needs several
calls `culver_topic_factory(partitions=..., config=...)`, which returns a new name each time.

`culver_cluster` is a `culver.testing.Cluster` of three brokers that only this test uses, so that it may take
them down: `@pytest.mark.culver_cluster(brokers=5, topics={"orders": 3})` gives the arguments of `Cluster`.

Imports stay light: pytest loads this module in every run of every project that has Culver installed.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    from culver.testing.broker import Broker, SettingValue
    from culver.testing.cluster import Cluster

_LONGEST_NAME_PART = 80
_serial_numbers = itertools.count(1)


class TopicFactory(Protocol):
    """Creates a topic with a name of its own and returns the name."""

    def __call__(self, partitions: int = 1, config: Mapping[str, SettingValue] | None = None) -> str: ...


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "culver_topic(partitions=1, config=None): how the fixture culver_topic creates this test's topic",
    )
    config.addinivalue_line(
        "markers",
        "culver_cluster(brokers=3, topics=None, config=None, ...): how the fixture culver_cluster is started",
    )


@pytest.fixture(scope="session")
def culver_broker_options() -> dict[str, Any]:
    """Keyword arguments for the session's Broker. Override it to change them."""
    return {}


@pytest.fixture(scope="session")
def culver_broker(culver_broker_options: dict[str, Any]) -> Iterator[Broker]:
    """One running broker, shared by the session's tests."""
    from culver.testing.broker import Broker

    with Broker(**culver_broker_options) as broker:
        yield broker


@pytest.fixture
def culver_topic_factory(request: pytest.FixtureRequest, culver_broker: Broker) -> TopicFactory:
    """A function that creates a topic for this test alone and returns its name."""
    test_name = re.sub(r"[^a-zA-Z0-9._-]+", "-", request.node.name).strip("-")[:_LONGEST_NAME_PART]

    def create(partitions: int = 1, config: Mapping[str, SettingValue] | None = None) -> str:
        name = f"{test_name}-{next(_serial_numbers)}"
        culver_broker.create_topic(name, partitions, config)
        return name

    return create


@pytest.fixture
def culver_topic(request: pytest.FixtureRequest, culver_topic_factory: TopicFactory) -> str:
    """The name of a topic that only this test uses."""
    marker = request.node.get_closest_marker("culver_topic")
    return culver_topic_factory(**(marker.kwargs if marker else {}))


@pytest.fixture
def culver_cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A running cluster that only this test uses."""
    from culver.testing.cluster import Cluster

    marker = request.node.get_closest_marker("culver_cluster")
    with Cluster(*(marker.args if marker else ()), **(marker.kwargs if marker else {})) as cluster:
        yield cluster
