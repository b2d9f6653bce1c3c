"""One chaos run: a cluster is set up, loaded, harmed, healed, read to the end, taken apart and judged."""

from __future__ import annotations

import pickle
import random
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from culver.testing.announced_process import BrokerFailed
from culver.testing.chaos.brokers import Brokers
from culver.testing.chaos.cluster import ChaosCluster
from culver.testing.chaos.consumers import AssignedConsumer, GroupMember, read_all
from culver.testing.chaos.evidence import replicas_of
from culver.testing.chaos.gates import Network
from culver.testing.chaos.nemesis import Fault, Nemesis, Surroundings
from culver.testing.chaos.plan import COPY_GROUP, GROUP, ZOOKEEPER, Plan, TransactionPlan
from culver.testing.chaos.producer import ChaosProducer
from culver.testing.chaos.report import Report
from culver.testing.chaos.seeds import write_seeds
from culver.testing.chaos.transactional_load import TransactionalLoad
from culver.testing.chaos.worker import Worker, Workplace
from culver.testing.checker import Violation, judge
from culver.testing.history import History, Partition
from culver.testing.zookeeper import ZooKeeper

_POLL_SECONDS = 0.05
_COPYING_SECONDS = 0.3
_CLOSING_SECONDS = 90.0
# A fault may be joined by another while it lasts.
_COMPANY_SHARE = 0.35
_WHOLE_SHARE = 0.5
_WRONG_IN_LOG = re.compile(r"traceback|exception|\berror culver", re.IGNORECASE)
_WRONG_LINES_MAX = 5


