"""Commits, transactional commits and markers in any order, with crashes and compaction: a log has one meaning."""

from __future__ import annotations

from typing import Any, NamedTuple

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from culver.core.coordinator_effects import Append, Effects, Marker, Reply, RequestContext
from culver.core.group_coordinator import GroupCoordinator
from culver.core.group_records import OffsetChange, decode_change
from culver.core.group_settings import GroupSettings
from culver.errors import ErrorCode
from culver.protocol.messages.delete_groups import DeleteGroupsRequest
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from culver.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from culver.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from culver.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)

RETENTION_MS = 1_500
Key = tuple[str, str, int]
GROUPS = ["g", "h"]
KEYS: list[Key] = [(group, topic, 0) for group in GROUPS for topic in "tu"]
ANY_KEY = st.sampled_from(KEYS)
ANY_PRODUCER = st.integers(0, 2)
LOST = st.sampled_from([ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND])
REFUSED = st.sampled_from([ErrorCode.NOT_ENOUGH_REPLICAS, ErrorCode.INVALID_PRODUCER_EPOCH])


class Written(NamedTuple):
    """A record of the log; `position` is its offset there."""

    position: int
    key: bytes
    value: bytes | None
    producer_id: int

    @property
    def offset_change(self) -> OffsetChange | None:
        change = decode_change(self.key, self.value)
        return change if isinstance(change, OffsetChange) else None


class Meaning:
    """What a log means, worked out from the offsets of its records."""

    def __init__(self, log: list[Written | Marker]) -> None:
        self.committed: dict[Key, tuple[int, int]] = {}
        self.pending: dict[int, dict[Key, tuple[int, int]]] = {}
        for entry in log:
            if isinstance(entry, Marker):
                for key, found in self.pending.pop(entry.producer_id, {}).items():
                    if entry.committed:
                        self.committed[key] = max(found, self.committed.get(key, (-1, -1)))
                continue
            change = entry.offset_change
            if change is None:
                continue
            key = change[:3]
            if change.committed is None:
                self.committed.pop(key, None)
                for offsets in self.pending.values():
                    offsets.pop(key, None)
            elif entry.producer_id < 0:
                self.committed[key] = (entry.position, change.committed.offset)
            else:
                offsets = self.pending.setdefault(entry.producer_id, {})
                offsets[key] = (entry.position, change.committed.offset)

    @property
    def unstable(self) -> set[Key]:
        return {key for offsets in self.pending.values() for key in offsets}


def compacted(log: list[Written | Marker]) -> list[Written | Marker]:
    """The log without what a cleaner removes: all but the newest record of a key, below the first open transaction."""
    open_since: dict[int, int] = {}
    aborted: set[int] = set()
    of_transaction: dict[int, list[int]] = {}
    for index, entry in enumerate(log):
        if isinstance(entry, Marker):
            records = of_transaction.pop(entry.producer_id, [])
            open_since.pop(entry.producer_id, None)
            if not entry.committed:
                aborted |= set(records)
        elif entry.producer_id >= 0:
            open_since.setdefault(entry.producer_id, index)
            of_transaction.setdefault(entry.producer_id, []).append(index)
    end = min(open_since.values(), default=len(log))
    newest: dict[bytes, int] = {}
    for index, entry in enumerate(log[:end]):
        if isinstance(entry, Written) and index not in aborted:
            newest[entry.key] = index
    return [
        entry
        for index, entry in enumerate(log)
        if index >= end or isinstance(entry, Marker) or newest.get(entry.key) == index
    ]


class AllTopics:
    """Every name is a topic."""

    def topic_name(self, topic_id: bytes) -> str | None:
        return None

    def topic_id(self, name: str) -> bytes | None:
        return None

    def partition_exists(self, name: str, partition: int) -> bool:
        return True

    def partition_count(self, name: str) -> int:
        return 1

    def names(self) -> list[str]:
        return ["t", "u"]


