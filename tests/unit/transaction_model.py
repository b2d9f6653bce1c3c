"""A world for the transaction coordinator that goes wrong in every way, and watches what it is told.

The log may refuse records, take them without saying so, or lose the end of what it never acknowledged; markers may be
late, or reach some of their partitions only; the coordinator may die or be replaced at any moment.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from culver.core.coordinator_effects import (
    Append,
    Effects,
    Reply,
    RequestContext,
    TakeProducerId,
    WriteMarkers,
)
from culver.core.transaction_coordinator import TransactionCoordinator
from culver.core.transaction_records import decode_change, transaction_record
from culver.core.transaction_settings import TransactionSettings
from culver.core.transaction_state import (
    ENDING,
    MAX_EPOCH,
    VALID_PREVIOUS_STATES,
    TransactionMetadata,
    TransactionState,
)
from culver.errors import ErrorCode
from culver.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from culver.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse
from culver.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

IDS = ("x", "y")
PARTITION = 0
# Id y starts with few epochs left.
WORN_EPOCH = 32_764
_COMPLETE = {
    TransactionState.PREPARE_COMMIT: TransactionState.COMPLETE_COMMIT,
    TransactionState.PREPARE_ABORT: TransactionState.COMPLETE_ABORT,
}


class AllTopics:
    """Every name is a topic."""

    def partition_exists(self, name: str, partition: int) -> bool:
        return True


@dataclass(frozen=True)
class Identity:
    """What a producer was told: the id and epoch to go on with. `turn` counts the producers of a transactional id."""

    transactional_id: str
    producer_id: int
    epoch: int
    turn: int


@dataclass
class Asked:
    """A request that has no answer yet."""

    what: str
    transactional_id: str
    identity: Identity | None
    fenced: bool
    committed: bool = False


class TransactionModel:
    """The coordinator, with all it depends on; every answer is checked when it comes."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.epoch = 0
        self.next_id = 1000
        self.tokens = 0
        # All that was written; what is below `durable` is never lost.
        self.log: list[tuple[bytes, bytes | None]] = []
        self.durable = 0
        self.held: list[Append] = []
        self.markers: list[WriteMarkers] = []
        self.asked_ids: list[TakeProducerId] = []
        self.unanswered: dict[int, Asked] = {}
        self.identities: list[Identity] = []
        self.turns = dict.fromkeys(IDS, 0)
        # What the durable log says, record by record.
        self.history: dict[str, list[TransactionMetadata]] = {name: [] for name in IDS}
        self.lives = dict.fromkeys(IDS, 0)
        self.seen_ids: dict[int, str] = {}
        # Transactional id, number of its transaction and partition -> outcome that the partition has.
        self.outcomes: dict[tuple[str, tuple[int, int], tuple[str, int]], bool] = {}
        worn = TransactionMetadata.created(7, 10_000, 0)._replace(producer_epoch=WORN_EPOCH)
        record = transaction_record("y", worn)
        self.log.append((record.key, record.value))
        self.acknowledge()
        self.load()

    # --- the coordinator and its log ---

    def load(self) -> None:
        """A new coordinator reads what is in the log; by then all of that is durable."""
        self.epoch += 1
        self.acknowledge()
        settings = TransactionSettings(
            transaction_state_log_num_partitions=1,
            transactional_id_expiration_ms=3_600_000,
            transaction_remove_expired_transaction_cleanup_interval_ms=600_000,
        )
        self.coordinator = TransactionCoordinator(settings, AllTopics(), lambda _: 0, lambda: self.now_ms)
        self.coordinator.load_begin(PARTITION, self.epoch)
        for key, value in self.log:
            self.coordinator.replay(PARTITION, key, value)
        self.carry_out(self.coordinator.load_done(PARTITION, self.now_ms))

    def acknowledge(self) -> None:
        """All that is in the log is durable: take note, and check that it makes sense."""
        for key, value in self.log[self.durable :]:
            change = decode_change(key, value)
            assert change is not None
            self._note(change.transactional_id, change.metadata)
        self.durable = len(self.log)

    def _note(self, name: str, metadata: TransactionMetadata | None) -> None:
        history = self.history[name]
        if metadata is None:
            assert not history or history[-1].state not in (*ENDING, TransactionState.ONGOING)
            history.clear()
            self.lives[name] += 1
            return
        if history:
            last = history[-1]
            if metadata == last:
                return  # written twice, in doubt
            assert last.state in VALID_PREVIOUS_STATES[metadata.state], (last, metadata)
            if metadata.producer_id == last.producer_id:
                assert metadata.producer_epoch >= last.producer_epoch, "epochs only go up"
            if last.state in ENDING:
                assert metadata.state is _COMPLETE[last.state]
                assert metadata.producer_id in (last.producer_id, last.next_producer_id)
                for partition in last.partitions:
                    outcome = self.outcomes.get((name, self._transaction(name), partition))
                    assert outcome is last.committing, "complete without all markers"
        owner = self.seen_ids.setdefault(metadata.producer_id, name)
        assert owner == name, "a producer id belongs to one transactional id"
        history.append(metadata)

    def _transaction(self, name: str) -> tuple[int, int]:
        """The number of the transaction that is ending, in the life of its transactional id."""
        return self.lives[name], sum(one.state in ENDING for one in self.history[name])

    def answer_append(self, outcome: str) -> None:
        """The log is done with its oldest write, one way or another."""
        append = self.held.pop(0)
        error = ErrorCode.NONE
        if outcome == "refused":
            error = ErrorCode.NOT_ENOUGH_REPLICAS
        elif outcome in ("late", "lost leadership, written"):
            self._write(append)
            late = outcome == "late"
            error = ErrorCode.REQUEST_TIMED_OUT if late else ErrorCode.NOT_LEADER_OR_FOLLOWER
        elif outcome == "lost leadership":
            error = ErrorCode.NOT_LEADER_OR_FOLLOWER
        else:
            self._write(append)
            self.acknowledge()
        self.carry_out(self.coordinator.append_done(append, error, self.now_ms))

    def _write(self, append: Append) -> None:
        self.log += [(record.key, record.value) for record in append.records]

    def crash(self, taken: int, kept: int, *, orderly: bool) -> None:
        """Another coordinator takes over: `taken` writes reached the log unseen, `kept` records of its end stay."""
        if orderly:
            self.carry_out(self.coordinator.unload(PARTITION, self.now_ms))
            assert not self.unanswered, "everyone is told when the coordinator goes"
        self.unanswered.clear()
        for append in self.held[:taken]:
            self._write(append)
        del self.log[self.durable + kept :]
        old, held = self.coordinator, self.held
        self.held, self.markers, self.asked_ids = [], [], []
        self.load()
        if orderly:
            for append in held:
                assert not old.append_done(append, ErrorCode.NONE, self.now_ms)

    # --- effects ---

    def carry_out(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                self._reply(effect.token, effect.response)  # type: ignore[arg-type]
            elif isinstance(effect, Append):
                self.held.append(effect)
            elif isinstance(effect, WriteMarkers):
                last = self.history[effect.transactional_id][-1]
                assert last.state in ENDING, "markers before the outcome is durable"
                assert effect.marker.committed is last.committing
                assert effect.marker[:2] == (last.producer_id, last.producer_epoch)
                assert set(effect.targets) == last.partitions
                assert effect.marker.coordinator_epoch == self.epoch
                self.markers.append(effect)
            else:
                self.asked_ids.append(effect)

    def write_markers(self, index: int, reached: int) -> None:
        """Some partitions get a marker; when all have it the coordinator is told."""
        effect = self.markers[index]
        for partition in effect.targets[:reached]:
            key = (effect.transactional_id, self._transaction(effect.transactional_id), partition)
            assert self.outcomes.setdefault(key, effect.marker.committed) is effect.marker.committed
        if reached >= len(effect.targets):
            del self.markers[index]
            self.carry_out(self.coordinator.markers_written(effect, self.now_ms))

    def give_id(self, *, there_is_one: bool) -> None:
        effect = self.asked_ids.pop(0)
        self.next_id += 1
        taken = self.next_id if there_is_one else None
        self.carry_out(self.coordinator.producer_id_taken(effect, taken, self.now_ms))

    def advance(self, delta_ms: int) -> None:
        self.now_ms += delta_ms
        self.carry_out(self.coordinator.expire(self.now_ms))

    # --- requests ---

    def init(self, name: str, identity: Identity | None, timeout_ms: int) -> None:
        """A new producer, or one that names what it had."""
        request = InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=timeout_ms,
            producer_id=-1 if identity is None else identity.producer_id,
            producer_epoch=-1 if identity is None else identity.epoch,
        )
        self._ask("init", name, identity, self.coordinator.handle_init_producer_id, request, 5)

    def add(self, identity: Identity, topic: str, indexes: list[int], version: int, verify: bool) -> None:
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=indexes)]
        name = identity.transactional_id
        if version < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=identity.producer_id,
                v3_and_below_producer_epoch=identity.epoch,
                v3_and_below_topics=topics,
            )
        else:
            one = AddPartitionsToTxnTransaction(
                transactional_id=name,
                producer_id=identity.producer_id,
                producer_epoch=identity.epoch,
                verify_only=verify,
                topics=topics,
            )
            request = AddPartitionsToTxnRequest(transactions=[one])
        self._ask("add", name, identity, self.coordinator.handle_add_partitions_to_txn, request, version)

    def end(self, identity: Identity, committed: bool, version: int) -> None:
        request = EndTxnRequest(
            transactional_id=identity.transactional_id,
            producer_id=identity.producer_id,
            producer_epoch=identity.epoch,
            committed=committed,
        )
        name = identity.transactional_id
        self._ask("end", name, identity, self.coordinator.handle_end_txn, request, version, committed)

    def cancel(self, token: int) -> None:
        if token in self.coordinator.parked:
            self.coordinator.cancel(token)
            del self.unanswered[token]

    def _ask(
        self,
        what: str,
        name: str,
        identity: Identity | None,
        handle: Callable[..., Effects],
        request: Any,
        version: int,
        committed: bool = False,
    ) -> None:
        self.tokens += 1
        fenced = identity is not None and identity.turn < self.turns[name]
        self.unanswered[self.tokens] = Asked(what, name, identity, fenced, committed)
        self.carry_out(handle(request, RequestContext("", "", version), self.tokens, self.now_ms))

    def _reply(self, token: int, response: Any) -> None:
        asked = self.unanswered.pop(token)  # exactly one reply each
        if isinstance(response, InitProducerIdResponse | EndTxnResponse):
            error = ErrorCode(response.error_code)
        else:
            results = response.results_by_topic_v3_and_below
            for transaction in response.results_by_transaction:
                results = transaction.topic_results
            error = ErrorCode(results[0].results_by_partition[0].partition_error_code)
        if error is not ErrorCode.NONE:
            return
        last = self.history[asked.transactional_id][-1]
        if asked.what == "init" and len(self.history[asked.transactional_id]) == 1:
            # The transactional id had been forgotten: there is nobody left who could be cut out.
            asked.identity, asked.fenced = None, False
        assert not asked.fenced, f"a fenced producer was told that its {asked.what} succeeded"
        if asked.what == "init":
            assert (response.producer_id, response.producer_epoch) == (last.producer_id, last.producer_epoch)
            assert last.state is TransactionState.EMPTY
            if asked.identity is None:
                self.turns[asked.transactional_id] += 1
            self._tell(asked, response)
        elif asked.what == "end":
            assert last.state in (
                (TransactionState.PREPARE_COMMIT, TransactionState.COMPLETE_COMMIT)
                if asked.committed
                else (TransactionState.PREPARE_ABORT, TransactionState.COMPLETE_ABORT)
            ), "told of an outcome that is not durable"
            if response.producer_id >= 0:
                self._tell(asked, response)
        else:
            assert last.state is TransactionState.ONGOING
            assert asked.identity is not None
            assert asked.identity.epoch == last.producer_epoch

    @property
    def replaced(self) -> list[Identity]:
        """What producers believe that were shut out by others."""
        return [one for one in self.identities if one.turn < self.turns[one.transactional_id]]

    def _tell(self, asked: Asked, response: Any) -> None:
        assert 0 <= response.producer_epoch < MAX_EPOCH, "the last epoch is for fencing"
        turn = self.turns[asked.transactional_id] if asked.identity is None else asked.identity.turn
        self.identities.append(
            Identity(asked.transactional_id, response.producer_id, response.producer_epoch, turn)
        )

    # --- the end ---

    @property
    def busy(self) -> bool:
        """Something is under way outside of the coordinator."""
        return bool(self.held or self.markers or self.asked_ids)

    def go_on(self, steps: int) -> None:
        """All goes well for a while."""
        for _ in range(steps):
            if self.asked_ids:
                self.give_id(there_is_one=True)
            elif self.held:
                self.answer_append("written")
            elif self.markers:
                self.write_markers(0, 100)

    def settle(self) -> None:
        """Everything works again: all that was begun comes to its end, and everyone is answered."""
        for _ in range(10):
            self.go_on(100)
            self.advance(600)
        self.go_on(100)
        assert not self.busy
        assert not self.unanswered
        assert not self.coordinator.parked
