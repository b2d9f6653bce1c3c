"""Carries the ends of transactions to the partitions they touched, wherever those are led, until all have them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from culver.broker.marker_writing import write_marker
from culver.broker.peer import Call
from culver.core.coordinator_effects import Marker, WriteMarkers
from culver.errors import ErrorCode
from culver.logging import get_logger
from culver.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from culver.broker.node import Node

_log = get_logger("culver.transactions")

WRITE_TXN_MARKERS_KEY = 27
_VERSION = 2
_BACKOFF_MIN_MS = 10.0
_BACKOFF_MAX_MS = 250.0

Target = tuple[str, int]


class _Job:
    """One transaction's marker and the partitions that do not have it yet."""

    __slots__ = ("backoff_ms", "effect", "left", "retrying", "stopped", "under_way")

    def __init__(self, effect: WriteMarkers) -> None:
        self.effect = effect
        self.left: set[Target] = set(effect.targets)
        self.under_way: set[Target] = set()
        self.backoff_ms = _BACKOFF_MIN_MS
        self.retrying = False
        self.stopped = False


class MarkerSender:
    """Markers of the transactions that this broker coordinates.

    Those for one broker that come up in the same turn of the event loop travel in one request.
    """

    def __init__(
        self,
        node: Node,
        written: Callable[[WriteMarkers], object],
        refused: Callable[[WriteMarkers], object],
    ) -> None:
        self._node = node
        self._written = written
        self._refused = refused
        self._jobs: dict[WriteMarkers, _Job] = {}
        self._outgoing: dict[int, list[tuple[_Job, list[Target]]]] = {}
        self._call: Call | None = None

    def __len__(self) -> int:
        return len(self._jobs)

    def write(self, effect: WriteMarkers) -> None:
        job = self._jobs[effect] = _Job(effect)
        # Not from inside the coordinator's own call: a local write may be done at once.
        self._node.scheduler.call_soon(lambda: self._go_on(job))

    def drop(self, partition: int) -> None:
        """Another broker coordinates the transactions of this partition of the log now."""
        for effect in [effect for effect in self._jobs if effect.partition == partition]:
            self._jobs.pop(effect).stopped = True

    # -- one job ----------------------------------------------------------------------------------------

    def _go_on(self, job: _Job) -> None:
        """Send the marker to whoever leads what is left."""
        job.retrying = False
        if job.stopped:
            return
        node = self._node
        image = node.image
        local: list[Target] = []
        remote: dict[int, list[Target]] = {}
        for target in sorted(job.left - job.under_way):
            partition = image.partition(*target)
            if partition is None:
                # The topic is gone, and with it whatever the transaction wrote there.
                job.left.discard(target)
            elif partition.leader == node.broker_id:
                local.append(target)
            elif partition.leader in image.brokers:
                remote.setdefault(partition.leader, []).append(target)
            else:
                self._retry(job)
        for target in local:
            job.under_way.add(target)
            write_marker(node, *target, job.effect.marker, partial(self._target_done, job, target))
        for broker_id, targets in remote.items():
            job.under_way.update(targets)
            self._send(broker_id, job, targets)
        self._finish_if_done(job)
        node.after_requests()

    def _target_done(self, job: _Job, target: Target, code: ErrorCode) -> None:
        job.under_way.discard(target)
        if job.stopped:
            return
        if code is ErrorCode.NONE:
            job.left.discard(target)
            self._finish_if_done(job)
        elif code is ErrorCode.INVALID_PRODUCER_EPOCH:
            # The partition has heard of a later epoch: what this marker was to end has ended there.
            self._tell(job, target, code)
            job.left.discard(target)
            self._finish_if_done(job)
        elif code is ErrorCode.TRANSACTION_COORDINATOR_FENCED:
            self._tell(job, target, code)
            job.stopped = True
            del self._jobs[job.effect]
            self._refused(job.effect)
        else:
            self._retry(job)

    def _tell(self, job: _Job, target: Target, code: ErrorCode) -> None:
        _log.warning(
            "a transaction's marker was refused",
            transactional_id=job.effect.transactional_id,
            topic=target[0],
            partition=target[1],
            error=code.name,
        )

    def _finish_if_done(self, job: _Job) -> None:
        if not job.left and not job.stopped:
            job.stopped = True
            del self._jobs[job.effect]
            self._written(job.effect)

    def _retry(self, job: _Job) -> None:
        if not job.retrying:
            job.retrying = True
            self._node.scheduler.call_later(job.backoff_ms, lambda: self._go_on(job))
            job.backoff_ms = min(job.backoff_ms * 2, _BACKOFF_MAX_MS)

    # -- other brokers ----------------------------------------------------------------------------------

    def _send(self, broker_id: int, job: _Job, targets: list[Target]) -> None:
        if not self._outgoing:
            self._node.scheduler.call_soon(self._send_all)
        self._outgoing.setdefault(broker_id, []).append((job, targets))

    def _send_all(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        if self._call is None:
            self._call = Call(WRITE_TXN_MARKERS_KEY, _VERSION)
        for broker_id, parts in outgoing.items():
            request = WriteTxnMarkersRequest(
                markers=[_writable(job.effect.marker, targets) for job, targets in parts]
            )
            self._node.marker_peers.ask(
                broker_id, self._call, request, partial(self._answered, parts), partial(self._lost, parts)
            )

    def _answered(self, parts: list[tuple[_Job, list[Target]]], response: WriteTxnMarkersResponse) -> None:
        # The same producer may be there twice, for its last transaction and the one before: by position, then.
        results = response.markers
        for position, (job, targets) in enumerate(parts):
            codes: dict[Target, int] = {}
            if position < len(results) and results[position].producer_id == job.effect.marker.producer_id:
                for topic in results[position].topics:
                    for answer in topic.partitions:
                        codes[topic.name, answer.partition_index] = answer.error_code
            for target in targets:
                code = codes.get(target, ErrorCode.UNKNOWN_SERVER_ERROR)
                self._target_done(job, target, ErrorCode(code))
        self._node.after_requests()

    def _lost(self, parts: list[tuple[_Job, list[Target]]]) -> None:
        for job, targets in parts:
            for target in targets:
                self._target_done(job, target, ErrorCode.NETWORK_EXCEPTION)


def _writable(marker: Marker, targets: list[Target]) -> WritableTxnMarker:
    topics: dict[str, list[int]] = {}
    for name, index in targets:
        topics.setdefault(name, []).append(index)
    return WritableTxnMarker(
        producer_id=marker.producer_id,
        producer_epoch=marker.producer_epoch,
        transaction_result=marker.committed,
        topics=[
            WritableTxnMarkerTopic(name=name, partition_indexes=indexes) for name, indexes in topics.items()
        ],
        coordinator_epoch=marker.coordinator_epoch,
        transaction_version=marker.transaction_version,
    )
