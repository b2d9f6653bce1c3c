"""Members of a consumer group in a simulated workload: they join, share out, read, commit, and sometimes leave."""

from __future__ import annotations

import struct
from typing import Any

from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.consumer_protocol import (
    ConsumerProtocolAssignment,
    ConsumerProtocolSubscription,
    TopicPartition,
)
from culver.protocol.messages.heartbeat import HeartbeatRequest
from culver.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from culver.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from culver.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic
from culver.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from culver.protocol.schema import decoder, encoder
from culver.testing.history import Commit, CommittedRead, History, Outcome, Partition, Poll
from culver.testing.simulation.client import Client, Disconnected, NotSent
from culver.testing.simulation.consumer import BadAnswer, fetch

_JOIN_VERSION = 6
_SYNC_VERSION = 4
_HEARTBEAT_VERSION = 4
_COMMIT_VERSION = 8
_FETCH_VERSION = 7
_LEAVE_VERSION = 4
_SESSION_MS = 3_000
_REBALANCE_MS = 2_500

# The group or its coordinator is another: what was asked has certainly not been done.
_REFUSED = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.ILLEGAL_GENERATION,
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.REBALANCE_IN_PROGRESS,
        ErrorCode.FENCED_INSTANCE_ID,
    }
)
_FIND_AGAIN = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


class Rejoin(Exception):
    """This membership is over: join again."""


