"""What tests of the console's API do again and again: ask, and wait until an answer is as it should become."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from http_call import call

DEADLINE_S = 20.0


def get(url: str, path: str) -> Any:
    """The JSON of an answer that is no error."""
    answer = call("GET", url + path)
    assert answer.status == 200, answer.body
    return answer.json


def wait_for(ask: Callable[[], Any], holds: Callable[[Any], bool]) -> Any:
    """Ask again and again, until the answer is as it should become."""
    deadline_s = time.monotonic() + DEADLINE_S
    while not holds(found := ask()):
        assert time.monotonic() < deadline_s, found
    return found
