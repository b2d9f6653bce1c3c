"""Fetch: read record batches, waiting for them if need be. Serves versions 4 to 18.

This is what consumers get; followers are fed by `broker/follower_feed.py`.

7: incremental sessions. 9: leader epochs. 11: racks. 12: flexible, diverging epochs. 13: topics by id.
15: the replica's state is tagged. 16: addresses of new leaders. 17: directory ids. 18: a follower's high watermark.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from culver.broker.closest_replica import NO_REPLICA, closest_replica
from culver.broker.partition import Partition
from culver.errors import ErrorCode, KafkaError
from culver.log.partition_log import ColdRead
from culver.protocol.messages.fetch import (
    AbortedTransaction,
    EpochEndOffset,
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node
    from culver.core.fetch_session import FetchContext, FetchPartitionState, Found
    from culver.scheduler import Timer

READ_UNCOMMITTED = 0
READ_COMMITTED = 1
# What a fetch gets while clients that do not take their responses hold all the memory meant for that.
_MAX_BYTES_WHEN_SHORT = 64 << 10
# How often a read may find its bytes gone from the page cache again before it is answered empty.
_COLD_TRIES_MAX = 10
_NONE_ABORTED: list[AbortedTransaction] = []
# Since this version consumers may read from any replica, and since that one they are told where leaders are.
_ANY_REPLICA_SINCE_VERSION = 11
_LEADERS_SINCE_VERSION = 16
_HAS_TOP_LEVEL_ERROR_SINCE_VERSION = 7
_LEADER_IS_ELSEWHERE = frozenset((ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH))


def handle(node: Node, exchange: Exchange, request: FetchRequest) -> FetchResponse | None:
    """Answer with what there is if it is enough; otherwise park until it is, or until max_wait_ms has passed."""
    if request.replica_id >= 0 or (
        request.replica_state is not None and request.replica_state.replica_id >= 0
    ):
        feed = exchange.connection.peer_broker
        return _no_broker(exchange.version, request) if feed is None else feed.fetch(exchange, request)
    context = node.fetch_sessions.resolve(request, exchange.version)
    if context.error is not ErrorCode.NONE:
        exchange.route.statistics.failed(context.error)
        return FetchResponse(error_code=context.error, responses=[])
    return _Fetch(node, exchange, request, context).begin()


class _Fetch:
    """One fetch request on its way to an answer."""

    __slots__ = (
        "_available_bytes",
        "_cold_tries",
        "_committed_only",
        "_context",
        "_cut_short",
        "_disk_failed",
        "_exchange",
        "_held_back",
        "_leaders",
        "_max_bytes",
        "_must_look",
        "_node",
        "_refusal",
        "_request",
        "_seen_bytes",
        "_timer",
        "_watched",
    )

    def __init__(self, node: Node, exchange: Exchange, request: FetchRequest, context: FetchContext) -> None:
        self._node = node
        self._exchange = exchange
        self._request = request
        self._context = context
        self._committed_only = request.isolation_level == READ_COMMITTED
        self._max_bytes = min(request.max_bytes, node.config.fetch_max_bytes)
        self._refusal = _refusal(request)
        self._timer: Timer | None = None
        self._watched: list[Partition] = []
        self._seen_bytes = 0
        self._available_bytes = 0
        self._cold_tries = 0
        self._cut_short = False
        self._disk_failed = False
        self._leaders: set[int] | None = None  # that the client should hear of

    def begin(self) -> FetchResponse | None:
        """The answer if it can be given now."""
        found, size, urgent, cold = self._read()
        request = self._request
        if cold:
            if size < request.min_bytes and not urgent:
                self._load(cold)
                return None
            self._load_for_the_next(cold)
        if size >= request.min_bytes or urgent or request.max_wait_ms <= 0 or not found:
            return self._respond(found)
        self._park(size)
        return None

    # -- reading ----------------------------------------------------------------------------------------

    def _read(self) -> tuple[list[Found], int, bool, list[ColdRead]]:
        """What each partition gives now, their bytes, whether one has an error to tell, and what was not in memory."""
        found = []
        left = self._max_bytes
        if self._node.server.unsent_bytes > self._node.config.queued_max_response_bytes:
            left = min(left, _MAX_BYTES_WHEN_SHORT)
        size = 0
        urgent = False
        self._cut_short = False
        cold: list[ColdRead] = []
        for wanted in self._context.partitions():
            partition = self._find(wanted)
            if not isinstance(partition, Partition):
                data = _failed(wanted.partition, partition, None if self._refusal else _NONE_ABORTED)
                if partition in _LEADER_IS_ELSEWHERE and wanted.topic is not None:
                    self._point_to_leader(data, wanted.topic)
                self._exchange.route.statistics.failed(partition)
                found.append((wanted, data))
                urgent = True
                continue
            data = self._read_one(partition, wanted, left, size == 0, cold)
            if data.records:
                read_bytes = sum(map(len, cast("list[bytes]", data.records)))
                size += read_bytes
                left -= read_bytes
            if data.error_code or data.diverging_epoch is not None or data.preferred_read_replica >= 0:
                urgent = True
                if data.error_code:
                    self._exchange.route.statistics.failed(data.error_code)
                if data.error_code in _LEADER_IS_ELSEWHERE:
                    self._point_to_leader(data, partition.topic)
            found.append((wanted, data))
        # What a limit or a segment's end cut off is there for the asking: nothing to wait for.
        return found, size, urgent or self._cut_short, cold

    def _find(self, wanted: FetchPartitionState) -> Partition | ErrorCode:
        if self._refusal is not ErrorCode.NONE:
            return self._refusal
        if wanted.topic is None:
            return ErrorCode.UNKNOWN_TOPIC_ID
        return self._node.partitions.get(wanted.topic, wanted.partition) or self._node.partition_error(
            wanted.topic, wanted.partition
        )

    def _read_one(
        self, partition: Partition, wanted: FetchPartitionState, left: int, first: bool, cold: list[ColdRead]
    ) -> PartitionData:
        code = partition.epoch_error(max(wanted.current_leader_epoch, -1))
        if code:
            return _failed(partition.index, code, aborted=None)
        log = partition.log
        if log.corruption is not None:
            return _failed(partition.index, ErrorCode.KAFKA_STORAGE_ERROR)
        if partition.state is None:
            if self._exchange.version < _ANY_REPLICA_SINCE_VERSION:
                return _failed(partition.index, ErrorCode.NOT_LEADER_OR_FOLLOWER, aborted=None)
            if wanted.fetch_offset > log.end_offset:
                # The leader may well have it.
                return _failed(partition.index, ErrorCode.OFFSET_NOT_AVAILABLE, aborted=None)
        high_watermark, stable_offset = log.high_watermark, log.last_stable_offset
        data = PartitionData(
            partition_index=partition.index,
            error_code=0,
            high_watermark=high_watermark,
            last_stable_offset=stable_offset,
            log_start_offset=log.start_offset,
            aborted_transactions=[] if self._committed_only else None,
            records=[],
        )
        if wanted.last_fetched_epoch >= 0:
            epoch, end_offset = partition.epoch_end_offset(wanted.last_fetched_epoch)
            if epoch < 0:
                return _failed(partition.index, ErrorCode.OFFSET_OUT_OF_RANGE, aborted=None)
            if epoch != wanted.last_fetched_epoch or end_offset < wanted.fetch_offset:
                data.diverging_epoch = EpochEndOffset(epoch=epoch, end_offset=end_offset)
                return data
        if self._request.rack_id and partition.state is not None and partition.replicated:
            closest = closest_replica(self._node, partition, self._request.rack_id, wanted.fetch_offset)
            if closest != NO_REPLICA:
                data.preferred_read_replica = closest
                return data
        if left <= 0 and not first:
            return data
        try:
            result = log.read(
                wanted.fetch_offset,
                min(wanted.max_bytes, left),
                stable_offset if self._committed_only else high_watermark,
                at_least_one=first,
                ranges=self._exchange.connection.sends_files,
            )
        except KafkaError as error:
            return _failed(partition.index, error.code, aborted=None)
        except OSError:
            return _failed(partition.index, ErrorCode.KAFKA_STORAGE_ERROR)
        if isinstance(result, ColdRead):
            if self._disk_failed:
                return _failed(partition.index, ErrorCode.KAFKA_STORAGE_ERROR)
            cold.append(result)
            return data
        data.records = cast("list[bytes]", result.buffers)  # or ranges of files, which the connection sends
        if self._committed_only and result.size:
            aborted = log.aborted_transactions(wanted.fetch_offset, min(result.below_offset, stable_offset))
            if aborted:
                data.aborted_transactions = [
                    AbortedTransaction(producer_id=producer_id, first_offset=first_offset)
                    for producer_id, first_offset in aborted
                ]
        if result.rest is not None:
            cold.append(result.rest)
        elif not result.at_end:
            self._cut_short = True
        return data

    def _load(self, cold: list[ColdRead]) -> None:
        """Have a thread bring the bytes into the page cache, then try again; others are served meanwhile."""
        self._cold_tries += 1

        def loaded(_result: None, error: BaseException | None) -> None:
            if self._exchange.abandoned:
                return
            self._disk_failed = error is not None
            if self._cold_tries >= _COLD_TRIES_MAX:
                self._answer()
                return
            response = self.begin()
            if response is not None:
                self._exchange.reply(response)

        self._node.scheduler.run_blocking(partial(_load_all, cold), loaded)

    def _load_for_the_next(self, cold: list[ColdRead]) -> None:
        """There is enough to answer with; the next fetch shall find in memory what this one did not."""
        self._node.scheduler.run_blocking(partial(_load_all, cold), lambda _result, _error: None)

    # -- waiting ----------------------------------------------------------------------------------------

    def _park(self, available_bytes: int) -> None:
        self._available_bytes = available_bytes
        self._seen_bytes = 0
        # Has a watched partition other replicas, or are only ended transactions wanted? Then what is appended may not
        # be read at once. And is there something now that may not be read yet? Then even that may be news later.
        self._held_back = self._committed_only
        self._must_look = False
        for wanted in self._context.partitions():
            partition = self._find(wanted)
            assert isinstance(partition, Partition), "a missing partition is answered at once"
            partition.waiters[self] = None
            self._watched.append(partition)
            self._seen_bytes += partition.appended_bytes
            log = partition.log
            if self._committed_only:
                if log.last_stable_offset < log.end_offset:
                    self._must_look = True
            elif partition.replicated:
                self._held_back = True
                if log.high_watermark < log.end_offset:
                    self._must_look = True
        self._timer = self._node.scheduler.call_later(self._request.max_wait_ms, self._answer)
        self._exchange.on_abandon = self._stop_waiting

    def partition_changed(self) -> None:
        """There is more to read in a watched partition, or another broker leads it, or it is gone."""
        appended_bytes = sum([partition.appended_bytes for partition in self._watched]) - self._seen_bytes
        enough = self._available_bytes + appended_bytes >= self._request.min_bytes
        if self._held_back:
            # What was appended may not be committed yet: only a look at the logs tells.
            if enough or self._must_look or self._gone():
                self._look_again()
        elif enough or self._gone():
            self._answer()

    def _gone(self) -> bool:
        return any(
            self._node.partitions.get(partition.topic, partition.index) is not partition
            for partition in self._watched
        )

    def _look_again(self) -> None:
        """Answer if there is enough by now; otherwise go on waiting."""
        found, size, urgent, cold = self._read()
        if size >= self._request.min_bytes or urgent:
            self._stop_waiting()
            self._exchange.reply(self._respond(found))
        elif cold:
            self._stop_waiting()
            self._load(cold)

    def _answer(self) -> None:
        self._stop_waiting()
        found, size, urgent, cold = self._read()
        if cold and size < self._request.min_bytes and not urgent and self._cold_tries < _COLD_TRIES_MAX:
            self._load(cold)
            return
        self._exchange.reply(self._respond(found))

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for partition in self._watched:
            partition.waiters.pop(self, None)
        self._watched.clear()

    # -- answering --------------------------------------------------------------------------------------

    def _respond(self, found: list[Found]) -> FetchResponse:
        context = self._context
        topics: list[FetchableTopicResponse] = []
        last: tuple[str | None, bytes] | None = None
        for wanted, data in context.to_send(found):
            topic = (wanted.topic, wanted.topic_id)
            if topic != last:
                last = topic
                topics.append(
                    FetchableTopicResponse(topic=wanted.topic or "", topic_id=wanted.topic_id, partitions=[])
                )
            topics[-1].partitions.append(data)
        response = FetchResponse(error_code=context.error, session_id=context.session_id, responses=topics)
        if self._leaders:
            brokers = self._node.image.brokers
            response.node_endpoints = [
                NodeEndpoint(node_id=broker.id, host=broker.host, port=broker.port, rack=broker.rack)
                for broker in map(brokers.get, sorted(self._leaders))
                if broker is not None
            ]
        return response

    def _point_to_leader(self, data: PartitionData, topic: str) -> None:
        """Save the client from having to ask for metadata."""
        if self._exchange.version >= _LEADERS_SINCE_VERSION:
            image = self._node.image.partition(topic, data.partition_index)
            if image is not None:
                data.current_leader = LeaderIdAndEpoch(
                    leader_id=image.leader, leader_epoch=image.leader_epoch
                )
                self._leaders = (self._leaders or set()) | {image.leader}


def _refusal(request: FetchRequest) -> ErrorCode:
    """What every partition of the request gets in place of records, if anything."""
    if request.isolation_level not in (READ_UNCOMMITTED, READ_COMMITTED):
        return ErrorCode.INVALID_REQUEST
    return ErrorCode.NONE


def _no_broker(version: int, request: FetchRequest) -> FetchResponse:
    """For a client that claims to be a replica on a connection that has not said BrokerHello."""
    code = ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    return FetchResponse(
        error_code=code if version >= _HAS_TOP_LEVEL_ERROR_SINCE_VERSION else 0,
        responses=[
            FetchableTopicResponse(
                topic=topic.topic,
                topic_id=topic.topic_id,
                partitions=[_failed(asked.partition, code, aborted=None) for asked in topic.partitions],
            )
            for topic in request.topics
        ],
    )


def _load_all(cold: list[ColdRead]) -> None:
    for read in cold:
        read.load()


def _failed(
    index: int, code: ErrorCode, aborted: list[AbortedTransaction] | None = _NONE_ABORTED
) -> PartitionData:
    """An error in place of records. A read that failed has null for aborted transactions, as in Kafka."""
    return PartitionData(
        partition_index=index,
        error_code=code,
        high_watermark=-1,
        last_stable_offset=-1,
        log_start_offset=-1,
        aborted_transactions=aborted,
        records=[],
    )
