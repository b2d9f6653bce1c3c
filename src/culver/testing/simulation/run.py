"""One simulated run: a cluster under load and faults, healed, drained and judged."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from culver.testing.checker import Verdict, Violation, judge
from culver.testing.history import ACKS_ALL, History, Partition
from culver.testing.simulation.administrator import Administrator
from culver.testing.simulation.client import Client
from culver.testing.simulation.cluster import SimulatedCluster
from culver.testing.simulation.consumer import AssignedConsumer, FinalReader
from culver.testing.simulation.group_member import GroupMember
from culver.testing.simulation.inspection import Inspection
from culver.testing.simulation.loop import Process, SimulationStuck, World
from culver.testing.simulation.nemesis import Nemesis
from culver.testing.simulation.plan import Plan, draw_plan
from culver.testing.simulation.producer import Producer
from culver.testing.simulation.safety import Safety
from culver.testing.simulation.trace import TraceHandler
from culver.testing.simulation.transactional_load import SOURCE_TOPIC, TransactionalLoad

_START_SECONDS = 30.0


@dataclass
class RunResult:
    """How a run ended."""

    seed: int
    plan: Plan
    verdict: Verdict
    digest: str
    trace: list[str]
    faults: int
    events: int
    virtual_seconds: float
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return not self.verdict.violations

    def report(self, last: int = 60) -> str:
        """What went wrong, how it came to that, and how to see it again."""
        return "\n".join(
            [
                f"seed {self.seed}: {self.plan.describe()}",
                self.verdict.report(),
                f"-- the last {last} lines of the trace:",
                *(self.trace[-last:] if last else []),
                f"-- again: make simulate SEED={self.seed}",
            ]
        )


def run_seed(seed: int, plan: Plan | None = None) -> RunResult:
    """Run one seed; everything about it follows from the number."""
    # A world is one large knot of references: the one before is let go of here, for nothing is collected in a run.
    gc.collect()
    return Run(seed, plan or draw_plan(seed)).run()


class Run:
    """One run, from an empty disk to the verdict."""

    def __init__(self, seed: int, plan: Plan) -> None:
        self._seed = seed
        self._plan = plan
        self.world = World(seed)
        self.cluster = SimulatedCluster(self.world, plan.cluster)
        self.history = History(forgetful=plan.forgetful())
        self._client_count = 0
        self._violations: list[Violation] = []
        self._transactional: TransactionalLoad | None = None
        self._inspection = Inspection(self.cluster)
        if plan.slow_network:
            self.cluster.network.latency_us = (1_000, 30_000)
            self.cluster.network.spike_share = 0.03
            self.cluster.network.spike_max_us = 400_000

    def run(self) -> RunResult:
        handler = TraceHandler(self.world.trace, self.world.failed)
        logger = logging.getLogger("culver")
        before = logger.level, logger.propagate
        logger.addHandler(handler)
        logger.setLevel(logging.INFO)
        logger.propagate = False
        # What is thrown away is collected in between runs only: nothing in a run may depend on when that happens.
        collecting = gc.isenabled()
        gc.disable()
        try:
            self._play()
        except SimulationStuck as stuck:
            self._violations.append(Violation("stuck", str(stuck)))
        finally:
            logger.removeHandler(handler)
            logger.setLevel(before[0])
            logger.propagate = before[1]
            if collecting:
                gc.enable()
        for process in self.world.processes:
            for error in process.unnoticed_errors():
                self.world.failed(
                    f"{process.name}: a task failed with {type(error).__name__}: {error}", error
                )
            process.let_go()
        verdict = judge(self.history)
        verdict.violations += self._violations
        verdict.violations += [Violation("exception", error) for error in self.world.errors]
        return RunResult(
            self._seed,
            self._plan,
            verdict,
            self.world.trace.digest,
            self.world.trace.lines(),
            self._nemesis.count,
            self.world.event_count,
            self.world.now_us / 1e6,
        )

    # -- acts -------------------------------------------------------------------------------------------

    def _play(self) -> None:
        self._nemesis = Nemesis(
            self.cluster,
            self._plan.faults,
            Safety(
                self.cluster.store,
                flush_always=self._plan.flush_always,
                default_min_insync=self._plan.cluster.default_min_insync,
                failing_disks=lambda: {
                    number for number, broker in self.cluster.brokers.items() if broker.disk.failing
                },
            ),
            [f"client-{number}" for number in range(1, 6)],
            [
                f"{name}-{index}"
                for topic in self._plan.topics
                if topic.factor > 1
                for name, index in topic.all_partitions()
            ],
            {
                "move": self._move,
                "move coordinator": self._move_coordinator,
                "elect": self._elect,
                "settings": self._set,
            },
        )
        self.cluster.start()
        if not self._within(_START_SECONDS, self._all_ready, "the brokers did not start"):
            return
        administrator = self._administrator = Administrator(self._client("admin"))
        self._random = self.world.random("administrator")
        administrator.create_topics(self._plan.topics)
        if not self._within(_START_SECONDS, lambda: administrator.done, "the topics could not be created"):
            return
        self._load()
        self._nemesis.start()
        self.cluster.run(lambda: False, self._plan.chaos_seconds)
        self._nemesis.heal()
        if self._transactional is not None:
            self._transactional.heal()
        self._recover()

    def _load(self) -> None:
        plan = self._plan
        partitions = plan.partitions()
        written = plan.written_by_all()
        # What can be lost after it was shown cannot be committed in a way that holds.
        shared = [partition for partition in partitions if partition not in self.history.forgetful]
        self._producers = [
            Producer(
                f"p{number}",
                self._client(f"p{number}"),
                self.history,
                written,
                acks=ACKS_ALL,
                in_flight=plan.in_flight,
            )
            for number in range(plan.producers)
        ]
        if plan.weak_producers:
            self._producers += [
                Producer(f"w{acks}", self._client(f"w{acks}"), self.history, written[:2], acks=acks)
                for acks in (0, 1)
            ]
        self._consumers = [
            # The first reads from leaders, the others from whoever is in their rack.
            AssignedConsumer(
                f"c{number}",
                self._client(f"c{number}"),
                self.history,
                partitions,
                rack=f"rack-{number}" if number else "",
            )
            for number in range(plan.consumers)
        ]
        self._members = [
            GroupMember(f"m{number}", "group", self._client(f"m{number}"), self.history, shared)
            for number in range(plan.members if shared else 0)
        ]
        workers: list[Producer | AssignedConsumer | GroupMember] = []
        workers += self._producers
        workers += self._consumers
        workers += self._members
        for worker in workers:
            worker.start()
        if plan.transactions is not None:
            self._transactional = TransactionalLoad(
                plan.transactions,
                self.world,
                self.cluster.network,
                self.history,
                self._client,
                plan.partitions(),
            )
            self._transactional.start()

    # -- what an administrator does meanwhile -----------------------------------------------------------

    def _move(self) -> bool:
        return self._move_one(self._plan.partitions())

    def _move_coordinator(self) -> bool:
        ours = {topic.name for topic in self._plan.topics}
        internal = sorted(
            partition for partition in self._inspection.partition_entries() if partition[0] not in ours
        )
        return bool(internal) and self._move_one(internal) and self._elect()

    def _move_one(self, candidates: list[Partition]) -> bool:
        partition = self._random.choice(candidates)
        brokers = list(self.cluster.brokers)
        entry = self._inspection.partition_entries()[partition]
        count = len(entry.replicas) - len(entry.adding)
        if count == len(brokers) == 1:
            return False
        target = self._random.sample(brokers, count)
        self.world.trace.note(f"administrator: move {partition} to {target}")
        self._administrator.move(partition, target)
        return True

    def _elect(self) -> bool:
        self.world.trace.note("administrator: elect preferred leaders")
        self._administrator.elect_preferred()
        return True

    def _set(self) -> bool:
        topic = self._random.choice(self._plan.topics)
        name, values = self._random.choice(
            (("segment.ms", ("1000", "5000", "600000")), ("flush.messages", ("1", "10", "100000")))
        )
        value = self._random.choice(values)
        self.world.trace.note(f"administrator: set {name}={value} of {topic.name}")
        self._administrator.set_topic_config(topic.name, name, value)
        return True

    # -- the end ----------------------------------------------------------------------------------------

    def _recover(self) -> None:
        """After healing: everything is answered, copied, read and committed within bounds."""
        seconds = self._plan.recovery_seconds
        self._within(seconds, self._all_ready, "not all brokers came back")
        # Some load goes on, so that progress means progress of what is new, too.
        self.cluster.run(lambda: False, 2.0)
        for producer in self._producers:
            producer.stopping = True
        self._within(seconds, lambda: all(p.done for p in self._producers), self._unanswered)
        if self._transactional is not None:
            self._end_transactions(self._transactional)
        self.cluster.run(lambda: False, 1.0)  # for what was sent with acks=0
        self._within(seconds, self._inspection.all_in_sync, self._inspection.not_in_sync)
        self._read_all(self.history.final, self._consumers, committed_only=False)
        if self._transactional is not None:
            self._read_all(self.history.final_committed, self._transactional.readers, committed_only=True)
        for member in self._members:
            member.stopping = True
        self._within(
            seconds,
            lambda: all(m.stopped for m in self._members),
            "members of the group did not come to an end",
        )
        self.history.replicas.update(self._inspection.replicas(self.history.final))

    def _end_transactions(self, load: TransactionalLoad) -> None:
        """Whoever works in transactions comes to an end, and so does every transaction."""
        seconds = self._plan.recovery_seconds
        load.stop_tellers()
        self._within(seconds, lambda: load.tellers_done, "transactional producers did not come to an end")
        self._within(
            seconds,
            lambda: not self._inspection.unstable(),
            lambda: f"hanging: {self._inspection.unstable()}",
        )
        if load.copies:
            self._within(
                seconds,
                lambda: self._inspection.has_copied(SOURCE_TOPIC, load.copied),
                lambda: f"copied only up to {load.copied}: {self._inspection.not_in_sync()}",
            )
            load.stop_copiers()
            self._within(seconds, lambda: load.copiers_done, "copiers did not come to an end")
            self._within(
                seconds,
                lambda: not self._inspection.unstable(),
                lambda: f"hanging: {self._inspection.unstable()}",
            )

    def _read_all(
        self,
        found: dict[Partition, list[tuple[int, bytes]]],
        consumers: list[AssignedConsumer],
        *,
        committed_only: bool,
    ) -> None:
        """Read everything from start to end, and have the consumers of the same kind come to that end."""
        seconds = self._plan.recovery_seconds
        reader = FinalReader(
            self._client(f"last-{int(committed_only)}"),
            found,
            self.history.complaints,
            self._plan.partitions(),
            committed_only=committed_only,
        )
        reader.start()
        self._within(seconds, lambda: reader.done, "not everything could be read in the end")
        ends = {key: records[-1][0] + 1 if records else 0 for key, records in found.items()}
        self._within(
            seconds,
            lambda: all(c.positions[key] >= ends.get(key, 0) for c in consumers for key in c.positions),
            lambda: f"consumers did not reach the end: {[c.positions for c in consumers]} of {ends}",
        )
        for consumer in consumers:
            consumer.stopping = True

    def _within(
        self, seconds: float, condition: Callable[[], bool], complaint: str | Callable[[], str]
    ) -> bool:
        if self.cluster.run(condition, seconds):
            return True
        text = complaint if isinstance(complaint, str) else complaint()
        self.world.trace.note(f"no progress: {text}")
        self._violations.append(Violation("no progress", f"within {seconds:.0f} s: {text}"))
        return False

    # -- looking ----------------------------------------------------------------------------------------

    def _client(self, name: str) -> Client:
        self._client_count += 1
        process = Process(self.world, name, f"client-{self._client_count % 5 + 1}")
        return Client(
            process,
            self.cluster.network.of(process),
            self.cluster.bootstrap,
            self.world.random(f"client/{name}"),
        )

    def _all_ready(self) -> bool:
        return all(broker.ready for broker in self.cluster.brokers.values())

    def _unanswered(self) -> str:
        waiting = [
            f"{producer.name} to {partition}: {batches[0].sends[0].value!r} after {batches[0].errors[-3:]}"
            for producer in self._producers
            for partition, batches in producer.unanswered.items()
            if batches
        ]
        return f"writes without an answer: {'; '.join(waiting)}; {self._inspection.not_in_sync()}"
