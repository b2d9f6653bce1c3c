"""What one follower gets on its connection to this broker: the leader's side of replication.

A follower's fetch says how far its log reaches, which is its acknowledgement, and waits for what comes next. The feed
remembers what the follower wants (an incremental fetch session that lives and dies with the connection) and looks
only at partitions that were asked for or appended to, so that a thousand idle ones cost next to nothing. All of them
are looked at twice a second or so: a follower that stays at the end of an idle log stays in sync, and learns
of high watermarks that moved after the last records.

A partition that was answered with records or an error is left alone until the follower asks for it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from math import inf
from typing import TYPE_CHECKING, cast

from culver.broker.replica_read import ReplicaRead, Want
from culver.core.fetch_session import INITIAL_EPOCH, NO_SESSION
from culver.errors import ErrorCode
from culver.log.reading import ColdRead
from culver.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchRequest,
    FetchResponse,
    PartitionData,
)

if TYPE_CHECKING:
    from culver.broker.connection import Connection
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node
    from culver.scheduler import Timer

_SINCE_VERSION = 15  # of Fetch: topics by id, and the replica's epoch
_MAX_EPOCH = 2**31 - 1


class FollowerFeed:
    """One follower on one connection, from its BrokerHello to the connection's end."""

    __slots__ = (
        "_deadline_ms",
        "_dirty",
        "_epoch",
        "_in_sync",
        "_loading",
        "_looked_at_all_ms",
        "_missed",
        "_node",
        "_parked",
        "_request",
        "_sends_files",
        "_session_id",
        "_soon",
        "_throttle_timer",
        "_timer",
        "_wants",
        "broker_epoch",
        "broker_id",
    )

    def __init__(self, node: Node, connection: Connection, broker_id: int, broker_epoch: int) -> None:
        self.broker_id = broker_id
        self.broker_epoch = broker_epoch
        self._node = node
        self._sends_files = connection.sends_files
        self._session_id = NO_SESSION
        self._epoch = INITIAL_EPOCH
        self._wants: dict[tuple[bytes, int], Want] = {}
        self._dirty: dict[Want, None] = {}  # to be looked at
        self._parked: Exchange | None = None
        self._request: FetchRequest
        self._deadline_ms = 0.0
        self._timer: Timer | None = None
        self._throttle_timer: Timer | None = None
        self._soon = False
        self._missed = False  # something changed while nothing was parked to be answered
        self._loading = False
        self._looked_at_all_ms = -inf
        self._in_sync = False  # in some partition, when all were looked at last

    # -- requests ---------------------------------------------------------------------------------------

    def fetch(self, exchange: Exchange, request: FetchRequest) -> FetchResponse | None:
        """Answer at once if there is something to send; otherwise wait for it."""
        if self._parked is not None:
            # It has more to say than it wants to wait: what it has waited for is over.
            self._finish(self._look(everything=False))
        code = self._refusal(exchange.version, request) or self._take(request)
        if code is not ErrorCode.NONE:
            return FetchResponse(error_code=code, responses=[])
        self._request = request
        now_ms = self._node.clock.monotonic_ms()
        everything = now_ms - self._looked_at_all_ms >= max(request.max_wait_ms, 1)
        self._missed = False
        read = self._look(everything=everything)
        if read.urgent or request.max_wait_ms <= 0:
            return self._response(read)
        self._parked = exchange
        exchange.on_abandon = self._abandoned
        self._deadline_ms = now_ms + request.max_wait_ms
        if self._timer is None:
            self._timer = self._node.scheduler.call_later(request.max_wait_ms, self._time_is_up)
        if self._missed:
            # The acknowledgement that came with this fetch has led to more appends, in partitions looked at before.
            self._look_soon()
        return None

    def _refusal(self, version: int, request: FetchRequest) -> ErrorCode:
        state = request.replica_state
        if version < _SINCE_VERSION or state is None:
            return ErrorCode.UNSUPPORTED_VERSION
        if state.replica_id != self.broker_id:
            return ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        known = self._node.image.brokers.get(self.broker_id)
        if state.replica_epoch != self.broker_epoch or (
            known is not None and known.epoch > state.replica_epoch
        ):
            return ErrorCode.STALE_BROKER_EPOCH
        return ErrorCode.NONE

    def _take(self, request: FetchRequest) -> ErrorCode:
        """Take in what the request adds, changes and forgets."""
        epoch = request.session_epoch
        if epoch == INITIAL_EPOCH:
            self._forget(list(self._wants))
            self._session_id += 1
            self._epoch = 1
            self._looked_at_all_ms = -inf
        elif request.session_id != self._session_id:
            return ErrorCode.FETCH_SESSION_ID_NOT_FOUND
        elif epoch != self._epoch:
            return ErrorCode.INVALID_FETCH_SESSION_EPOCH
        else:
            self._epoch = 1 if epoch == _MAX_EPOCH else epoch + 1
        for topic in request.topics:
            for asked in topic.partitions:
                key = (topic.topic_id, asked.partition)
                want = self._wants.get(key)
                if want is None:
                    want = self._wants[key] = Want(self, topic.topic_id, asked.partition)
                want.ask(asked)
                # At the end of the line: those who had to wait for room in an answer come first.
                self._dirty.pop(want, None)
                self._dirty[want] = None
        for forgotten in request.forgotten_topics_data:
            self._forget((forgotten.topic_id, index) for index in forgotten.partitions)
        return ErrorCode.NONE

    def _forget(self, keys: Iterable[tuple[bytes, int]]) -> None:
        for key in keys:
            want = self._wants.pop(key, None)
            if want is not None:
                want.let_go()
                self._dirty.pop(want, None)

    # -- looking ----------------------------------------------------------------------------------------

    def _look(self, *, everything: bool) -> ReplicaRead:
        """Read what there is for the follower. What is not told now stays to be looked at again."""
        if everything:
            self._looked_at_all_ms = self._node.clock.monotonic_ms()
            for want in self._wants.values():
                self._dirty.setdefault(want)
        read = ReplicaRead(
            self._node,
            self.broker_id,
            self.broker_epoch,
            self._request.max_bytes,
            sends_files=self._sends_files,
            refresh=everything,
        )
        looked_at, self._dirty = self._dirty, {}
        left = read.run(looked_at, self._in_sync)
        self._dirty = left | self._dirty
        if everything:
            self._in_sync = read.in_sync
        if read.cold:
            self._load(read.cold)
        if read.throttled_ms and self._throttle_timer is None:
            self._throttle_timer = self._node.scheduler.call_later(read.throttled_ms, self._throttle_over)
        return read

    def changed(self, want: Want) -> None:
        """Something was appended to a partition, or it is not led here any more."""
        self._dirty[want] = None
        if self._parked is None:
            self._missed = True
        else:
            self._look_soon()

    def _look_soon(self) -> None:
        """Once for all partitions that a bunch of requests has appended to."""
        if not self._soon:
            self._soon = True
            self._node.scheduler.call_soon(self._look_again)

    def _look_again(self) -> None:
        self._soon = False
        if self._parked is not None:
            read = self._look(everything=False)
            if read.urgent:
                self._finish(read)

    def _time_is_up(self) -> None:
        self._timer = None
        if self._parked is None:
            return  # the next fetch that waits sets another
        left_ms = self._deadline_ms - self._node.clock.monotonic_ms()
        if left_ms > 0:
            self._timer = self._node.scheduler.call_later(left_ms, self._time_is_up)
        else:
            self._finish(self._look(everything=True))

    def _throttle_over(self) -> None:
        self._throttle_timer = None
        self._look_again()

    def _load(self, cold: list[tuple[Want, ColdRead]]) -> None:
        """Have a thread bring bytes into the page cache, then look again; others are served meanwhile."""
        if self._loading:
            return
        self._loading = True

        def loaded(_result: None, error: BaseException | None) -> None:
            self._loading = False
            if error is not None:
                for want, _ in cold:
                    want.unreadable = True
            self._look_again()

        self._node.scheduler.run_blocking(partial(_load_all, [read for _, read in cold]), loaded)

    # -- answering --------------------------------------------------------------------------------------

    def _finish(self, read: ReplicaRead) -> None:
        exchange = cast("Exchange", self._parked)
        self._parked = None
        exchange.reply(self._response(read))

    def _response(self, read: ReplicaRead) -> FetchResponse:
        topics: dict[bytes, list[PartitionData]] = {}
        for want, data in read.found:
            want.told(data)
            topics.setdefault(want.topic_id, []).append(data)
        return FetchResponse(
            session_id=self._session_id,
            responses=[
                FetchableTopicResponse(topic_id=topic_id, partitions=partitions)
                for topic_id, partitions in topics.items()
            ],
        )

    # -- ending -----------------------------------------------------------------------------------------

    def _abandoned(self) -> None:
        self._parked = None

    def close(self) -> None:
        """The connection is gone."""
        self._parked = None
        self._forget(list(self._wants))
        for timer in (self._timer, self._throttle_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._throttle_timer = None


def _load_all(reads: list[ColdRead]) -> None:
    for read in reads:
        read.load()
