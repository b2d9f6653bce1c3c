"""One look at the partitions that a follower wants: is it allowed, how far has it come, what comes next."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, cast

from culver.errors import ErrorCode, KafkaError
from culver.log.reading import ColdRead
from culver.protocol.messages.fetch import EpochEndOffset, FetchPartition, PartitionData

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.broker.partition import Partition

# What an answer may hold of partitions in which the follower is behind, if it is in sync in others: those are what
# producers wait for, and they should not wait for it to write ten megabytes of something else.
CATCH_UP_MAX_BYTES = 2 << 20
# What a follower gets while clients that do not take their answers hold all the memory meant for that.
_MAX_BYTES_WHEN_SHORT = 64 << 10


class Wanting(Protocol):
    """Whoever wants a partition, and hears when it has changed."""

    def changed(self, want: Want) -> None: ...


class Want:
    """One partition that a follower wants, from where on, and what it has been told of it."""

    __slots__ = (
        "answered",
        "current_leader_epoch",
        "fetch_offset",
        "index",
        "last_fetched_epoch",
        "max_bytes",
        "partition",
        "reported",
        "sent_high_watermark",
        "sent_start_offset",
        "starved",
        "topic_id",
        "unreadable",
        "wanting",
    )

    def __init__(self, wanting: Wanting, topic_id: bytes, index: int) -> None:
        self.wanting = wanting
        self.topic_id = topic_id
        self.index = index
        self.partition: Partition | None = None
        self.sent_high_watermark = -1
        self.sent_start_offset = -1
        self.unreadable = False
        self.starved = False  # its next batch was larger than what was left of the last answer

    def ask(self, asked: FetchPartition) -> None:
        """Take over what the follower wants now."""
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch
        self.answered = False  # it is told nothing more until it asks again
        self.reported = False  # whether its position has been checked and noted

    def told(self, data: PartitionData) -> None:
        """This is in an answer now."""
        self.sent_high_watermark = data.high_watermark
        self.sent_start_offset = data.log_start_offset
        self.answered = bool(data.error_code or data.records or data.diverging_epoch is not None)
        if data.error_code:
            self.let_go()

    def partition_changed(self) -> None:
        if not self.answered:
            self.wanting.changed(self)

    def watch(self, partition: Partition) -> None:
        self.partition = partition
        partition.replica_waiters[self] = None

    def let_go(self) -> None:
        if self.partition is not None:
            self.partition.replica_waiters.pop(self, None)
            self.partition = None


class ReplicaRead:
    """What there is for one follower at one moment."""

    def __init__(
        self,
        node: Node,
        broker_id: int,
        broker_epoch: int,
        max_bytes: int,
        *,
        sends_files: bool,
        refresh: bool,
    ) -> None:
        """With `refresh` positions that were noted before are noted again: the follower is still there."""
        self._node = node
        self._broker_id = broker_id
        self._broker_epoch = broker_epoch
        self._left_bytes = max_bytes
        if node.server.unsent_bytes > node.config.queued_max_response_bytes:
            self._left_bytes = min(max_bytes, _MAX_BYTES_WHEN_SHORT)
        self._sends_files = sends_files
        self._size_bytes = 0
        self._news: list[tuple[Want, PartitionData]] = []
        self._quiet: list[tuple[Want, PartitionData]] = []
        self.cold: list[tuple[Want, ColdRead]] = []
        self._refresh = refresh
        self._fed_starved = False
        self.in_sync = False  # somewhere
        self.throttled_ms = 0.0  # until more may be sent of partitions in which the follower is behind

    @property
    def urgent(self) -> bool:
        """Whether there is something that the follower should hear at once."""
        return bool(self._news)

    @property
    def found(self) -> list[tuple[Want, PartitionData]]:
        return self._news + self._quiet

    def run(self, wants: Iterable[Want], in_sync_elsewhere: bool) -> dict[Want, None]:
        """Look at these partitions; returns those of which there is more than could be taken."""
        left: dict[Want, None] = {}
        behind: list[tuple[Want, Partition]] = []
        for want in wants:
            if want.answered:
                continue
            partition = self._admit(want)
            if partition is None:
                continue
            state = partition.state
            if state is None or self._broker_id not in state.isr:
                behind.append((want, partition))
                continue
            self.in_sync = True
            if not self._read(want, partition):
                left[want] = None
        if behind:
            if self.in_sync or in_sync_elsewhere:
                self._left_bytes = min(self._left_bytes, CATCH_UP_MAX_BYTES)
            for want, partition in behind:
                if not self._read_throttled(want, partition):
                    left[want] = None
        return left

    # -- may it, and how far is it ----------------------------------------------------------------------

    def _admit(self, want: Want) -> Partition | None:
        """The partition, once the follower's position is found good and noted; otherwise it is told why not."""
        partition = want.partition
        if partition is None:
            found = self._resolve(want)
            if isinstance(found, ErrorCode):
                self._refuse(want, found)
                return None
            partition = found
            want.watch(partition)
        state = partition.state
        if state is None or self._broker_id not in state.replicas:
            self._refuse(want, ErrorCode.NOT_LEADER_OR_FOLLOWER)
            return None
        code = ErrorCode.NONE
        if want.current_leader_epoch != partition.leader_epoch:
            code = partition.epoch_error(max(want.current_leader_epoch, 0))
        elif want.reported and not want.unreadable:
            if self._refresh:
                self._note(want, partition)
            return partition
        elif partition.log.corruption is not None or want.unreadable:
            want.unreadable = False
            code = ErrorCode.KAFKA_STORAGE_ERROR
        if code is not ErrorCode.NONE:
            self._refuse(want, code)
            return None
        return partition if self._agrees(want, partition) else None

    def _resolve(self, want: Want) -> Partition | ErrorCode:
        node = self._node
        topic = node.image.topics_by_id.get(want.topic_id)
        if topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        partition = node.partitions.get(topic.name, want.index)
        if partition is None:
            return node.partition_error(topic.name, want.index)
        return partition if partition.topic_id == want.topic_id else ErrorCode.UNKNOWN_TOPIC_ID

    def _agrees(self, want: Want, partition: Partition) -> bool:
        """Whether the follower's log is a beginning of this one; if so, its length is an acknowledgement."""
        log = partition.log
        if want.last_fetched_epoch >= 0:
            epoch, end_offset = partition.epoch_end_offset(want.last_fetched_epoch)
            if epoch >= 0 and (epoch != want.last_fetched_epoch or end_offset < want.fetch_offset):
                data = self._data(partition)
                data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
                self._news.append((want, data))
                return False
        if not log.start_offset <= want.fetch_offset <= log.end_offset:
            data = self._data(partition)
            data.error_code = ErrorCode.OFFSET_OUT_OF_RANGE
            data.last_stable_offset = log.end_offset  # with both ends of the log it knows what to do
            self._news.append((want, data))
            return False
        want.reported = True
        self._note(want, partition)
        return True

    def _note(self, want: Want, partition: Partition) -> None:
        self._node.replication.follower_fetched(
            partition, self._broker_id, self._broker_epoch, want.fetch_offset
        )

    def _refuse(self, want: Want, code: ErrorCode) -> None:
        data = PartitionData(
            partition_index=want.index,
            error_code=code,
            high_watermark=-1,
            aborted_transactions=None,
            records=[],
        )
        self._news.append((want, data))

    # -- what comes next --------------------------------------------------------------------------------

    def _read_throttled(self, want: Want, partition: Partition) -> bool:
        node = self._node
        rate = node.config.leader_replication_throttled_rate
        throttle = node.fetchers.outgoing_throttle
        if want.fetch_offset < partition.log.end_offset:
            wait_ms = throttle.wait_ms(rate, node.clock.monotonic_ms())
            if wait_ms:
                self.throttled_ms = wait_ms
                return False
        before = self._size_bytes
        done = self._read(want, partition)
        throttle.take(self._size_bytes - before)
        return done

    def _read(self, want: Want, partition: Partition) -> bool:
        """Read on from the follower's position; False when there is more than can be had now."""
        log = partition.log
        end_offset = log.end_offset
        if want.fetch_offset < end_offset:
            first = self._size_bytes == 0 or (want.starved and not self._fed_starved)
            if self._left_bytes <= 0 and not first:
                return False
            try:
                result = log.read(
                    want.fetch_offset,
                    min(want.max_bytes, max(self._left_bytes, 0)),
                    end_offset,
                    at_least_one=first,
                    ranges=self._sends_files,
                )
            except KafkaError as error:
                self._refuse(want, error.code)
                return True
            except OSError:
                self._refuse(want, ErrorCode.KAFKA_STORAGE_ERROR)
                return True
            if isinstance(result, ColdRead):
                self.cold.append((want, result))
                return False
            if result.size:
                if want.starved:
                    want.starved, self._fed_starved = False, True
                data = self._data(partition)
                data.records = cast("list[bytes]", result.buffers)  # or ranges of files
                self._news.append((want, data))
                self._size_bytes += result.size
                self._left_bytes -= result.size
                if result.rest is not None:
                    self.cold.append((want, result.rest))
                return True
            if not first:
                want.starved = True  # the next answer has room for it, whatever else there is by then
                return False
        if log.high_watermark != want.sent_high_watermark or log.start_offset != want.sent_start_offset:
            self._quiet.append((want, self._data(partition)))
        return True

    def _data(self, partition: Partition) -> PartitionData:
        log = partition.log
        return PartitionData(
            partition_index=partition.index,
            error_code=0,
            high_watermark=log.high_watermark,
            log_start_offset=log.start_offset,
            aborted_transactions=None,
            records=[],
        )
