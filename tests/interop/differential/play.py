"""Plays a script of requests to one broker and writes down its answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

from culver.protocol.messages.api_versions import ApiVersionsRequest
from culver.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest
from culver.protocol.messages.heartbeat import HeartbeatRequest
from culver.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from culver.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from culver.protocol.schema import Message
from differential.normalise import Normaliser
from raw_connection import CLIENT_ID, Closed, NoAnswer, RawConnection, framed

Transcript: TypeAlias = dict[str, Any]
Script: TypeAlias = Callable[["Play"], None]

SCRIPTS: dict[str, Script] = {}
SETTLE_SECONDS = 20.0
POLL_SECONDS = 0.01

# COORDINATOR_LOAD_IN_PROGRESS, COORDINATOR_NOT_AVAILABLE, NOT_COORDINATOR
COORDINATOR_NOT_THERE = (14, 15, 16)
UNKNOWN_MEMBER_ID = 25

CLOSED = "connection closed"
NO_ANSWER = "no answer"
ANSWERED = "answered"


def script(play: Script) -> Script:
    """Registers a function that plays requests, under its own name."""
    name = play.__name__.replace("_", " ")
    assert name not in SCRIPTS
    SCRIPTS[name] = play
    return play


class Play:
    """One run of one script against one broker. `step` sends a request and keeps the answer."""

    def __init__(self, host: str, port: int, node_id: int) -> None:
        self.address = (host, port)
        self.node_id = node_id
        self.normal = Normaliser(host, port, node_id)
        self.transcript: Transcript = {}
        self._connection: RawConnection | None = None
        self._others: list[RawConnection] = []

    # --- recorded steps ---

    def step(
        self,
        label: str,
        request: Message,
        version: int,
        *,
        on: RawConnection | None = None,
        client_id: str | None = CLIENT_ID,
        ordered: bool = False,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Send a request on the play's connection and record its answer, which is returned too (or None)."""
        connection = on or self._open()
        begun = connection.begin(request, version, client_id)
        return self.finish(label, begun, on=connection, ordered=ordered, timeout_seconds=timeout_seconds)

    def finish(
        self,
        label: str,
        begun: Any,
        *,
        on: RawConnection,
        ordered: bool = False,
        timeout_seconds: float | None = None,
    ) -> Any:
        """Record the answer to a request that was begun earlier."""
        try:
            response = on.finish(begun, timeout_seconds)
        except Closed:
            self._record(label, CLOSED)
            self._drop(on)
            return None
        except NoAnswer:
            self._record(label, NO_ANSWER)
            self._drop(on)
            return None
        self._record(label, self.normal.message(response, ordered=ordered))
        return response

    def silent(self, label: str, request: Message, version: int) -> None:
        """A request that gets no answer: what is recorded is whether the connection lives on."""
        connection = self._open()
        connection.begin(request, version)
        self._record(label, self._ping(connection))

    def raw(
        self, label: str, payload: bytes, *, prefix: bytes | None = None, with_bytes: bool = False
    ) -> None:
        """Bytes in place of a request. Recorded is whether they were answered or the connection closed."""
        connection = self._open()
        connection.send(framed(payload) if prefix is None else prefix + payload)
        try:
            frame = connection.receive_frame(3.0)
            answer = frame.hex() if with_bytes else ANSWERED
        except Closed:
            answer = CLOSED
        except NoAnswer:
            answer = NO_ANSWER
        self._record(label, answer)
        self._drop(connection)

    def note(self, label: str, value: Any) -> None:
        """Record something that a script worked out by itself."""
        self._record(label, value)

    # --- what is needed in between ---

    def quiet(self, request: Message, version: int) -> Any:
        """A request whose answer is not recorded."""
        return self._open().call(request, version)

    def connect(self) -> RawConnection:
        """A further connection, closed at the end of the script."""
        connection = RawConnection(self.address)
        self._others.append(connection)
        return connection

    def until(self, condition: Callable[[], Any]) -> Any:
        """Wait for what a broker does a moment after it has answered."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            found = condition()
            if found:
                return found
            if time.monotonic() > deadline:
                raise AssertionError("the broker did not get there in time")
            time.sleep(POLL_SECONDS)

    def topic(self, name: str, partitions: int = 1, **configs: str) -> bytes:
        """Create a topic, wait until it can be used, return its id. In config names `_` stands for `.`."""
        created = self.quiet(
            CreateTopicsRequest(
                topics=[
                    CreatableTopic(
                        name=name,
                        num_partitions=partitions,
                        replication_factor=1,
                        configs=[
                            CreatableTopicConfig(name=key.replace("_", "."), value=value)
                            for key, value in configs.items()
                        ],
                    )
                ],
            ),
            7,
        )
        assert created.topics[0].error_code == 0, created
        topic_id: bytes = self.until(lambda: self.topic_id_if_ready(name))
        asked = ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name=name,
                    partitions=[
                        ListOffsetsPartition(partition_index=place, timestamp=-1)
                        for place in range(partitions)
                    ],
                )
            ],
        )
        self.until(lambda: not any(part.error_code for part in self.quiet(asked, 4).topics[0].partitions))
        return topic_id

    def topic_id_if_ready(self, name: str) -> bytes | None:
        """The id of a topic all of whose partitions have a leader."""
        answer = self.quiet(
            MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False), 12
        )
        (topic,) = answer.topics
        if topic.error_code or not topic.partitions or any(part.error_code for part in topic.partitions):
            return None
        self.normal.topic_is(topic.topic_id, name)
        topic_id: bytes = topic.topic_id
        return topic_id

    def coordinator(self, group: str) -> None:
        """Wait until the broker coordinates groups, which may have to create its internal topic first."""
        self.until(lambda: self.quiet(FindCoordinatorRequest(key=group, key_type=0), 3).error_code == 0)
        # Kafka answers heartbeats without an error while it loads the group.
        probe = HeartbeatRequest(group_id=group, generation_id=0, member_id="probe")
        self.until(lambda: self.quiet(probe, 1).error_code == UNKNOWN_MEMBER_ID)

    def produce(self, topic: str, records: bytes, partition: int = 0) -> int:
        """Append and return the base offset."""
        answer = self.quiet(produce_request(topic, records, partition), 7)
        result = answer.responses[0].partition_responses[0]
        assert result.error_code == 0, result
        base_offset: int = result.base_offset
        return base_offset

    def close(self) -> None:
        for connection in [self._connection, *self._others]:
            if connection is not None:
                connection.close()

    # --- inside ---

    def _record(self, label: str, answer: Any) -> None:
        assert label not in self.transcript, f"two steps are called {label!r}"
        self.transcript[label] = answer

    def _open(self) -> RawConnection:
        if self._connection is None:
            self._connection = RawConnection(self.address)
        return self._connection

    def _drop(self, connection: RawConnection) -> None:
        connection.close()
        if connection is self._connection:
            self._connection = None

    def _ping(self, connection: RawConnection) -> str:
        try:
            connection.call(ApiVersionsRequest(), 0)
        except Closed:
            self._drop(connection)
            return CLOSED
        return "connection goes on"


def produce_request(
    topic: str,
    records: bytes | bytearray | None,
    partition: int = 0,
    *,
    acks: int = -1,
    transactional_id: str | None = None,
    topic_id: bytes | None = None,
) -> ProduceRequest:
    """One partition's worth of records."""
    data = TopicProduceData(
        name=topic,
        partition_data=[
            PartitionProduceData(index=partition, records=None if records is None else memoryview(records))
        ],
    )
    if topic_id is not None:
        data.topic_id = topic_id
    return ProduceRequest(transactional_id=transactional_id, acks=acks, timeout_ms=10_000, topic_data=[data])


def play(name: str, host: str, port: int, node_id: int) -> Transcript:
    """Run one script against one broker."""
    run = Play(host, port, node_id)
    try:
        SCRIPTS[name](run)
    finally:
        run.close()
    return run.transcript
