"""Groups in a broker that becomes the leader of their partition, and ceases to be: what a client hears meanwhile."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from log_batches import LogFixture

from culver.broker import coordinator_loading
from culver.broker.groups import Groups
from culver.config import BrokerConfig
from culver.core.group_records import CommittedOffset, offset_record
from culver.core.image import ClusterImage, PartitionImage, TopicImage
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.errors import ErrorCode
from culver.log.partition_log import ColdRead, PartitionLog
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from culver.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from culver.protocol.records import Record, encode_batch


class Steps:
    """A scheduler that runs when it is told to."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], object]] = deque()
        self.later: list[Callable[[], object]] = []
        self.blocking: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    def call_later(self, _delay_ms: float, callback: Callable[[], object]) -> Any:
        self.later.append(callback)
        return SimpleNamespace(cancel=lambda: None)

    def run_blocking(
        self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], object]
    ) -> None:
        self.blocking.append(lambda: done(work(), None))

    def step(self) -> None:
        self.soon.popleft()()

    def run(self) -> int:
        steps = 0
        while self.soon:
            self.step()
            steps += 1
        return steps


class Replication:
    """Commits when the test says so."""

    def __init__(self) -> None:
        self.committing: list[tuple[int, Callable[[ErrorCode], object]]] = []
        self.at_once = True
        self.appends = 0
        self.failed_logs = 0

    def appended(self, _partition: Any) -> None:
        self.appends += 1

    def log_failed(self, _partition: Any) -> None:
        self.failed_logs += 1

    def commit(
        self, _partition: Any, end_offset: int, _timeout_ms: float | None, done: Callable[[ErrorCode], object]
    ) -> None:
        if self.at_once:
            done(ErrorCode.NONE)
        else:
            self.committing.append((end_offset, done))

    def settle(self, error: ErrorCode = ErrorCode.NONE) -> None:
        committing, self.committing = self.committing, []
        for _end_offset, done in committing:
            done(error)


class Partition:
    """As much of a partition as groups need."""

    def __init__(self, log: PartitionLog) -> None:
        self.topic = GROUP_OFFSETS_TOPIC
        self.index = 0
        self.log = log
        self.replicated = True
        self.leader_epoch = 1
        self.state: Any = SimpleNamespace(below_min=False)

    def append_internal(self, batch: bytes) -> None:
        self.log.append_internal(batch, self.leader_epoch)


class Asking:
    """A request of a client that waits for its answer."""

    def __init__(self, version: int) -> None:
        self.version = version
        self.client_id = "c"
        self.client_host = "127.0.0.1"
        self.on_abandon: Any = None
        self.response: Any = None

    def reply(self, response: Any) -> None:
        assert self.response is None
        self.response = response


class World:
    """One broker that holds partition 0, the only one, of the internal topic."""

    def __init__(self) -> None:
        self.fixture = LogFixture()
        self.partition: Any = Partition(self.fixture.log)
        self.scheduler = Steps()
        self.replication = Replication()
        topics = [
            TopicImage(GROUP_OFFSETS_TOPIC, b"o" * 16, (PartitionImage(0, 1, 0, (1,), (1,)),)),
            TopicImage("t", b"t" * 16, tuple(PartitionImage(i, 1, 0, (1,), (1,)) for i in range(100))),
        ]
        self.node: Any = SimpleNamespace(
            config=BrokerConfig(),
            clock=self.fixture.clock,
            scheduler=self.scheduler,
            replication=self.replication,
            image=ClusterImage("c").with_topics(topics),
            partitions=SimpleNamespace(get=lambda _topic, _index: self.partition, changed=lambda _p: None),
            lease_holds=True,
            new_uuid=lambda: b"u" * 16,
            after_requests=lambda: None,
        )
        self.groups = Groups(self.node)

    @property
    def log(self) -> PartitionLog:
        return self.fixture.log

    def write(self, group: str, index: int, offset: int) -> None:
        """A commit in the log, as an earlier coordinator wrote it."""
        made = offset_record(group, "t", index, CommittedOffset(offset, -1, "", 0))
        self.log.append_internal(encode_batch([Record(0, 0, made.key, made.value)]), 0)

    def ask(self, method: str, request: Any, version: int) -> Asking:
        asking = Asking(version)
        asking.response = self.groups.handle(asking, method, request)  # type: ignore[arg-type]
        return asking

    def fetch(self, group: str, index: int = 0) -> int:
        """The committed offset, or minus the error code."""
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[index])]
        request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
        (answer,) = self.ask("handle_offset_fetch", request, 9).response.groups
        if answer.error_code:
            return -int(answer.error_code)
        return int(answer.topics[0].partitions[0].committed_offset)

    def commit(self, group: str, offset: int) -> Asking:
        partitions = [
            OffsetCommitRequestPartition(partition_index=0, committed_offset=offset, committed_metadata="")
        ]
        topics = [OffsetCommitRequestTopic(name="t", partitions=partitions)]
        return self.ask("handle_offset_commit", OffsetCommitRequest(group_id=group, topics=topics), 8)


