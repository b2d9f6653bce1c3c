"""What brokers ask each other and what comes late: the asker has lost the connection, and it arrives all the same."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from culver.broker.peer import Call
from culver.broker.peers import Peers

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.protocol.schema import Message

_LOST_AFTER_MS = (20, 300)
_ARRIVES_AFTER_MS = (100, 4_000)


class LatePeers(Peers):
    """Markers and questions about transactions, some of which are carried out when nobody waits for them any more."""

    def __init__(self, node: Node, generator: random.Random, share: float) -> None:
        super().__init__(node)
        self._random = generator
        self._share = share

    def ask(
        self,
        broker_id: int,
        call: Call,
        request: Message,
        answered: Callable[[Any], object],
        lost: Callable[[], object],
    ) -> None:
        if self._random.random() >= self._share:
            super().ask(broker_id, call, request, answered, lost)
            return
        scheduler = self._node.scheduler
        scheduler.call_later(self._random.randrange(*_LOST_AFTER_MS), lost)
        scheduler.call_later(
            self._random.randrange(*_ARRIVES_AFTER_MS),
            lambda: super(LatePeers, self).ask(broker_id, call, request, lambda _: None, lambda: None),
        )
