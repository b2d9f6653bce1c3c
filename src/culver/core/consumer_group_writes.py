"""Changes of consumer groups on their way to the log: one write per group at a time, the next ones wait in line.

A change is computed from what the log says. While one is on its way, the next cannot be computed; it waits, and all
that wait then go together: each is computed from a draft in which those before it are applied.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import NamedTuple, TypeAlias

from culver.core.consumer_group import ConsumerGroup
from culver.core.consumer_group_reconciliation import Reported
from culver.core.consumer_group_records import ConsumerGroupRecord
from culver.core.coordinator_effects import WRITTEN_ANYHOW, Effects, Finish
from culver.core.coordinator_timers import Timer, TimerQueue
from culver.core.group import ClassicGroup
from culver.core.group_partition import GroupPartition, nothing_more
from culver.core.group_records import MetadataChange, StateRecord
from culver.errors import ErrorCode

# What goes into one write at most, unless a single change is larger.
_MAX_RECORDS = 1_000
# How soon to write again what may or may not be in the log.
_ASK_AGAIN_MS = 1_000


class Draft:
    """A group as it will be once the records that have been collected are durable.

    `group` is None while there is no consumer group under this id; `classic` is what is there instead, if anything.
    """

    def __init__(self, group_id: str, group: ConsumerGroup | None, classic: ClassicGroup | None) -> None:
        self.group_id = group_id
        self.group = group
        self.classic = classic
        self.records: list[StateRecord | ConsumerGroupRecord] = []
        # The group changes its kind, or goes: what comes next has to wait until that is durable.
        self.is_last = False
        # Members that have reported what they have, or nothing. When all steps have been taken the target is
        # computed, once for all of them, and each goes towards it.
        self.reports: dict[str, Reported] = {}

    def begin(self) -> ConsumerGroup:
        """There is a consumer group from here on."""
        self.group = ConsumerGroup(self.group_id)
        self.classic = None
        return self.group

    def write(self, record: ConsumerGroupRecord) -> None:
        assert self.group is not None
        self.records.append(record)
        self.group.apply(record.change)

    def write_other(self, records: Iterable[StateRecord]) -> None:
        """Records that are not about the consumer group itself."""
        self.records += records


Done: TypeAlias = Callable[[float, Effects], None]

Step: TypeAlias = Callable[[Draft, float], Done]
"""A change: told the draft and the time, it writes its records there and says what to do once they are durable. A
step that refuses a request writes nothing; its answer, too, waits for what came before it."""


class _Item(NamedTuple):
    """A step, or what has to wait until nothing is on its way; and who hears why, if it is not to be."""

    step: Step | None
    go_on: Done | None
    failed: Finish


class _Line:
    """What waits for one group."""

    __slots__ = ("draining", "queue", "writing")

    def __init__(self) -> None:
        self.queue: deque[_Item] = deque()
        self.writing = False
        self.draining = False


class GroupWrites:
    """The lines of all groups of one partition in which something is on its way, or in doubt."""

    def __init__(
        self,
        partition: GroupPartition,
        timers: TimerQueue,
        certain: Callable[[str, float, Effects], None],
        written: Callable[[str], None],
        conclude: Callable[[Draft], None],
    ) -> None:
        self._partition = partition
        self._timers = timers
        # Told when a write that was in doubt turns out to be durable.
        self._certain = certain
        # Told of every write that is durable, before those who wait for it.
        self._written = written
        # Writes what follows from all steps of a draft together.
        self._conclude = conclude
        self._lines: dict[str, _Line] = {}
        # Records that are in the log though it was not seen in time that they are durable. Nothing can be computed
        # before that is known, so they are written once more, which changes nothing if they are there.
        self._doubtful: dict[str, list[StateRecord | ConsumerGroupRecord]] = {}

    def busy_groups(self) -> set[str]:
        return set(self._lines)

    def is_busy(self, group_id: str) -> bool:
        """Whether a write is on its way, or it is not known how one has ended."""
        return group_id in self._lines or group_id in self._doubtful

    def submit(self, group_id: str, step: Step, failed: Finish, now_ms: float, out: Effects) -> None:
        """Make a change, as soon as those before it are durable; `failed` hears why if the log does not take it."""
        self._stand(group_id, _Item(step, None, failed), now_ms, out)

    def when_idle(self, group_id: str, go_on: Done, failed: Finish, now_ms: float, out: Effects) -> None:
        """Go on when nothing of the group is on its way, and it is known what the log says."""
        self._stand(group_id, _Item(None, go_on, failed), now_ms, out)

    def _stand(self, group_id: str, item: _Item, now_ms: float, out: Effects) -> None:
        line = self._lines.get(group_id)
        if line is None:
            line = self._lines[group_id] = _Line()
        line.queue.append(item)
        self._go_on(group_id, line, now_ms, out)

    def _go_on(self, group_id: str, line: _Line, now_ms: float, out: Effects) -> None:
        if line.draining:
            return
        line.draining = True
        while not line.writing:
            if self._partition.closed:
                self._give_up(line, ErrorCode.NOT_COORDINATOR, now_ms, out)
            if not line.queue:
                del self._lines[group_id]
                break
            if group_id in self._doubtful:
                self._write_again(group_id, line, out)
            elif self._waits_for_classic(group_id, line, out):
                break
            elif line.queue[0].go_on is not None:
                go_on = line.queue.popleft().go_on
                assert go_on is not None
                go_on(now_ms, out)
            else:
                self._take_steps(group_id, line, now_ms, out)
        line.draining = False

    def _take_steps(self, group_id: str, line: _Line, now_ms: float, out: Effects) -> None:
        group = self._partition.consumer_groups.get(group_id)
        draft = Draft(
            group_id, None if group is None else group.draft(), self._partition.groups.get(group_id)
        )
        taken: list[tuple[Done, Finish]] = []
        while (
            line.queue
            and line.queue[0].step is not None
            and len(draft.records) < _MAX_RECORDS
            and not draft.is_last
        ):
            item = line.queue.popleft()
            assert item.step is not None
            taken.append((item.step(draft, now_ms), item.failed))
        self._conclude(draft)
        if draft.records:
            self._write(group_id, line, draft.records, taken, out)
        else:
            for done, _ in taken:
                done(now_ms, out)

    def _write(
        self,
        group_id: str,
        line: _Line,
        records: list[StateRecord | ConsumerGroupRecord],
        taken: list[tuple[Done, Finish]],
        out: Effects,
    ) -> None:
        line.writing = True

        def ended(error: ErrorCode, now_ms: float, out: Effects) -> None:
            line.writing = False
            if error in WRITTEN_ANYHOW:
                self._doubtful[group_id] = records
                self._ask_later(group_id, now_ms)
            if error is ErrorCode.NONE:
                self._written(group_id)
            for done, failed in taken:
                if error is ErrorCode.NONE:
                    done(now_ms, out)
                else:
                    failed(error, now_ms, out)
            self._go_on(group_id, line, now_ms, out)

        self._partition.append(records, ended, out)

    def _write_again(self, group_id: str, line: _Line, out: Effects) -> None:
        line.writing = True

        def ended(error: ErrorCode, now_ms: float, out: Effects) -> None:
            line.writing = False
            if error is ErrorCode.NONE:
                del self._doubtful[group_id]
                self._certain(group_id, now_ms, out)
            else:
                self._give_up(line, error, now_ms, out)
                self._ask_later(group_id, now_ms)
            self._go_on(group_id, line, now_ms, out)

        self._partition.append(self._doubtful[group_id], ended, out)

    def _ask_later(self, group_id: str, now_ms: float) -> None:
        """Nobody may come; but members that are in the log have to be looked after."""

        def ask(now_ms: float, out: Effects) -> None:
            if group_id in self._doubtful and not self._partition.closed:
                self.when_idle(group_id, _nothing, nothing_more, now_ms, out)

        self._timers.schedule(Timer(), now_ms + _ASK_AGAIN_MS, ask)

    def _give_up(self, line: _Line, error: ErrorCode, now_ms: float, out: Effects) -> None:
        while line.queue:
            line.queue.popleft().failed(error, now_ms, out)

    def _waits_for_classic(self, group_id: str, line: _Line, out: Effects) -> bool:
        """Whether a classic group under this id has something on its way to the log: then all wait for that."""
        if group_id not in self._partition.groups:
            return False
        for append in reversed(self._partition.in_flight):
            if any(
                isinstance(record.change, MetadataChange) and record.change.group_id == group_id
                for record in append.records
            ):
                append.then(lambda _error, now_ms, out: self._go_on(group_id, line, now_ms, out))
                return True
        return False


def _nothing(_now_ms: float, _out: Effects) -> None:
    """Nobody waits for this."""
