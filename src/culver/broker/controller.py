"""The controller: the one broker that elects leaders and finishes reassignments.

Whoever makes the entry /controller first is it, for as long as its session lasts. Each time it changes hands the
version of /controller-epoch goes up; every change the controller makes is bound to that version, so one that has lost
the office without knowing changes nothing any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.broker.administration import PartitionChange, put_partition
from culver.coordination.store import Change, Check, Conflict, Create, Put
from culver.core import elections, entries
from culver.core.image import PartitionImage, TopicImage
from culver.logging import get_logger

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.coordination.store import MetadataStore
    from culver.core.image_builder import ImageChange
    from culver.scheduler import Timer

_log = get_logger("culver.controller")

_CHANGES_MAX = 200
_RETRY_MS = 50.0


class Controller:
    """Runs on every broker, acts on one."""

    def __init__(self, node: Node, store: MetadataStore) -> None:
        self._node = node
        self._store = store
        self._epoch = -1  # of the office, while this broker holds it
        self._campaigning = False
        self._dirty: dict[str, None] = {}  # topics to be looked at
        self._settling = False
        self._retry: Timer | None = None
        self._balance_timer: Timer | None = None
        self._stopped = False

    @property
    def active(self) -> bool:
        return self._epoch >= 0

    @property
    def idle(self) -> bool:
        """Whether it holds the office and has nothing to do."""
        return self.active and not self._settling and not self._dirty

    def image_changed(self, change: ImageChange) -> None:
        """Run for the office if it is vacant; if it is held here, see to the partitions concerned."""
        if self._stopped:
            return
        image = change.after
        if image.controller_id != self._node.broker_id:
            self._resign()
            if image.controller_id == -1:
                self._campaign()
            return
        if not self.active:
            self._claim()
            return
        if change.brokers or change.settings:
            self._dirty.update(dict.fromkeys(image.topics))
        else:
            self._dirty.update(dict.fromkeys(change.topics))
        self._settle()

    def stop(self) -> None:
        self._stopped = True
        self._resign()

    # -- the office -------------------------------------------------------------------------------------

    def _campaign(self) -> None:
        if self._campaigning or not self._node.joined:
            return
        self._campaigning = True
        entry = entries.encode(entries.ControllerEntry(self._node.broker_id))
        known = self._node.builder.controller_epoch
        bump: Change = (
            Create(entries.CONTROLLER_EPOCH, b"{}")
            if known < 0
            else Put(entries.CONTROLLER_EPOCH, b"{}", known)
        )

        def stored(error: BaseException | None) -> None:
            self._campaigning = False
            if self._stopped:
                return
            if error is None:
                self._take_office(known + 1)
            elif self._node.image.controller_id in (-1, self._node.broker_id):
                self._again()  # lost touch, or against one that is gone already

        self._store.change([Create(entries.CONTROLLER, entry, ephemeral=True), bump], stored)

    def _claim(self) -> None:
        """The entry names this broker, and nobody has told it so: it was elected by a change of unknown outcome.

        Were the entry of an earlier session, it would go soon, and the next one in office would have a later epoch.
        """
        if self._campaigning or not self._node.joined:
            return  # the store's answer is on its way
        self._campaigning = True
        known = self._node.builder.controller_epoch

        def stored(error: BaseException | None) -> None:
            self._campaigning = False
            if self._stopped:
                return
            if error is None:
                self._take_office(known + 1)
            else:
                self._again()

        self._store.change(
            [Check(entries.CONTROLLER, 0), Put(entries.CONTROLLER_EPOCH, b"{}", known)], stored
        )

    def _take_office(self, epoch: int) -> None:
        if self._node.image.controller_id != self._node.broker_id:
            return  # lost again before the answer was in
        self._epoch = epoch
        _log.info("is the controller", broker=self._node.broker_id, epoch=epoch)
        self._dirty.update(dict.fromkeys(self._node.image.topics))
        self._settle()
        self._plan_balance()

    def _resign(self) -> None:
        self._epoch = -1
        self._dirty.clear()
        for timer in (self._retry, self._balance_timer):
            if timer is not None:
                timer.cancel()
        self._retry = self._balance_timer = None

    # -- elections --------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Bring the entries of the topics to be looked at into the state that who is alive calls for."""
        if self._settling or not self.active:
            return
        changes: list[PartitionChange] = []
        image = self._node.image
        alive = set(image.brokers)
        names, self._dirty = self._dirty, {}
        for name in names:
            topic = image.topics.get(name)
            if topic is not None:
                changes += self._due(topic, alive)
        self._make(changes)

    def _due(self, topic: TopicImage, alive: set[int]) -> list[PartitionChange]:
        config = self._node.topic_settings.effective(topic.config)
        due: list[PartitionChange] = []
        for partition in topic.partitions:
            after = elections.settle(
                partition,
                alive,
                min_insync=config.min_insync_replicas,
                unclean_allowed=config.unclean_leader_election_enable,
            )
            if after is not None:
                due.append((topic, partition, after))
        return due

    def _make(self, changes: list[PartitionChange]) -> None:
        if not changes:
            return
        self._settling = True
        chunk, rest = changes[:_CHANGES_MAX], changes[_CHANGES_MAX:]

        def stored(error: BaseException | None) -> None:
            self._settling = False
            if error is None:
                for topic, before, after in chunk:
                    _note(topic, before, after)
            elif isinstance(error, Conflict) and error.path == entries.CONTROLLER_EPOCH:
                _log.warning("is not the controller any more", broker=self._node.broker_id)
                self._resign()
                return
            elif len(chunk) > 1:
                # One of them was changed by its leader meanwhile. Most still fit: each for itself.
                self._each(list(chunk), rest)
                return
            else:
                self._dirty[chunk[0][0].name] = None
                self._again()
            if rest and self.active:
                self._make(rest)
            elif self._dirty and self._retry is None:
                self._settle()

        self._store.change([*map(put_partition, chunk), self._fence()], stored)

    def _each(self, chunk: list[PartitionChange], rest: list[PartitionChange]) -> None:
        self._settling = True
        left = len(chunk)

        def outcome_of(change: PartitionChange) -> None:
            def stored(error: BaseException | None) -> None:
                nonlocal left
                left -= 1
                if error is None:
                    _note(*change)
                else:
                    self._dirty[change[0].name] = None
                if left == 0:
                    self._settling = False
                    if rest and self.active:
                        self._make(rest)
                    if self._dirty:
                        self._again()

            self._store.change([put_partition(change), self._fence()], stored)

        for change in chunk:
            outcome_of(change)

    def _fence(self) -> Check:
        return Check(entries.CONTROLLER_EPOCH, self._epoch)

    def _again(self) -> None:
        """Try once more a little later: the event that explains a conflict is on its way."""
        if self._retry is not None or self._stopped:
            return

        def run() -> None:
            self._retry = None
            if self.active:
                self._settle()
            elif self._node.image.controller_id == -1:
                self._campaign()
            elif self._node.image.controller_id == self._node.broker_id:
                self._claim()

        self._retry = self._node.scheduler.call_later(_RETRY_MS, run)

    # -- preferred leaders ------------------------------------------------------------------------------

    def _plan_balance(self) -> None:
        config = self._node.config
        if config.auto_leader_rebalance_enable:
            self._balance_timer = self._node.scheduler.call_later(
                config.leader_imbalance_check_interval_seconds * 1000, self._balance
            )

    def _balance(self) -> None:
        """Give leaderships back to preferred replicas of brokers that lack too many of theirs."""
        if not self.active:
            return
        image = self._node.image
        alive = set(image.brokers)
        preferred: dict[int, int] = {}
        lacking: dict[int, list[PartitionChange]] = {}
        for topic in image.topics.values():
            for partition in topic.partitions:
                first = partition.replicas[0]
                preferred[first] = preferred.get(first, 0) + 1
                after = elections.prefer(partition, alive)
                if after is not None:
                    lacking.setdefault(first, []).append((topic, partition, after))
        share_max = self._node.config.leader_imbalance_per_broker_percentage / 100
        due = [
            change
            for broker, changes in lacking.items()
            if len(changes) > share_max * preferred[broker]
            for change in changes
        ]
        if not self._settling:
            self._make(due)
        self._plan_balance()


def _note(topic: TopicImage, before: PartitionImage, after: PartitionImage) -> None:
    if before.leader != after.leader:
        _log.info(
            "elected" if after.leader >= 0 else "no leader",
            topic=topic.name,
            partition=after.index,
            was=before.leader,
            leader=after.leader,
            epoch=after.leader_epoch,
            isr=after.isr,
        )
