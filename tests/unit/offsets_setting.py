"""A group coordinator with a log in memory, and requests about offsets in short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from culver.core.coordinator_effects import Append, Effects, Marker, Reply, RequestContext
from culver.core.group_coordinator import GroupCoordinator
from culver.core.group_settings import GroupSettings
from culver.errors import ErrorCode
from culver.protocol.messages.delete_groups import DeleteGroupsRequest
from culver.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from culver.protocol.messages.list_groups import ListGroupsRequest
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from culver.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from culver.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from culver.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from culver.protocol.schema import encoder

RETENTION_MS = 10_000
CHECK_INTERVAL_MS = 1_000
NOTHING = (-1, ErrorCode.NONE)
UNSTABLE = (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)


class Topics:
    """One topic, `t`, with two partitions."""

    def topic_name(self, topic_id: bytes) -> str | None:
        return "t" if topic_id == b"t" * 16 else None

    def topic_id(self, name: str) -> bytes | None:
        return b"t" * 16 if name == "t" else None

    def partition_exists(self, name: str, partition: int) -> bool:
        return name == "t" and partition in (0, 1)

    def partition_count(self, name: str) -> int:
        return 2

    def names(self) -> list[str]:
        return ["t"]


class Setting:
    """A coordinator with a log that takes everything at once, or when it is told to."""

    def __init__(self) -> None:
        self.now_ms = 0
        self.at_once = True
        self.log: list[tuple[bytes, bytes | None, int] | Marker] = []
        self.in_flight: list[Append] = []
        self.answers: list[Any] = []
        self.start()

    def start(self) -> None:
        self.coordinator = GroupCoordinator(
            GroupSettings(
                offsets_topic_num_partitions=1,
                group_initial_rebalance_delay_ms=0,
                offsets_retention_ms=RETENTION_MS,
                offsets_retention_check_interval_ms=CHECK_INTERVAL_MS,
            ),
            Topics(),
            lambda stem: f"{stem}-id",
            lambda: self.now_ms,
        )
        self.coordinator.load_begin(0)
        for entry in self.log:
            if isinstance(entry, Marker):
                self.coordinator.replay_marker(0, entry.producer_id, entry.committed)
            else:
                self.coordinator.replay(0, *entry)
        self.carry_out(self.coordinator.load_done(0, self.now_ms))

    def carry_out(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                self.answers.append(effect.response)
            else:
                assert isinstance(effect, Append)
                self.in_flight.append(effect)
        while self.at_once and self.in_flight:
            self.write()

    def write(self, error: ErrorCode = ErrorCode.NONE) -> None:
        """The log is done with the append that has waited longest."""
        append = self.in_flight.pop(0)
        if append.marker is not None:
            assert not append.records
            self.log.append(append.marker)
        else:
            producer_id = -1 if append.producer is None else append.producer.producer_id
            self.log += [(record.key, record.value, producer_id) for record in append.records]
        self.carry_out(self.coordinator.append_done(append, error, self.now_ms))

    def ask(self, handle: Callable[..., Effects], request: Any, version: int) -> Any:
        """The answer, if there is one already; it must be one that can be sent."""
        before = len(self.answers)
        self.carry_out(handle(request, RequestContext("c", "/h", version), object(), self.now_ms))
        if len(self.answers) == before:
            return None
        (answer,) = self.answers[before:]
        encoder(type(answer), version)(answer)
        return answer

    # --- requests, in short ---

    def commit(
        self, offset: int, partition: int = 0, group: str = "g", version: int = 8, **fields: Any
    ) -> int | None:
        """The error; None while the answer is yet to come."""
        asked = OffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=None
        )
        topic = OffsetCommitRequestTopic(name="t", topic_id=b"t" * 16, partitions=[asked])
        request = OffsetCommitRequest(group_id=group, topics=[topic], **fields)
        answer = self.ask(self.coordinator.handle_offset_commit, request, version)
        return None if answer is None else errors(answer)[0]

    def txn_commit(self, offset: int, producer_id: int = 7, version: int = 5, **fields: Any) -> list[int]:
        """The error of each partition; none while the answer is yet to come."""
        answer = self.ask(
            self.coordinator.handle_txn_offset_commit, txn_commit(offset, producer_id, **fields), version
        )
        return [] if answer is None else errors(answer)

    def end(self, committed: bool, producer_id: int = 7) -> list[ErrorCode]:
        """How writing the marker went; nothing while that is not known."""
        told: list[ErrorCode] = []
        marker = Marker(producer_id, 3, committed, 1, 2)
        self.carry_out(self.coordinator.write_marker(0, marker, lambda error, *_: told.append(error)))
        return told

    def fetch(self, partition: int = 0, stable: bool = False, group: str = "g", version: int = 9) -> Any:
        topics = [OffsetFetchRequestTopics(name="t", topic_id=b"t" * 16, partition_indexes=[partition])]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=stable
        )
        answer = self.ask(self.coordinator.handle_offset_fetch, request, version)
        return None if answer is None else fetched(answer)

    def fetch_all(self, stable: bool) -> dict[int, tuple[int, int]]:
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id="g", topics=None)], require_stable=stable
        )
        answer = self.ask(self.coordinator.handle_offset_fetch, request, 9)
        return {
            partition.partition_index: (partition.committed_offset, partition.error_code)
            for topic in answer.groups[0].topics
            for partition in topic.partitions
        }

    def delete_offset(self, partition: int = 0) -> int:
        topic = OffsetDeleteRequestTopic(
            name="t", partitions=[OffsetDeleteRequestPartition(partition_index=partition)]
        )
        request = OffsetDeleteRequest(group_id="g", topics=[topic])
        answer = self.ask(self.coordinator.handle_offset_delete, request, 0)
        return int(answer.error_code or answer.topics[0].partitions[0].error_code)

    def groups(self) -> list[str]:
        answer = self.ask(self.coordinator.handle_list_groups, ListGroupsRequest(), 5)
        return [group.group_id for group in answer.groups]

    def delete_group(self) -> int | None:
        request = DeleteGroupsRequest(groups_names=["g"])
        answer = self.ask(self.coordinator.handle_delete_groups, request, 2)
        return None if answer is None else int(answer.results[0].error_code)

    def advance(self, delta_ms: int) -> None:
        self.now_ms += delta_ms
        self.carry_out(self.coordinator.expire(self.now_ms))

    def join(self) -> str:
        """A group of one, in the middle of its rebalance."""
        request = JoinGroupRequest(
            group_id="g",
            session_timeout_ms=1_000_000,
            rebalance_timeout_ms=1_000_000,
            member_id="",
            group_instance_id="i",
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"m")],
        )
        answer = self.ask(self.coordinator.handle_join_group, request, 9)
        assert (answer.error_code, answer.generation_id) == (0, 1)
        return str(answer.member_id)


def txn_commit(
    offset: int,
    producer_id: int = 7,
    partitions: tuple[int, ...] = (0,),
    topic: str = "t",
    metadata: str | None = None,
    **fields: Any,
) -> TxnOffsetCommitRequest:
    asked = [
        TxnOffsetCommitRequestPartition(
            partition_index=partition, committed_offset=offset, committed_metadata=metadata
        )
        for partition in partitions
    ]
    return TxnOffsetCommitRequest(
        **{
            "transactional_id": "x",
            "group_id": "g",
            "producer_id": producer_id,
            "producer_epoch": 3,
            "topics": [TxnOffsetCommitRequestTopic(name=topic, partitions=asked)],
            **fields,
        }
    )


def errors(answer: Any) -> list[int]:
    return [partition.error_code for topic in answer.topics for partition in topic.partitions]


def fetched(answer: Any) -> tuple[int, int]:
    (group,) = answer.groups
    assert group.error_code == 0
    partition = group.topics[0].partitions[0]
    return partition.committed_offset, partition.error_code