def error_of(asking: Asking) -> ErrorCode | None:
    if asking.response is None:
        return None
    return ErrorCode(asking.response.topics[0].partitions[0].error_code)


@pytest.fixture
def world() -> World:
    return World()


def test_groups_of_a_partition_led_elsewhere_are_not_here(world: World) -> None:
    assert world.fetch("g") == -ErrorCode.NOT_COORDINATOR


def test_groups_are_read_back_from_the_log(world: World) -> None:
    world.write("g", 0, 5)
    world.write("g", 1, 6)
    world.write("g", 0, 7)
    world.groups.became_leader(world.partition)
    assert world.fetch("g") == -ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.scheduler.run()
    assert world.fetch("g", 0) == 7
    assert world.fetch("g", 1) == 6


def test_an_empty_log_has_nothing_to_wait_for(world: World) -> None:
    world.groups.became_leader(world.partition)
    assert world.fetch("g") == -1


def test_a_long_log_is_read_in_small_steps(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_loading, "_STEP_BYTES", 1000)
    for number in range(100):
        world.write("g", number, number)
    world.groups.became_leader(world.partition)
    assert world.scheduler.run() > 10
    assert [world.fetch("g", number) for number in range(100)] == list(range(100))


def test_what_is_not_in_memory_is_fetched_by_a_thread(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.write("g", 0, 5)
    read, cold = world.log.read, [True]

    def read_cold(*arguments: Any, **options: Any) -> Any:
        if cold.pop():
            return ColdRead(world.fixture.fs, f"{world.log.directory}/gone", 0, 100)
        cold.append(False)
        return read(*arguments, **options)

    cold.insert(0, False)
    monkeypatch.setattr(world.log, "read", read_cold)
    world.groups.became_leader(world.partition)
    world.scheduler.run()
    assert world.fetch("g") == -ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    (blocking,) = world.scheduler.blocking
    blocking()
    world.scheduler.run()
    assert world.fetch("g") == 5


def test_a_disk_that_fails_for_a_while_is_read_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    world.write("g", 0, 5)
    read = world.log.read

    def fail(*_arguments: Any, **_options: Any) -> Any:
        raise OSError("read error")

    monkeypatch.setattr(world.log, "read", fail)
    world.groups.became_leader(world.partition)
    world.scheduler.run()
    monkeypatch.setattr(world.log, "read", read)
    (again,) = world.scheduler.later
    again()
    world.scheduler.run()
    assert world.fetch("g") == 5
    assert world.replication.failed_logs == 0


def test_a_damaged_record_lets_another_replica_lead(world: World) -> None:
    world.write("g", 0, 5)
    file = world.fixture.fs.open(f"{world.log.directory}/00000000000000000000.log")
    file.pwrite(b"X", 90)
    file.close()
    world.groups.became_leader(world.partition)
    world.scheduler.run()
    assert world.replication.failed_logs == 1
    assert world.fetch("g") == -ErrorCode.COORDINATOR_LOAD_IN_PROGRESS


def test_nobody_is_told_what_may_yet_be_lost(world: World) -> None:
    world.write("g", 0, 5)
    world.replication.at_once = False
    world.groups.became_leader(world.partition)
    world.scheduler.run()
    assert [end_offset for end_offset, _ in world.replication.committing] == [1]
    assert world.fetch("g") == -ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.replication.settle()
    world.scheduler.run()
    assert world.fetch("g") == 5


def test_with_too_few_replicas_it_is_asked_for_again(world: World) -> None:
    world.write("h", 0, 5)
    world.replication.at_once = False
    world.groups.became_leader(world.partition)
    world.scheduler.run()
    world.replication.settle(ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND)
    (again,) = world.scheduler.later
    again()
    world.replication.settle()
    world.scheduler.run()
    assert world.fetch("g") == -1


def test_a_load_that_is_overtaken_stops(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coordinator_loading, "_STEP_BYTES", 100)
    for number in range(10):
        world.write("g", number, number)
    world.groups.became_leader(world.partition)
    world.scheduler.step()
    world.groups.resigned(0)
    world.scheduler.run()
    assert world.fetch("g") == -ErrorCode.NOT_COORDINATOR


def test_a_load_that_waits_for_its_commit_is_overtaken(world: World) -> None:
    world.write("h", 0, 5)
    world.replication.at_once = False
    world.groups.became_leader(world.partition)
    world.scheduler.run()
    world.groups.resigned(0)
    world.groups.became_leader(world.partition)
    world.replication.settle()  # of the first
    world.scheduler.run()
    assert world.fetch("g") == -ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    world.replication.settle()
    world.scheduler.run()
    assert world.fetch("g") == -1


def loaded(world: World) -> World:
    world.groups.became_leader(world.partition)
    world.scheduler.run()
    return world


def test_a_commit_is_answered_when_it_is_committed(world: World) -> None:
    loaded(world).replication.at_once = False
    asking = world.commit("g", 5)
    assert world.replication.appends == 1
    assert error_of(asking) is None
    assert world.fetch("g") == -1
    world.replication.settle()
    assert error_of(asking) is ErrorCode.NONE
    assert world.fetch("g") == 5


def test_answers_come_in_the_order_of_the_log(world: World) -> None:
    loaded(world).replication.at_once = False
    first, second = world.commit("g", 5), world.commit("g", 6)
    (_, done_first), (_, done_second) = world.replication.committing
    done_second(ErrorCode.NONE)
    assert error_of(first) is error_of(second) is None
    done_first(ErrorCode.NONE)
    assert error_of(first) is error_of(second) is ErrorCode.NONE
    assert world.fetch("g") == 6


def test_who_waits_is_sent_to_the_new_coordinator(world: World) -> None:
    loaded(world).replication.at_once = False
    asking = world.commit("g", 5)
    world.groups.resigned(0)
    assert error_of(asking) is ErrorCode.NOT_COORDINATOR
    world.replication.settle(ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert world.fetch("g") == -ErrorCode.NOT_COORDINATOR


def test_a_write_of_an_earlier_leadership_is_not_heard_of(world: World) -> None:
    """Back in the lead, with another log: the old write ended well or badly, but elsewhere."""
    loaded(world).replication.at_once = False
    world.commit("g", 5)
    world.groups.resigned(0)
    old = world.replication.committing.pop()[1]
    world.fixture = LogFixture()
    world.partition = Partition(world.fixture.log)
    world.replication.at_once = True
    loaded(world)
    old(ErrorCode.NONE)
    world.scheduler.run()
    assert world.fetch("g") == -1


@pytest.mark.parametrize(
    ("told", "heard"),
    [
        (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_COORDINATOR),
        (ErrorCode.REQUEST_TIMED_OUT, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND, ErrorCode.COORDINATOR_NOT_AVAILABLE),
        (ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_COORDINATOR),
    ],
)
def test_what_a_client_hears_of_a_failed_write(world: World, told: ErrorCode, heard: ErrorCode) -> None:
    loaded(world).replication.at_once = False
    asking = world.commit("g", 5)
    world.replication.settle(told)
    assert error_of(asking) is heard
    assert world.fetch("g") == -1


def test_with_too_few_replicas_nothing_is_written(world: World) -> None:
    loaded(world).partition.state.below_min = True
    asking = world.commit("g", 5)
    world.scheduler.run()
    assert error_of(asking) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert world.log.end_offset == 0


def test_without_a_certain_lease_nobody_is_answered(world: World) -> None:
    """Another coordinator may have taken newer commits by now."""
    world.write("g", 0, 5)
    loaded(world).node.lease_holds = False
    assert world.fetch("g") == -ErrorCode.NOT_COORDINATOR
    assert error_of(world.commit("g", 6)) is ErrorCode.NOT_COORDINATOR
    assert world.log.end_offset == 1
    world.node.lease_holds = True
    assert world.fetch("g") == 5


def test_offsets_of_a_topic_deleted_during_the_load_go(world: World) -> None:
    world.write("g", 0, 5)
    world.groups.became_leader(world.partition)
    world.groups.topic_deleted("t")
    world.scheduler.run()
    assert world.fetch("g") == -1


def test_another_internal_topic_starts_without_groups(world: World) -> None:
    world.write("g", 0, 5)
    loaded(world)
    other = TopicImage(
        GROUP_OFFSETS_TOPIC, b"p" * 16, tuple(PartitionImage(i, 1, 0, (1,), (1,)) for i in range(3))
    )
    world.node.image = world.node.image.with_topic(other)
    assert world.fetch("g") == -ErrorCode.NOT_COORDINATOR
    assert world.groups.coordinator.settings.offsets_topic_num_partitions == 3
