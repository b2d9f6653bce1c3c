"""The outcome of a chaos run, for people: figures, faults by kind, and what was wrong."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

from culver.testing.chaos.copier import CLASSIC
from culver.testing.chaos.nemesis import Fault
from culver.testing.chaos.plan import Plan
from culver.testing.chaos.transactional_load import ClientFigures
from culver.testing.checker import Verdict
from culver.testing.history import ACKS_ALL, Copying, History, Outcome, Partition, Send
from culver.testing.transaction_checker import original

_LINE_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Standstill:
    """A stretch in which a partition had writes waiting and acknowledged none."""

    partition: Partition
    from_ms: float
    to_ms: float

    @property
    def lasted_ms(self) -> float:
        return self.to_ms - self.from_ms


@dataclass
class Report:
    """How a run ended."""

    plan: Plan
    verdict: Verdict
    faults: list[Fault]
    history: History
    largest_bytes: int
    took_s: float
    clients: ClientFigures | None = None
    kept: Path | None = None

    @property
    def passed(self) -> bool:
        return not self.verdict.violations

    def text(self) -> str:
        verdict, history = self.verdict, self.history
        operations = len(history.sends) + verdict.read + len(history.commits) + len(history.committed_reads)
        kinds = Counter(fault.kind for fault in self.faults)
        lines = [
            f"seed {self.plan.seed}, {self.plan.store}, {self.plan.brokers} brokers, {self.took_s:.0f} s",
            f"operations     {operations}: {verdict.sends} written, {verdict.read} read, "
            f"{len(history.commits)} commits, {len(history.committed_reads)} questions for commits",
            f"faults         {len(self.faults)}: "
            + ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items())),
            f"acknowledged   {verdict.acknowledged}",
            f"lost           {verdict.lost} (with acks=1, allowed: {verdict.lost_with_acks_1})",
            f"duplicated     {verdict.duplicated}",
            f"unavailable    {self._unavailable()}",
            f"memory         {self.largest_bytes / 1e6:.0f} MB, the largest broker",
        ]
        if self.clients is not None:
            lines += self._transactions(self.clients)
        if verdict.violations:
            lines += [
                "",
                f"{len(verdict.violations)} VIOLATIONS",
                *(line[:_LINE_MAX] for line in verdict.report().splitlines()),
            ]
        if self.kept is not None:
            lines.append(f"kept in {self.kept}")
        lines.append("passed" if self.passed else f"FAILED; again: make chaos {self._again()}")
        return "\n".join(lines)

    def _transactions(self, clients: ClientFigures) -> list[str]:
        history = self.history
        outcomes = Counter(each.outcome for each in history.transactions)
        lines = [
            f"transactions   {len(history.transactions)}: {outcomes[Outcome.OK]} committed, "
            f"{outcomes[Outcome.FAILED]} never to be committed ({clients.aborted} aborted by their producers), "
            f"{outcomes[Outcome.UNKNOWN]} unknown",
            f"clients        {clients.processes} processes, killed {clients.killed} times, frozen {clients.frozen}, "
            f"stuck in librdkafka {clients.stuck}",
        ]
        for copying in history.copyings:
            copies = copy_counts(history, copying)
            lines.append(
                f"copies         {len(copies)} records, exactly one copy of {sum(n == 1 for n in copies.values())}; "
                f"missing {sum(n == 0 for n in copies.values())}, copied twice {sum(n > 1 for n in copies.values())}"
            )
        return lines

    def _again(self) -> str:
        plan = self.plan
        transactions = plan.transactions
        words = [f"SEED={plan.seed} STORE={plan.store}"]
        arguments = []
        if transactions is None:
            arguments.append("--no-transactions")
        elif transactions.group_protocol != CLASSIC:
            arguments.append(f"--group-protocol {transactions.group_protocol}")
        if transactions is not None and transactions.seeds:
            arguments.append(f"--copies {transactions.seeds} --transaction {transactions.copy_size}")
        else:
            words.insert(0, f"SECONDS={plan.seconds:.0f}")
            if plan.kinds:
                arguments.append(f'--faults "{",".join(plan.kinds)}"')
        if arguments:
            words.append(f"ARGS='{' '.join(arguments)}'")
        return " ".join(words)

    def _unavailable(self) -> str:
        stretches = standstills(self.history.sends)
        if not stretches:
            return "never"
        worst = max(stretches, key=lambda each: each.lasted_ms)
        by_kind: dict[str, float] = {}
        for each in stretches:
            for fault in self._during(each):
                by_kind[fault.kind] = max(by_kind.get(fault.kind, 0.0), each.lasted_ms)
        kinds = ", ".join(
            f"{kind} {lasted_ms / 1000:.1f} s"
            for kind, lasted_ms in sorted(by_kind.items(), key=_longest_first)
        )
        reasons = ", ".join(fault.kind for fault in self._during(worst)) or "no fault"
        topic, index = worst.partition
        return (
            f"{worst.lasted_ms / 1000:.1f} s at the longest: {topic}-{index} at {worst.from_ms / 1000:.1f} s, "
            f"during {reasons}; by fault: {kinds or 'none'}"
        )

    def _during(self, stretch: Standstill) -> list[Fault]:
        return [
            fault
            for fault in self.faults
            if fault.begun_ms < stretch.to_ms and (fault.ended_ms or stretch.to_ms) > stretch.from_ms
        ]


def copy_counts(history: History, copying: Copying) -> Counter[bytes]:
    """How many committed copies there are of each committed record of the sources, or of anything else."""
    counts: Counter[bytes] = Counter()
    for partition in copying.sources:
        counts.update({value: 0 for _, value in history.final_committed.get(partition, ())})
    for partition in copying.targets:
        counts.update(original(value) for _, value in history.final_committed.get(partition, ()))
    return counts


def _longest_first(item: tuple[str, float]) -> float:
    return -item[1]


def standstills(sends: list[Send]) -> list[Standstill]:
    """Of each partition, the stretches between two acknowledgements (acks=all) in which a write was waiting."""
    by_partition: dict[Partition, list[Send]] = defaultdict(list)
    for send in sends:
        if send.acks == ACKS_ALL and send.completed_ms is not None:
            by_partition[send.partition].append(send)
    found = []
    for partition, answered in by_partition.items():
        answered.sort(key=lambda send: send.completed_ms or 0.0)
        waiting_since_ms = float("inf")
        since: list[float] = []
        for send in reversed(answered):
            waiting_since_ms = min(waiting_since_ms, send.invoked_ms)
            since.append(waiting_since_ms)
        last_ms = 0.0
        for send, since_ms in zip(answered, reversed(since), strict=True):
            assert send.completed_ms is not None
            found.append(Standstill(partition, max(last_ms, since_ms), send.completed_ms))
            last_ms = send.completed_ms
    return found
