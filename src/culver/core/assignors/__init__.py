"""Which partitions each member of a consumer group is to have: the strategies that the broker offers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from culver.core.assignors.range import assign_ranges
from culver.core.assignors.subscriber import Assignment, Subscriber
from culver.core.assignors.uniform import assign_uniformly

Assignor: TypeAlias = Callable[[Sequence[Subscriber], Mapping[bytes, int]], dict[str, Assignment]]
"""Members, and how many partitions each topic has -> what each member shall have."""

ASSIGNORS: dict[str, Assignor] = {"uniform": assign_uniformly, "range": assign_ranges}

__all__ = ["ASSIGNORS", "Assignment", "Assignor", "Subscriber"]
