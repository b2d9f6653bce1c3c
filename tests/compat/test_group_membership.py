"""Who is in a group and for how long: static members, sessions that run out, generations that have passed."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from group_members import ConfluentMember, closing_members, poll_until, shared_out
from kafka.admin import MemberToRemove
from real_clients import CLIENTS, Sent

import kafka
from culver.testing import Broker

MEMBER_PROGRAM = Path(__file__).with_name("group_member_process.py")
SHORT_SESSION_MS = 1500


@contextmanager
def member_process(bootstrap: str, group: str, topic: str) -> Iterator[subprocess.Popen[bytes]]:
    """A member with a short session, once it owns something; killed in the end if need be."""
    command = [sys.executable, str(MEMBER_PROGRAM), bootstrap, group, topic, str(SHORT_SESSION_MS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            readable, _, _ = select.select([process.stdout], [], [], 20)
            assert readable, "the member process did not get an assignment"
            process.stdout.readline()
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_member_that_falls_silent_loses_its_partitions_when_its_session_ends(
    how: signal.Signals, bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(2)
    with member_process(bootstrap, group, topic) as process, closing_members() as members:
        member = ConfluentMember(bootstrap, group, [topic])
        members.append(member)
        poll_until("shared with the process", members, lambda: len(member.partitions()) == 1)
        silent_since = time.monotonic()
        os.kill(process.pid, how)
        poll_until("all taken over", members, lambda: len(member.partitions()) == 2)
        silence_s = time.monotonic() - silent_since
        # It may have been one heartbeat before the end of its session.
        assert silence_s > SHORT_SESSION_MS / 1000 - 0.3, "not before its session was over"


def test_a_stopped_member_that_wakes_joins_again(
    bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(2)
    with member_process(bootstrap, group, topic) as process, closing_members() as members:
        member = ConfluentMember(bootstrap, group, [topic])
        members.append(member)
        poll_until("shared with the process", members, lambda: len(member.partitions()) == 1)
        os.kill(process.pid, signal.SIGSTOP)
        poll_until("all taken over", members, lambda: len(member.partitions()) == 2)
        os.kill(process.pid, signal.SIGCONT)
        poll_until("shared again", members, lambda: len(member.partitions()) == 1)


def test_a_session_shorter_than_the_broker_allows_is_refused(bootstrap: str, topic: str, group: str) -> None:
    with closing_members() as members:
        members.append(
            ConfluentMember(bootstrap, group, [topic], session_timeout_ms=500, heartbeat_interval_ms=100)
        )
        with pytest.raises(confluent_kafka.KafkaException) as refusal:
            poll_until("refused", members, lambda: False)
        assert refusal.value.args[0].name() == "INVALID_SESSION_TIMEOUT"


def test_a_static_member_restarts_without_a_rebalance(
    bootstrap: str, new_topic: Callable[..., str], group: str, admin: AdminClient
) -> None:
    topic = new_topic(4)
    with closing_members() as members:
        one = ConfluentMember(bootstrap, group, [topic], group_instance_id="one")
        two = ConfluentMember(bootstrap, group, [topic], group_instance_id="two")
        members += [one, two]
        poll_until("two share", members, lambda: shared_out([one, two], 4))
        before, revocations = two.partitions(), one.revocations
        owned_by_one = one.partitions()

        two.close()
        description = admin.describe_consumer_groups([group])[group].result()
        assert {member.group_instance_id for member in description.members} == {"one", "two"}, "kept its seat"
        again = ConfluentMember(bootstrap, group, [topic], group_instance_id="two")
        members.append(again)
        poll_until("back in its seat", [one, again], lambda: again.partitions() == before)
        CLIENTS["confluent-kafka"].produce(
            bootstrap, topic, [Sent(value=b"%d" % n, partition=n) for n in range(4)]
        )
        poll_until("both read", [one, again], lambda: len(one.values) + len(again.values) == 4)
        assert one.partitions() == owned_by_one
        assert one.revocations == revocations, "the other was never disturbed"


def test_a_second_static_member_of_the_same_name_fences_the_first(
    bootstrap: str, topic: str, group: str
) -> None:
    with closing_members() as members:
        first = ConfluentMember(bootstrap, group, [topic], group_instance_id="only")
        members.append(first)
        poll_until("the first owns", members, lambda: len(first.partitions()) == 1)
        second = ConfluentMember(bootstrap, group, [topic], group_instance_id="only")
        members.append(second)
        poll_until("the second owns", [second], lambda: len(second.partitions()) == 1)
        with pytest.raises(confluent_kafka.KafkaException) as refusal:
            poll_until("fenced", [first], lambda: False)
        assert refusal.value.args[0].code() in (
            confluent_kafka.KafkaError.FENCED_INSTANCE_ID,
            confluent_kafka.KafkaError._FATAL,
        )


def test_a_removed_static_member_gives_up_its_seat(
    bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:

    topic = new_topic(2)
    with closing_members() as members:
        stays = ConfluentMember(bootstrap, group, [topic], group_instance_id="stays")
        goes = ConfluentMember(bootstrap, group, [topic], group_instance_id="goes")
        members += [stays, goes]
        poll_until("two share", members, lambda: shared_out([stays, goes], 2))
        goes.close()
        client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
        try:
            client.remove_group_members(group, [MemberToRemove(group_instance_id="goes")])
        finally:
            client.close()
        poll_until("all taken over", [stays], lambda: len(stays.partitions()) == 2)


def test_a_commit_from_outside_is_refused_while_the_group_has_members(
    bootstrap: str, topic: str, group: str
) -> None:
    """A consumer that was thought dead, and was only slow, cannot turn the group's offsets back."""
    with closing_members() as members:
        members.append(ConfluentMember(bootstrap, group, [topic]))
        poll_until("owns", members, lambda: members[0].partitions() == {0})
        outsider = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
        try:
            with pytest.raises(confluent_kafka.KafkaException) as refusal:
                outsider.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 7)], asynchronous=False)
            assert refusal.value.args[0].name() == "UNKNOWN_MEMBER_ID"
        finally:
            outsider.close()


def test_members_survive_a_clean_restart_of_the_broker(own_broker: Broker) -> None:
    own_broker.create_topic("t", 2)
    with closing_members() as members:
        members += [ConfluentMember(own_broker.bootstrap_servers, "g", ["t"]) for _ in range(2)]
        poll_until("two share", members, lambda: shared_out(members, 2))
        own_broker.restart()
        CLIENTS["confluent-kafka"].produce(
            own_broker.bootstrap_servers, "t", [Sent(value=b"%d" % n, partition=n) for n in range(2)]
        )
        poll_until("both read on", members, lambda: all(len(m.values) == 1 for m in members))
