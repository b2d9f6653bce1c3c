"""Consumers of a simulated workload that are told what to read: each partition from its start, or up to its end."""

from __future__ import annotations

from dataclasses import dataclass

from culver.errors import ErrorCode
from culver.protocol.control_records import decode_end_marker
from culver.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from culver.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from culver.protocol.records import decode_records, iterate_whole_batches, verify_crc
from culver.testing.history import History, Partition, Poll
from culver.testing.simulation.client import Client, Connection, Disconnected

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
    # Where to go on.
    next_position: int = -1
    # The broker that is closer to the reader, or -1.
    closer: int = -1
    last_stable_offset: int = -1
    leader_epoch: int = -1
    connection: Connection | None = None


async def fetch(
    client: Client,
    partition: Partition,
    position: int,
    *,
    max_wait_ms: int = 300,
    max_bytes: int = 1 << 16,
    rack: str = "",
    broker: int | None = None,
    committed_only: bool = False,
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
        isolation_level=int(committed_only),
    )
    answer = await connection.ask(request, _FETCH_VERSION)
    if answer.error_code:
        return Fetched(ErrorCode(answer.error_code), [])
    data: PartitionData = answer.responses[0].partitions[0]
    fetched = Fetched(ErrorCode(data.error_code), [], position, data.preferred_read_replica)
    if fetched.error is ErrorCode.NONE:
        fetched.last_stable_offset, fetched.leader_epoch = data.last_stable_offset, epoch
        fetched.connection = connection
        _decode(data, position, committed_only, fetched)
    return fetched


def _decode(data: PartitionData, position: int, committed_only: bool, fetched: Fetched) -> None:
    """The records of an answer; with isolation those of aborted transactions are left out, as Kafka's consumers do."""
    batches = bytes(data.records or b"")  # type: ignore[arg-type]
    aborted = sorted(
        ((each.first_offset, each.producer_id) for each in data.aborted_transactions or ()), reverse=True
    )
    if committed_only and data.last_stable_offset > data.high_watermark:
        raise BadAnswer(f"LSO {data.last_stable_offset} beyond high watermark {data.high_watermark}")
    aborting: set[int] = set()
    for at, header in iterate_whole_batches(batches):
        if not verify_crc(batches, header, at):
            raise BadAnswer(f"the batch at offset {header.base_offset} has a wrong checksum")
        if committed_only and header.last_offset >= data.last_stable_offset:
            raise BadAnswer(
                f"the batch at offset {header.base_offset} is not below the last stable offset "
                f"{data.last_stable_offset}"
            )
        fetched.next_position = max(fetched.next_position, header.last_offset + 1)
        while aborted and aborted[-1][0] <= header.last_offset:
            aborting.add(aborted.pop()[1])
        if header.is_control:
            marker = decode_end_marker(batches[at : at + header.size_bytes])
            if marker is not None and not marker.committed:
                aborting.discard(header.producer_id)
            continue
        if committed_only and header.is_transactional and header.producer_id in aborting:
            continue
        fetched.records += [
            (record.offset, record.value or b"")
            for record in decode_records(batches, _DECOMPRESSED_MAX_BYTES, at)
            if record.offset >= position
        ]


class AssignedConsumer:
    """Reads partitions from their start, on and on, and writes down everything it sees."""

    def __init__(
        self,
        name: str,
        client: Client,
        history: History,
        partitions: list[Partition],
        rack: str = "",
        *,
        committed_only: bool = False,
    ) -> None:
        self.name = name
        self._committed_only = committed_only
        # The last answer of a leader.
        self._last: dict[Partition, Fetched] = {}
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
                    client,
                    partition,
                    position,
                    max_bytes=max_bytes,
                    rack=self._rack,
                    broker=broker,
                    committed_only=self._committed_only,
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
            self._read(partition, position, answer)
            if broker is None:
                self._check_stable(partition, answer)
            if broker is not None and client.random.random() < 0.05:
                broker = None  # ask the leader again now and then
            await client.pause(10, 200)

    def _read(self, partition: Partition, position: int, answer: Fetched) -> None:
        if answer.next_position <= position:
            return
        poll = Poll(
            self.name,
            partition,
            position,
            answer.records,
            at_ms=self._client.now_ms,
            assignment=self._assignments[partition],
            committed_only=self._committed_only,
            up_to=answer.next_position,
        )
        self._history.polls.append(poll)
        self.positions[partition] = poll.next_position

    def _check_stable(self, partition: Partition, answer: Fetched) -> None:
        """What a leader has called stable stays so for as long as it leads, and is not started anew meanwhile."""
        if not self._committed_only or partition in self._history.forgetful:
            return
        last = self._last.get(partition)
        self._last[partition] = answer
        if (
            last is not None
            and (last.connection, last.leader_epoch) == (answer.connection, answer.leader_epoch)
            and answer.last_stable_offset < last.last_stable_offset
        ):
            self._history.complaints.append(
                f"{self.name} heard from the leader of {partition} in epoch {answer.leader_epoch} that everything is "
                f"stable up to {last.last_stable_offset}, and then {answer.last_stable_offset}"
            )

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

    def __init__(
        self,
        client: Client,
        found: dict[Partition, list[tuple[int, bytes]]],
        complaints: list[str],
        partitions: list[Partition],
        *,
        committed_only: bool = False,
    ) -> None:
        self._client = client
        self._found = found
        self._complaints = complaints
        self._left = len(partitions)
        self._partitions = partitions
        self._committed_only = committed_only

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
                answer = await fetch(self._client, partition, position, committed_only=self._committed_only)
            except Disconnected:
                await self._client.leader_is_another(partition)
                continue
            except BadAnswer as bad:
                self._complaints.append(f"the last reader at {position} of {partition}: {bad}")
                break
            if answer.error is not ErrorCode.NONE:
                await self._client.leader_is_another(partition)
                continue
            found += answer.records
            position = answer.next_position
        self._found[partition] = found
        self._left -= 1

    async def _end_offset(self, partition: Partition) -> int | None:
        connection, epoch = await self._client.leader(partition)
        wanted = ListOffsetsPartition(
            partition_index=partition[1], current_leader_epoch=epoch, timestamp=_LATEST
        )
        request = ListOffsetsRequest(
            replica_id=-1,
            isolation_level=int(self._committed_only),
            topics=[ListOffsetsTopic(name=partition[0], partitions=[wanted])],
        )
        answer = (await connection.ask(request, _LIST_VERSION)).topics[0].partitions[0]
        if answer.error_code:
            await self._client.leader_is_another(partition)
            return None
        offset: int = answer.offset
        return offset
