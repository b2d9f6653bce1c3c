"""Topic, group, member, client and transactional ids that try to become paths, or worse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from culver.errors import ErrorCode
from culver.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from culver.protocol.messages.delete_groups import DeleteGroupsRequest
from culver.protocol.messages.delete_topics import DeleteTopicsRequest
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest
from culver.protocol.messages.init_producer_id import InitProducerIdRequest
from culver.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from culver.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from hostile.victim import PREY, Victim, fetch_request, produce_request, record_batch
from raw_connection import RawConnection

NAMES = [
    "../escaped",
    "../../../../tmp/escaped",
    "/tmp/escaped",
    "a/../../escaped",
    "..",
    ".",
    "",
    "a\0b",
    "a\nb",
    "~root",
    "$HOME",
    "`id`",
    "a;rm -rf x",
    "%2e%2e%2fescaped",
    "..\\escaped",
    "ab\u202ecd",
    "ａｂｃ",
    "x" * 250,
    "x" * 30_000,
    "-0/../../x",
]
ALLOWED_IN_DATA_DIR = re.compile(r"[a-zA-Z0-9._-]+")


def files_of(victim: Victim) -> set[str]:
    """What there is, but for the broker's notes of how far it is, which it makes when it sees fit."""
    data_dir = victim.broker.data_dir
    notes = (".progress", ".new")
    return {str(path.relative_to(data_dir)) for path in data_dir.rglob("*") if path.suffix not in notes}


def surroundings_of(victim: Victim) -> set[str]:
    """What lies beside the data directory, and where an escape could end."""
    beside = {path.name for path in victim.broker.data_dir.parent.iterdir()}
    return beside | {str(path) for path in (Path("/tmp/escaped"), Path("/escaped")) if path.exists()}


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:20]))
def test_a_topic_cannot_be_made_or_used_under_a_name_that_is_none(victim: Victim, name: str) -> None:
    files, surroundings = files_of(victim), surroundings_of(victim)
    with RawConnection(victim.address) as connection:
        topic = CreatableTopic(name=name, num_partitions=1, replication_factor=1)
        created = connection.call(CreateTopicsRequest(topics=[topic]), 7)
        assert created.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        asked = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 9)
        assert asked.topics[0].error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
        produced = connection.call(produce_request(name, record_batch()), 9)
        assert produced.responses[0].partition_responses[0].error_code != ErrorCode.NONE
        fetched = connection.call(fetch_request(name, 0), 11)
        assert fetched.responses[0].partitions[0].error_code != ErrorCode.NONE
        deleted = connection.call(DeleteTopicsRequest(topic_names=[name], timeout_ms=1000), 5)
        assert deleted.responses[0].error_code != ErrorCode.NONE
    assert files_of(victim) == files
    assert surroundings_of(victim) == surroundings


@pytest.mark.parametrize("name", NAMES, ids=lambda name: repr(name[:20]))
def test_group_and_client_ids_never_reach_the_disk_as_names(victim: Victim, name: str) -> None:
    surroundings = surroundings_of(victim)
    commit = OffsetCommitRequest(
        group_id=name,
        member_id="",
        topics=[
            OffsetCommitRequestTopic(
                name=PREY,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=0, committed_offset=1, committed_metadata=name[:4000]
                    )
                ],
            )
        ],
    )
    with RawConnection(victim.address) as connection:
        connection.call(FindCoordinatorRequest(key=name, key_type=0), 3, client_id=name)
        connection.call(FindCoordinatorRequest(key=name, key_type=1), 3, client_id=name)
        connection.call(commit, 8, client_id=name)
        join = JoinGroupRequest(
            group_id=name,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id="",
            group_instance_id=name,
            protocol_type=name,
            protocols=[JoinGroupRequestProtocol(name=name, metadata=b"")],
        )
        other = RawConnection(victim.address)
        other.begin(
            join, 5, client_id=name
        )  # its answer may take the time of a rebalance: it is not waited for
        wanted = OffsetFetchRequest(
            group_id=name, topics=[OffsetFetchRequestTopic(name=PREY, partition_indexes=[0])]
        )
        read = connection.call(wanted, 7, client_id=name)
        if name:
            assert read.topics[0].partitions[0].committed_offset == 1
        connection.call(InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=1000), 4)
        other.close()
        connection.call(DeleteGroupsRequest(groups_names=[name]), 2)
    assert surroundings_of(victim) == surroundings
    for path in files_of(victim):
        assert all(ALLOWED_IN_DATA_DIR.fullmatch(part) for part in path.split("/")), path
