"""A broker with its gateway for each module of tests, and a fresh topic for each test."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from culver.testing import Broker

_serial_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def http_options() -> dict[str, Any]:
    """Keyword arguments for the module's Broker. Override it in a module to change them."""
    return {}


@pytest.fixture(scope="module")
def http_broker(http_options: dict[str, Any]) -> Iterator[Broker]:
    """A running broker that serves HTTP."""
    with Broker(**{"http": True, **http_options}) as broker:
        yield broker


@pytest.fixture(scope="module")
def url(http_broker: Broker) -> str:
    """Where the gateway is: http://127.0.0.1:PORT."""
    return http_broker.http_url


@pytest.fixture
def new_topic(http_broker: Broker, request: pytest.FixtureRequest) -> Callable[..., str]:
    """A function that creates a topic which only this test uses."""

    def create(partitions: int = 1, **settings: Any) -> str:
        words = re.sub(r"[^a-zA-Z0-9]+", "-", request.node.name).strip("-")[:60]
        name = f"{words}-{next(_serial_numbers)}"
        http_broker.create_topic(
            name, partitions, {key.replace("_", "."): value for key, value in settings.items()}
        )
        return name

    return create


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    """A topic with one partition that only this test uses."""
    return new_topic()
