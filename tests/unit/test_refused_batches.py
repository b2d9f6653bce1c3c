"""What an idempotent producer sends behind a batch that was refused does not take its place."""

from __future__ import annotations

import pytest

from culver.broker.refused_batches import RefusedBatches
from culver.errors import ErrorCode
from culver.protocol.messages.produce import TopicProduceData
from culver.protocol.records import Record, encode_batch

TOPIC = TopicProduceData(name="t", partition_data=[])
NOT_LEADER = ErrorCode.NOT_LEADER_OR_FOLLOWER


def batch(sequence: int, producer: int = 7, epoch: int = 0) -> memoryview:
    data = encode_batch(
        [Record(0, 0, None, b"x")], producer_id=producer, producer_epoch=epoch, base_sequence=sequence
    )
    return memoryview(bytes(data))


def test_batches_behind_a_refused_one_are_refused_until_it_comes_again() -> None:
    refused = RefusedBatches()
    refused.note(TOPIC, 0, batch(5), NOT_LEADER, 0)
    assert refused.follows_one(TOPIC, 0, batch(6), 1)
    assert refused.follows_one(TOPIC, 0, batch(7), 2)
    assert not refused.follows_one(TOPIC, 0, batch(5), 3)
    assert not refused.follows_one(TOPIC, 0, batch(6), 4)


def test_the_first_of_several_refused_counts() -> None:
    refused = RefusedBatches()
    for sequence in (5, 6, 7):
        refused.note(TOPIC, 0, batch(sequence), NOT_LEADER, sequence)
    assert refused.follows_one(TOPIC, 0, batch(6), 10)
    assert not refused.follows_one(TOPIC, 0, batch(5), 11)


def test_other_producers_epochs_and_partitions_are_not_concerned() -> None:
    refused = RefusedBatches()
    refused.note(TOPIC, 0, batch(5), NOT_LEADER, 0)
    assert not refused.follows_one(TOPIC, 0, batch(6, producer=8), 1)
    assert not refused.follows_one(TOPIC, 0, batch(6, epoch=1), 1)
    assert not refused.follows_one(TOPIC, 1, batch(6), 1)
    assert not refused.follows_one(TopicProduceData(name="u", partition_data=[]), 0, batch(6), 1)
    assert refused.follows_one(TOPIC, 0, batch(6), 1)


def test_a_producer_that_went_elsewhere_with_it_is_welcome_back() -> None:
    refused = RefusedBatches()
    refused.note(TOPIC, 0, batch(5), NOT_LEADER, 0)
    assert not refused.follows_one(TOPIC, 0, batch(60), 5_000)
    refused.note(TOPIC, 0, batch(70), NOT_LEADER, 6_000)
    assert not refused.follows_one(TOPIC, 0, batch(70), 6_001)


@pytest.mark.parametrize("code", [ErrorCode.NONE, ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.CORRUPT_MESSAGE])
def test_refusals_for_good_are_not_waited_for(code: ErrorCode) -> None:
    refused = RefusedBatches()
    refused.note(TOPIC, 0, batch(5), code, 0)
    assert not refused.follows_one(TOPIC, 0, batch(6), 1)


@pytest.mark.parametrize("records", [None, memoryview(b""), memoryview(bytes(200)), batch(-1, producer=-1)])
def test_batches_without_a_producer_have_no_order(records: memoryview | None) -> None:
    refused = RefusedBatches()
    refused.note(TOPIC, 0, records, NOT_LEADER, 0)
    assert not refused.follows_one(TOPIC, 0, records, 1)
