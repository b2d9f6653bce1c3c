"""Groups are removed, with their offsets: by DeleteGroups (0-2), and consumer groups that hold nothing more."""

from __future__ import annotations

from collections.abc import Callable

from culver.core.consumer_group_writes import Done, Draft, GroupWrites
from culver.core.coordinator_effects import Effects, Gather, append_error
from culver.core.group import GroupState
from culver.core.group_partition import GroupPartition
from culver.core.group_records import StateRecord, group_tombstone, offset_tombstone
from culver.errors import ErrorCode
from culver.protocol.messages.delete_groups import (
    DeletableGroupResult,
    DeleteGroupsRequest,
    DeleteGroupsResponse,
)


def delete_groups(
    request: DeleteGroupsRequest,
    find: Callable[[str], tuple[GroupRemoval | None, ErrorCode]],
    done: Callable[[DeleteGroupsResponse, Effects], None],
    now_ms: float,
    out: Effects,
) -> None:
    """Remove groups wherever they live, as `find` says; `done` gets the answer."""
    results: dict[str, ErrorCode] = {}
    by_partition: dict[GroupRemoval, list[str]] = {}
    for group_id in dict.fromkeys(request.groups_names):
        removal, results[group_id] = find(group_id)
        if removal is not None:
            by_partition.setdefault(removal, []).append(group_id)

    def all_done(out: Effects) -> None:
        answers = [
            DeletableGroupResult(group_id=group_id, error_code=error) for group_id, error in results.items()
        ]
        done(DeleteGroupsResponse(results=answers), out)

    gather = Gather(all_done)

    def one_done(part: dict[str, ErrorCode], out: Effects) -> None:
        results.update(part)
        gather.close(out)

    for removal, group_ids in by_partition.items():
        gather.add()
        removal.delete(group_ids, one_done, now_ms, out)
    gather.close(out)


class GroupRemoval:
    """Removes groups of one partition that nobody is in.

    `erase` writes the records into a draft with which a consumer group goes.
    """

    def __init__(
        self, partition: GroupPartition, writes: GroupWrites, erase: Callable[[Draft], None]
    ) -> None:
        self._partition = partition
        self._writes = writes
        self._erase = erase

    def delete(
        self,
        group_ids: list[str],
        done: Callable[[dict[str, ErrorCode], Effects], None],
        now_ms: float,
        out: Effects,
    ) -> None:
        """Remove groups, with their offsets; `done` hears how it went."""
        self._partition.after_in_flight(
            lambda now_ms, out: self._delete(group_ids, done, now_ms, out), now_ms, out
        )

    def _delete(
        self,
        group_ids: list[str],
        done: Callable[[dict[str, ErrorCode], Effects], None],
        now_ms: float,
        out: Effects,
    ) -> None:
        partition = self._partition
        results: dict[str, ErrorCode] = {}
        records: list[StateRecord] = []
        classic_ids: list[str] = []
        gather = Gather(lambda out: done(results, out))
        for group_id in group_ids:
            group = partition.groups.get(group_id)
            if partition.closed:
                results[group_id] = ErrorCode.NOT_COORDINATOR
            elif group_id in partition.consumer_groups:
                gather.add()
                self._delete_consumer_group(group_id, results, gather, now_ms, out)
            elif group is None:
                results[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
            elif group.state is not GroupState.EMPTY:
                results[group_id] = ErrorCode.NON_EMPTY_GROUP
            else:
                classic_ids.append(group_id)
                records += self._offset_tombstones(group_id)
                records.append(group_tombstone(group_id))

        def finish(error: ErrorCode, _now_ms: float, out: Effects) -> None:
            results.update(dict.fromkeys(classic_ids, append_error(error)))
            gather.close(out)

        if records:
            gather.add()
            partition.append(records, finish, out)
        gather.close(out)

    def _delete_consumer_group(
        self, group_id: str, results: dict[str, ErrorCode], gather: Gather, now_ms: float, out: Effects
    ) -> None:
        def step(draft: Draft, _now_ms: float) -> Done:
            if draft.group is None:
                results[group_id] = ErrorCode.GROUP_ID_NOT_FOUND
            elif draft.group.members:
                results[group_id] = ErrorCode.NON_EMPTY_GROUP
            else:
                results[group_id] = ErrorCode.NONE
                draft.write_other(self._offset_tombstones(group_id))
                self._erase(draft)
            return lambda _now_ms, out: gather.close(out)

        def failed(error: ErrorCode, _now_ms: float, out: Effects) -> None:
            results[group_id] = append_error(error)
            gather.close(out)

        self._writes.submit(group_id, step, failed, now_ms, out)

    def remove_unused(self, group_id: str, now_ms: float, out: Effects) -> None:
        """Remove a consumer group without members and offsets, if it is so when its turn has come."""

        def step(draft: Draft, _now_ms: float) -> Done:
            if draft.group is not None and not draft.group.members and not self._holds_offsets(group_id):
                self._erase(draft)
            return lambda _now_ms, _out: None

        # If the log does not take it, the next check finds the group again.
        self._writes.submit(group_id, step, lambda _error, _now_ms, _out: None, now_ms, out)

    def _holds_offsets(self, group_id: str) -> bool:
        partition = self._partition
        return (
            group_id in partition.offsets
            or partition.pending.has_group(group_id)
            or any(key[0] == group_id for key in partition.keys_in_flight())
        )

    def _offset_tombstones(self, group_id: str) -> list[StateRecord]:
        """For all offsets of a group, pending ones too: their transaction must not bring the group back."""
        keys = {
            (topic, index): None
            for topic, offsets in self._partition.offsets.get(group_id, {}).items()
            for index in offsets
        }
        keys |= dict.fromkeys(self._partition.pending.of_group(group_id))
        return [offset_tombstone(group_id, topic, index) for topic, index in keys]
