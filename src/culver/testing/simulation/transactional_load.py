"""The transactional part of a simulated workload: tellers, hijackers of their ids, copiers, and late requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from culver.testing.history import Copying, History, Partition
from culver.testing.simulation.client import Client
from culver.testing.simulation.consumer import AssignedConsumer
from culver.testing.simulation.copier import Copier
from culver.testing.simulation.lives import Life, Lives
from culver.testing.simulation.loop import World
from culver.testing.simulation.network import SimulatedNetwork
from culver.testing.simulation.postman import Postman
from culver.testing.simulation.teller import Teller
from culver.testing.simulation.transactional_session import TransactionalSession

SOURCE_TOPIC = "source"
COPY_TOPIC = "copy"
_GROUP = "copiers"


@dataclass(frozen=True)
class TransactionPlan:
    """Who works in transactions."""

    # Generations of the protocol to choose from, anew in every life.
    generations: tuple[int, ...] = (1, 2)
    tellers: int = 2
    # Of the tellers, so many share their transactional id with another.
    hijacked: int = 0
    copiers: int = 0
    # How often clients crash or freeze; None for never.
    mishap_gap_ms: tuple[int, int] | None = (2_000, 15_000)
    # The share of requests that arrive long after their senders have given up.
    late_share: float = 0.0
    timeouts_ms: tuple[int, ...] = (2_000, 5_000)
    # Between the transactions of a teller.
    pause_ms: tuple[int, int] = (50, 600)

    def describe(self) -> str:
        return (
            f"transactions of generation {'/'.join(map(str, self.generations))}: {self.tellers} tellers, "
            f"{self.hijacked} hijacked, {self.copiers} copiers, late {self.late_share:.0%}"
        )


class TransactionalLoad:
    """Everything that works in transactions, as long as it is told to."""

    def __init__(
        self,
        plan: TransactionPlan,
        world: World,
        network: SimulatedNetwork,
        history: History,
        new_client: Callable[[str], Client],
        partitions: list[Partition],
    ) -> None:
        self._plan = plan
        self._world = world
        self._network = network
        self._history = history
        self._new_client = new_client
        self._sources = [partition for partition in partitions if partition[0] == SOURCE_TOPIC]
        self._targets = [partition for partition in partitions if partition[0] == COPY_TOPIC]
        self._accounts = [partition for partition in partitions if partition[0] != COPY_TOPIC]
        self._postman = Postman(new_client("postman"), plan.late_share) if plan.late_share else None
        self._tellers = [self._teller(number) for number in range(plan.tellers)]
        self._copiers: list[Lives] = []
        # Of each source, up to where everything has been copied.
        self.copied: dict[Partition, int] = {}
        if plan.copiers:
            history.copyings.append(Copying(_GROUP, tuple(self._sources), tuple(self._targets)))
            self._copiers = [self._copier(number) for number in range(plan.copiers)]
        self.readers = [
            AssignedConsumer(
                f"r{number}",
                new_client(f"r{number}"),
                history,
                partitions,
                rack=f"rack-{number}" if number else "",
                committed_only=True,
            )
            for number in range(2)
        ]

    def _lives(self, name: str, work: Callable[[Life], object]) -> Lives:
        return Lives(
            name,
            self._world,
            self._network,
            self._new_client,
            work,  # type: ignore[arg-type]
            gap_ms=self._plan.mishap_gap_ms,
        )

    def _teller(self, number: int) -> Lives:
        # The first of them share an id with the ones behind them.
        owner = number - self._plan.hijacked if self._plan.tellers - number <= self._plan.hijacked else number
        transactional_id = f"teller-{max(owner, 0)}"

        def work(life: Life) -> object:
            return Teller(
                life, self._history, self._accounts, self._session(transactional_id), self._plan.pause_ms
            ).work()

        return self._lives(f"t{number}", work)

    def _copier(self, number: int) -> Lives:
        def work(life: Life) -> object:
            return Copier(
                life,
                _GROUP,
                self._history,
                self._sources,
                self._targets,
                self._session(f"copier-{number}"),
                self.copied,
            ).work()

        return self._lives(f"x{number}", work)

    def _session(self, transactional_id: str) -> Callable[[Life], TransactionalSession]:
        def new(life: Life) -> TransactionalSession:
            generator = life.client.random
            return TransactionalSession(
                life.client,
                transactional_id,
                generator.choice(self._plan.generations),
                self._history.complaints,
                timeout_ms=generator.choice(self._plan.timeouts_ms),
                postman=self._postman,
            )

        return new

    # -- acts -------------------------------------------------------------------------------------------

    def start(self) -> None:
        for lives in (*self._tellers, *self._copiers):
            lives.start()
        for reader in self.readers:
            reader.start()

    def heal(self) -> None:
        """No more mishaps of clients, and no more late requests but those that are on their way."""
        if self._postman is not None:
            self._postman.stopping = True
        for lives in (*self._tellers, *self._copiers):
            lives.heal()

    def stop_tellers(self) -> None:
        for lives in self._tellers:
            lives.stopping = True

    @property
    def tellers_done(self) -> bool:
        return all(lives.done for lives in self._tellers) and (self._postman is None or self._postman.done)

    @property
    def copies(self) -> bool:
        return bool(self._copiers)

    def stop_copiers(self) -> None:
        for lives in self._copiers:
            lives.stopping = True

    @property
    def copiers_done(self) -> bool:
        return all(lives.done for lives in self._copiers)

    def stop_readers(self) -> None:
        for reader in self.readers:
            reader.stopping = True
