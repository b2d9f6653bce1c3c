"""The cluster image as it grows out of the store's entries."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from culver.core import entries
from culver.core.image import PartitionImage
from culver.core.image_builder import ImageBuilder

TOPIC_ID = bytes(range(16))


@dataclass(frozen=True)
class Entry:
    value: bytes
    version: int = 0


def partition(leader: int = 1, *, replicas: tuple[int, ...] = (1, 2), epoch: int = 0) -> bytes:
    return entries.partition_value(PartitionImage(0, leader, epoch, replicas, replicas))


def topic(partitions: int, topic_id: bytes = TOPIC_ID, **config: str) -> bytes:
    return entries.encode(entries.TopicEntry(topic_id.hex(), partitions, config))


def registration(port: int) -> bytes:
    return entries.encode(entries.RegistrationEntry("host", port, "rack"))


def alive(epoch: int) -> bytes:
    return entries.encode(entries.AliveEntry(epoch))


def test_a_topic_is_seen_once_all_its_partitions_are_there() -> None:
    builder = ImageBuilder()
    builder.apply([("/topics/orders", Entry(topic(2)))])
    builder.apply([(entries.partition_path(TOPIC_ID, 0), Entry(partition()))])
    assert not builder.image.topics
    change = builder.apply([(entries.partition_path(TOPIC_ID, 1), Entry(partition(2), version=7))])
    assert change.topics == ("orders",)
    shown = builder.image.topics["orders"]
    assert [each.leader for each in shown.partitions] == [1, 2]
    assert shown.partitions[1].partition_epoch == 7
    assert builder.image.topics_by_id[TOPIC_ID] is shown


def test_partitions_may_come_before_their_topic() -> None:
    builder = ImageBuilder()
    assert builder.apply([(entries.partition_path(TOPIC_ID, 0), Entry(partition()))]).topics == ()
    assert builder.apply([("/topics/orders", Entry(topic(1, a="b"), 3))]).topics == ("orders",)
    assert builder.image.topics["orders"].config == {"a": "b"}
    assert builder.image.topics["orders"].version == 3


def test_a_change_leaves_other_partitions_the_same_objects() -> None:
    builder = ImageBuilder()
    builder.apply(
        [("/topics/t", Entry(topic(2)))]
        + [(entries.partition_path(TOPIC_ID, number), Entry(partition())) for number in range(2)]
    )
    before = builder.image.topics["t"]
    builder.apply([(entries.partition_path(TOPIC_ID, 1), Entry(partition(2), 1))])
    assert builder.image.topics["t"].partitions[0] is before.partitions[0]
    assert builder.image.topics["t"].partitions[1].leader == 2
    assert before.partitions[1].leader == 1


def test_a_topic_made_anew_under_its_old_name_has_none_of_the_old_partitions() -> None:
    builder = ImageBuilder()
    builder.apply([("/topics/t", Entry(topic(1))), (entries.partition_path(TOPIC_ID, 0), Entry(partition()))])
    other = bytes(16)
    builder.apply([("/topics/t", None)])
    assert not builder.image.topics
    assert not builder.image.topics_by_id
    builder.apply([("/topics/t", Entry(topic(1, other)))])
    assert not builder.image.topics, "its partition is another's"
    builder.apply([(entries.partition_path(other, 0), Entry(partition(2)))])
    assert builder.image.topics["t"].topic_id == other
    builder.apply([(entries.partition_path(TOPIC_ID, 0), None)])
    assert builder.image.topics["t"].partitions[0].leader == 2


def test_more_partitions_are_seen_with_the_topics_new_count() -> None:
    builder = ImageBuilder()
    builder.apply([("/topics/t", Entry(topic(1))), (entries.partition_path(TOPIC_ID, 0), Entry(partition()))])
    builder.apply([(entries.partition_path(TOPIC_ID, 1), Entry(partition()))])
    assert len(builder.image.topics["t"].partitions) == 1
    builder.apply([("/topics/t", Entry(topic(2), 1))])
    assert len(builder.image.topics["t"].partitions) == 2


def test_a_broker_is_alive_in_the_epoch_it_registered_last() -> None:
    builder = ImageBuilder()
    change = builder.apply([("/registrations/4", Entry(registration(9092), version=2))])
    assert change.brokers
    assert not builder.image.brokers
    assert builder.image.registrations[4].epoch == 2
    builder.apply([("/brokers/4", Entry(alive(2)))])
    assert builder.image.brokers[4].port == 9092
    # It starts again: the entry of its last life is still there, but counts no more.
    builder.apply([("/registrations/4", Entry(registration(9093), version=3))])
    assert not builder.image.brokers
    assert 4 in builder.alive
    builder.apply([("/brokers/4", None), ("/brokers/4", Entry(alive(3)))])
    assert builder.image.brokers[4].port == 9093


def test_brokers_are_listed_by_number() -> None:
    builder = ImageBuilder()
    for number in (3, 1, 2):
        builder.apply([(f"/registrations/{number}", Entry(registration(number)))])
        builder.apply([(f"/brokers/{number}", Entry(alive(0)))])
    assert list(builder.image.brokers) == [1, 2, 3]


def test_controller_settings_and_cluster() -> None:
    builder = ImageBuilder()
    cluster = entries.ClusterEntry("name", "secret")
    builder.apply([("/cluster", Entry(entries.encode(cluster)))])
    assert builder.image.cluster_id == "name"
    assert builder.cluster == cluster
    change = builder.apply(
        [
            ("/controller", Entry(entries.encode(entries.ControllerEntry(5)))),
            ("/controller-epoch", Entry(b"{}", 8)),
        ]
    )
    assert change.controller
    assert (builder.image.controller_id, builder.controller_epoch) == (5, 8)
    builder.apply([("/controller", None)])
    assert builder.image.controller_id == -1
    change = builder.apply(
        [("/config/broker-2", Entry(b'{"a":"b"}')), ("/config/broker-default", Entry(b"{}"))]
    )
    assert change.settings
    assert builder.broker_settings == {2: {"a": "b"}, None: {}}
    builder.apply([("/config/broker-2", None)])
    assert builder.broker_settings == {None: {}}


def test_entries_survive_a_round_trip() -> None:
    image = PartitionImage(3, 1, 4, (1, 2, 3), (1, 2), (3,), 9, (4,), (1,))
    assert entries.partition_image(3, entries.partition_value(image), 9) == image


def test_a_value_of_another_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="TopicEntry"):
        entries.decode(b"[1]", entries.TopicEntry)
