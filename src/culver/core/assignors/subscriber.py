"""What an assignor is told of a member."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeAlias

Assignment: TypeAlias = Mapping[bytes, frozenset[int]]
"""Topic id -> partitions. No empty sets inside."""


class Subscriber(NamedTuple):
    """One member: the topics it wants (all of them exist), and what the last assignment gave it."""

    member_id: str
    instance_id: str | None
    topics: frozenset[bytes]
    held: Assignment
