"""Groups and their offsets through the admin clients: list, describe, move, forget, delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import (
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient
from deadlines import eventually
from group_members import ConfluentMember, closing_members, poll_until
from kafka.errors import GroupSubscribedToTopicError
from real_clients import CLIENTS, Sent

import kafka


@pytest.fixture
def kafka_python_admin(bootstrap: str) -> Iterator[kafka.KafkaAdminClient]:
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    yield client
    client.close()


def offsets(admin: AdminClient, group: str) -> dict[tuple[str, int], int]:
    answer = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)])[group].result()
    return {(each.topic, each.partition): each.offset for each in answer.topic_partitions}


def set_offsets(admin: AdminClient, group: str, *positions: TopicPartition) -> Any:
    wanted = ConsumerGroupTopicPartitions(group, list(positions))
    return admin.alter_consumer_group_offsets([wanted])[group].result()


def refusal_of(future: Any) -> str:
    with pytest.raises(KafkaException) as refusal:
        future.result()
    name: str = refusal.value.args[0].name()
    return name


def test_offsets_are_set_for_a_group_that_has_not_been(
    bootstrap: str, new_topic: Callable[..., str], group: str, admin: AdminClient
) -> None:
    topic = new_topic(2)
    CLIENTS["confluent-kafka"].produce(bootstrap, topic, [Sent(value=b"%d" % n) for n in range(10)])
    set_offsets(admin, group, TopicPartition(topic, 0, 6), TopicPartition(topic, 1, 0))
    assert offsets(admin, group) == {(topic, 0): 6, (topic, 1): 0}
    description = admin.describe_consumer_groups([group])[group].result()
    assert description.state == ConsumerGroupState.EMPTY
    with closing_members() as members:
        members.append(ConfluentMember(bootstrap, group, [topic]))
        poll_until("read from there", members, lambda: len(members[0].values) >= 4)
        assert members[0].values == [b"6", b"7", b"8", b"9"]


def test_offsets_of_a_group_at_work_are_not_touched(
    bootstrap: str, topic: str, group: str, admin: AdminClient, kafka_python_admin: kafka.KafkaAdminClient
) -> None:
    with closing_members() as members:
        members.append(ConfluentMember(bootstrap, group, [topic]))
        poll_until("owns", members, lambda: members[0].partitions() == {0})
        answer = set_offsets(admin, group, TopicPartition(topic, 0, 6))
        assert answer.topic_partitions[0].error.name() == "UNKNOWN_MEMBER_ID"
        assert refusal_of(admin.delete_consumer_groups([group])[group]) == "NON_EMPTY_GROUP"
        answers = kafka_python_admin.delete_group_offsets(group, [kafka.TopicPartition(topic, 0)])
        assert list(answers.values()) == [GroupSubscribedToTopicError]


def test_offsets_are_forgotten_one_by_one(
    new_topic: Callable[..., str],
    group: str,
    admin: AdminClient,
    kafka_python_admin: kafka.KafkaAdminClient,
) -> None:
    topic = new_topic(3)
    set_offsets(admin, group, *(TopicPartition(topic, p, 10 + p) for p in range(3)))
    kafka_python_admin.delete_group_offsets(group, [kafka.TopicPartition(topic, 1)])
    assert offsets(admin, group) == {(topic, 0): 10, (topic, 2): 12}


def test_offsets_of_a_deleted_topic_are_forgotten(
    new_topic: Callable[..., str], group: str, admin: AdminClient
) -> None:
    gone, stays = new_topic(), new_topic()
    set_offsets(admin, group, TopicPartition(gone, 0, 1), TopicPartition(stays, 0, 2))
    admin.delete_topics([gone])[gone].result()
    found: list[Any] = []

    def forgotten() -> bool:
        found[:] = [offsets(admin, group)]
        return found == [{(stays, 0): 2}]

    eventually("forgotten", forgotten, show=found)


def test_kafka_python_sets_offsets_back(
    bootstrap: str, topic: str, group: str, admin: AdminClient, kafka_python_admin: kafka.KafkaAdminClient
) -> None:
    place = kafka.TopicPartition(topic, 0)
    kafka_python_admin.alter_group_offsets(group, {place: kafka.OffsetAndMetadata(3, "set back", -1)})
    assert offsets(admin, group) == {(topic, 0): 3}
    found = kafka_python_admin.list_group_offsets(group)
    assert "set back" in str(found)


def test_groups_are_listed_by_state(bootstrap: str, topic: str, group: str, admin: AdminClient) -> None:
    empty, stable = f"{group}-empty", f"{group}-stable"
    set_offsets(admin, empty, TopicPartition(topic, 0, 1))

    def listed(*states: ConsumerGroupState) -> dict[str, ConsumerGroupState]:
        answer = admin.list_consumer_groups(states=set(states)).result()
        return {each.group_id: each.state for each in answer.valid if each.group_id in (empty, stable)}

    with closing_members() as members:
        members.append(ConfluentMember(bootstrap, stable, [topic]))
        poll_until("owns", members, lambda: members[0].partitions() == {0})
        assert listed() == {empty: ConsumerGroupState.EMPTY, stable: ConsumerGroupState.STABLE}
        assert listed(ConsumerGroupState.STABLE) == {stable: ConsumerGroupState.STABLE}
        assert listed(ConsumerGroupState.EMPTY) == {empty: ConsumerGroupState.EMPTY}
    assert listed(ConsumerGroupState.STABLE) == {}


def test_a_deleted_group_is_forgotten(topic: str, group: str, admin: AdminClient) -> None:
    set_offsets(admin, group, TopicPartition(topic, 0, 1))
    admin.delete_consumer_groups([group])[group].result()
    assert refusal_of(admin.delete_consumer_groups([group])[group]) == "GROUP_ID_NOT_FOUND"
    assert offsets(admin, group) == {}


def test_kafka_python_describes_members(
    bootstrap: str, topic: str, group: str, kafka_python_admin: kafka.KafkaAdminClient
) -> None:
    with closing_members() as members:
        members.append(ConfluentMember(bootstrap, group, [topic], client_id="watched"))
        poll_until("owns", members, lambda: members[0].partitions() == {0})
        described = kafka_python_admin.describe_groups([group])[group]
        assert described["group_state"] == "Stable"
        assert described["protocol_type"] == "consumer"
        [member] = described["members"]
        assert member["client_id"] == "watched"
        assert member["member_id"].startswith("watched-")
