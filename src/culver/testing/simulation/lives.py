"""A client program of a simulation that has mishaps: it is killed and started again, or frozen while another one takes
its place."""

from __future__ import annotations

import random
from collections.abc import Callable, Coroutine
from typing import Any

from culver.testing.simulation.client import Client
from culver.testing.simulation.loop import Process, World
from culver.testing.simulation.network import SimulatedNetwork


class Life:
    """One process of the program, from its start to its end."""

    def __init__(self, lives: Lives, name: str, client: Client) -> None:
        self._lives = lives
        self.name = name
        self.client = client
        # Another process does this one's work now: it goes on only until it notices.
        self.replaced = False
        self.ended = False

    @property
    def stopping(self) -> bool:
        return self._lives.stopping or self.replaced


class Lives:
    """One program over several processes. `work` is its main function, which returns when the life is `stopping`."""

    def __init__(
        self,
        name: str,
        world: World,
        network: SimulatedNetwork,
        new_client: Callable[[str], Client],
        work: Callable[[Life], Coroutine[Any, Any, None]],
        *,
        gap_ms: tuple[int, int] | None = (1_000, 12_000),
    ) -> None:
        self.name = name
        self._world = world
        self._network = network
        self._new_client = new_client
        self._work = work
        self._gap_ms = gap_ms
        self._random: random.Random = world.random(f"lives/{name}")
        self._lives: list[Life] = []
        self._undo: list[Callable[[], object]] = []
        self._active = True
        self.stopping = False

    @property
    def done(self) -> bool:
        return self.stopping and all(life.ended for life in self._lives)

    def start(self) -> None:
        self._begin()
        self._next_mishap()

    def _begin(self) -> None:
        name = f"{self.name}.{len(self._lives)}"
        life = Life(self, name, self._new_client(name))
        self._lives.append(life)
        life.client.process.start(self._live(life))

    async def _live(self, life: Life) -> None:
        await self._work(life)
        life.ended = True

    # -- mishaps ----------------------------------------------------------------------------------------

    def _next_mishap(self) -> None:
        if self._gap_ms is not None:
            self._world.after(self._random.randrange(*self._gap_ms) * 1000, None, self._mishap)

    def _mishap(self) -> None:
        if not self._active or self.stopping:
            return
        life = self._lives[-1]
        process = life.client.process
        if process.running:
            if self._random.random() < 0.5:
                self._crash(life, process)
            else:
                self._freeze(life, process)
        self._next_mishap()

    def _crash(self, life: Life, process: Process) -> None:
        self._world.trace.note(f"client {life.name} crashes")
        process.kill()
        self._network.process_died(process, silently=self._random.random() < 0.5)
        life.ended = True
        self._later(self._begin)

    def _freeze(self, life: Life, process: Process) -> None:
        life.replaced = self._random.random() < 0.5
        self._world.trace.note(f"client {life.name} is frozen{', and replaced' if life.replaced else ''}")
        process.pause()
        self._later(process.resume)
        if life.replaced:
            self._begin()

    def _later(self, undo: Callable[[], object]) -> None:
        """After a while, or when everything is healed."""
        self._undo.append(undo)

        def run() -> None:
            if undo in self._undo:
                self._undo.remove(undo)
                undo()

        self._world.after(self._random.randrange(100, 8_000) * 1000, None, run)

    def heal(self) -> None:
        """No more mishaps: whoever is frozen or gone comes back."""
        self._active = False
        undo, self._undo = self._undo, []
        for each in undo:
            each()
