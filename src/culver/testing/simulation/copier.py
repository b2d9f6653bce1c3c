"""A copying pipeline's worker in a simulated workload: reads as a member of a group, writes copies, commits its offsets
with them."""

from __future__ import annotations

from collections.abc import Callable

from culver.errors import KafkaError
from culver.testing.history import Commit, History, Partition, Send, Transaction
from culver.testing.simulation.client import Disconnected
from culver.testing.simulation.group_member import GroupMember, Rejoin
from culver.testing.simulation.lives import Life
from culver.testing.simulation.transactional_session import Abortable, Fenced, TransactionalSession


class Copier(GroupMember):
    """One copy of every committed record, whatever becomes of this worker."""

    _stable_offsets = True

    def __init__(
        self,
        life: Life,
        group: str,
        history: History,
        sources: list[Partition],
        targets: list[Partition],
        new_session: Callable[[Life], TransactionalSession],
        reached: dict[Partition, int],
    ) -> None:
        super().__init__(life.name, group, life.client, history, sources)
        self._life = life
        self._targets = targets
        self._new_session = new_session
        # For each source, up to where everything has been copied.
        self._reached = reached
        self._numbers = dict.fromkeys(targets, 0)
        self._transactions = 0

    async def work(self) -> None:
        life, client = self._life, self._client
        session = self._new_session(life)
        while not life.stopping:
            try:
                assigned = await self._join()
                await self._copy(session, await self._committed(assigned))
            except Fenced:
                if life.replaced:
                    return
                await client.pause(100, 1_000)
                session = self._new_session(life)
            except (Rejoin, Disconnected, KafkaError) as error:
                if isinstance(error, Disconnected | KafkaError):
                    client.coordinator_is_another(self.group)
                await client.pause(50, 300)

    async def _copy(self, session: TransactionalSession, positions: dict[Partition, int]) -> None:
        client = self._client
        leaves_at_ms = client.now_ms + client.random.randrange(5_000, 60_000)
        while not self._life.stopping:
            following = dict(positions)
            found: list[tuple[Partition, bytes]] = []
            for partition in positions:
                values = await self._poll(partition, following, committed_only=True)
                found += [(partition, value) for value in values]
            # A transaction of one round's records; what cannot be committed is read again from the last commit.
            if found and not await self._copy_all(session, found, following):
                following = await self._committed(list(positions))
                self._assignments += 1
            positions.update(following)
            for partition, position in positions.items():
                self._reached[partition] = max(self._reached.get(partition, 0), position)
            await self._heartbeat()
            if client.now_ms > leaves_at_ms:
                await self._leave()
                raise Rejoin("left")
            await client.pause(20, 400)

    async def _copy_all(
        self,
        session: TransactionalSession,
        found: list[tuple[Partition, bytes]],
        following: dict[Partition, int],
    ) -> bool:
        """Whether it was committed."""
        generator = self._client.random
        transaction = Transaction(self._life.name, session.transactional_id, self._transactions)
        self._transactions += 1
        self._history.transactions.append(transaction)
        await session.begin(transaction)
        copies: dict[Partition, list[Send]] = {}
        for (topic, index), value in found:
            target = self._targets[(index + len(topic)) % len(self._targets)]
            copies.setdefault(target, []).append(self._send(transaction, target, value))
        try:
            for target, sends in copies.items():
                await session.write(target, sends)
            self._note_commits(transaction, following)
            await session.write_offsets(self.group, self._member_id, self._generation, following)
            if generator.random() < 0.1:
                raise Abortable("changed its mind")
            await session.commit()
        except Abortable:
            await session.abort()
            return False
        return True

    def _note_commits(self, transaction: Transaction, following: dict[Partition, int]) -> None:
        now_ms = self._client.now_ms
        transaction.commits = [
            Commit(self.group, self.name, partition, offset, now_ms, outcome=transaction.outcome)
            for partition, offset in following.items()
        ]
        self._history.commits += transaction.commits

    def _send(self, transaction: Transaction, target: Partition, value: bytes) -> Send:
        number = self._numbers[target]
        self._numbers[target] += 1
        copy = f"{self.name}/{transaction.number}/{number}|".encode() + value
        send = Send(self.name, target, copy, number, invoked_ms=self._client.now_ms)
        transaction.sends.append(send)
        self._history.sends.append(send)
        return send
