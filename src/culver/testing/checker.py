"""The checker: judges a history, and says for each thing that went wrong which record, where, and who holds what.

    verdict = judge(history)
    assert not verdict.violations, verdict.report()

It is pure, and it does not care whether the history comes from a simulation or from real processes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from culver.testing.history import ACKS_ALL, History, Outcome, Partition, Poll, Replica, Send
from culver.testing.transaction_checker import judge_transactions

_EXAMPLES_MAX = 5


@dataclass(frozen=True, slots=True)
class Violation:
    """One broken promise. `kind` is a fixed word, `text` says it in full."""

    kind: str
    text: str


@dataclass
class Verdict:
    """What is wrong, and the figures of the run."""

    violations: list[Violation] = field(default_factory=list)
    sends: int = 0
    acknowledged: int = 0
    # Acknowledged to acks=all and not there: always a violation.
    lost: int = 0
    # Acknowledged to acks=1 and not there, which is allowed.
    lost_with_acks_1: int = 0
    duplicated: int = 0
    read: int = 0
    commits: int = 0
    # Transactions, and those that were committed for certain.
    transactions: int = 0
    transactions_committed: int = 0
    # The longest time in which no write was acknowledged though one was waiting.
    longest_unavailable_ms: float = 0.0

    def kinds(self) -> set[str]:
        return {violation.kind for violation in self.violations}

    def report(self) -> str:
        """For people: figures, then a few examples of each kind."""
        lines = [self.summary()]
        seen: Counter[str] = Counter()
        for violation in self.violations:
            seen[violation.kind] += 1
            if seen[violation.kind] <= _EXAMPLES_MAX:
                lines.append(f"{violation.kind}: {violation.text}")
        lines += [f"... {count} of {kind} in all" for kind, count in seen.items() if count > _EXAMPLES_MAX]
        return "\n".join(lines)

    def summary(self) -> str:
        return (
            f"sent {self.sends}, acknowledged {self.acknowledged}, lost {self.lost} "
            f"(with acks=1, allowed: {self.lost_with_acks_1}), duplicated {self.duplicated}, read {self.read}, "
            f"commits {self.commits}, transactions {self.transactions} ({self.transactions_committed} committed), "
            f"longest without an acknowledged write {self.longest_unavailable_ms:.0f} ms"
        )


def judge(history: History) -> Verdict:
    """Hold a history of a healed and drained cluster against what was promised."""
    return _Judge(history).judge()


class _Judge:
    def __init__(self, history: History) -> None:
        self._history = history
        self._verdict = Verdict()
        self._truth = {partition: dict(records) for partition, records in history.final.items()}
        self._committed = {partition: dict(records) for partition, records in history.final_committed.items()}
        self._replica_values: dict[Partition, list[tuple[Replica, dict[int, bytes]]]] = {
            partition: [(replica, replica.values()) for replica in replicas]
            for partition, replicas in history.replicas.items()
        }
        # Every offset of a value in what can be read in the end.
        self._places: dict[Partition, dict[bytes, list[int]]] = {}
        for partition, values in self._truth.items():
            places: dict[bytes, list[int]] = defaultdict(list)
            for offset, value in values.items():
                places[value].append(offset)
            self._places[partition] = places

    def judge(self) -> Verdict:
        for complaint in self._history.complaints:
            self._found("complaint", complaint)
        self._sends()
        self._order()
        self._one_value_per_offset()
        self._polls()
        self._group_deliveries()
        self._commits()
        self._replicas()
        self._transactions()
        self._availability()
        return self._verdict

    def _found(self, kind: str, text: str) -> None:
        self._verdict.violations.append(Violation(kind, text))

    # -- producers --------------------------------------------------------------------------------------

    def _sends(self) -> None:
        """Acknowledged records are there, once, where the broker said; refused ones are not."""
        verdict = self._verdict
        verdict.sends = len(self._history.sends)
        known: dict[Partition, set[bytes]] = defaultdict(set)
        for send in self._history.sends:
            known[send.partition].add(send.value)
            places = self._places.get(send.partition, {}).get(send.value, [])
            if send.outcome is Outcome.OK:
                verdict.acknowledged += 1
                self._acknowledged(send, places)
            elif send.outcome is Outcome.FAILED and places:
                self._found("ghost", f"{_name(send)} was refused, and is at {places} of {_of(send)}")
            if len(places) > 1 and send.idempotent:
                verdict.duplicated += 1
                self._found("duplicate", f"{_name(send)} is at offsets {places} of {_of(send)}")
        for partition, places_of in self._places.items():
            for value in places_of.keys() - known[partition]:
                self._found("invented", f"{value!r} at {places_of[value]} of {partition}, sent by nobody")

    def _acknowledged(self, send: Send, places: list[int]) -> None:
        if not places:
            if send.acks == ACKS_ALL:
                self._verdict.lost += 1
                self._found(
                    "lost",
                    f"{_name(send)} of {_of(send)} was acknowledged at offset {send.offset} and is gone; "
                    f"{self._holders(send.partition, send.value, send.offset)}",
                )
            else:
                self._verdict.lost_with_acks_1 += 1
        elif send.offset is not None and send.offset not in places and send.acks == ACKS_ALL:
            self._found(
                "moved",
                f"{_name(send)} of {_of(send)} was acknowledged at offset {send.offset} and is at {places}; "
                f"{self._holders(send.partition, send.value, send.offset)}",
            )

    def _holders(self, partition: Partition, value: bytes, offset: int | None) -> str:
        """Which replica has the value where, and what it has in its place."""
        parts = []
        for replica, values in self._replica_values.get(partition, []):
            where = [at for at, held in values.items() if held == value]
            there = values.get(offset) if offset is not None else None
            parts.append(
                f"broker {replica.broker}{' (leader)' if replica.leader else ''} "
                f"[{replica.start_offset}, {replica.end_offset}) hw {replica.high_watermark}: "
                + (f"at {where}" if where else f"not there, {there!r} in its place")
            )
        return "; ".join(parts) or "replicas unknown"

    def _order(self) -> None:
        """A producer's records stand in the order in which it sent them."""
        numbers: dict[Partition, dict[bytes, Send]] = defaultdict(dict)
        for send in self._history.sends:
            if send.idempotent:
                numbers[send.partition][send.value] = send
        for partition, records in self._history.final.items():
            last: dict[str, tuple[int, Send]] = {}
            for offset, value in records:
                sent = numbers[partition].get(value)
                if sent is None:
                    continue
                before = last.get(sent.producer)
                if before is not None and before[1].number > sent.number:
                    self._found(
                        "order",
                        f"{_name(sent)} at offset {offset} of {partition} stands behind {_name(before[1])} "
                        f"at {before[0]}, which was sent later",
                    )
                last[sent.producer] = (offset, sent)

    # -- readers ----------------------------------------------------------------------------------------

    def _one_value_per_offset(self) -> None:
        """What anybody ever read at an offset is what stands there for ever."""
        acknowledged = {
            (send.partition, send.offset, send.value)
            for send in self._history.sends
            if send.outcome is Outcome.OK and send.acks == ACKS_ALL
        }
        for poll in self._history.polls:
            self._verdict.read += len(poll.records)
            truth = self._read_in_the_end(poll)
            if truth is None:
                continue
            for offset, value in poll.records:
                if truth.get(offset) != value and (
                    poll.partition not in self._history.forgetful
                    or (poll.partition, offset, value) in acknowledged
                ):
                    there = self._truth.get(poll.partition, {}).get(offset) == value
                    self._found(
                        "aborted read" if poll.committed_only and there else "changed",
                        f"{poll.consumer} read {value!r} at offset {offset} of {poll.partition} "
                        f"at {poll.at_ms:.0f} ms; now {truth.get(offset, b'nothing')!r} is there; "
                        f"{self._holders(poll.partition, value, offset)}",
                    )

    def _read_in_the_end(self, poll: Poll) -> dict[int, bytes] | None:
        """What a reader of the same kind gets after everything has healed; None where nobody looked."""
        return (self._committed if poll.committed_only else self._truth).get(poll.partition)

    def _polls(self) -> None:
        """A consumer's polls follow on each other, and leave out nothing that is there."""
        positions: dict[tuple[str, int, Partition], int] = {}
        for poll in self._history.polls:
            key = (poll.consumer, poll.assignment, poll.partition)
            expected = positions.get(key)
            if expected is not None and poll.position != expected:
                kind = "backward" if poll.position < expected else "skipped"
                self._found(
                    kind, f"{poll.consumer} went from {expected} to {poll.position} in {poll.partition}"
                )
            positions[key] = poll.next_position
            offsets = [offset for offset, _ in poll.records]
            if any(later <= earlier for earlier, later in pairwise(offsets)) or (
                offsets and offsets[0] < poll.position
            ):
                self._found(
                    "backward",
                    f"{poll.consumer} asked {poll.partition} for {poll.position} and got {offsets}",
                )
            else:
                got = set(offsets)
                truth = self._read_in_the_end(poll) or {}
                end = poll.next_position
                if poll.partition in self._history.forgetful:
                    # Where a marker stood that a disk has forgotten a record may stand now.
                    end = offsets[-1] if offsets else poll.position
                missed = [o for o in range(poll.position, end) if o in truth and o not in got]
                if missed:
                    self._found(
                        "skipped",
                        f"{poll.consumer} asked {poll.partition} for {poll.position} at {poll.at_ms:.0f} ms, "
                        f"went on to {poll.next_position} and did not get {missed}",
                    )

    def _group_deliveries(self) -> None:
        """What a group has committed, one of its members has read."""
        read: dict[tuple[str, Partition], set[int]] = defaultdict(set)
        isolated: set[str] = set()
        for poll in self._history.polls:
            if poll.group is not None:
                read[poll.group, poll.partition].update(offset for offset, _ in poll.records)
                if poll.committed_only:
                    isolated.add(poll.group)
        committed: dict[tuple[str, Partition], int] = {}
        for commit in self._history.commits:
            if commit.outcome is Outcome.OK:
                key = (commit.group, commit.partition)
                committed[key] = max(committed.get(key, 0), commit.offset)
        for (group, partition), end in committed.items():
            truth = self._committed if group in isolated else self._truth
            there = [offset for offset in truth.get(partition, {}) if offset < end]
            missed = [offset for offset in there if offset not in read[group, partition]]
            if missed:
                self._found(
                    "undelivered", f"group {group} committed {end} of {partition} and never read {missed}"
                )

    def _commits(self) -> None:
        """An acknowledged commit is never forgotten: whoever asks later hears it, or a later one."""
        asked: dict[tuple[str, Partition], set[int]] = defaultdict(set)
        done: dict[tuple[str, Partition], list[tuple[float, int]]] = defaultdict(list)
        for commit in self._history.commits:
            key = (commit.group, commit.partition)
            if commit.outcome is not Outcome.FAILED:
                asked[key].add(commit.offset)
            if commit.outcome is Outcome.OK and commit.completed_ms is not None:
                self._verdict.commits += 1
                done[key].append((commit.completed_ms, commit.offset))
        for read in self._history.committed_reads:
            key = (read.group, read.partition)
            least = max((offset for at_ms, offset in done[key] if at_ms < read.invoked_ms), default=-1)
            if read.offset < least:
                self._found(
                    "commit lost",
                    f"group {read.group} had committed {least} of {read.partition} "
                    f"and was told {read.offset} at {read.completed_ms:.0f} ms",
                )
            elif read.offset >= 0 and read.offset not in asked[key]:
                self._found(
                    "commit invented",
                    f"group {read.group} was told {read.offset} of {read.partition}, which nobody committed",
                )

    def _transactions(self) -> None:
        transactions = self._history.transactions
        self._verdict.transactions = len(transactions)
        self._verdict.transactions_committed = sum(each.outcome is Outcome.OK for each in transactions)
        judge_transactions(self._history, self._found)

    # -- replicas ---------------------------------------------------------------------------------------

    def _replicas(self) -> None:
        """Below the high watermark all replicas hold the same bytes, and what readers were shown."""
        for partition, replicas in self._history.replicas.items():
            leader = next((replica for replica in replicas if replica.leader), None)
            if leader is None:
                self._found("no leader", f"{partition} has no leader in the end")
                continue
            theirs = dict(_batches_by_offset(leader))
            for replica in replicas:
                if replica is leader:
                    continue
                end = min(leader.high_watermark, replica.end_offset)
                start = max(leader.start_offset, replica.start_offset)
                mine = dict(_batches_by_offset(replica))
                for base in sorted(theirs.keys() | mine.keys()):
                    last = (theirs.get(base) or mine[base])[0]
                    if last < start or last >= end or theirs.get(base) == mine.get(base):
                        continue
                    self._found(
                        "replicas differ",
                        f"{partition} at offset {base}: leader {leader.broker} "
                        f"{_describe(theirs.get(base))}, broker {replica.broker} {_describe(mine.get(base))} "
                        f"(hw {leader.high_watermark}, {replica.high_watermark})",
                    )
                    break

    # -- availability -----------------------------------------------------------------------------------

    def _availability(self) -> None:
        """The longest stretch with a write waiting and none acknowledged."""
        sends = [
            send for send in self._history.sends if send.acks == ACKS_ALL and send.completed_ms is not None
        ]
        sends.sort(key=lambda send: send.completed_ms or 0.0)
        # Of the writes that were still waiting at each acknowledgement, when the first one had been sent.
        waiting_since: list[float] = []
        for send in reversed(sends):
            waiting_since.append(
                min(send.invoked_ms, waiting_since[-1] if waiting_since else send.invoked_ms)
            )
        last = float("-inf")
        for send, since_ms in zip(sends, reversed(waiting_since), strict=True):
            assert send.completed_ms is not None
            stretch_ms = send.completed_ms - max(last, since_ms)
            self._verdict.longest_unavailable_ms = max(self._verdict.longest_unavailable_ms, stretch_ms)
            last = send.completed_ms


def _batches_by_offset(replica: Replica) -> Iterable[tuple[int, tuple[int, bytes]]]:
    for base, last, data in replica.batches():
        yield base, (last, data)


def _describe(batch: tuple[int, bytes] | None) -> str:
    if batch is None:
        return "has no batch"
    last, data = batch
    epoch = int.from_bytes(data[12:16], "big", signed=True)
    return f"has {len(data)} bytes up to {last} of epoch {epoch}"


def _name(send: Send) -> str:
    return (
        f"{send.value.decode(errors='replace')} (number {send.number} of {send.producer}, acks {send.acks})"
    )


def _of(send: Send) -> str:
    return f"{send.partition[0]}-{send.partition[1]}"
