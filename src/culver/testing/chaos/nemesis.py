"""What goes wrong in a chaos run: faults with a beginning and an end, on victims chosen by their office."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass

from culver.testing.broker import Broker
from culver.testing.chaos.brokers import Brokers
from culver.testing.chaos.gates import STORE, Network, Way, between
from culver.testing.history import Partition
from culver.testing.zookeeper import ZooKeeper

OFFICES = ("leader", "follower", "controller", "coordinator", "transaction coordinator")
ANYWHERE = (
    *(f"kill {office}" for office in OFFICES),
    *(f"freeze {office}" for office in OFFICES),
    "kill all",
    "kill all but one",
    "freeze all",
    "new disk",
    "isolate",
    "isolate leader",
    "cut two",
    "cut one way",
    "reset",
    "slow",
    "restart",
    "restart controller",
    "restart transaction coordinator",
    "move",
    "elect",
    "rolling restart",
    "grow",
    "shrink",
)
WITH_ZOOKEEPER = (
    "store cut",
    "store cut of leader",
    "store cut of controller",
    "store cut of all",
    "store reset",
    "store slow",
    "zookeeper killed",
    "zookeeper killed for long",
    "zookeeper frozen",
)


@dataclass
class Fault:
    """Something that is wrong from its beginning to its end.

    Work is done on a thread of its own in the meantime, whatever else goes wrong; the fault is over when it is done.
    """

    kind: str
    text: str
    lasts_s: float
    end: Callable[[], object]
    work: Callable[[], object] | None = None
    begun_ms: float = 0.0
    ended_ms: float | None = None


@dataclass
class Surroundings:
    """What faults can be done to."""

    brokers: Brokers
    network: Network
    zookeeper: ZooKeeper | None
    # And how many replicas each is to have.
    partitions: dict[Partition, int]
    group: str
    transactional_ids: tuple[str, ...]
    session_timeout_s: float
    random: random.Random
    note: Callable[[str], object]


class Nemesis:
    """Begins faults by the name of their kind; each is returned with how to end it."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._in = surroundings
        self._random = surroundings.random
        self._brokers = surroundings.brokers

    @property
    def kinds(self) -> tuple[str, ...]:
        return ANYWHERE + (WITH_ZOOKEEPER if self._in.zookeeper is not None else ())

    def begin(self, kind: str) -> Fault | None:
        """Let it happen; None when it cannot be done now."""
        verb, _, rest = kind.partition(" ")
        if rest in OFFICES and verb in ("kill", "freeze", "restart"):
            victim = self._holder(rest)
            if victim is None:
                return None
            if verb == "restart":
                return self._restart(kind, [victim])
            return self._kill(kind, [victim]) if verb == "kill" else self._freeze(kind, [victim])
        action: Callable[[str], Fault | None] = getattr(self, "_" + kind.replace(" ", "_"))
        return action(kind)

    # -- victims --------------------------------------------------------------------------------------------

    def _up(self) -> list[Broker]:
        return self._brokers.up()

    def _any(self) -> Broker | None:
        up = self._up()
        return self._random.choice(up) if up else None

    def _holder(self, office: str) -> Broker | None:
        """Who holds an office now, as far as it can be told; one that is up already down cannot be struck again."""
        cluster = self._brokers.cluster
        number = -1
        if office in ("leader", "follower"):
            states = cluster.latest()
            state = states.get(self._random.choice(list(self._in.partitions)))
            if state is not None:
                others = [each for each in state.replicas if each != state.leader]
                number = state.leader if office == "leader" or not others else self._random.choice(others)
        elif office == "controller":
            controllers = [view.controller_id for view in cluster.views()]
            number = max(controllers, key=controllers.count, default=-1)
        elif office == "coordinator":
            number = cluster.coordinator(self._in.group)
        elif self._in.transactional_ids:
            number = cluster.coordinator(self._random.choice(self._in.transactional_ids), transactions=True)
        return next((broker for broker in self._up() if broker.broker_id == number), None)

    def _lasts(self, least_s: float, most_s: float) -> float:
        return self._random.uniform(least_s, most_s)

    def _beyond_lease(self) -> float:
        return self._in.session_timeout_s * self._lasts(1.3, 2.2)

    # -- processes ------------------------------------------------------------------------------------------

    def _kill(self, kind: str, victims: list[Broker]) -> Fault:
        for broker in victims:
            self._brokers.kill(broker)

        def end() -> None:
            for broker in victims:
                self._brokers.launch(broker)

        return Fault(
            kind, f"killed {_names(victims)}", self._lasts(0.1, 1.5 * self._in.session_timeout_s), end
        )

    def _kill_all(self, kind: str) -> Fault | None:
        return self._kill(kind, self._up())

    def _kill_all_but_one(self, kind: str) -> Fault | None:
        up = self._up()
        self._random.shuffle(up)
        return self._kill(kind, up[1:]) if len(up) > 1 else None

    def _new_disk(self, kind: str) -> Fault | None:
        """A broker comes back with nothing. Only while all have everything: the last copy is nobody's to replace."""
        victim = self._any()
        if victim is None or self._brokers.cluster.whole() is not None:
            return None
        fault = self._kill(kind, [victim])
        shutil.rmtree(victim.data_dir)
        fault.text = f"killed broker {victim.broker_id} and emptied its disk"
        return fault

    def _freeze(self, kind: str, victims: list[Broker]) -> Fault:
        for broker in victims:
            self._brokers.freeze(broker)

        def end() -> None:
            for broker in victims:
                self._brokers.thaw(broker)

        return Fault(kind, f"froze {_names(victims)}", self._beyond_lease(), end)

    def _freeze_all(self, kind: str) -> Fault | None:
        return self._freeze(kind, self._up())

    def _restart(self, kind: str, victims: list[Broker] | None = None) -> Fault | None:
        if victims is None:
            one = self._any()
            victims = [] if one is None else [one]
        chosen = [broker for broker in victims if self._brokers.stop(broker)]

        def end() -> None:
            for broker in chosen:
                self._brokers.launch(broker)

        return Fault(kind, f"stopped {_names(chosen)}", self._lasts(0.1, 3.0), end) if chosen else None

    # -- the network ----------------------------------------------------------------------------------------

    def _cut(
        self, kind: str, ways: list[Way], text: str, lasts_s: float, *, reset: bool = False
    ) -> Fault | None:
        network = self._in.network
        network.cut(ways, reset=reset)
        return Fault(kind, text, lasts_s, lambda: network.heal(ways))

    def _ids(self) -> list[int]:
        return [broker.broker_id for broker in self._brokers.cluster.brokers]

    def _isolate(self, kind: str, victim: Broker | None = None) -> Fault | None:
        victim = victim or self._any()
        if victim is None:
            return None
        reset = self._random.random() < 0.5
        ways = between([victim.broker_id], self._ids())
        text = f"cut broker {victim.broker_id} off from the others" + (", with resets" if reset else "")
        return self._cut(kind, ways, text, self._lasts(1.0, 10.0), reset=reset)

    def _isolate_leader(self, kind: str) -> Fault | None:
        leader = self._holder("leader")
        return self._isolate(kind, leader) if leader is not None else None

    def _two(self) -> tuple[int, int] | None:
        ids = self._ids()
        if len(ids) < 2:
            return None
        one, other = self._random.sample(ids, 2)
        return one, other

    def _cut_two(self, kind: str) -> Fault | None:
        two = self._two()
        if two is None:
            return None
        ways = between([two[0]], [two[1]])
        return self._cut(kind, ways, f"cut {two[0]} and {two[1]} apart", self._lasts(0.5, 10.0))

    def _cut_one_way(self, kind: str) -> Fault | None:
        one = self._any()
        if one is None:
            return None
        outwards = self._random.random() < 0.5
        me = one.broker_id
        ways = [(me, other) if outwards else (other, me) for other in self._ids() if other != me]
        text = (
            f"broker {me} is not heard by the others" if outwards else f"broker {me} does not hear the others"
        )
        return self._cut(kind, ways, text, self._lasts(1.0, 10.0))

    def _reset(self, kind: str) -> Fault | None:
        ids = self._ids()
        return self._cut(kind, between(ids, ids), "reset all connections between brokers", 0.05, reset=True)

    def _slow(self, kind: str) -> Fault | None:
        ids = self._ids()
        ways = between(ids, ids)
        delay_s = self._lasts(0.02, 0.4)
        self._in.network.slow(ways, delay_s)
        return Fault(
            kind,
            f"{delay_s * 1000:.0f} ms between brokers",
            self._lasts(1.0, 6.0),
            lambda: self._in.network.heal(ways),
        )

    # -- the store ------------------------------------------------------------------------------------------

    def _store_ways(self, ids: list[int]) -> list[Way]:
        return between(ids, [STORE])

    def _cut_from_store(self, kind: str, victims: list[int], lasts_s: float, reset: bool) -> Fault | None:
        if not victims:
            return None
        text = f"cut {victims} off from the store" + (", with resets" if reset else "")
        return self._store_fault(self._cut(kind, self._store_ways(victims), text, lasts_s, reset=reset))

    def _store_fault(self, fault: Fault | None) -> Fault | None:
        """A broker that starts meanwhile may give up."""
        if fault is not None:
            end, token = fault.end, f"{fault.kind}/{id(fault)}"
            self._brokers.store_trouble.add(token)

            def ended() -> None:
                end()
                self._brokers.store_trouble.discard(token)

            fault.end = ended
        return fault

    def _store_cut(self, kind: str) -> Fault | None:
        victim = self._any()
        ids = [victim.broker_id] if victim is not None else []
        lasts_s = self._random.choice((self._lasts(0.1, self._in.session_timeout_s), self._beyond_lease()))
        return self._cut_from_store(kind, ids, lasts_s, self._random.random() < 0.3)

    def _store_cut_of(self, kind: str, office: str) -> Fault | None:
        victim = self._holder(office)
        ids = [victim.broker_id] if victim is not None else []
        return self._cut_from_store(kind, ids, self._beyond_lease(), False)

    def _store_cut_of_leader(self, kind: str) -> Fault | None:
        return self._store_cut_of(kind, "leader")

    def _store_cut_of_controller(self, kind: str) -> Fault | None:
        return self._store_cut_of(kind, "controller")

    def _store_cut_of_all(self, kind: str) -> Fault | None:
        return self._cut_from_store(kind, self._ids(), self._beyond_lease(), False)

    def _store_reset(self, kind: str) -> Fault | None:
        return self._cut_from_store(kind, self._ids(), self._lasts(0.05, 0.5), True)

    def _store_slow(self, kind: str) -> Fault | None:
        ways = self._store_ways(self._ids())
        delay_s = self._lasts(0.02, 0.3)
        self._in.network.slow(ways, delay_s)
        fault = Fault(
            kind,
            f"{delay_s * 1000:.0f} ms between brokers and the store",
            self._lasts(1.0, 6.0),
            lambda: self._in.network.heal(ways),
        )
        return self._store_fault(fault)

    def _zookeeper_killed(self, kind: str) -> Fault | None:
        return self._zookeeper_away(kind, self._lasts(0.0, 0.5))

    def _zookeeper_killed_for_long(self, kind: str) -> Fault | None:
        return self._zookeeper_away(kind, self._beyond_lease())

    def _zookeeper_away(self, kind: str, lasts_s: float) -> Fault | None:
        zookeeper = self._in.zookeeper
        assert zookeeper is not None
        if not zookeeper.running:
            return None
        zookeeper.kill()
        return self._store_fault(Fault(kind, "killed ZooKeeper", lasts_s, zookeeper.start))

    def _zookeeper_frozen(self, kind: str) -> Fault | None:
        zookeeper = self._in.zookeeper
        assert zookeeper is not None
        if not zookeeper.running:
            return None
        zookeeper.suspend()

        def end() -> None:
            if zookeeper.running:
                zookeeper.resume()

        lasts_s = self._lasts(0.2, 1.5 * self._in.session_timeout_s)
        return self._store_fault(Fault(kind, "froze ZooKeeper", lasts_s, end))

    # -- membership -----------------------------------------------------------------------------------------

    def _move(self, kind: str) -> Fault | None:
        """Some partitions go to other brokers; what comes of it is not waited for."""
        cluster = self._brokers.cluster
        factors = self._in.partitions
        chosen = self._random.sample(list(factors), self._random.randint(1, len(factors)))
        targets = {key: self._random.sample(self._ids(), factors[key]) for key in chosen}
        refused = cluster.reassign(targets)
        text = f"move {targets}" + (f": {refused}" if refused else "")
        return Fault(kind, text, self._lasts(0.0, 2.0), lambda: None)

    def _elect(self, kind: str) -> Fault | None:
        refused = self._brokers.cluster.prefer_leaders()
        text = "preferred leaders" + (f": {refused}" if refused else "")
        return Fault(kind, text, self._lasts(0.0, 1.0), lambda: None)

    def _rolling_restart(self, kind: str) -> Fault | None:
        """One after the other, each when the one before is back in sync."""

        def work() -> None:
            for broker in list(self._brokers.cluster.brokers):
                if self._brokers.stop(broker):
                    self._brokers.launch(broker)
                    self._brokers.wait_until_whole()

        return Fault(kind, "rolling restart", 0.0, lambda: None, work)

    def _grow(self, kind: str) -> Fault | None:
        """One more broker, and partitions onto it."""
        broker = self._brokers.add()
        if broker is None:
            return None

        def work() -> None:
            self._brokers.wait_until_whole()
            moved = self._move(kind)
            if moved is not None:
                self._in.note(moved.text)

        return Fault(kind, f"added broker {broker.broker_id}", 0.0, lambda: None, work)

    def _shrink(self, kind: str) -> Fault | None:
        """The broker that was added is drained and goes away."""
        broker = self._brokers.added
        if broker is None:
            return None
        number = broker.broker_id
        return Fault(kind, f"drain broker {number}", 0.0, lambda: None, lambda: self._brokers.drain(broker))


def _names(victims: list[Broker]) -> str:
    return "broker " + " and ".join(str(broker.broker_id) for broker in victims)
