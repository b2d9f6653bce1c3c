"""A histogram of durations with fixed, roughly logarithmic buckets, cheap enough to be kept of every request."""

from __future__ import annotations

from bisect import bisect_left

# Upper bounds, 1-2-5 in every decade: good enough to read a quantile to within a factor of two anywhere between a
# request answered from memory and one that waited for a broken disk.
BOUNDS_MS: tuple[float, ...] = (
    0.05,
    0.1,
    0.2,
    0.5,
    1.0,
    2.0,
    5.0,
    10.0,
    20.0,
    50.0,
    100.0,
    200.0,
    500.0,
    1_000.0,
    2_000.0,
    5_000.0,
    10_000.0,
    30_000.0,
)


class Histogram:
    """How many took how long. `counts` has one more entry than there are bounds: what took longer than all of them."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0.0

    def record(self, took_ms: float, times: int = 1) -> None:
        """Hot: once for each bunch of requests that were read and answered together."""
        self.counts[bisect_left(BOUNDS_MS, took_ms)] += times
        self.sum_ms += took_ms * times

    @property
    def count(self) -> int:
        return sum(self.counts)
