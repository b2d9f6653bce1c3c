"""Which broker coordinates a group or a transactional id: looked up many at once, and remembered."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from culver.gateway.cluster.parts import in_parts
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse

if TYPE_CHECKING:
    from culver.gateway.cluster.cluster import Cluster

GROUP = 0
TRANSACTION = 1
_MANY_AT_ONCE_SINCE_VERSION = 4
_KEYS_PER_REQUEST = 500
# What is remembered is let go together when it gets to be this many: it is looked up again quickly.
_REMEMBERED_MAX = 100_000


class Coordinators:
    """The coordinators that are known."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._known: dict[tuple[int, str], int] = {}

    async def find(self, keys: Sequence[str], key_type: int = GROUP) -> dict[str, int]:
        """The broker of each; those for which there is none at the moment are left out. Raises Unreachable."""
        wanted = list(dict.fromkeys(keys))
        missing = [key for key in wanted if (key_type, key) not in self._known]
        await asyncio.gather(
            *(self._look_up(part, key_type) for part in in_parts(missing, _KEYS_PER_REQUEST))
        )
        return {key: self._known[key_type, key] for key in wanted if (key_type, key) in self._known}

    async def _look_up(self, keys: list[str], key_type: int) -> None:
        request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=keys)
        answer = await self._cluster.ask(
            request, FindCoordinatorResponse, least_version=_MANY_AT_ONCE_SINCE_VERSION
        )
        if len(self._known) + len(keys) > _REMEMBERED_MAX:
            self._known.clear()
        for found in answer.coordinators:
            if not found.error_code:
                self._known[key_type, found.key] = found.node_id

    def forget(self, key: str, key_type: int = GROUP) -> None:
        """It is not the one any more."""
        self._known.pop((key_type, key), None)
