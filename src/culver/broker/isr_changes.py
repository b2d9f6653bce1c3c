"""Changes of the in-sync replicas that this broker asks the metadata store for, by compare-and-set."""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.broker.administration import put_partition
from culver.coordination.store import Change, Check, Conflict
from culver.core import elections, entries
from culver.logging import get_logger

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.broker.partition import Partition
    from culver.core.image import BrokerInfo, PartitionImage, TopicImage

_log = get_logger("culver.replication")

_RETRY_MS = 100.0


class IsrChanges:
    """One change at a time for each partition; until it is settled the leader waits for both sets of replicas."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def propose(self, partition: Partition, isr: tuple[int, ...], joining: BrokerInfo | None = None) -> None:
        """Shrink or expand the ISR of a partition that this broker leads."""
        found = self._find(partition)
        if found is None or partition.state is None:
            return
        topic, image = found
        after = elections.with_isr(image, isr, min_insync=partition.log.config.min_insync_replicas)
        if after is None:
            return
        partition.state.propose(isr)
        changes: list[Change] = [put_partition((topic, image, after))]
        if joining is not None:
            # A follower that has restarted since that fetch may have lost what it then had (KIP-903). It comes behind
            # the entry's own condition, which stores report first: a conflict over the follower then means that the
            # entry is as it was, also when this is sent a second time.
            changes.append(Check(f"{entries.REGISTRATIONS}{joining.id}", joining.epoch))
        _log.info(
            "in-sync replicas change",
            topic=partition.topic,
            partition=partition.index,
            was=image.isr,
            wanted=isr,
        )
        self._send(partition, image, changes)

    def _send(self, partition: Partition, image: PartitionImage, changes: list[Change]) -> None:
        def stored(error: BaseException | None) -> None:
            if error is None or not self._stands(partition, image):
                return  # the image has told the leader's state already
            state = partition.state
            assert state is not None
            if isinstance(error, Conflict):
                # The entry is another by now: its event is on its way, and ends the proposal. If it is the follower
                # that is another, nothing was changed and nothing will come.
                if error.path.startswith(entries.REGISTRATIONS):
                    state.withdraw()
            else:
                # It may have been made or not. Both sets count until the store says.
                self._node.scheduler.call_later(_RETRY_MS, retry)

        def retry() -> None:
            if self._stands(partition, image):
                self._send(partition, image, changes)

        self._node.store.change(changes, stored)

    def _stands(self, partition: Partition, image: PartitionImage) -> bool:
        """Whether the leader still waits for the outcome of a change to this version of the entry."""
        found = self._find(partition)
        return (
            found is not None
            and partition.state is not None
            and partition.state.proposed is not None
            and found[1].partition_epoch == image.partition_epoch
        )

    def leave(self, partition: Partition) -> None:
        """This broker's log has failed: give the lead and the place among the in-sync replicas to others, if any."""
        found = self._find(partition)
        if found is None:
            return
        topic, image = found
        me = self._node.broker_id
        if not {*image.isr, *image.elr} - {me} or me not in (*image.isr, *image.elr):
            return  # nobody else has what this one has
        after = elections.leave(image, me, min_insync=partition.log.config.min_insync_replicas)
        if after is None:
            return

        def stored(error: BaseException | None) -> None:
            if error is not None:
                self._node.scheduler.call_later(_RETRY_MS, lambda: self.leave(partition))

        self._node.store.change([put_partition((topic, image, after))], stored)

    def _find(self, partition: Partition) -> tuple[TopicImage, PartitionImage] | None:
        topic = self._node.image.topics_by_id.get(partition.topic_id)
        image = None if topic is None else topic.partition(partition.index)
        return None if topic is None or image is None else (topic, image)
