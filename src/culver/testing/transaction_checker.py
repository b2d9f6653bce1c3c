"""The part of the checker that is about transactions: all or nothing, and for readers with isolation nothing else.

Committed is what a reader with isolation gets in the end (`final_committed`). It is held against what producers were
told, against the markers in the leaders' logs, and against what such readers saw on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from culver.protocol.control_records import decode_end_marker
from culver.protocol.records import decode_records, iterate_headers
from culver.testing.history import History, Outcome, Partition, Replica, Send, Transaction

_DECOMPRESSED_MAX_BYTES = 100 << 20
_NAMED_MAX = 6

Found = Callable[[str, str], None]
"""Takes the kind of a violation and its text."""


def judge_transactions(history: History, found: Found) -> None:
    """Hold the transactions of a healed and drained cluster against what was promised."""
    committed = {
        partition: {value: offset for offset, value in records}
        for partition, records in history.final_committed.items()
    }
    for transaction in history.transactions:
        _all_or_nothing(transaction, committed, found)
    _readable_without_isolation(history, found)
    for partition, replicas in history.replicas.items():
        leader = next((replica for replica in replicas if replica.leader), None)
        if leader is not None and partition in history.final_committed:
            _as_the_markers_say(partition, leader, history.final_committed[partition], found)
    _sums(history, found)
    _copies(history, found)


def _all_or_nothing(
    transaction: Transaction, committed: dict[Partition, dict[bytes, int]], found: Found
) -> None:
    judged = [send for send in transaction.sends if send.partition in committed]
    there = [send for send in judged if send.value in committed[send.partition]]
    if transaction.outcome is Outcome.FAILED:
        if there:
            found(
                "aborted read",
                f"{transaction.name} was never committed, and readers with isolation get {_names(there)}",
            )
    elif there and len(there) < len(judged):
        missing = [send for send in judged if send.value not in committed[send.partition]]
        found(
            "torn",
            f"{transaction.name} ({transaction.outcome.value}): readers with isolation get {_names(there)} and "
            f"not {_names(missing)}",
        )
    elif judged and not there and transaction.outcome is Outcome.OK:
        found(
            "transaction lost",
            f"{transaction.name} was committed, and readers with isolation get nothing of it: {_names(judged)}",
        )


def _readable_without_isolation(history: History, found: Found) -> None:
    """Isolation hides; it shows nothing that others do not see, and nothing elsewhere."""
    for partition, records in history.final_committed.items():
        everything = dict(history.final.get(partition, ()))
        for offset, value in records:
            if everything.get(offset) != value:
                found(
                    "changed",
                    f"with isolation {value!r} is at offset {offset} of {partition}, without it "
                    f"{everything.get(offset, b'nothing')!r}",
                )


def _as_the_markers_say(
    partition: Partition, leader: Replica, records: Iterable[tuple[int, bytes]], found: Found
) -> None:
    """What readers with isolation get is what the log's markers make of it, and every transaction has its marker."""
    committed: dict[int, bytes] = {}
    pending: dict[int, dict[int, bytes]] = {}
    epochs: dict[int, int] = {}
    for position, header in iterate_headers(leader.data):
        producer, epoch = header.producer_id, header.producer_epoch
        if header.is_transactional:
            if epoch < epochs.get(producer, -1):
                found(
                    "epoch went back",
                    f"{partition} at offset {header.base_offset}: producer {producer} of epoch {epoch} "
                    f"behind epoch {epochs[producer]}",
                )
            epochs[producer] = epoch
        if header.is_control:
            marker = decode_end_marker(leader.data[position : position + header.size_bytes])
            values = pending.pop(producer, {})
            if marker is not None and marker.committed:
                committed.update(values)
            continue
        target = pending.setdefault(producer, {}) if header.is_transactional else committed
        for record in decode_records(leader.data, _DECOMPRESSED_MAX_BYTES, position):
            target[record.offset] = record.value or b""
    for producer, values in pending.items():
        found(
            "hanging",
            f"{partition}: the transaction of producer {producer} from {min(values)} on never ended",
        )
    read = dict(records)
    for offset in sorted(read.keys() - committed.keys()):
        found("aborted read", f"{read[offset]!r} at offset {offset} of {partition} has no commit marker")
    for offset in sorted(committed.keys() - read.keys()):
        found(
            "committed unread",
            f"{committed[offset]!r} at offset {offset} of {partition} has a commit marker, and readers with "
            "isolation do not get it",
        )


def _sums(history: History, found: Found) -> None:
    """What one account loses another gains."""
    if not history.transfers:
        return
    total = sum(
        history.transfers.get(value, 0)
        for records in history.final_committed.values()
        for _, value in records
    )
    if total:
        found("sum", f"the sum of all accounts was 0 and is {total}")


def _copies(history: History, found: Found) -> None:
    """One committed copy of each committed record, no more and no fewer."""
    for copying in history.copyings:
        sources = Counter(
            value for partition in copying.sources for _, value in history.final_committed.get(partition, ())
        )
        copies = Counter(
            original(value)
            for partition in copying.targets
            for _, value in history.final_committed.get(partition, ())
        )
        for value in sorted((sources - copies).keys()):
            found("not copied", f"{value!r} was read by group {copying.group} and has no committed copy")
        for value in sorted((copies - sources).keys()):
            found(
                "copied twice",
                f"group {copying.group} has {copies[value]} committed copies of {value!r}, "
                f"of which there are {sources[value]}",
            )


def original(copy: bytes) -> bytes:
    """The value that a copy was made of."""
    return copy.partition(b"|")[2]


def _names(sends: list[Send]) -> str:
    names = [
        f"{send.value.decode(errors='replace')} of {send.partition[0]}-{send.partition[1]}"
        f"{'' if send.offset is None else f' at {send.offset}'} ({send.outcome.value})"
        for send in sends[:_NAMED_MAX]
    ]
    more = len(sends) - len(names)
    return ", ".join(names) + (f" and {more} more" if more else "")
