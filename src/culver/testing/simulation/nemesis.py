"""What goes wrong in a simulation: faults of machines, disks, networks and clocks, drawn from the seed."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from culver.testing.simulation.cluster import SimulatedBroker, SimulatedCluster
from culver.testing.simulation.safety import Safety
from culver.testing.simulation.store import STORE_HOST

FAULTS = (
    "kill",
    "kill all",
    "power",
    "pause",
    "stop",
    "cut brokers",
    "cut one way",
    "isolate",
    "cut store",
    "cut clients",
    "store down",
    "reset",
    "disk error",
    "disk full",
    "rot",
    "clock",
    # What an administrator does meanwhile.
    "move",
    "elect",
    "settings",
)

# Where there are coordinators of transactions: they and those of groups move to other brokers.
COORDINATOR_FAULTS = ("move coordinator",)

# What cannot make a broker leave the in-sync replicas.
_HARMLESS = frozenset({"cut clients", "clock", "settings"})


@dataclass(frozen=True)
class FaultPlan:
    """Which kinds of faults a run has, and how close they follow on each other."""

    kinds: tuple[str, ...] = FAULTS
    gap_ms: tuple[int, int] = (300, 4_000)
    lasts_ms: tuple[int, int] = (200, 5_000)


class Nemesis:
    """Lets faults happen until it is told to heal everything."""

    def __init__(
        self,
        cluster: SimulatedCluster,
        plan: FaultPlan,
        safety: Safety,
        client_hosts: list[str],
        replicated: list[str],
        also: dict[str, Callable[[], object]] | None = None,
    ) -> None:
        self._cluster = cluster
        self._world = cluster.world
        self._random: random.Random = cluster.world.random("nemesis")
        self._plan = plan
        self._safety = safety
        self._client_hosts = client_hosts
        # Directories of partitions that have other replicas.
        self._replicated = replicated
        self._also = also or {}
        self._active = False
        self._under_way = 0
        self.count = 0

    def start(self) -> None:
        self._active = True
        self._next()

    def _next(self) -> None:
        self._world.after(self._random.randrange(*self._plan.gap_ms) * 1000, None, self._strike)

    def _strike(self) -> None:
        if not self._active:
            return
        kind = self._random.choice(self._plan.kinds)
        if kind not in _HARMLESS and self._safety.at_stake():
            self._next()
            return
        action = self._also.get(kind) or getattr(self, "_" + kind.replace(" ", "_"))
        if action() is not False:
            self.count += 1
        self._next()

    def _later(self, undo: Callable[[], object]) -> None:
        """Undo a fault after a while, unless everything has been healed before."""
        self._under_way += 1

        def run() -> None:
            self._under_way -= 1
            if self._active:
                undo()

        self._world.after(self._random.randrange(*self._plan.lasts_ms) * 1000, None, run)

    def _may_lose_bytes(self, broker: SimulatedBroker) -> bool:
        calm = self._under_way == 0 and all(other.ready for other in self._cluster.brokers.values())
        return self._safety.may_lose_bytes(broker.id, calm=calm)

    def _note(self, text: str) -> None:
        self._world.trace.note(f"fault: {text}")

    # -- brokers ----------------------------------------------------------------------------------------

    def _victim(self) -> SimulatedBroker | None:
        candidates = [
            broker for broker in self._cluster.brokers.values() if broker.up and not broker.stopping
        ]
        return self._random.choice(candidates) if candidates else None

    def _hold_down(self, broker: SimulatedBroker) -> None:
        broker.held_down = True

        def start() -> None:
            broker.held_down = False
            if not broker.up:
                broker.start()

        self._later(start)

    def _kill(self) -> bool:
        broker = self._victim()
        if broker is None:
            return False
        self._note(f"kill {broker.host}")
        broker.crash()
        self._hold_down(broker)
        return True

    def _kill_all(self) -> bool:
        if self._random.random() < 0.5:
            return False
        self._note("kill all")
        for broker in self._cluster.brokers.values():
            if broker.up:
                broker.crash()
                self._hold_down(broker)
        return True

    def _power(self) -> bool:
        broker = self._victim()
        if broker is None or not self._may_lose_bytes(broker):
            return False
        self._note(f"power cut of {broker.host}")
        self._safety.loses_bytes(broker.id)
        broker.crash(power_cut=True)
        self._hold_down(broker)
        return True

    def _pause(self) -> bool:
        broker = self._victim()
        if broker is None or broker.process is None or broker.process.paused:
            return False
        process = broker.process
        self._note(f"freeze {broker.host}")
        process.pause()

        def resume() -> None:
            if process.paused:
                self._note(f"thaw {broker.host}")
                process.resume()

        self._later(resume)
        return True

    def _stop(self) -> bool:
        broker = self._victim()
        if broker is None or not broker.ready:
            return False
        self._note(f"clean stop of {broker.host}")
        broker.stop()
        return True

    # -- network ----------------------------------------------------------------------------------------

    def _two(self) -> tuple[str, str] | None:
        hosts = [broker.host for broker in self._cluster.brokers.values()]
        if len(hosts) < 2:
            return None
        one, other = self._random.sample(hosts, 2)
        return one, other

    def _cut(self, pairs: list[tuple[str, str]]) -> bool:
        network = self._cluster.network
        for source, target in pairs:
            network.cut(source, target)

        def heal() -> None:
            self._note(f"healed {pairs}")
            for source, target in pairs:
                network.heal(source, target)

        self._later(heal)
        return True

    def _cut_brokers(self) -> bool:
        two = self._two()
        if two is None:
            return False
        self._note(f"cut {two[0]} and {two[1]}")
        return self._cut([two, (two[1], two[0])])

    def _cut_one_way(self) -> bool:
        two = self._two()
        if two is None:
            return False
        self._note(f"cut from {two[0]} to {two[1]}")
        return self._cut([two])

    def _isolate(self) -> bool:
        """A broker that the others cannot reach, nor it them, while clients and perhaps the store still can."""
        broker = self._random.choice(list(self._cluster.brokers.values()))
        others = [other.host for other in self._cluster.brokers.values() if other is not broker]
        if self._random.random() < 0.4:
            others.append(STORE_HOST)
        self._note(f"isolate {broker.host} from {others}")
        return self._cut([pair for other in others for pair in ((broker.host, other), (other, broker.host))])

    def _cut_store(self) -> bool:
        broker = self._random.choice(list(self._cluster.brokers.values()))
        ways = [(broker.host, STORE_HOST), (STORE_HOST, broker.host)]
        if self._random.random() < 0.3:
            ways = [self._random.choice(ways)]
        self._note(f"cut from the store {ways}")
        return self._cut(ways)

    def _cut_clients(self) -> bool:
        broker = self._random.choice(list(self._cluster.brokers.values()))
        host = self._random.choice(self._client_hosts)
        ways = [(broker.host, host), (host, broker.host)]
        if self._random.random() < 0.5:
            ways = [self._random.choice(ways)]
        self._note(f"cut from a client {ways}")
        return self._cut(ways)

    def _reset(self) -> bool:
        two = self._two()
        host = self._random.choice(self._client_hosts)
        broker = self._random.choice(list(self._cluster.brokers.values()))
        one, other = two if two is not None and self._random.random() < 0.5 else (host, broker.host)
        self._note(f"reset connections of {one} and {other}")
        self._cluster.network.reset(one, other)
        return True

    def _store_down(self) -> bool:
        store = self._cluster.store
        if not store.up:
            return False
        self._note("store down")
        store.stop()

        def start() -> None:
            self._note("store up")
            store.start()

        self._later(start)
        return True

    # -- disks and clocks -------------------------------------------------------------------------------

    def _disk_error(self) -> bool:
        broker = self._victim()
        if broker is None or not self._may_lose_bytes(broker):
            return False
        operation = self._random.choice(("sync", "write"))
        self._note(f"disk error on {broker.host}: {operation}")
        broker.disk.on_error = partial(self._safety.loses_bytes, broker.id)
        broker.disk.fail(operation, path_contains=".log", nth=self._random.randrange(1, 10))
        return True

    def _rot(self) -> bool:
        """A bit changes on the disk of a broker that is down, and its next start reads everything again."""
        broker = self._victim()
        # Where everything is synced anyone may lose power; a disk that forgets is another matter.
        if broker is None or self._safety.flush_always or not self._may_lose_bytes(broker):
            return False
        self._safety.loses_bytes(broker.id)
        broker.crash()
        path = broker.disk.rot(self._replicated)
        self._note(f"{broker.host} is killed and a bit changes in {path}")
        self._hold_down(broker)
        return True

    def _disk_full(self) -> bool:
        broker = self._random.choice(list(self._cluster.brokers.values()))
        self._note(f"disk full on {broker.host}")
        broker.disk.fill_up()

        def heal() -> None:
            self._note(f"space again on {broker.host}")
            broker.disk.space_bytes = None

        self._later(heal)
        return True

    def _clock(self) -> bool:
        broker = self._random.choice(list(self._cluster.brokers.values()))
        jump_ms = self._random.randrange(-60_000, 60_000)
        self._note(f"clock of {broker.host} jumps by {jump_ms} ms")
        broker.clock.skew_ms += jump_ms
        return True

    # -- the end ----------------------------------------------------------------------------------------

    def heal(self) -> None:
        """No more faults: everything that is cut, full, frozen, off or broken is put right."""
        self._active = False
        self._note("all healed")
        self._cluster.network.heal_all()
        if not self._cluster.store.up:
            self._cluster.store.start()
        for broker in self._cluster.brokers.values():
            broker.held_down = False
            broker.disk.heal()
            if broker.process is not None and broker.process.paused:
                broker.process.resume()
            if not broker.up:
                broker.start()
            elif broker.has_failed_logs:
                # An operator's job: a log that has failed is taken up again by a restart only.
                broker.crash()
                broker.start()
