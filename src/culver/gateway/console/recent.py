"""Answers that are kept for a moment, so that any number of open consoles asks the cluster once."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

Answer = TypeVar("Answer")


class Recent(Generic[Answer]):
    """Answers by question. Whoever asks while an answer is on its way waits for that one."""

    def __init__(self, max_age_s: float, *, kept_max: int = 100) -> None:
        self._max_age_s = max_age_s
        self._kept_max = kept_max
        self._kept: OrderedDict[Hashable, tuple[float, asyncio.Future[Answer]]] = OrderedDict()

    async def get(self, question: Hashable, ask: Callable[[], Awaitable[Answer]]) -> Answer:
        """The answer to a question, asked now unless it was a moment ago. A failure is not kept."""
        now_s = asyncio.get_running_loop().time()
        kept = self._kept.get(question)
        if kept is not None and (not kept[1].done() or now_s - kept[0] < self._max_age_s):
            return await asyncio.shield(kept[1])
        # A task of its own: the first who asked may go away while others wait for the same.
        answer = asyncio.ensure_future(ask())
        self._kept[question] = (now_s, answer)
        self._kept.move_to_end(question)
        answer.add_done_callback(lambda done: self._settle(question, done))
        while len(self._kept) > self._kept_max:
            self._kept.popitem(last=False)
        return await asyncio.shield(answer)

    def _settle(self, question: Hashable, answer: asyncio.Future[Answer]) -> None:
        failed = answer.cancelled() or answer.exception() is not None
        if failed and self._kept.get(question, (0.0, None))[1] is answer:
            del self._kept[question]

    def forget(self) -> None:
        """Something was changed: ask again."""
        self._kept.clear()
