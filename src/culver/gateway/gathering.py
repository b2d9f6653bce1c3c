"""Many records out of one body, a few at a time, so that a large body does not hold up everybody else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from itertools import islice
from typing import TypeVar

from culver.gateway.errors import HttpError, Problem

# Each record of a request costs memory beside its bytes, so that short ones are bounded by their number.
RECORDS_MAX = 100_000
# Then the loop gets to do other things.
_AT_A_TIME = 250

T = TypeVar("T")


async def gathered(items: Iterable[T]) -> list[T]:
    """The items, with pauses for the event loop. HttpError 413 for more than RECORDS_MAX."""
    found: list[T] = []
    iterator = iter(items)
    while part := list(islice(iterator, _AT_A_TIME)):
        found += part
        if len(found) > RECORDS_MAX:
            raise too_many()
        if len(part) == _AT_A_TIME:
            await asyncio.sleep(0)
    return found


def too_many() -> HttpError:
    return HttpError(
        Problem.TOO_LARGE,
        f"the body holds more than {RECORDS_MAX} records, which are the most that are taken at once",
    )