class TransactionalOffsets(RuleBasedStateMachine):
    """Producers, consumers and a transaction coordinator at one partition, whose log is slow and fails at times."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.tokens = 0
        self.next_position = 0
        self.log: list[Written | Marker] = []
        # How much of the log has been seen to be durable.
        self.certain = 0
        self.in_flight: list[Append] = []
        self.unanswered: set[int] = set()
        self.answers: dict[int, Any] = {}
        self.start()

    def start(self) -> None:
        self.coordinator = GroupCoordinator(
            GroupSettings(
                offsets_topic_num_partitions=1,
                offsets_retention_ms=RETENTION_MS,
                offsets_retention_check_interval_ms=1_000,
            ),
            AllTopics(),
            lambda stem: stem,
            lambda: self.now_ms,
        )
        self.coordinator.load_begin(0)
        for entry in self.log:
            if isinstance(entry, Marker):
                self.coordinator.replay_marker(0, entry.producer_id, entry.committed)
            else:
                self.coordinator.replay(0, entry.key, entry.value, entry.producer_id)
        self.certain = len(self.log)
        self.carry_out(self.coordinator.load_done(0, self.now_ms))

    def token(self) -> int:
        self.tokens += 1
        self.unanswered.add(self.tokens)
        return self.tokens

    def carry_out(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self.in_flight.append(effect)
            else:
                assert isinstance(effect, Reply)
                assert isinstance(effect.token, int)
                self.unanswered.remove(effect.token)
                self.answers[effect.token] = effect.response

    def ask(self, method: str, request: Any, version: int) -> Any:
        token = self.token()
        handle = getattr(self.coordinator, method)
        self.carry_out(handle(request, RequestContext("c", "/h", version), token, self.now_ms))
        return self.answers.pop(token, None)

    # --- clients ---

    @rule(key=ANY_KEY, offset=st.integers(0, 9))
    def commit(self, key: Key, offset: int) -> None:
        group, topic, partition = key
        asked = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=None
        )
        topics = [OffsetCommitRequestTopic(name=topic, partitions=[asked])]
        self.ask("handle_offset_commit", OffsetCommitRequest(group_id=group, topics=topics), 8)

    @rule(
        producer=ANY_PRODUCER,
        group=st.sampled_from(GROUPS),
        names=st.sampled_from(["t", "u", "tu"]),
        offset=st.integers(10, 99),
    )
    def commit_in_transaction(self, producer: int, group: str, names: str, offset: int) -> None:
        asked = TxnOffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=None
        )
        request = TxnOffsetCommitRequest(
            transactional_id="x",
            group_id=group,
            producer_id=producer,
            producer_epoch=0,
            topics=[TxnOffsetCommitRequestTopic(name=name, partitions=[asked]) for name in names],
        )
        self.ask("handle_txn_offset_commit", request, 5)

    @rule(producer=ANY_PRODUCER, committed=st.sampled_from([True, True, False]))
    def end_transaction(self, producer: int, committed: bool) -> None:
        token = self.token()
        marker = Marker(producer, 0, committed, 0, 1)

        def finish(error: ErrorCode, _now_ms: float, _out: Effects) -> None:
            self.unanswered.remove(token)

        self.carry_out(self.coordinator.write_marker(0, marker, finish))

    @rule(key=ANY_KEY)
    def delete_offset(self, key: Key) -> None:
        group, topic, partition = key
        asked = OffsetDeleteRequestPartition(partition_index=partition)
        topics = [OffsetDeleteRequestTopic(name=topic, partitions=[asked])]
        self.ask("handle_offset_delete", OffsetDeleteRequest(group_id=group, topics=topics), 0)

    @rule(group=st.sampled_from(GROUPS))
    def delete_group(self, group: str) -> None:
        self.ask("handle_delete_groups", DeleteGroupsRequest(groups_names=[group]), 2)

    @rule()
    def delete_topic(self) -> None:
        self.carry_out(self.coordinator.on_topics_deleted(["u"], self.now_ms))

    # --- the log and the clock ---

    def write(self, append: Append) -> None:
        if append.marker is not None:
            self.log.append(append.marker)
        producer_id = -1 if append.producer is None else append.producer.producer_id
        for record in append.records:
            self.log.append(Written(self.next_position, record.key, record.value, producer_id))
            self.next_position += 1

    @precondition(lambda self: self.in_flight)
    @rule(count=st.integers(1, 9))
    def log_takes(self, count: int) -> None:
        for append in self.in_flight[:count]:
            self.in_flight.remove(append)
            self.write(append)
            self.certain = len(self.log)
            self.carry_out(self.coordinator.append_done(append, ErrorCode.NONE, self.now_ms))

    @precondition(lambda self: self.in_flight)
    @rule(error=LOST)
    def log_takes_without_word(self, error: ErrorCode) -> None:
        append = self.in_flight.pop(0)
        self.write(append)
        self.carry_out(self.coordinator.append_done(append, error, self.now_ms))

    @precondition(lambda self: self.in_flight)
    @rule(error=REFUSED)
    def log_refuses(self, error: ErrorCode) -> None:
        append = self.in_flight.pop(0)
        self.carry_out(self.coordinator.append_done(append, error, self.now_ms))

    @rule(delta_ms=st.sampled_from([500, 2_000]))
    def advance(self, delta_ms: int) -> None:
        self.now_ms += delta_ms
        before = len(self.in_flight)
        self.carry_out(self.coordinator.expire(self.now_ms))
        unstable = Meaning(self.log[: self.certain]).unstable
        for append in self.in_flight[before:]:
            for record in append.records:
                change = decode_change(record.key, record.value)
                assert not isinstance(change, OffsetChange) or change[:3] not in unstable

    @rule(how=st.integers(0, 3), data=st.data())
    def lose_the_coordinator(self, how: int, data: st.DataObject) -> None:
        """Not too often, or nothing else would ever get far. What was not seen to be durable may be there or not."""
        if how:
            return
        if data.draw(st.booleans()):
            self.carry_out(self.coordinator.unload(0, self.now_ms))
            assert not self.unanswered
        for append in self.in_flight[: data.draw(st.integers(0, len(self.in_flight)))]:
            self.write(append)
        del self.log[data.draw(st.integers(self.certain, len(self.log))) :]
        self.in_flight.clear()
        self.unanswered.clear()
        self.start()

    # --- what holds at any time ---

    def fetch(self, stable: bool) -> dict[Key, tuple[int, int]]:
        topics = [OffsetFetchRequestTopics(name=name, partition_indexes=[0]) for name in "tu"]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=topics) for group in GROUPS],
            require_stable=stable,
        )
        answer = self.ask("handle_offset_fetch", request, 9)
        return {
            (group.group_id, topic.name, partition.partition_index): (
                partition.committed_offset,
                partition.error_code,
            )
            for group in answer.groups
            for topic in group.topics
            for partition in topic.partitions
        }

    @invariant()
    def readers_see_what_the_log_means(self) -> None:
        meaning = Meaning(self.log[: self.certain])
        expected = {key: (meaning.committed.get(key, (-1, -1))[1], 0) for key in KEYS}
        assert self.fetch(stable=False) == expected
        partition = self.coordinator.partition(0)
        assert partition is not None
        groups = {key[0] for key in meaning.committed} | {key[0] for key in meaning.unstable}
        assert groups <= partition.groups.keys()
        if self.in_flight:
            return
        in_doubt = {
            entry.offset_change[:3]
            for entry in self.log[self.certain :]
            if isinstance(entry, Written) and entry.producer_id >= 0 and entry.offset_change
        }
        for key in meaning.unstable | in_doubt:
            expected[key] = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert self.fetch(stable=True) == expected

    @invariant()
    def compaction_changes_nothing(self) -> None:
        log = self.log[: self.certain]
        before, after = Meaning(log), Meaning(compacted(log))
        assert after.committed == before.committed
        assert {p: found for p, found in after.pending.items() if found} == {
            p: found for p, found in before.pending.items() if found
        }

    @rule()
    def compact(self) -> None:
        self.log[: self.certain] = kept = compacted(self.log[: self.certain])
        self.certain = len(kept)

    def teardown(self) -> None:
        """Nobody is left without an answer, and with all transactions ended nothing is pending."""
        for producer in range(3):
            self.end_transaction(producer, True)
        while self.in_flight:
            self.log_takes(9)
        assert not self.unanswered
        partition = self.coordinator.partition(0)
        assert partition is not None
        assert not partition.pending
        assert not list(partition.pending.all_keys())
        self.readers_see_what_the_log_means()


TransactionalOffsets.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestTransactionalOffsets = TransactionalOffsets.TestCase
