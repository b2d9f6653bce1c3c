"""Answers that are kept for a moment: asked for once, however many want them, and never kept when they failed."""

from __future__ import annotations

import asyncio

import pytest

from culver.gateway.console.recent import Recent


class Question:
    """Counts how often it is asked, and answers with the number."""

    def __init__(self) -> None:
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.fails = False

    async def ask(self) -> int:
        self.asked += 1
        number = self.asked
        await self.may_answer.wait()
        if self.fails:
            raise ValueError("no answer")
        return number


def test_who_asks_at_the_same_time_gets_the_same_answer() -> None:
    async def claim() -> None:
        recent: Recent[int] = Recent(0.0)
        question = Question()
        question.may_answer.clear()
        waiting = [asyncio.create_task(recent.get("q", question.ask)) for _ in range(10)]
        await asyncio.sleep(0)
        question.may_answer.set()
        assert await asyncio.gather(*waiting) == [1] * 10
        assert await recent.get("q", question.ask) == 2  # nothing is kept for longer than no time at all

    asyncio.run(claim())


def test_an_answer_is_kept_for_its_time_and_until_it_is_forgotten() -> None:
    async def claim() -> None:
        recent: Recent[int] = Recent(3600.0)
        question = Question()
        assert [await recent.get("q", question.ask) for _ in range(3)] == [1, 1, 1]
        assert await recent.get("another", question.ask) == 2
        recent.forget()
        assert await recent.get("q", question.ask) == 3

    asyncio.run(claim())


def test_only_so_many_answers_are_kept() -> None:
    async def claim() -> None:
        recent: Recent[int] = Recent(3600.0, kept_max=2)
        question = Question()
        for name in ("a", "b", "c"):
            await recent.get(name, question.ask)
        assert await recent.get("c", question.ask) == 3
        assert await recent.get("a", question.ask) == 4

    asyncio.run(claim())


def test_a_failure_is_told_to_all_who_wait_and_not_kept() -> None:
    async def claim() -> None:
        recent: Recent[int] = Recent(3600.0)
        question = Question()
        question.fails = True
        failed = await asyncio.gather(
            *(recent.get("q", question.ask) for _ in range(3)), return_exceptions=True
        )
        assert [type(each) for each in failed] == [ValueError] * 3
        question.fails = False
        assert await recent.get("q", question.ask) == 2

    asyncio.run(claim())


def test_the_first_who_asked_may_go_away() -> None:
    async def claim() -> None:
        recent: Recent[int] = Recent(3600.0)
        question = Question()
        question.may_answer.clear()
        first = asyncio.create_task(recent.get("q", question.ask))
        await asyncio.sleep(0)
        second = asyncio.create_task(recent.get("q", question.ask))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        question.may_answer.set()
        assert await second == 1

    asyncio.run(claim())
