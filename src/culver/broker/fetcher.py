"""Fetches from one leader what this broker follows of it: request, answer, append, next request.

The offset that a request asks for acknowledges all that is below it, so a partition is asked for again only when what
came is in the log (and on disk, where the topic wants that). An answer that took its time may be about a leadership
that is over: it counts only if the partition is still followed as it was when it was asked for.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from culver.broker.group_commit import CutOff
from culver.broker.partition import WRITE_BACK_BYTES
from culver.broker.peer import Call, Peer
from culver.broker.replica_append import append, diverge, start_over
from culver.core.fetch_session_client import FetchSessionClient, PartitionKey
from culver.core.token_bucket import UNLIMITED, TokenBucket
from culver.errors import ErrorCode, KafkaError
from culver.logging import get_logger
from culver.protocol.apis import APIS
from culver.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    PartitionData,
    ReplicaState,
)

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.broker.partition import Partition
    from culver.scheduler import Timer

_log = get_logger("culver.replication")

_FETCH_KEY = 1
_REST_MIN_MS = 20.0
# One that waits at the leader, and one that tells it what has changed meanwhile, which makes it answer the first.
_IN_FLIGHT_MAX = 2


class Followed:
    """A partition that is fetched, in one leader epoch."""

    __slots__ = ("asked_in", "asked_offset", "epoch", "key", "partition", "rest_ms", "waiting")

    def __init__(self, key: PartitionKey, partition: Partition) -> None:
        self.key = key
        self.partition = partition
        self.epoch = partition.leader_epoch
        self.waiting = False  # asked for, and not answered with anything that needs another request
        self.asked_in = 0  # the number of the request
        self.asked_offset = 0
        self.rest_ms = 0.0  # how long it rested after the last failure


class Fetcher:
    """All that is fetched from one leader, over one connection."""

    def __init__(self, node: Node, leader_id: int, throttle: TokenBucket) -> None:
        self.leader_id = leader_id
        self._node = node
        self._throttle = throttle
        self._followed: dict[PartitionKey, Followed] = {}
        self._due: dict[Followed, None] = {}  # to be asked for with the next request
        self._resting: dict[Followed, float] = {}  # until when
        self._held: dict[Followed, None] = {}  # behind, and the throttle is closed
        self._session = FetchSessionClient()
        self._requests = 0
        self._in_flight = 0
        self._soon = False
        self._rest_timer: Timer | None = None
        self._throttle_timer: Timer | None = None
        self._call = Call(_FETCH_KEY, APIS[_FETCH_KEY].max_version)
        self._closed = False
        self._peer = Peer(node, leader_id, self._connected, self._connection_lost)

    # -- what is followed -------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        return not self._followed

    def follow(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.index)
        followed = self._followed.get(key)
        if (
            followed is None
            or followed.partition is not partition
            or followed.epoch != partition.leader_epoch
        ):
            if followed is not None:
                self._take_out(followed)
            followed = self._followed[key] = Followed(key, partition)
            self._due[followed] = None
        elif self._resting.pop(followed, None) is not None:
            self._due[followed] = None
        self._peer.hurry()
        self._send_soon()

    def unfollow(self, partition: Partition) -> None:
        key = (partition.topic_id, partition.index)
        followed = self._followed.get(key)
        if followed is not None and followed.partition is partition:
            del self._followed[key]
            self._take_out(followed)
            self._session.forget(key)

    def _take_out(self, followed: Followed) -> None:
        self._due.pop(followed, None)
        self._resting.pop(followed, None)
        self._held.pop(followed, None)

    def _connected(self) -> None:
        self._node.suspects.is_back(self.leader_id)
        self._send()

    def _connection_lost(self) -> None:
        self._node.suspects.hung_up(self.leader_id)
        self._in_flight = 0
        self._begin_session()

    def _begin_session(self) -> None:
        self._session.reset()
        for followed in self._followed.values():
            if followed.waiting:
                followed.waiting = False
                self._due[followed] = None

    def close(self) -> None:
        self._closed = True
        self._peer.close()
        for timer in (self._rest_timer, self._throttle_timer):
            if timer is not None:
                timer.cancel()

    # -- asking -----------------------------------------------------------------------------------------

    def _send_soon(self) -> None:
        """Once for everything that is due by then."""
        if not self._soon:
            self._soon = True
            self._node.scheduler.call_soon(self._send)

    def _send(self) -> None:
        self._soon = False
        peer, session = self._peer, self._session
        if not peer.ready or self._closed:
            return
        if self._in_flight and (
            not self._due or not session.established or session.opening or self._in_flight >= _IN_FLIGHT_MAX
        ):
            return
        node = self._node
        if peer.greeted_as != node.broker_epoch:
            peer.give_up("this broker has joined the cluster anew")
            return
        due = self._allowed()
        if not due and (self._in_flight or not any(followed.waiting for followed in self._followed.values())):
            return
        self._requests += 1
        config = node.config
        wait_ms = 0 if session.opening else config.replica_fetch_wait_max_ms
        session_id, epoch, topics, forgotten = session.begin([self._ask(followed) for followed in due])
        request = FetchRequest(
            replica_state=ReplicaState(replica_id=node.broker_id, replica_epoch=node.broker_epoch),
            max_wait_ms=wait_ms,
            min_bytes=1,
            max_bytes=config.replica_fetch_response_max_bytes,
            session_id=session_id,
            session_epoch=epoch,
            topics=topics,
            forgotten_topics_data=forgotten,
        )
        self._in_flight += 1
        peer.ask(self._call, request, partial(self._answered, self._requests), wait_ms)

    def _allowed(self) -> list[Followed]:
        """What is due, without those that are behind while the throttle is closed."""
        node = self._node
        due, self._due = self._due, {}
        rate = node.config.follower_replication_throttled_rate
        if rate >= UNLIMITED or not due:
            return list(due)
        wait_ms = self._throttle.wait_ms(rate, node.clock.monotonic_ms())
        if not wait_ms:
            return list(due)
        allowed = []
        for followed in due:
            if self._behind(followed.partition):
                self._held[followed] = None
            else:
                allowed.append(followed)
        if self._held and self._throttle_timer is None:
            self._throttle_timer = node.scheduler.call_later(wait_ms, self._throttle_over)
        return allowed

    def _throttle_over(self) -> None:
        self._throttle_timer = None
        self._due |= self._held
        self._held = {}
        self._send()

    def _behind(self, followed: Partition) -> bool:
        image = self._node.image.partition(followed.topic, followed.index)
        return image is not None and self._node.broker_id not in image.isr

    def _ask(self, followed: Followed) -> tuple[PartitionKey, FetchPartition]:
        log = followed.partition.log
        followed.waiting = True
        followed.asked_in = self._requests
        followed.asked_offset = log.end_offset
        return followed.key, FetchPartition(
            partition=followed.partition.index,
            current_leader_epoch=followed.epoch,
            fetch_offset=log.end_offset,
            last_fetched_epoch=log.latest_epoch,
            log_start_offset=log.start_offset,
            partition_max_bytes=self._node.config.replica_fetch_max_bytes,
        )

    # -- answers ----------------------------------------------------------------------------------------

    def _answered(self, number: int, response: FetchResponse) -> None:
        self._in_flight -= 1
        code = ErrorCode(response.error_code)
        if code is not ErrorCode.NONE and not code.retriable:
            self._peer.give_up(f"it does not answer this broker's fetches ({code.name}): {code.text}")
            return
        if not self._session.answered(code, response.session_id):
            self._begin_session()
        for topic in response.responses:
            for data in topic.partitions:
                followed = self._followed.get((topic.topic_id, data.partition_index))
                if followed is not None and followed.waiting and followed.asked_in <= number:
                    self._take(followed, data)
        self._send()  # first: producers wait for the acknowledgement in it
        self._node.after_requests()

    def _take(self, followed: Followed, data: PartitionData) -> None:
        """One partition's part of an answer."""
        partition = followed.partition
        if (
            partition.leader_epoch != followed.epoch
            or partition.leader != self.leader_id
            or partition.state is not None
        ):
            return  # it is about to be followed anew, or not at all
        try:
            if data.error_code:
                self._failed(followed, data)
                return
            if data.diverging_epoch is not None:
                diverge(partition, data.diverging_epoch, data.log_start_offset)
                followed.waiting = False
            elif data.records:
                self._append(followed, data.records)  # type: ignore[arg-type]
        except KafkaError as error:
            self._cannot_keep(followed, error)
            return
        followed.rest_ms = 0.0
        self._node.replication.followed(partition, data.high_watermark, data.log_start_offset)
        if not followed.waiting or partition.log.end_offset != followed.asked_offset:
            followed.waiting = False
            self._ask_again(followed)

    def _append(self, followed: Followed, records: memoryview) -> None:
        partition = followed.partition
        appended_bytes = append(partition, records, followed.asked_offset)
        followed.waiting = False
        partition.appended_bytes += appended_bytes
        partition.replicated_bytes += appended_bytes
        if partition.appended_bytes > partition.write_back_at_bytes:
            partition.write_back_at_bytes = partition.appended_bytes + WRITE_BACK_BYTES
            self._node.group_commit.ask(partition)
        if self._node.config.follower_replication_throttled_rate < UNLIMITED and self._behind(partition):
            self._throttle.take(appended_bytes)

    def _ask_again(self, followed: Followed) -> None:
        """Once what is there may be acknowledged."""
        partition = followed.partition
        if partition.must_wait_for_disk(1):
            self._node.group_commit.wait(partition, partial(self._flushed, followed))
        else:
            self._due[followed] = None

    def _flushed(self, followed: Followed, error: BaseException | None) -> None:
        if self._followed.get(followed.key) is not followed or isinstance(error, CutOff):
            return  # whoever cut it off asks for what comes instead
        if error is not None:
            self._node.replication.log_failed(followed.partition)
            return
        self._due[followed] = None
        self._send_soon()

    # -- failures ---------------------------------------------------------------------------------------

    def _failed(self, followed: Followed, data: PartitionData) -> None:
        """The leader has no records for this partition but an error."""
        partition = followed.partition
        followed.waiting = False
        if data.error_code == ErrorCode.OFFSET_OUT_OF_RANGE and start_over(
            partition, followed.asked_offset, data.log_start_offset, data.last_stable_offset
        ):
            self._due[followed] = None
        else:
            self._rest(followed)

    def _cannot_keep(self, followed: Followed, error: KafkaError) -> None:
        """What the leader sent cannot be put into the log: it is damaged, or the log is."""
        partition = followed.partition
        followed.waiting = False
        _log.error(
            "cannot append what the leader sent",
            topic=partition.topic,
            partition=partition.index,
            leader=self.leader_id,
            reason=error.message,
        )
        self._rest(followed)
        if partition.log.failed is not None or partition.log.corruption is not None:
            self._node.replication.log_failed(partition)

    def _rest(self, followed: Followed) -> None:
        """Leave a partition alone for a while, longer each time; it is also woken when it is to be followed anew."""
        now_ms = self._node.clock.monotonic_ms()
        longest_ms = max(float(self._node.config.replica_fetch_backoff_ms), _REST_MIN_MS)
        followed.rest_ms = min(max(followed.rest_ms * 2, _REST_MIN_MS), longest_ms)
        self._resting[followed] = now_ms + followed.rest_ms
        if self._rest_timer is None:
            self._rest_timer = self._node.scheduler.call_later(followed.rest_ms, self._wake_rested)

    def _wake_rested(self) -> None:
        self._rest_timer = None
        now_ms = self._node.clock.monotonic_ms()
        for followed in [one for one, until_ms in self._resting.items() if until_ms <= now_ms]:
            del self._resting[followed]
            self._due[followed] = None
        if self._resting:
            left_ms = min(self._resting.values()) - now_ms
            self._rest_timer = self._node.scheduler.call_later(left_ms, self._wake_rested)
        self._send()
