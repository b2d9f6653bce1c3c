"""What every coordinator needs of its broker: its records appended and read back, replies sent, deadlines kept."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from culver.broker.administration import NewTopic, Outcome
from culver.broker.coordinator_loading import CoordinatorLoader, Load
from culver.broker.internal_writing import write_internally
from culver.core.coordinator_effects import (
    Append,
    Effect,
    Effects,
    Reply,
    RequestContext,
    Token,
)
from culver.core.image import BrokerInfo
from culver.errors import ErrorCode, KafkaError
from culver.protocol.records import Record, encode_batch

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node
    from culver.broker.partition import Partition
    from culver.scheduler import Timer


class Coordinator(Protocol):
    """A state machine whose state lies in the partitions of an internal topic."""

    @property
    def partition_for(self) -> Callable[[str], int]:
        """The partition that holds a group or a transactional id."""

    def replay(self, partition: int, key: bytes, value: bytes | None, producer_id: int = -1) -> None: ...

    def replay_marker(self, partition: int, producer_id: int, committed: bool) -> None: ...

    def load_done(self, partition: int, now_ms: float) -> Effects: ...

    def unload(self, partition: int, now_ms: float) -> Effects: ...

    def append_done(self, append: Append, error: ErrorCode, now_ms: float) -> Effects: ...

    def cancel(self, token: Token) -> None: ...

    def next_deadline_ms(self) -> float | None: ...

    def expire(self, now_ms: float) -> Effects: ...


C = TypeVar("C", bound=Coordinator)


class _Appending:
    """An append on its way to disk and replicas, and how it ended once that is known."""

    __slots__ = ("append", "error")

    def __init__(self, append: Append) -> None:
        self.append = append
        self.error: ErrorCode | None = None


class CoordinatorRuntime(ABC, Generic[C]):
    """The one caller of a coordinator: appends its records, sends its replies, keeps its deadlines.

    What it coordinates lives where its partition of the internal topic is led. When this broker becomes the leader it
    is read back from the log; when it ceases to be, it is dropped, and whoever waits is sent to look elsewhere.
    """

    def __init__(self, node: Node, topic: str) -> None:
        self._node = node
        self._topic = topic
        self._timer: Timer | None = None
        self._timer_at_ms = 0.0
        # The coordinator hears of the appends to one partition in the order in which it asked for them.
        self._appending: dict[int, deque[_Appending]] = {}
        self._loader = CoordinatorLoader(node, self._replay, self._replay_marker, self._loaded)
        self._topic_wanted: list[Outcome] = []
        self._coordinator: C | None = None
        self._held: set[int] = set()  # partitions that the coordinator holds or is loading
        self._topic_id: bytes | None = None  # of the internal topic that the coordinator was made for

    # -- what differs -----------------------------------------------------------------------------------

    @abstractmethod
    def _new_coordinator(self, partition_count: int) -> C:
        """A coordinator that holds nothing yet."""

    @abstractmethod
    def _load_begin(self, coordinator: C, partition: Partition) -> None: ...

    @abstractmethod
    def _new_topic(self) -> tuple[int, int, dict[str, str]]:
        """Partitions, replicas and settings with which the internal topic is made."""

    def _carry_out_other(self, effect: Effect) -> None:
        """An effect beside replies and appends."""
        raise AssertionError(f"nobody carries out {effect!r}")

    def _as_of_version(self, exchange: Exchange, response: Any) -> Any:
        """The response as the request's version has it."""
        return response

    def _after_load(self, load: Load) -> None:
        """A partition's records have been read back."""

    # -- the coordinator --------------------------------------------------------------------------------

    @property
    def coordinator(self) -> C:
        topic = self._node.image.topics.get(self._topic)
        topic_id = None if topic is None else topic.topic_id
        if self._coordinator is None or topic_id != self._topic_id:
            # Another topic may have another number of partitions, and then everything lives elsewhere in it.
            self._drop_all()
            self._topic_id = topic_id
            self._coordinator = self._new_coordinator(self.partition_count)
        return self._coordinator

    @property
    def partition_count(self) -> int:
        """Of the internal topic. One that exists keeps its shape: the setting only counts when it is made."""
        topic = self._node.image.topics.get(self._topic)
        return len(topic.partitions) if topic is not None else self._new_topic()[0]

    def coordinator_of(self, name: str) -> BrokerInfo | None:
        """The living broker that leads the partition of a group or transactional id."""
        image = self._node.image
        partition = image.partition(self._topic, self.coordinator.partition_for(name))
        return None if partition is None else image.brokers.get(partition.leader)

    # -- requests ---------------------------------------------------------------------------------------

    def handle(self, exchange: Exchange, method: str, request: Any) -> Any:
        """Run one request through the coordinator: its response, or None while it waits for one."""
        context = RequestContext(exchange.client_id or "", "/" + exchange.client_host, exchange.version)
        coordinator = self._current()
        response = None
        for effect in getattr(coordinator, method)(
            request, context, exchange, self._node.clock.monotonic_ms()
        ):
            if type(effect) is Reply and effect.token is exchange:
                response = self._as_of_version(exchange, effect.response)
            else:
                self._carry_out_one(effect)
        if response is None:
            exchange.on_abandon = lambda: coordinator.cancel(exchange)
        self._set_timer()
        return response

    def _current(self) -> C:
        coordinator = self.coordinator
        if self._node.lease_holds:
            return coordinator
        # Another broker may coordinate by now, and know better. A coordinator without anything sends all away.
        return self._new_coordinator(self.partition_count)

    def _carry_out(self, effects: Effects) -> None:
        for effect in effects:
            self._carry_out_one(effect)
        self._set_timer()

    def _carry_out_one(self, effect: Effect) -> None:
        if isinstance(effect, Reply):
            token: Any = effect.token
            if callable(token):
                token(effect.response)  # the broker itself asked
            else:
                token.reply(self._as_of_version(token, effect.response))
        elif isinstance(effect, Append):
            self._append(effect)
        else:
            self._carry_out_other(effect)

    # -- records ----------------------------------------------------------------------------------------

    def _append(self, append: Append) -> None:
        # A partition that is led anew gets a queue of its own: what is still on its way from before is nobody's.
        waiting = self._appending.setdefault(append.partition, deque())
        mine = _Appending(append)
        waiting.append(mine)
        inside = True

        def committed(error: ErrorCode) -> None:
            mine.error = error
            if inside:
                # Not from inside the coordinator's own call: it is told when that has returned.
                self._node.scheduler.call_soon(lambda: self._report(waiting))
            else:
                self._report(waiting)

        partition = self._node.partitions.get(self._topic, append.partition)
        write_internally(self._node, partition, lambda partition: self._write(partition, append), committed)
        inside = False

    def _write(self, partition: Partition, append: Append) -> None:
        if append.marker is not None:
            partition.append_marker(append.marker)
        else:
            partition.append_internal(self._batch(partition, append))

    def _batch(self, partition: Partition, append: Append) -> bytearray:
        now_ms = self._node.clock.now_ms()
        records = [
            Record(position, now_ms, record.key, record.value)
            for position, record in enumerate(append.records)
        ]
        if any(len(record.value or b"") > partition.log.config.max_message_bytes for record in records):
            # What clients put into a coordinator's records is theirs to keep within bounds.
            raise KafkaError(ErrorCode.MESSAGE_TOO_LARGE)
        producer = append.producer
        if producer is None:
            return encode_batch(records)
        return encode_batch(
            records,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            base_sequence=0,
            is_transactional=True,
        )

    def _report(self, waiting: deque[_Appending]) -> None:
        while waiting and waiting[0].error is not None:
            done = waiting.popleft()
            assert done.error is not None
            self._carry_out(
                self.coordinator.append_done(done.append, done.error, self._node.clock.monotonic_ms())
            )
        # A reply may have led to more appends, outside of any bunch of requests.
        self._node.after_requests()

    # -- coming and going -------------------------------------------------------------------------------

    @property
    def loading(self) -> bool:
        """Whether anything is still being read back."""
        return self._loader.busy

    def became_leader(self, partition: Partition) -> None:
        """Rebuild from its records what one partition of the internal topic holds."""
        coordinator = self.coordinator
        if partition.index in self._held:
            # Led before, in an earlier epoch, and perhaps not all the time: the log says what counts.
            self.resigned(partition.index)
        self._held.add(partition.index)
        self._load_begin(coordinator, partition)
        self._loader.begin(partition)

    def resigned(self, index: int) -> None:
        """Another broker leads the partition now, or none: what it holds is no longer to be found here."""
        self._loader.stop(index)
        self._appending.pop(index, None)
        self._held.discard(index)
        if self._coordinator is not None:
            self._carry_out(self._coordinator.unload(index, self._node.clock.monotonic_ms()))

    def _replay(self, number: int, key: bytes, value: bytes | None, producer_id: int) -> None:
        self.coordinator.replay(number, key, value, producer_id)

    def _replay_marker(self, number: int, producer_id: int, committed: bool) -> None:
        self.coordinator.replay_marker(number, producer_id, committed)

    def _loaded(self, load: Load) -> None:
        self._carry_out(self.coordinator.load_done(load.partition.index, self._node.clock.monotonic_ms()))
        self._after_load(load)
        self._node.after_requests()

    def _drop_all(self) -> None:
        coordinator, self._coordinator = self._coordinator, None
        held, self._held = self._held, set()
        for index in sorted(held):
            self._loader.stop(index)
            self._appending.pop(index, None)
            if coordinator is not None:
                for effect in coordinator.unload(index, self._node.clock.monotonic_ms()):
                    self._carry_out_one(effect)

    # -- timers and topics ------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._coordinator is None:
            return
        deadline_ms = self._coordinator.next_deadline_ms()
        if deadline_ms is None or (self._timer is not None and self._timer_at_ms <= deadline_ms):
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at_ms = deadline_ms
        delay_ms = max(deadline_ms - self._node.clock.monotonic_ms(), 0.0)
        self._timer = self._node.scheduler.call_later(delay_ms, self._due)

    def _due(self) -> None:
        self._timer = None
        self._carry_out(self.coordinator.expire(self._node.clock.monotonic_ms()))
        self._node.after_requests()

    def topic_deleted(self, name: str) -> None:
        """A topic is gone; if it is the internal one, so is everything in it."""
        if self._coordinator is not None and name == self._topic:
            self._drop_all()
            self._node.after_requests()

    def ensure_topic(self, done: Outcome) -> None:
        """Make the internal topic if it is not there; many may ask at the same time."""
        if self._topic in self._node.image.topics:
            done(None)
            return
        self._topic_wanted.append(done)
        if len(self._topic_wanted) > 1:
            return

        def made(error: KafkaError | None) -> None:
            wanted, self._topic_wanted = self._topic_wanted, []
            for one in wanted:
                one(error)

        node = self._node
        count, factor, settings = self._new_topic()
        try:
            replicas = node.administration.place(count, min(factor, len(node.image.registrations)))
        except KafkaError as error:
            made(error)
            return
        node.administration.create_topic(NewTopic(self._topic, node.new_uuid(), replicas, settings), made)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
