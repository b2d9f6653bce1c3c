"""Consumers of a simulated workload that are told what to read: each partition from its start, or up to its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from culver.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from culver.protocol.records import BatchHeader, decode_records, iterate_headers, verify_crc
from culver.testing.history import History, Partition, Poll
from culver.testing.simulation.client import Client, Disconnected

_FETCH_VERSION = 12
_LIST_VERSION = 7
_DECOMPRESSED_MAX_BYTES = 10 << 20
_LATEST = -1


class BadAnswer(Exception):
    """What came back is no honest answer: a broken batch, or a position that must be there and is not."""


@dataclass
class Fetched:
    """What a broker gave."""

    error: ErrorCode
    records: list[tuple[int, bytes]]
    # The broker that is closer to the reader, or -1.
    closer: int = -1


async def fetch(
    client: Client,
    partition: Partition,
    position: int,
    *,
    max_wait_ms: int = 300,
    max_bytes: int = 1 << 16,
    rack: str = "",
    broker: int | None = None,
) -> Fetched:
    """Ask the leader, or the broker that it has named, once for records from the position on."""
    connection, epoch = await client.leader(partition)
    if broker is not None:
        connection = await client.broker(broker)
    wanted = FetchPartition(
        partition=partition[1],
        current_leader_epoch=epoch,
        fetch_offset=position,
        partition_max_bytes=max_bytes,
    )
    request = FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        topics=[FetchTopic(topic=partition[0], partitions=[wanted])],
        rack_id=rack,
    )
    answer = await connection.ask(request, _FETCH_VERSION)
    if answer.error_code:
        return Fetched(ErrorCode(answer.error_code), [])
    data: PartitionData = answer.responses[0].partitions[0]
    records = _decode(bytes(data.records or b""), position)  # type: ignore[arg-type]
    return Fetched(ErrorCode(data.error_code), records, data.preferred_read_replica)


def _decode(data: bytes, position: int) -> list[tuple[int, bytes]]:
    records = []
    for at, header in _whole_batches(data):
        if not verify_crc(data, header, at):
            raise BadAnswer(f"the batch at offset {header.base_offset} has a wrong checksum")
        if header.is_control:
            continue
        records += [
            (record.offset, record.value or b"")
            for record in decode_records(data, _DECOMPRESSED_MAX_BYTES, at)
            if record.offset >= position
        ]
    return records


def _whole_batches(data: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """The batches of an answer, without the last one if it was cut off."""
    try:
        yield from iterate_headers(data)
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_RECORD:
            raise


class AssignedConsumer:
    """Reads partitions from their start, on and on, and writes down everything it sees."""

    def __init__(
        self, name: str, client: Client, history: History, partitions: list[Partition], rack: str = ""
    ) -> None:
        self.name = name
        self._rack = rack
        self._client = client
        self._history = history
        self.positions = dict.fromkeys(partitions, 0)
        self._assignments = dict.fromkeys(partitions, 0)
        self.stopping = False

    def start(self) -> None:
        for partition in self.positions:
            self._client.process.start(self._lane(partition))

    async def _lane(self, partition: Partition) -> None:
        client = self._client
        broker: int | None = None  # closer than the leader
        while not self.stopping:
            position = self.positions[partition]
            max_bytes = client.random.choice((200, 2_000, 1 << 16))
            try:
                answer = await fetch(
                    client, partition, position, max_bytes=max_bytes, rack=self._rack, broker=broker
                )
            except Disconnected:
                broker = None
                await client.leader_is_another(partition)
                continue
            except BadAnswer as bad:
                self._history.complaints.append(f"{self.name} at {position} of {partition}: {bad}")
                return
            if answer.closer >= 0 and broker is None:
                broker = answer.closer
                continue
            if answer.error is not ErrorCode.NONE:
                if answer.error is ErrorCode.OFFSET_OUT_OF_RANGE and not self._out_of_range(partition):
                    return
                broker = None
                await client.leader_is_another(partition)
                continue
            self._read(partition, position, answer.records)
            if broker is not None and client.random.random() < 0.05:
                broker = None  # ask the leader again now and then
            await client.pause(10, 200)

    def _read(self, partition: Partition, position: int, records: list[tuple[int, bytes]]) -> None:
        if not records:
            return
        poll = Poll(
            self.name,
            partition,
            position,
            records,
            at_ms=self._client.now_ms,
            assignment=self._assignments[partition],
        )
        self._history.polls.append(poll)
        self.positions[partition] = poll.next_position

    def _out_of_range(self, partition: Partition) -> bool:
        """Whether that can be: only where a disk may have forgotten what it has shown."""
        position = self.positions[partition]
        if partition in self._history.forgetful:
            self.positions[partition] = 0
            self._assignments[partition] += 1
            return True
        self._history.complaints.append(
            f"{self.name} asked {partition} for {position} and heard that it is out of range"
        )
        return False


class FinalReader:
    """Reads everything that can be read after all has healed: what the history is held against."""

    def __init__(self, client: Client, history: History, partitions: list[Partition]) -> None:
        self._client = client
        self._history = history
        self._left = len(partitions)
        self._partitions = partitions

    @property
    def done(self) -> bool:
        return self._left == 0

    def start(self) -> None:
        for partition in self._partitions:
            self._client.process.start(self._lane(partition))

    async def _lane(self, partition: Partition) -> None:
        found: list[tuple[int, bytes]] = []
        position, end = 0, None
        while end is None or position < end:
            try:
                if end is None:
                    end = await self._end_offset(partition)
                    continue
                answer = await fetch(self._client, partition, position)
            except Disconnected:
                await self._client.leader_is_another(partition)
                continue
            except BadAnswer as bad:
                self._history.complaints.append(f"the last reader at {position} of {partition}: {bad}")
                break
            if answer.error is not ErrorCode.NONE:
                await self._client.leader_is_another(partition)
                continue
            found += answer.records
            position = found[-1][0] + 1 if found else position
        self._history.final[partition] = found
        self._left -= 1

    async def _end_offset(self, partition: Partition) -> int | None:
        connection, epoch = await self._client.leader(partition)
        wanted = ListOffsetsPartition(
            partition_index=partition[1], current_leader_epoch=epoch, timestamp=_LATEST
        )
        request = ListOffsetsRequest(
            replica_id=-1, topics=[ListOffsetsTopic(name=partition[0], partitions=[wanted])]
        )
        answer = (await connection.ask(request, _LIST_VERSION)).topics[0].partitions[0]
        if answer.error_code:
            await self._client.leader_is_another(partition)
            return None
        offset: int = answer.offset
        return offset
