"""A bank's teller of a chaos run, in a process of its own: every transfer is a transaction over several partitions."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

from culver.testing.chaos.diary import Diary
from culver.testing.chaos.session import Abortable, Ended, Pulse, Session

_CHANGES_ITS_MIND_SHARE = 0.2
_DAWDLES_SHARE = 0.1
_PADDING = ("", "", "", "." * 200, "." * 5_000)


@dataclass(frozen=True)
class TellerDuty:
    """What a teller is told to do."""

    transactional_id: str
    # Accounts: what one partition loses others gain.
    partitions: list[tuple[str, int]]
    timeout_ms: int
    pause_s: float


class Teller:
    """Takes from some accounts and gives to others; sometimes it changes its mind, sometimes it takes its time."""

    def __init__(self, name: str, duty: TellerDuty, settings: dict[str, Any], diary: Diary) -> None:
        self._name = name
        self._duty = duty
        self._diary = diary
        self._random = random.Random(name)
        self._transactions = 0
        self._settings = settings | transactional(duty.transactional_id, duty.timeout_ms)
        self.stopping = False
        self.pulse = Pulse()

    def work(self) -> None:
        session: Session | None = None
        while not self.stopping:
            try:
                session = session or Session(self._settings, self._diary, self.pulse)
                self._transfer(session)
                time.sleep(self._random.uniform(0.2, 1.8) * self._duty.pause_s)
            except Ended:
                if session is not None:
                    session.close()
                session = None
                time.sleep(self._random.uniform(0.1, 1.0))

    def _transfer(self, session: Session) -> None:
        chance = self._random
        number = self._transactions
        self._transactions += 1
        count = min(len(self._duty.partitions), chance.choice((2, 2, 3, 4)))
        partitions = chance.sample(self._duty.partitions, count) * chance.choice((1, 1, 2))
        amounts = [chance.randrange(1, 100) for _ in partitions]
        amounts[0] -= sum(amounts)
        sends = [
            (topic, index, f"{self._name}/{number}/{at}={amount}{chance.choice(_PADDING)}")
            for at, ((topic, index), amount) in enumerate(zip(partitions, amounts, strict=True))
        ]
        # With one account only, what is taken comes back; with several the sum is 0 as well.
        session.begin(number, sends, amounts=amounts)
        try:
            for at, send in enumerate(sends):
                session.send(at, *send)
                if chance.random() < _DAWDLES_SHARE:
                    time.sleep(chance.uniform(0.0, 0.3))
            if chance.random() < _CHANGES_ITS_MIND_SHARE:
                session.abort()
                return
            session.flush()
            session.commit()
        except Abortable:
            session.abort()


def transactional(transactional_id: str, timeout_ms: int) -> dict[str, Any]:
    """Settings of a producer with transactions."""
    return {
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout_ms,
        # A broker that was frozen is given up while there is still time to ask another.
        "request.timeout.ms": timeout_ms // 2,
        "socket.timeout.ms": timeout_ms // 2,
        "message.timeout.ms": timeout_ms,
        "linger.ms": 2,
        "retry.backoff.ms": 50,
    }
