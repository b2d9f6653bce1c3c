"""A partition on its way to other brokers: begun, given another target, cancelled."""

from __future__ import annotations

import pytest

from culver.core import reassignment
from culver.core.image import PartitionImage
from culver.errors import ErrorCode, KafkaError


def partition(
    replicas: tuple[int, ...] = (1, 2, 3),
    isr: tuple[int, ...] = (1, 2, 3),
    *,
    leader: int = 1,
    elr: tuple[int, ...] = (),
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
) -> PartitionImage:
    return PartitionImage(0, leader, 5, replicas, isr, elr, 9, adding, removing)


def test_the_target_is_listed_first_and_nobody_goes_yet() -> None:
    begun = reassignment.begin(partition(), (4, 2, 1))
    assert begun == partition((4, 2, 1, 3), adding=(4,), removing=(3,))
    assert reassignment.is_under_way(begun)
    assert reassignment.target(begun) == (4, 2, 1)
    assert reassignment.original(begun) == (2, 1, 3)


def test_more_or_fewer_replicas() -> None:
    assert reassignment.begin(partition(), (1, 2, 3, 4)) == partition((1, 2, 3, 4), adding=(4,))
    assert reassignment.begin(partition(), (2,)) == partition((2, 1, 3), removing=(1, 3))


def test_another_order_takes_effect_at_once() -> None:
    begun = reassignment.begin(partition(), (3, 2, 1))
    assert begun == partition((3, 2, 1))
    assert not reassignment.is_under_way(begun)


def test_what_is_there_already_needs_nothing() -> None:
    assert reassignment.begin(partition(), (1, 2, 3)) is None
    moving = partition((4, 2, 1, 3), adding=(4,), removing=(3,))
    assert reassignment.begin(moving, (4, 2, 1)) is None
    assert reassignment.cancel(partition()) is None


@pytest.mark.parametrize("target", [(), (1, 1), (1, -2)])
def test_a_target_that_makes_no_sense_is_refused(target: tuple[int, ...]) -> None:
    with pytest.raises(KafkaError) as refused:
        reassignment.begin(partition(), target)
    assert refused.value.code is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_another_target_drops_those_that_only_the_first_one_asked_for() -> None:
    moving = partition((4, 2, 1, 3), (1, 2, 3, 4), adding=(4,), removing=(3,))
    again = reassignment.begin(moving, (5, 1, 2))
    assert again is not None
    assert again.replicas == (5, 1, 2, 3)
    assert (again.adding, again.removing, again.isr) == ((5,), (3,), (1, 2, 3))
    assert (again.leader, again.leader_epoch) == (1, 6)


def test_back_to_where_it_came_from_is_a_way_to_cancel() -> None:
    moving = partition((4, 2, 1, 3), adding=(4,), removing=(3,))
    back = reassignment.begin(moving, (1, 2, 3))
    assert back is not None
    assert not reassignment.is_under_way(back)
    assert back.replicas == (1, 2, 3)


def test_cancelling_takes_the_lead_from_those_that_go() -> None:
    moving = partition((4, 1, 2), (1, 4), leader=4, adding=(4,), removing=(2,))
    cancelled = reassignment.cancel(moving)
    assert cancelled is not None
    assert (cancelled.replicas, cancelled.isr) == ((1, 2), (1,))
    assert (cancelled.leader, cancelled.leader_epoch) == (-1, 6)


def test_cancelling_leaves_the_lead_to_those_that_stay_in_a_new_epoch() -> None:
    moving = partition((4, 1, 2), (1, 4), adding=(4,), removing=(2,))
    cancelled = reassignment.cancel(moving)
    assert cancelled is not None
    assert (cancelled.leader, cancelled.leader_epoch, cancelled.isr) == (1, 6, (1,))


def test_those_eligible_are_enough_to_cancel() -> None:
    moving = partition((4, 1, 2), (4,), leader=4, elr=(1,), adding=(4,), removing=(2,))
    cancelled = reassignment.cancel(moving)
    assert cancelled is not None
    assert (cancelled.isr, cancelled.elr, cancelled.leader) == ((1,), (), -1)


def test_a_cancellation_that_would_lose_records_is_refused() -> None:
    moving = partition((4, 1, 2), (4,), leader=4, adding=(4,), removing=(2,))
    with pytest.raises(KafkaError, match=r"only brokers \[4\]"):
        reassignment.cancel(moving)
    with pytest.raises(KafkaError):
        reassignment.begin(moving, (1, 2, 5))
