"""How a task reads its part of a topic, and the error for records that are no longer there to be read.

Apart from the reading itself, so that planning a query need not load what decodes records.
"""

from __future__ import annotations

from dataclasses import dataclass

FETCH_BYTES = 4 << 20


class DataLost(Exception):
    """Records that should be there are not: deleted by retention, or gone with their topic."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}. Set the option failOnDataLoss to false to go on without them, "
            "or start anew with another checkpoint and startingOffsets"
        )


@dataclass(frozen=True)
class ReadSettings:
    """How a task reads, whatever it reads. `stall_s`: how long it waits for records that were there when planned."""

    include_headers: bool = False
    read_committed: bool = False
    fail_on_data_loss: bool = True
    stall_s: float = 120.0
    fetch_bytes: int = FETCH_BYTES
