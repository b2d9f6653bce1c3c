"""A bank's teller in a simulated workload: every transfer is a transaction with records in several partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from culver.testing.history import History, Partition, Send, Transaction
from culver.testing.simulation.lives import Life
from culver.testing.simulation.transactional_session import Abortable, Fenced, TransactionalSession


class Teller:
    """Takes from some accounts and gives to others; an account is a partition. Sometimes it changes its mind."""

    def __init__(
        self,
        life: Life,
        history: History,
        partitions: list[Partition],
        new_session: Callable[[Life], TransactionalSession],
        pause_ms: tuple[int, int],
    ) -> None:
        self._life = life
        self._client = life.client
        self._random = life.client.random
        self._history = history
        self._partitions = partitions
        self._new_session = new_session
        self._pause_ms = pause_ms
        self._numbers = dict.fromkeys(partitions, 0)
        self._transactions = 0

    async def work(self) -> None:
        life = self._life
        session = self._new_session(life)
        while not life.stopping:
            try:
                await self._transfer(session)
            except Fenced as fenced:
                if fenced.replaced and self._random.random() < 0.4:
                    await self._haunt(session)
                if life.replaced:
                    return
                await self._client.pause(100, 2_000)
                session = self._new_session(life)
            await self._client.pause(*self._pause_ms)

    async def _transfer(self, session: TransactionalSession) -> None:
        generator = self._random
        transaction = self._new_transaction(session)
        await session.begin(transaction)
        count = min(len(self._partitions), generator.choice((1, 2, 2, 3, 4)))
        partitions = generator.sample(self._partitions, count)
        # One record in each partition at least, so that the amounts can add up to nothing.
        amounts = [generator.randrange(1, 100) for _ in partitions]
        amounts[0] -= sum(amounts)
        lanes = [
            self._client.process.loop.create_task(self._lane(session, transaction, partition, amount))
            for partition, amount in zip(partitions, amounts, strict=True)
        ]
        await asyncio.wait(lanes)
        try:
            for lane in lanes:
                if (error := lane.result()) is not None:
                    raise error
            if generator.random() < 0.2:
                await session.abort()
            else:
                await session.commit()
        except Abortable:
            await session.abort()

    def _new_transaction(self, session: TransactionalSession) -> Transaction:
        transaction = Transaction(self._life.name, session.transactional_id, self._transactions)
        self._transactions += 1
        self._history.transactions.append(transaction)
        return transaction

    async def _lane(
        self, session: TransactionalSession, transaction: Transaction, partition: Partition, amount: int
    ) -> Abortable | None:
        """An account's part, in one batch or two; what went wrong, if anything did."""
        generator = self._random
        if not amount:
            first = 7  # the only account: what is taken comes back
        else:
            first = generator.randrange(amount) if amount > 1 and generator.random() < 0.4 else 0
        for part in (first, amount - first):
            if not part:
                continue
            if generator.random() < 0.3:
                await self._client.pause(1, 400)
            sends = [self._send(transaction, partition, part)]
            if generator.random() < 0.3:
                sends.append(self._send(transaction, partition, 0))
            try:
                await session.write(partition, sends)
            except Abortable as error:
                return error
        return None

    def _send(self, transaction: Transaction, partition: Partition, amount: int) -> Send:
        number = self._numbers[partition]
        self._numbers[partition] += 1
        name = self._life.name
        value = f"{name}/{transaction.number}/{partition[0]}-{partition[1]}/{number}={amount}".encode()
        send = Send(name, partition, value, number, invoked_ms=self._client.now_ms)
        transaction.sends.append(send)
        self._history.sends.append(send)
        self._history.transfers[value] = amount
        return send

    async def _haunt(self, session: TransactionalSession) -> None:
        transaction = self._new_transaction(session)
        partition = self._random.choice(self._partitions)
        await session.haunt(partition, [self._send(transaction, partition, 1)])