class GroupMember:
    """One member. It reads what it is assigned from where the group has committed, and commits what it has read."""

    # Whether to wait for transactions that may move the group's offsets.
    _stable_offsets = False

    def __init__(
        self, name: str, group: str, client: Client, history: History, partitions: list[Partition]
    ) -> None:
        self.name = name
        self.group = group
        self._client = client
        self._history = history
        self._partitions = partitions
        self._topics = sorted({topic for topic, _ in partitions})
        self._member_id = ""
        self._generation = -1
        self._assignments = 0
        self.stopping = False
        self.stopped = False

    def start(self) -> None:
        self._client.process.start(self._live())

    async def _live(self) -> None:
        while not self.stopping:
            try:
                assigned = await self._join()
                positions = await self._committed(assigned)
                await self._consume(positions)
            except (Rejoin, Disconnected, KafkaError) as error:
                if isinstance(error, Disconnected | KafkaError):
                    self._client.coordinator_is_another(self.group)
                await self._client.pause(50, 300)
        self.stopped = True

    # -- membership -------------------------------------------------------------------------------------

    async def _ask(self, request: Any, version: int) -> Any:
        connection = await self._client.coordinator(self.group)
        return await connection.ask(request, version)

    def _check(self, code: int) -> None:
        if not code:
            return
        error = ErrorCode(code)
        if error in _FIND_AGAIN:
            self._client.coordinator_is_another(self.group)
        if error is ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        raise Rejoin(error.name)

    async def _join(self) -> list[Partition]:
        """Become part of a generation; the partitions that this member gets in it."""
        subscription = ConsumerProtocolSubscription(topics=self._topics)
        metadata = b"\x00\x00" + b"".join(encoder(ConsumerProtocolSubscription, 0)(subscription))
        request = JoinGroupRequest(
            group_id=self.group,
            session_timeout_ms=_SESSION_MS,
            rebalance_timeout_ms=_REBALANCE_MS,
            member_id=self._member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        answer = await self._ask(request, _JOIN_VERSION)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = request.member_id = answer.member_id
            answer = await self._ask(request, _JOIN_VERSION)
        self._check(answer.error_code)
        self._member_id, self._generation = answer.member_id, answer.generation_id
        assignments = []
        if answer.leader == answer.member_id:
            assignments = self._share_out(sorted(member.member_id for member in answer.members))
        sync = SyncGroupRequest(
            group_id=self.group,
            generation_id=self._generation,
            member_id=self._member_id,
            assignments=assignments,
        )
        synced = await self._ask(sync, _SYNC_VERSION)
        self._check(synced.error_code)
        self._assignments += 1
        return _decode_assignment(synced.assignment)

    def _share_out(self, members: list[str]) -> list[SyncGroupRequestAssignment]:
        assignments = []
        for at, member in enumerate(members):
            mine = self._partitions[at :: len(members)]
            topics = [
                TopicPartition(topic=topic, partitions=[index for name, index in mine if name == topic])
                for topic in sorted({name for name, _ in mine})
            ]
            encoded = encoder(ConsumerProtocolAssignment, 0)(
                ConsumerProtocolAssignment(assigned_partitions=topics)
            )
            assignments.append(
                SyncGroupRequestAssignment(member_id=member, assignment=b"\x00\x00" + b"".join(encoded))
            )
        return assignments

    async def _heartbeat(self) -> None:
        request = HeartbeatRequest(
            group_id=self.group, generation_id=self._generation, member_id=self._member_id
        )
        self._check((await self._ask(request, _HEARTBEAT_VERSION)).error_code)

    async def _leave(self) -> None:
        identity = MemberIdentity(member_id=self._member_id)
        await self._ask(LeaveGroupRequest(group_id=self.group, members=[identity]), _LEAVE_VERSION)
        self._member_id = ""

    # -- offsets ----------------------------------------------------------------------------------------

    async def _committed(self, assigned: list[Partition]) -> dict[Partition, int]:
        """Where the group stands in these partitions."""
        if not assigned:
            return {}
        topics = [
            OffsetFetchRequestTopic(
                name=topic, partition_indexes=[index for name, index in assigned if name == topic]
            )
            for topic in sorted({name for name, _ in assigned})
        ]
        request = OffsetFetchRequest(group_id=self.group, topics=topics, require_stable=self._stable_offsets)
        while True:
            invoked_ms = self._client.now_ms
            answer = await self._ask(request, _FETCH_VERSION)
            self._check(answer.error_code)
            if not any(
                partition.error_code == ErrorCode.UNSTABLE_OFFSET_COMMIT
                for topic in answer.topics
                for partition in topic.partitions
            ):
                break
            await self._client.pause(20, 200)
            await self._heartbeat()
        positions = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                self._check(partition.error_code)
                key = (topic.name, partition.partition_index)
                self._history.committed_reads.append(
                    CommittedRead(
                        self.group, key, partition.committed_offset, invoked_ms, self._client.now_ms
                    )
                )
                positions[key] = max(partition.committed_offset, 0)
        return positions

    async def _commit(self, positions: dict[Partition, int]) -> None:
        now_ms = self._client.now_ms
        commits = [
            Commit(self.group, self.name, partition, offset, invoked_ms=now_ms)
            for partition, offset in positions.items()
        ]
        self._history.commits += commits
        topics = [
            OffsetCommitRequestTopic(
                name=topic,
                partitions=[
                    OffsetCommitRequestPartition(
                        partition_index=index, committed_offset=offset, committed_metadata=None
                    )
                    for (name, index), offset in positions.items()
                    if name == topic
                ],
            )
            for topic in sorted({name for name, _ in positions})
        ]
        request = OffsetCommitRequest(
            group_id=self.group,
            generation_id_or_member_epoch=self._generation,
            member_id=self._member_id,
            topics=topics,
        )
        try:
            answer = await self._ask(request, _COMMIT_VERSION)
        except (NotSent, KafkaError):
            for commit in commits:
                commit.outcome = Outcome.FAILED
            raise
        by_partition = {commit.partition: commit for commit in commits}
        worst = 0
        for topic in answer.topics:
            for partition in topic.partitions:
                commit = by_partition[topic.name, partition.partition_index]
                if not partition.error_code:
                    commit.outcome = Outcome.OK
                    commit.completed_ms = self._client.now_ms
                elif ErrorCode(partition.error_code) in _REFUSED - {ErrorCode.NOT_COORDINATOR}:
                    commit.outcome = Outcome.FAILED
                worst = partition.error_code or worst
        self._check(worst)

    # -- consuming --------------------------------------------------------------------------------------

    async def _consume(self, positions: dict[Partition, int]) -> None:
        client = self._client
        committed = dict(positions)
        leaves_at_ms = client.now_ms + client.random.randrange(3_000, 60_000)
        while not self.stopping:
            for partition in positions:
                await self._poll(partition, positions)
            changed = {
                partition: offset for partition, offset in positions.items() if offset != committed[partition]
            }
            if changed and client.random.random() < 0.7:
                await self._commit(changed)
                committed.update(changed)
            await self._heartbeat()
            if client.now_ms > leaves_at_ms:
                await self._leave()
                await client.pause(100, 2_000)
                raise Rejoin("left")
            await client.pause(100, 600)

    async def _poll(
        self, partition: Partition, positions: dict[Partition, int], *, committed_only: bool = False
    ) -> list[bytes]:
        """Read on in one partition, and move its position; the values that were read."""
        client = self._client
        position = positions[partition]
        try:
            answer = await fetch(client, partition, position, max_wait_ms=100, committed_only=committed_only)
        except Disconnected:
            await client.leader_is_another(partition)
            return []
        except BadAnswer as bad:
            self._history.complaints.append(f"{self.name} at {position} of {partition}: {bad}")
            return []
        if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE:
            self._history.complaints.append(
                f"{self.name} asked {partition} for {position} and heard that it is out of range"
            )
        elif answer.error is not ErrorCode.NONE:
            await client.leader_is_another(partition)
        elif answer.next_position > position:
            poll = Poll(
                self.name,
                partition,
                position,
                answer.records,
                client.now_ms,
                self.group,
                self._assignments,
                committed_only=committed_only,
                up_to=answer.next_position,
            )
            self._history.polls.append(poll)
            positions[partition] = poll.next_position
            return [value for _, value in answer.records]
        return []


def _decode_assignment(data: bytes) -> list[Partition]:
    if not data:
        return []
    (version,) = struct.unpack_from(">h", data)
    assignment, _ = decoder(ConsumerProtocolAssignment, version)(data, 2)
    return [(topic.topic, index) for topic in assignment.assigned_partitions for index in topic.partitions]
