"""Consumer groups: sharing partitions with every assignor, rebalances, idle members, mixed clients."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions
from group_members import MEMBERS, ConfluentMember, Member, closing_members, poll_until, shared_out
from real_clients import CLIENTS, Sent

PRODUCER = CLIENTS["confluent-kafka"]
EVERY_ASSIGNOR = [(client.name, strategy) for client in CLIENTS.values() for strategy in client.assignors]


def numbered(count: int, partitions: int, start: int = 0) -> list[Sent]:
    return [Sent(value=b"%d" % n, partition=n % partitions) for n in range(start, start + count)]


def all_values(members: Sequence[Member]) -> list[bytes]:
    return [value for member in members for value in member.values]


@pytest.mark.parametrize(("client", "strategy"), EVERY_ASSIGNOR)
def test_two_members_share_and_one_takes_over_when_the_other_leaves(
    client: str, strategy: str, bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(4)
    with closing_members() as members:
        members.append(MEMBERS[client](bootstrap, group, [topic], strategy))
        poll_until("the first owns all", members, lambda: shared_out(members, 4))
        members.append(MEMBERS[client](bootstrap, group, [topic], strategy))
        poll_until("two share", members, lambda: shared_out(members, 4))

        PRODUCER.produce(bootstrap, topic, numbered(80, 4))
        poll_until("all read", members, lambda: len(all_values(members)) >= 80)
        assert sorted(map(int, all_values(members))) == list(range(80)), "one member each, once"
        assert all(member.values for member in members)

        first, second = members
        second.close()
        poll_until("the first took over", [first], lambda: shared_out([first], 4))
        PRODUCER.produce(bootstrap, topic, numbered(40, 4, start=80))
        poll_until("the rest read", [first], lambda: len(all_values(members)) >= 120)
        assert sorted(map(int, all_values(members))) == list(range(120)), "taken over where the other stopped"


def test_clients_of_three_kinds_are_one_group(
    bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(3)
    with closing_members() as members:
        members += [MEMBERS[client](bootstrap, group, [topic], "range") for client in MEMBERS]
        poll_until("each owns one partition", members, lambda: shared_out(members, 3))
        PRODUCER.produce(bootstrap, topic, numbered(30, 3))
        poll_until("all read", members, lambda: len(all_values(members)) >= 30)
        assert sorted(map(int, all_values(members))) == list(range(30))
        assert [len(member.values) for member in members] == [10, 10, 10]


def test_members_without_a_common_assignor_are_refused(bootstrap: str, topic: str, group: str) -> None:
    with closing_members() as members:
        members.append(ConfluentMember(bootstrap, group, [topic], "range"))
        poll_until("the first owns all", members, lambda: shared_out(members, 1))
        other = ConfluentMember(bootstrap, group, [topic], "cooperative-sticky")
        members.append(other)
        with pytest.raises(KafkaException) as refusal:
            poll_until("refused", [other], lambda: False)
        assert refusal.value.args[0].name() == "INCONSISTENT_GROUP_PROTOCOL"


def test_more_members_than_partitions_the_rest_idle_and_take_over(
    bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(2)
    with closing_members() as members:
        members += [ConfluentMember(bootstrap, group, [topic]) for _ in range(4)]
        poll_until("two own, two idle", members, lambda: sum(len(m.partitions()) for m in members) == 2)
        poll_until("settled", members, lambda: shared_out(members, 2))
        owners = [member for member in members if member.partitions()]
        idle = [member for member in members if not member.partitions()]
        assert len(owners) == len(idle) == 2
        for owner in owners:
            owner.close()
        poll_until("the idle took over", idle, lambda: shared_out(idle, 2))
        PRODUCER.produce(bootstrap, topic, numbered(20, 2))
        poll_until("all read", idle, lambda: len(all_values(idle)) >= 20)
        assert sorted(map(int, all_values(idle))) == list(range(20))


def test_a_cooperative_rebalance_takes_only_what_moves(
    bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(6)
    with closing_members() as members:
        first = ConfluentMember(bootstrap, group, [topic], "cooperative-sticky")
        members.append(first)
        poll_until("the first owns all", members, lambda: shared_out(members, 6))
        members.append(ConfluentMember(bootstrap, group, [topic], "cooperative-sticky"))
        kept: set[int] = set(range(6))

        def settled() -> bool:
            kept.intersection_update(first.partitions())
            return shared_out(members, 6)

        poll_until("two share", members, settled)
        assert kept == first.partitions(), "what it has in the end it never gave up in between"


def test_the_group_is_seen_as_it_is(
    bootstrap: str, new_topic: Callable[..., str], group: str, admin: AdminClient
) -> None:
    topic = new_topic(2)
    with closing_members() as members:
        members += [ConfluentMember(bootstrap, group, [topic], client_id=f"member-{n}") for n in range(2)]
        poll_until("two share", members, lambda: shared_out(members, 2))
        description = admin.describe_consumer_groups([group])[group].result()
        assert description.state.name == "STABLE"
        assert description.partition_assignor == "range"
        assert not description.is_simple_consumer_group
        assert {member.client_id for member in description.members} == {"member-0", "member-1"}
        assert all(member.host.lstrip("/") == "127.0.0.1" for member in description.members)
        owned = {
            (assigned.topic, assigned.partition)
            for member in description.members
            for assigned in member.assignment.topic_partitions
        }
        assert owned == {(topic, 0), (topic, 1)}
    description = admin.describe_consumer_groups([group])[group].result()
    assert description.state.name == "EMPTY"
    assert description.members == []
    listed = admin.list_consumer_groups().result()
    assert group in [each.group_id for each in listed.valid]
    admin.delete_consumer_groups([group])[group].result()
    listed = admin.list_consumer_groups().result()
    assert group not in [each.group_id for each in listed.valid]


def test_new_partitions_reach_the_group(bootstrap: str, topic: str, group: str, admin: AdminClient) -> None:
    with closing_members() as members:
        members.append(ConfluentMember(bootstrap, group, [topic]))
        poll_until("one owned", members, lambda: shared_out(members, 1))
        admin.create_partitions([NewPartitions(topic, 3)])[topic].result()
        poll_until("three owned", members, lambda: shared_out(members, 3))


def test_a_pattern_takes_in_topics_created_later(
    bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    first = new_topic()
    prefix = first.rpartition("-")[0]
    with closing_members() as members:
        members.append(ConfluentMember(bootstrap, group, [f"^{prefix}-.*"]))
        PRODUCER.produce(bootstrap, first, [Sent(value=b"from the first")])
        poll_until("the first topic", members, lambda: members[0].values == [b"from the first"])
        later = new_topic()
        assert later != first
        PRODUCER.produce(bootstrap, later, [Sent(value=b"from the later")])
        poll_until("the later topic", members, lambda: b"from the later" in members[0].values)
        assert members[0].values == [b"from the first", b"from the later"]
