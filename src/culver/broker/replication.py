"""Replication: makes this broker's replicas lead or follow as the image says, moves high watermarks, settles commits.

image ──> lead / follow / drop            (apply)
follower's fetch ──> its end offset ──> high watermark ──> acknowledgements, consumers' fetches
followers that fall behind or catch up ──> the ISR, by compare-and-set on the partition's entry
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.broker.isr_changes import IsrChanges
from culver.broker.partition import Acknowledged, Partition, PendingCommit
from culver.core import elections
from culver.core.leader_state import LeaderState
from culver.errors import ErrorCode
from culver.logging import get_logger

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.core.image import PartitionImage, TopicImage
    from culver.core.image_builder import ImageChange
    from culver.scheduler import Timer

_log = get_logger("culver.replication")

_OPEN_AGAIN_MS = 1_000.0


class Replication:
    """What this broker does with the partitions it holds."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self.isr_changes = IsrChanges(node)
        self._timer: Timer | None = None
        self._running = False

    # -- the image --------------------------------------------------------------------------------------

    def start(self) -> None:
        """Take up every partition that this broker holds, and let go of those that it does not hold any more."""
        node = self._node
        self._running = True
        for topic in node.image.topics.values():
            for image in topic.partitions:
                self._apply(topic, image)
        for name, index in list(node.logs.logs):
            if name in node.image.topics and node.partitions.get(name, index) is None:
                _log.info("dropped a replica that was moved away", topic=name, partition=index)
                node.logs.delete(name, index)
        self._look_for_laggards()

    def stop(self) -> None:
        """Lead and follow nothing any more; whoever waits is told."""
        self._running = False
        if self._timer is not None:
            self._timer.cancel()
        for partition in list(self._node.partitions):
            if partition.leading:
                self._resign(partition)

    def apply(self, change: ImageChange) -> None:
        """Make the replicas fit the image."""
        if not self._running:
            return
        node = self._node
        for name in change.topics:
            old, new = change.before.topics.get(name), change.after.topics.get(name)
            if old is not None and (new is None or new.topic_id != old.topic_id):
                self._drop_topic(old)
            if new is not None:
                if old is not None and old.config != new.config:
                    self._configure(new)
                for image in new.partitions:
                    if old is None or old.partition(image.index) is not image:
                        self._apply(new, image)
        if change.brokers:
            self._brokers_changed(change)
        node.after_requests()

    def _brokers_changed(self, change: ImageChange) -> None:
        before, after = change.before.brokers, change.after.brokers
        different = {number for number in {*before, *after} if before.get(number) != after.get(number)}
        if self._node.broker_id in different:
            # Joined, or thrown out: leading and following begin or end with it.
            for topic in self._node.image.topics.values():
                for image in topic.partitions:
                    self._apply(topic, image)
            different = {*before, *after}
        for partition in self._node.partitions:
            if partition.leader in different and not partition.leading:
                self._follow(partition, renewed=True)

    def _configure(self, topic: TopicImage) -> None:
        config = self._node.topic_settings.effective(topic.config)
        for partition in self._node.partitions.of_topic(topic.name):
            partition.log.update_config(config)
            image = topic.partition(partition.index)
            if partition.state is not None and image is not None:
                partition.state.set_min_insync(
                    elections.effective_min_insync(image, config.min_insync_replicas)
                )
                if partition.replicated:
                    self.advance(partition)

    def reconfigure(self) -> None:
        """The broker's own settings, on which those of its topics rest, have changed."""
        for topic in self._node.image.topics.values():
            self._configure(topic)

    def _apply(self, topic: TopicImage, image: PartitionImage) -> None:
        node = self._node
        partition = node.partitions.get(topic.name, image.index)
        if node.broker_id not in image.replicas:
            if partition is not None:
                self._drop(partition)
            return
        if partition is None:
            try:
                partition = self._open(topic, image)
            except OSError as error:
                _log.error(
                    "cannot make a partition", topic=topic.name, partition=image.index, error=str(error)
                )
                # The disk may be full, which passes.
                node.scheduler.call_later(_OPEN_AGAIN_MS, lambda: self._open_again(topic.name, image.index))
                return
        if partition.log.failed is not None:
            # Its leader may have let it back in for what it asked for before that.
            self.isr_changes.leave(partition)
        if image.leader == node.broker_id and node.joined:
            self._lead(partition, image)
        else:
            if partition.leading:
                self._resign(partition)
            changed = partition.leader != image.leader or partition.leader_epoch != image.leader_epoch
            partition.leader = image.leader
            partition.leader_epoch = image.leader_epoch
            partition.replicated = True
            self._follow(partition, renewed=changed)

    def _open_again(self, name: str, index: int) -> None:
        topic = self._node.image.topics.get(name)
        image = None if topic is None else topic.partition(index)
        if self._running and topic is not None and image is not None:
            if self._node.partitions.get(name, index) is None:
                self._apply(topic, image)
            self._node.after_requests()

    def _open(self, topic: TopicImage, image: PartitionImage) -> Partition:
        node = self._node
        log = node.logs.get(topic.name, image.index)
        if log is None:
            config = node.topic_settings.effective(topic.config)
            log = node.logs.create(topic.name, image.index, config, topic.topic_id)
        partition = Partition(topic.name, image.index, topic.topic_id, log)
        log.on_roll = lambda _log: node.group_commit.ask(partition)
        if log.corruption is not None:
            _log.error(
                "a partition is corrupt and not served",
                topic=topic.name,
                partition=image.index,
                reason=log.corruption,
            )
        # Unknown until a leader says more, or the followers do.
        log.high_watermark = log.saved_high_watermark
        node.partitions.add(partition)
        return partition

    def _drop_topic(self, topic: TopicImage) -> None:
        for partition in self._node.partitions.of_topic(topic.name):
            self._drop(partition)
        for coordinator in self._node.coordinators.values():
            coordinator.topic_deleted(topic.name)

    def _drop(self, partition: Partition) -> None:
        node = self._node
        if partition.leading:
            self._resign(partition)
        node.fetchers.unfollow(partition)
        node.partitions.remove(partition)
        node.logs.delete(partition.topic, partition.index)
        node.housekeeping.remove_soon()

    # -- leading ----------------------------------------------------------------------------------------

    def _lead(self, partition: Partition, image: PartitionImage) -> None:
        if partition.leading and partition.leader_epoch == image.leader_epoch:
            self._update(partition, image)
            return
        if partition.leading:
            self._resign(partition)
        self._node.fetchers.unfollow(partition)
        partition.leader = image.leader
        partition.leader_epoch = image.leader_epoch
        partition.leadership_begins()
        self._begin_state(partition, image, partition.log.high_watermark)
        _log.info("leads", topic=partition.topic, partition=partition.index, epoch=image.leader_epoch)
        coordinator = self._node.coordinators.get(partition.topic)
        if coordinator is not None:
            coordinator.became_leader(partition)

    def _begin_state(self, partition: Partition, image: PartitionImage, high_watermark: int) -> None:
        log = partition.log
        partition.replicated = len(image.replicas) > 1
        partition.state = LeaderState(
            self._node.broker_id,
            image.replicas,
            image.isr,
            elections.effective_min_insync(image, log.config.min_insync_replicas),
            log.end_offset,
            min(high_watermark, log.end_offset),
            self._node.clock.monotonic_ms(),
            elr=image.elr,
        )
        if partition.replicated:
            log.high_watermark = min(high_watermark, log.end_offset)
            self.advance(partition)
        else:
            # All that the log has is committed, and stays so: the high watermark follows the end by itself.
            log.high_watermark = None
            self._settle_commits(partition)
            self._node.partitions.changed(partition)

    def _update(self, partition: Partition, image: PartitionImage) -> None:
        """The same leadership with other replicas, in-sync replicas or settings."""
        state = partition.state
        assert state is not None
        if partition.replicated != (len(image.replicas) > 1):
            self._begin_state(partition, image, partition.log.high_watermark)
            return
        state.update(
            image.replicas,
            image.isr,
            elections.effective_min_insync(image, partition.log.config.min_insync_replicas),
            self._node.clock.monotonic_ms(),
            elr=image.elr,
        )
        if partition.replicated:
            self.advance(partition)

    def _resign(self, partition: Partition) -> None:
        partition.leadership_ends()
        # From here on it moves only as a leader says.
        partition.log.high_watermark = partition.log.high_watermark
        pending = list(partition.pending_commits)
        partition.pending_commits.clear()
        for commit in pending:
            done = commit.settle()
            if done is not None:
                done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        coordinator = self._node.coordinators.get(partition.topic)
        if coordinator is not None:
            coordinator.resigned(partition.index)
        self._node.partitions.changed(partition)
        self._node.partitions.appended(partition)

    def appended(self, partition: Partition) -> None:
        """Something was appended to a replicated partition that this broker leads."""
        self._node.partitions.appended(partition)
        state = partition.state
        if state is not None and len(state.maximal_isr) == 1:
            self.advance(partition)

    def follower_fetched(self, partition: Partition, broker_id: int, broker_epoch: int, offset: int) -> None:
        """A follower has everything below `offset`: its fetch says so. Hot for replicated partitions."""
        state = partition.state
        if state is None or broker_id not in state.replicas:
            return
        log = partition.log
        state.fetched(broker_id, broker_epoch, offset, log.end_offset, self._node.clock.monotonic_ms())
        if broker_id not in state.isr:
            broker = self._node.image.brokers.get(broker_id)
            if broker is not None and state.proposed is None:
                isr = state.to_expand(broker_id, broker.epoch)
                if isr is not None:
                    self.isr_changes.propose(partition, isr, joining=broker)
        if log.high_watermark < log.end_offset:
            self.advance(partition)

    def advance(self, partition: Partition) -> None:
        """Move the high watermark as far as the in-sync replicas allow, and tell everyone who waits for it."""
        state = partition.state
        assert state is not None
        log = partition.log
        high_watermark = state.high_watermark(log.end_offset)
        if high_watermark > log.high_watermark:
            log.high_watermark = high_watermark
            self._node.partitions.changed(partition)
            if partition.pending_commits:
                self._settle_commits(partition)

    # -- committing -------------------------------------------------------------------------------------

    def commit(
        self, partition: Partition, end_offset: int, timeout_ms: float | None, done: Acknowledged
    ) -> None:
        """Call `done` when all below `end_offset` is as safe as acks=all promises, or with what prevents it.

        It may be called before this returns.
        """
        if partition.state is None:
            done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        elif partition.log.high_watermark >= end_offset:
            self._on_disk(partition, end_offset, done)
        else:
            pending = PendingCommit(end_offset, done)
            partition.pending_commits.append(pending)
            if timeout_ms is not None:
                pending.timer = self._node.scheduler.call_later(timeout_ms, lambda: self._timed_out(pending))

    def _timed_out(self, pending: PendingCommit) -> None:
        pending.timer = None
        done = pending.settle()  # it leaves the queue when its turn comes
        if done is not None:
            done(ErrorCode.REQUEST_TIMED_OUT)

    def _settle_commits(self, partition: Partition) -> None:
        high_watermark = partition.log.high_watermark
        queue = partition.pending_commits
        while queue and (queue[0].settled or queue[0].end_offset <= high_watermark):
            pending = queue.popleft()
            done = pending.settle()
            if done is not None:
                self._on_disk(partition, pending.end_offset, done)

    def _on_disk(self, partition: Partition, end_offset: int, done: Acknowledged) -> None:
        """The last step of a commit: with nobody else to hold the record, or where all must, it has to be on disk.

        Looked at only now: of the replicas that were in sync when it was appended, this one may be the only one left.
        """
        if partition.log.flushed_offset >= end_offset or not partition.must_wait_for_disk(-1):
            done(ErrorCode.NONE)
            return

        def flushed(error: BaseException | None) -> None:
            done(ErrorCode.NONE if error is None else ErrorCode.KAFKA_STORAGE_ERROR)

        self._node.group_commit.wait(partition, flushed)  # begun with others' after this bunch of requests

    # -- following --------------------------------------------------------------------------------------

    def _follow(self, partition: Partition, *, renewed: bool) -> None:
        node = self._node
        following = (
            node.joined and partition.leader != node.broker_id and partition.leader in node.image.brokers
        )
        log = partition.log
        if not following or log.corruption is not None or log.failed is not None:
            # A log that has failed must not be counted in sync again by its length: nobody knows what is on disk.
            node.fetchers.unfollow(partition)
        elif renewed:
            node.fetchers.follow(partition)

    def followed(self, partition: Partition, leader_high_watermark: int, leader_start_offset: int) -> None:
        """A fetch from the leader has been carried out: what it said of its log counts here as well."""
        log = partition.log
        if leader_start_offset > log.start_offset:
            log.start_at(leader_start_offset)
        high_watermark = min(leader_high_watermark, log.end_offset)
        if high_watermark > log.high_watermark:
            log.high_watermark = high_watermark
            self._node.partitions.changed(partition)
        elif log.high_watermark > log.end_offset:
            log.high_watermark = log.end_offset  # history was replaced

    def log_failed(self, partition: Partition) -> None:
        """The log cannot be written any more: others shall lead it and wait for it no longer."""
        self._node.telemetry.log_failed(partition)
        self._node.fetchers.unfollow(partition)
        self.isr_changes.leave(partition)

    # -- laggards ---------------------------------------------------------------------------------------

    def _look_for_laggards(self) -> None:
        node = self._node
        now_ms = node.clock.monotonic_ms()
        lag_max_ms = node.config.replica_lag_time_max_ms
        for partition in list(node.partitions):
            state = partition.state
            if state is None or not partition.replicated or state.proposed is not None:
                continue
            isr = state.to_shrink(partition.log.end_offset, now_ms, lag_max_ms)
            if isr is not None:
                self.isr_changes.propose(partition, isr)
        self._timer = node.scheduler.call_later(max(lag_max_ms / 4, 10), self._look_for_laggards)
