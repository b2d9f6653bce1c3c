"""What a coordinator holds is read back from the log in small steps, so that other clients are served meanwhile.

A broker that has become the leader of a partition of the internal topic replays all that its log held at that
moment, and waits until all of that is committed: a record that only this replica has may yet be lost, and nobody
must have been told what it says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from culver.errors import ErrorCode, KafkaError, MalformedRequest
from culver.log.partition_log import ColdRead
from culver.logging import get_logger
from culver.protocol.control_records import decode_end_marker
from culver.protocol.records import decode_records, iterate_whole_batches, verify_crc

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.broker.partition import Partition

_log = get_logger("culver.coordinators")

# What is replayed in one go: some hundred records, a millisecond or two.
_STEP_BYTES = 64 << 10
# How long to wait before asking again whether what was read is committed, and before reading again what could not be.
_ASK_AGAIN_MS = 200.0
_READ_AGAIN_MS = 1_000.0


class Load:
    """One partition being read, up to the end that its log had when the broker became its leader."""

    __slots__ = ("deleted_topics", "end_offset", "offset", "partition", "reported", "stopped")

    def __init__(self, partition: Partition) -> None:
        self.partition = partition
        self.offset = partition.log.start_offset
        self.end_offset = partition.log.end_offset
        self.stopped = False
        self.reported = False  # that it cannot be read: once is enough
        # Topics that went away meanwhile: their offsets go when the load is done.
        self.deleted_topics: list[str] = []


class CoordinatorLoader:
    """Reads partitions of the internal topic one after another, a step per turn of the event loop.

    `replay(partition, key, value, producer_id)` gets every record, with the id of the producer if it is part of a
    transaction, -1 otherwise; `replay_marker(partition, producer_id, committed)` the ends of transactions, in their
    order; `loaded(load)` is called once all of them are committed. A load that was stopped says no more.
    """

    def __init__(
        self,
        node: Node,
        replay: Callable[[int, bytes, bytes | None, int], None],
        replay_marker: Callable[[int, int, bool], None],
        loaded: Callable[[Load], object],
    ) -> None:
        self._node = node
        self._replay = replay
        self._replay_marker = replay_marker
        self._loaded = loaded
        self._loads: dict[int, Load] = {}
        self._ready: deque[Load] = deque()
        self._scheduled = False

    def begin(self, partition: Partition) -> None:
        assert partition.index not in self._loads
        load = Load(partition)
        if load.offset == load.end_offset:
            # Nothing to read, nothing that could be lost: a new topic's first client need not wait, and cannot always.
            self._loaded(load)
            return
        self._loads[partition.index] = load
        self._go_on(load)

    @property
    def busy(self) -> bool:
        return bool(self._loads)

    def stop(self, index: int) -> None:
        """Another broker leads the partition now."""
        load = self._loads.pop(index, None)
        if load is not None:
            load.stopped = True

    def topic_deleted(self, name: str) -> None:
        for load in self._loads.values():
            load.deleted_topics.append(name)

    # -- steps ------------------------------------------------------------------------------------------

    def _go_on(self, load: Load) -> None:
        self._ready.append(load)
        self._schedule()

    def _schedule(self) -> None:
        if self._ready and not self._scheduled:
            self._scheduled = True
            self._node.scheduler.call_soon(self._step)

    def _step(self) -> None:
        self._scheduled = False
        load = self._ready.popleft()
        if not load.stopped:
            try:
                self._read(load)
            except (KafkaError, OSError) as error:
                self._failed(load, error)
        self._schedule()

    def _read(self, load: Load) -> None:
        log = load.partition.log
        # Nobody cuts the start of this topic off by hand; but whoever did must not stop its groups.
        load.offset = max(load.offset, log.start_offset)
        if load.offset >= load.end_offset:
            self._await_commit(load)
            return
        result = log.read(load.offset, _STEP_BYTES, load.end_offset)
        if isinstance(result, ColdRead):
            self._fetch_from_disk(load, result)
            return
        following = self._replay_batches(load, b"".join(cast("list[bytes]", result.buffers)))
        if following <= load.offset:
            # Compaction has left nothing up to the end.
            following = load.end_offset
        load.offset = following
        if load.offset >= load.end_offset:
            self._await_commit(load)
        else:
            self._ready.appendleft(load)  # one after another: the first groups are there the sooner

    def _fetch_from_disk(self, load: Load, cold: ColdRead) -> None:
        def fetched(_result: None, error: BaseException | None) -> None:
            if load.stopped:
                return
            if error is None:
                self._go_on(load)
            else:
                self._failed(load, error)

        self._node.scheduler.run_blocking(cold.load, fetched)

    def _replay_batches(self, load: Load, data: bytes) -> int:
        """Replay the whole batches in `data`; the offset after the last of them."""
        number, offset = load.partition.index, load.offset
        following = offset
        max_bytes = self._node.config.max_decompressed_bytes
        for position, header in iterate_whole_batches(data):
            if not verify_crc(data, header, position):
                raise KafkaError(
                    ErrorCode.CORRUPT_MESSAGE, f"the batch at offset {header.base_offset} is damaged"
                )
            if header.is_control:
                marker = decode_end_marker(memoryview(data)[position : position + header.size_bytes])
                if marker is not None and header.base_offset >= offset:
                    self._replay_marker(number, header.producer_id, marker.committed)
            else:
                producer_id = header.producer_id if header.is_transactional else -1
                for record in decode_records(data, max_bytes, position):
                    if record.offset >= offset and record.key is not None:
                        self._replay_one(load, record.key, record.value, producer_id)
            following = header.last_offset + 1
        return following

    def _replay_one(self, load: Load, key: bytes, value: bytes | None, producer_id: int) -> None:
        try:
            self._replay(load.partition.index, key, value, producer_id)
        except MalformedRequest as error:
            _log.error(
                "skipped an unreadable record",
                topic=load.partition.topic,
                partition=load.partition.index,
                error=str(error),
            )

    # -- the end ----------------------------------------------------------------------------------------

    def _await_commit(self, load: Load) -> None:
        def committed(error: ErrorCode) -> None:
            if load.stopped:
                return
            if error is ErrorCode.NONE:
                # Not from inside someone else's call: this may answer many who wait.
                self._node.scheduler.call_soon(lambda: self._done(load))
            elif error in (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.REQUEST_TIMED_OUT):
                self._node.scheduler.call_later(_ASK_AGAIN_MS, lambda: self._ask_again(load))
            else:
                self._failed(load, KafkaError(error))

        self._node.replication.commit(load.partition, load.end_offset, None, committed)

    def _ask_again(self, load: Load) -> None:
        if not load.stopped:
            self._await_commit(load)

    def _done(self, load: Load) -> None:
        if not load.stopped:
            del self._loads[load.partition.index]
            self._loaded(load)

    def _failed(self, load: Load, error: BaseException) -> None:
        """Try again, for the disk may heal; a replica that is damaged lets another lead, if there is one."""
        code = error.code if isinstance(error, KafkaError) else None
        if load.stopped or code is ErrorCode.NOT_LEADER_OR_FOLLOWER:
            return  # in the second case it is about to be stopped
        if not load.reported:
            load.reported = True
            _log.error(
                "cannot read back what a coordinator holds",
                topic=load.partition.topic,
                partition=load.partition.index,
                error=str(error),
            )
        if code is ErrorCode.CORRUPT_MESSAGE:
            self._node.replication.log_failed(load.partition)
        self._node.scheduler.call_later(_READ_AGAIN_MS, lambda: self._go_on(load))
