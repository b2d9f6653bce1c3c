"""The transaction coordinator, where one look at it says more than a script: see also tests/scenarios/transactions."""

from __future__ import annotations

from typing import Any

import pytest

from culver.core.coordinator_effects import Append, Effects, Reply, RequestContext, TakeProducerId
from culver.core.coordinator_partitions import partition_for_name
from culver.core.transaction_coordinator import TransactionCoordinator
from culver.core.transaction_records import transaction_record
from culver.core.transaction_settings import TransactionSettings
from culver.core.transaction_state import (
    STATE_BY_LABEL,
    VALID_PREVIOUS_STATES,
    TransactionMetadata,
    TransactionState,
)
from culver.errors import ErrorCode, MalformedRequest
from culver.protocol.messages.describe_transactions import DescribeTransactionsRequest
from culver.protocol.messages.end_txn import EndTxnRequest
from culver.protocol.messages.init_producer_id import InitProducerIdRequest

CONTEXT = RequestContext("", "", 5)


class NoTopics:
    def partition_exists(self, name: str, partition: int) -> bool:
        return False


def coordinator(records: list[tuple[str, TransactionMetadata]] | None = None) -> TransactionCoordinator:
    made = TransactionCoordinator(
        TransactionSettings(transaction_state_log_num_partitions=1), NoTopics(), lambda _: 0, lambda: 10**12
    )
    made.load_begin(0, 3)
    for name, metadata in records or ():
        record = transaction_record(name, metadata)
        made.replay(0, record.key, record.value)
    made.load_done(0, 0.0)
    return made


def init(name: str | None) -> InitProducerIdRequest:
    return InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1_000)


def only_reply(effects: Effects) -> Any:
    (effect,) = effects
    assert isinstance(effect, Reply)
    return effect.response


def test_an_id_lives_where_kafka_looks_for_it() -> None:
    made = TransactionCoordinator(TransactionSettings(), NoTopics(), lambda _: 0, lambda: 0)
    for name in ("", "orders", "x" * 300, "Ä€😀"):
        assert made.partition_for(name) == partition_for_name(name, 50)


@pytest.mark.parametrize("name", ["", None, "x" * 32_768, "ä" * 16_384])
def test_ids_that_cannot_be_keys_are_refused(name: str | None) -> None:
    made = coordinator()
    assert only_reply(made.handle_init_producer_id(init(name), CONTEXT, 1, 0.0)).error_code == (
        ErrorCode.INVALID_REQUEST
    )
    if name is not None:
        request = EndTxnRequest(transactional_id=name, producer_id=1, producer_epoch=0, committed=True)
        assert (
            only_reply(made.handle_end_txn(request, CONTEXT, 1, 0.0)).error_code == ErrorCode.INVALID_REQUEST
        )
        described = DescribeTransactionsRequest(transactional_ids=[name])
        response = only_reply(made.handle_describe_transactions(described, CONTEXT, 1, 0.0))
        assert response.transaction_states[0].error_code == ErrorCode.INVALID_REQUEST


def test_the_longest_id_fits() -> None:
    made = coordinator()
    (taking,) = made.handle_init_producer_id(init("x" * 32_767), CONTEXT, 1, 0.0)
    assert isinstance(taking, TakeProducerId)
    (append,) = made.producer_id_taken(taking, 1, 0.0)
    assert isinstance(append, Append)


def test_an_id_for_which_there_was_no_producer_id_leaves_nothing_behind() -> None:
    made = coordinator()
    (taking,) = made.handle_init_producer_id(init("t"), CONTEXT, 1, 0.0)
    assert isinstance(taking, TakeProducerId)
    assert made.entry("t") is not None
    response = only_reply(made.producer_id_taken(taking, None, 0.0))
    assert response.error_code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert made.entry("t") is None


def test_a_producer_id_that_comes_after_the_partition_is_gone_is_nobodys() -> None:
    made = coordinator()
    (taking,) = made.handle_init_producer_id(init("t"), CONTEXT, 1, 0.0)
    assert isinstance(taking, TakeProducerId)
    assert only_reply(made.unload(0, 0.0)).error_code == ErrorCode.NOT_COORDINATOR
    made.load_begin(0, 4)
    made.load_done(0, 0.0)
    assert made.producer_id_taken(taking, 1, 0.0) == []
    assert made.entry("t") is None
    assert made.unload(7, 0.0) == []


def test_many_ids_are_forgotten_in_several_appends() -> None:
    made = coordinator([(f"t{i}", TransactionMetadata.created(i, 1_000, 0)) for i in range(1_200)])
    deadline_ms = made.next_deadline_ms()
    assert deadline_ms is not None
    appends = made.expire(deadline_ms)
    assert [len(append.records) for append in appends if isinstance(append, Append)] == [500, 500, 200]
    for append in appends:
        assert isinstance(append, Append)
        assert made.append_done(append, ErrorCode.NONE, deadline_ms) == []
    assert made.entry("t0") is None
    assert made.entry("t1199") is None


def test_a_damaged_record_is_reported_and_does_not_stop_the_rest() -> None:
    made = TransactionCoordinator(
        TransactionSettings(transaction_state_log_num_partitions=1), NoTopics(), lambda _: 0, lambda: 0
    )
    made.load_begin(0, 1)
    with pytest.raises(MalformedRequest):
        made.replay(0, b"\0\0\0\1t", b"\0\7")
    made.replay(0, b"\0\7", None)
    made.replay_marker(0, 5, committed=True)
    made.load_done(0, 0.0)
    assert made.entry("t") is None


def test_a_step_that_is_not_in_the_table_is_a_mistake_of_ours() -> None:
    empty = TransactionMetadata.created(1, 1_000, 0)
    with pytest.raises(AssertionError, match="Empty does not lead to PrepareCommit"):
        empty.ending(True, 2, -1, 0)
    with pytest.raises(AssertionError):
        empty.completed(0)
    ending = empty.with_partitions(frozenset({("a", 0)}), 0, 1).ending(True, 0, -1, 2)
    with pytest.raises(AssertionError):
        ending.with_epoch(1, 0, 1_000, 3)
    with pytest.raises(AssertionError):
        ending.with_partitions(frozenset(), 0, 3)


def test_every_state_that_is_written_can_be_reached_and_has_kafkas_name() -> None:
    assert set(VALID_PREVIOUS_STATES) == {
        state for state in TransactionState if state < TransactionState.DEAD
    }
    assert list(STATE_BY_LABEL) == [
        "Empty",
        "Ongoing",
        "PrepareCommit",
        "PrepareAbort",
        "CompleteCommit",
        "CompleteAbort",
        "Dead",
        "PrepareEpochFence",
    ]


def test_a_clock_that_is_set_back_makes_no_transaction_longer_than_its_timeout() -> None:
    ahead = TransactionMetadata.created(1, 1_000, 0).with_partitions(frozenset({("a", 0)}), 2, 2 * 10**12)
    made = coordinator([("t", ahead)])
    assert made.next_deadline_ms() == 1_000
    (append,) = made.expire(1_000)
    assert isinstance(append, Append)
    assert append.records[0].change.metadata.state is TransactionState.PREPARE_ABORT
