"""The cluster image and topic names: changes make new images, and names stay what paths can bear."""

from __future__ import annotations

import pytest

from culver.core.image import BrokerInfo, ClusterImage, PartitionImage, TopicImage
from culver.core.names import MAX_NAME_LENGTH, colliding_topic, is_valid_topic_name, validate_topic_name
from culver.errors import ErrorCode, KafkaError


def topic(name: str, topic_id: bytes = b"i" * 16, partitions: int = 1) -> TopicImage:
    entries = tuple(PartitionImage(i, 1, 0, (1,), (1,)) for i in range(partitions))
    return TopicImage(name, topic_id, entries)


def test_a_change_leaves_the_old_image_whole() -> None:
    empty = ClusterImage("c")
    one = empty.with_topic(topic("t"))
    two = one.with_topic(topic("u", b"j" * 16)).with_broker(BrokerInfo(1, "h", 9092)).with_controller(1)
    none = two.without_topic("t").without_topic("nope").without_broker(1)
    assert (list(empty.topics), list(one.topics), list(two.topics), list(none.topics)) == (
        [],
        ["t"],
        ["t", "u"],
        ["u"],
    )
    assert (set(two.brokers), set(none.brokers), two.controller_id) == ({1}, set(), 1)
    found = two.topic_by_id(b"j" * 16)
    assert found is two.topic("u")
    assert none.topic_by_id(b"i" * 16) is None


def test_a_topic_made_anew_under_its_old_name_has_a_new_id_only() -> None:
    image = ClusterImage("c").with_topic(topic("t")).with_topic(topic("t", b"j" * 16))
    assert set(image.topics_by_id) == {b"j" * 16}


def test_partitions_are_found_by_index() -> None:
    image = ClusterImage("c").with_topic(topic("t", partitions=3))
    assert [image.partition("t", i) is not None for i in (-1, 0, 2, 3)] == [False, True, True, False]
    assert image.partition("u", 0) is None


def test_partitions_are_added_and_replaced() -> None:
    changed = topic("t", partitions=2).with_partitions(
        [PartitionImage(2, 2, 0, (2,), (2,)), PartitionImage(0, 3, 1, (3,), (3,))]
    )
    assert [partition.leader for partition in changed.partitions] == [3, 1, 2]
    assert changed.with_config({"retention.ms": "1"}).config == {"retention.ms": "1"}


def test_a_name_that_differs_by_dot_and_underscore_collides() -> None:
    image = ClusterImage("c").with_topic(topic("a.b"))
    assert image.colliding_topic("a_b") == "a.b"
    assert image.colliding_topic("a.b") is None
    assert image.colliding_topic("ab") is None
    assert image.without_topic("a.b").colliding_topic("a_b") is None
    assert colliding_topic("a_b.c", ["a_b", "a.b_c"]) == "a.b_c"
    assert colliding_topic("abc", ["abc"]) is None


@pytest.mark.parametrize("name", ["t", "A-z_0.9", "x" * MAX_NAME_LENGTH, "...", "__consumer_offsets"])
def test_valid_names(name: str) -> None:
    validate_topic_name(name)
    assert is_valid_topic_name(name)


@pytest.mark.parametrize("name", ["", ".", "..", "x" * 250, "a/b", "a b", "ü", "a\n", "a\0", "٣", "a:b"])
def test_invalid_names(name: str) -> None:
    with pytest.raises(KafkaError) as caught:
        validate_topic_name(name)
    assert caught.value.code is ErrorCode.INVALID_TOPIC_EXCEPTION