class Run:
    """Use `run()` once. Nothing is left of it but a directory, in `parent`, if something was wrong or with `keep`."""

    def __init__(
        self,
        plan: Plan,
        say: Callable[[str], object] = print,
        *,
        keep: bool = False,
        parent: Path | None = None,
    ) -> None:
        self._plan = plan
        self._say = say
        self._keep = keep
        self._begun_s = time.monotonic()
        self._directory = Path(tempfile.mkdtemp(prefix=f"culver-chaos-{plan.seed}-", dir=parent))
        self._events = (self._directory / "events.log").open("w")
        self.history = History()
        self._faults: list[Fault] = []
        self._violations: list[Violation] = []
        self._random = random.Random(plan.seed)
        self._network = Network()
        self._zookeeper = ZooKeeper() if plan.store == ZOOKEEPER else None
        self._brokers: Brokers | None = None
        self._producers: list[ChaosProducer] = []
        self._consumers: list[AssignedConsumer] = []
        self._members: list[GroupMember] = []
        self._transactional: TransactionalLoad | None = None

    def run(self) -> Report:
        try:
            store = self._zookeeper.start().address if self._zookeeper is not None else None
            self._cluster = ChaosCluster(
                self._network,
                self._directory,
                brokers=self._plan.brokers,
                config=self._plan.settings(),
                store=store,
            )
            try:
                self._play()
            finally:
                self._end()
        finally:
            self._network.close()
            if self._zookeeper is not None:
                self._zookeeper.close()
            self._events.close()
        return self._judge()

    def now_ms(self) -> float:
        return (time.monotonic() - self._begun_s) * 1000

    def note(self, text: str) -> None:
        line = f"{self.now_ms() / 1000:8.2f} {text}"
        print(line, file=self._events, flush=True)
        self._say(line)

    def _found(self, kind: str, text: str) -> None:
        self.note(f"VIOLATION {kind}: {text}")
        self._violations.append(Violation(kind, text))

    # -- acts -----------------------------------------------------------------------------------------------

    def _play(self) -> None:
        plan = self._plan
        self._cluster.start()
        brokers = self._brokers = Brokers(self._cluster, self.note)
        for topic in plan.all_topics():
            self._cluster.create_topic(topic.name, topic.partitions, topic.factor, topic.config)
        self._load()
        if not self._progress("at the beginning"):
            return
        transactional = self._transactional
        if transactional is not None:
            transactional.begin_mishaps()
        nemesis = Nemesis(
            Surroundings(
                brokers,
                self._network,
                self._zookeeper,
                plan.factors(),
                GROUP if plan.topics else COPY_GROUP,
                () if transactional is None else transactional.transactional_ids,
                plan.session_timeout_ms / 1000,
                self._random,
                self.note,
            )
        )
        if plan.schedule:
            for kind in plan.schedule:
                self._strike(nemesis, kind)
        else:
            self._strike_at_random(nemesis)
        self._heal()
        self._drain()

    def _load(self) -> None:
        rate = self._plan.records_per_second
        place = self._place = Workplace(
            self._cluster.bootstrap_servers,
            self._plan.partitions(),
            self.history,
            self.now_ms,
            self._directory if self._plan.client_logs else None,
        )
        if place.partitions:
            self._producers = [
                ChaosProducer("p1", place, records_per_second=rate),
                ChaosProducer("p2", place, records_per_second=rate, timeout_ms=15_000, compression="lz4"),
                ChaosProducer("w1", place, records_per_second=rate // 3, acks=1),
            ]
            self._consumers = [
                AssignedConsumer("c1", place, place.partitions),
                AssignedConsumer("c2", place, place.partitions, rack="rack-2"),
            ]
            self._members = [
                GroupMember("m1", place, group=GROUP, stays_s=45.0),
                GroupMember("m2", place, group=GROUP, stays_s=20.0),
            ]
        for worker in self._workers():
            worker.start()
        if self._plan.transactions is not None:
            self._load_transactions(self._plan.transactions)

    def _load_transactions(self, plan: TransactionPlan) -> None:
        transactional = self._transactional = TransactionalLoad(
            plan,
            self._place,
            self._directory,
            begun_s=self._begun_s,
            seed=self._plan.seed,
            note=self.note,
        )
        self._consumers += transactional.readers
        if plan.seeds:
            transactional.seeded = write_seeds(
                self._place, transactional.sources, plan.seeds, self._plan.whole_seconds
            )
            self.note(f"{plan.seeds} records are there to be copied")
        transactional.start()

    def _workers(self) -> list[Worker]:
        return [*self._producers, *self._consumers, *self._members]

    def _strike(self, nemesis: Nemesis, kind: str) -> None:
        """One fault, from its beginning to the first writes after its end."""
        fault = self._begin(nemesis, kind)
        if fault is not None:
            time.sleep(fault.lasts_s)
            self._over(fault)
            self._progress(f"after {fault.kind}")

    def _strike_at_random(self, nemesis: Nemesis) -> None:
        until_s = time.monotonic() + self._plan.seconds
        kinds = self._plan.kinds or nemesis.kinds
        while self._goes_on(until_s) and not self._violations:
            faults = []
            for share in (1.0, _COMPANY_SHARE, _COMPANY_SHARE):
                if self._random.random() < share:
                    fault = self._begin(nemesis, self._random.choice(kinds))
                    if fault is not None:
                        faults.append(fault)
                        time.sleep(self._random.uniform(0, min(fault.lasts_s, 1.0)))
            if not faults:
                continue
            # Work may depend on the others being over.
            faults.sort(key=lambda each: (each.work is not None, each.begun_ms + each.lasts_s * 1000))
            for fault in faults:
                time.sleep(max(0.0, fault.lasts_s - (self.now_ms() - fault.begun_ms) / 1000))
                self._over(fault)
            self._progress("after " + ", ".join(fault.kind for fault in faults))
            if self._random.random() < _WHOLE_SHARE and self._brokers is not None:
                self._brokers.wait_until_whole(self._plan.whole_seconds)
            time.sleep(self._random.uniform(0.0, self._plan.peace_seconds))

    def _goes_on(self, until_s: float) -> bool:
        """Until the time is over; or until everything is copied that was there to be copied."""
        if self._transactional is not None and self._transactional.seeded:
            return not self._transactional.all_copied()
        return time.monotonic() < until_s

    def _begin(self, nemesis: Nemesis, kind: str) -> Fault | None:
        begun_ms = self.now_ms()
        fault = nemesis.begin(kind)
        if fault is None:
            return None
        fault.begun_ms = begun_ms
        if fault.work is not None:
            worker = threading.Thread(target=fault.work, name=f"chaos-{kind}", daemon=True)
            worker.start()
            fault.end = worker.join
        self._faults.append(fault)
        self.note(f"{fault.kind}: {fault.text}, for {fault.lasts_s:.1f} s")
        return fault

    def _over(self, fault: Fault) -> None:
        fault.end()
        fault.ended_ms = self.now_ms()
        self.note(f"{fault.kind}: over")

    def _progress(self, when: str) -> bool:
        """Every partition takes writes, new ones too."""
        before = {
            (producer.name, key): producer.acknowledged[key]
            for producer in self._producers
            for key in self._plan.partitions()
        }
        transactional = self._transactional
        committed = {} if transactional is None else transactional.committed()

        def waits() -> list[str]:
            parties = [] if transactional is None else transactional.waits(committed)
            return parties + [
                f"{name} to {key[0]}-{key[1]}"
                for name, key in before
                for producer in self._producers
                if producer.name == name and producer.acknowledged[key] <= before[name, key]
            ]

        begun_s = time.monotonic()
        while waits():
            if time.monotonic() - begun_s > self._plan.progress_seconds:
                self._found(
                    "no progress", f"{when}, within {self._plan.progress_seconds:.0f} s: {', '.join(waits())}"
                )
                return False
            time.sleep(_POLL_SECONDS)
        self.note(f"all partitions take writes {when}, {time.monotonic() - begun_s:.2f} s later")
        return True

    # -- the end --------------------------------------------------------------------------------------------

    def _heal(self) -> None:
        self.note("heal")
        self._network.heal()
        if self._transactional is not None:
            self._transactional.heal()
        if self._zookeeper is not None and not self._zookeeper.running:
            self._zookeeper.start()
        if self._brokers is not None:
            self._brokers.store_trouble.clear()
            self._brokers.launch_all()

    def _drain(self) -> None:
        """Everything is answered, copied, read and committed."""
        seconds = self._plan.progress_seconds
        assert self._brokers is not None
        self._progress("in the end")
        transactional = self._transactional
        for producer in self._producers:
            producer.stop()
        for producer in self._producers:
            if not producer.join(seconds):
                self._found("no progress", f"{producer.name} was not answered: {producer.unanswered}")
        if transactional is not None:
            self._end_transactions(transactional)
        self._brokers.wait_until_whole(self._plan.whole_seconds)
        readable = self._plan.partitions() + ([] if transactional is None else transactional.partitions)
        deadline_s = time.monotonic() + self._plan.whole_seconds
        try:
            self.history.final = read_all(self._place, readable, deadline_s)
            if transactional is not None:
                self.history.final_committed = read_all(
                    self._place, readable, deadline_s, committed_only=True
                )
        except TimeoutError as error:
            self._found("no progress", f"not everything could be read in the end: {error}")
            return
        ends = {key: records[-1][0] + 1 if records else 0 for key, records in self.history.final.items()}
        committed_ends = {
            key: records[-1][0] + 1 if records else 0 for key, records in self.history.final_committed.items()
        }
        self._wait(
            lambda: all(
                position >= (committed_ends if each.committed_only else ends)[key]
                for each in self._consumers
                for key, position in each.positions.items()
            ),
            lambda: (
                f"consumers are at {[each.positions for each in self._consumers]} of {ends}, "
                f"committed {committed_ends}"
            ),
        )
        for member in self._members:
            member.stay()
        if self._members:
            self._wait(
                lambda: all(self._committed().get(key, 0) >= ends[key] for key in self._plan.partitions()),
                lambda: f"the group has committed {self._committed()} of {ends}",
            )

    def _end_transactions(self, transactional: TransactionalLoad) -> None:
        """Tellers finish, or never come back; copiers copy what they wrote; and no transaction is left open."""
        seconds = self._plan.progress_seconds
        transactional.desert()
        wrong = transactional.stop_tellers(seconds)
        self._none_is_open(transactional)
        self._wait(
            transactional.all_copied, lambda: "not all that is committed was copied", pause_s=_COPYING_SECONDS
        )
        wrong += transactional.stop_copiers(seconds)
        for each in wrong:
            self._found("no progress", each)
        self._none_is_open(transactional)

    def _none_is_open(self, transactional: TransactionalLoad) -> None:
        begun_s = time.monotonic()
        hanging = transactional.hanging()
        if hanging is not None:
            self._found("hanging", hanging)
        else:
            self.note(f"no transaction is open, {time.monotonic() - begun_s:.2f} s later")

    def _committed(self) -> dict[Partition, int]:
        found: dict[Partition, int] = {}
        for commit in self.history.commits:
            if commit.group == GROUP and commit.completed_ms is not None:
                found[commit.partition] = max(found.get(commit.partition, 0), commit.offset)
        return found

    def _wait(
        self,
        condition: Callable[[], bool],
        complaint: Callable[[], str],
        pause_s: float = _POLL_SECONDS,
    ) -> None:
        deadline_s = time.monotonic() + self._plan.progress_seconds
        while not condition():
            if time.monotonic() > deadline_s:
                self._found("no progress", complaint())
                return
            time.sleep(pause_s)

    def _end(self) -> None:
        """Stop clients and brokers, and look at what the brokers leave."""
        if self._transactional is not None:
            self._transactional.close()
        for worker in self._workers():
            worker.stop()
        for producer in self._producers:
            producer.join(0.0)
        for reader in (*self._consumers, *self._members):
            if not reader.join(_CLOSING_SECONDS):
                self._found("no progress", f"{reader.name} did not come to an end")
        states = self._cluster.latest()
        if self._brokers is not None:
            self._brokers.close()
        for broker in self._cluster.brokers:
            broker.begin_to_stop()
        for broker in self._cluster.brokers:
            try:
                broker.stop(_CLOSING_SECONDS)
            except BrokerFailed as failure:
                self._found("bad end", str(failure)[-2000:])
        if self._brokers is not None:
            self._brokers.keep_logs()
        for key, records in self.history.final.items():
            replicas, wrong = replicas_of(self._directory, key, states.get(key), records)
            self.history.replicas[key] = replicas
            for violation in wrong:
                self._found(violation.kind, violation.text)
        for worker in self._workers():
            if worker.errors:
                self.note(f"{worker.name} was told {dict(worker.errors)}")
        self._cluster.close()

    # -- judgement ------------------------------------------------------------------------------------------

    def _judge(self) -> Report:
        for path in sorted(self._directory.glob("broker-*.log")):
            wrong = [line for line in path.read_text().splitlines() if _WRONG_IN_LOG.search(line)]
            self._violations += [
                Violation("logged", f"{path.stem}: {line}") for line in wrong[:_WRONG_LINES_MAX]
            ]
        if self._brokers is not None:
            self.history.complaints += self._brokers.complaints
        verdict = judge(self.history)
        verdict.violations += self._violations
        report = Report(
            self._plan,
            verdict,
            self._faults,
            self.history,
            largest_bytes=0 if self._brokers is None else self._brokers.largest_bytes,
            took_s=time.monotonic() - self._begun_s,
            clients=None if self._transactional is None else self._transactional.figures(),
        )
        if report.passed and not self._keep:
            shutil.rmtree(self._directory, ignore_errors=True)
        else:
            report.kept = self._directory
            (self._directory / "report.txt").write_text(report.text())
            with (self._directory / "history.pickle").open("wb") as file:
                pickle.dump(self.history, file)
        return report
