"""The checker finds what is wrong with transactions, and nothing where nothing is."""

from __future__ import annotations

from culver.protocol.control_records import EndMarker, encode_end_marker
from culver.protocol.records import Record, encode_batch, set_base_offset_and_epoch
from culver.testing.checker import judge
from culver.testing.history import (
    Commit,
    CommittedRead,
    Copying,
    History,
    Outcome,
    Partition,
    Poll,
    Replica,
    Send,
    Transaction,
)

A0, B0 = ("a", 0), ("b", 0)


def transaction(*records: tuple[Partition, str], outcome: Outcome = Outcome.OK) -> Transaction:
    sends = [
        Send("p", partition, value.encode(), number, outcome=Outcome.OK)
        for number, (partition, value) in enumerate(records)
    ]
    return Transaction("p", "id", 0, sends, outcome=outcome)


def history(*transactions: Transaction, committed: dict[Partition, list[str]]) -> History:
    """Of everything that was sent only `committed` can be read with isolation."""
    final: dict[Partition, list[tuple[int, bytes]]] = {A0: [], B0: []}
    sends = [send for each in transactions for send in each.sends]
    for send in sends:
        final[send.partition].append((len(final[send.partition]), send.value))
    return History(
        sends=sends,
        transactions=list(transactions),
        final=final,
        final_committed={
            partition: [
                (offset, value) for offset, value in records if value.decode() in committed.get(partition, [])
            ]
            for partition, records in final.items()
        },
    )


def kinds(checked: History) -> set[str]:
    return judge(checked).kinds()


def batch(
    offset: int, value: str | None = None, *, producer: int = 7, epoch: int = 0, committed: bool = True
) -> bytes:
    """A record of a transaction, or the marker that ends it."""
    if value is None:
        data = encode_end_marker(
            EndMarker(committed, 0), producer_id=producer, producer_epoch=epoch, timestamp_ms=0
        )
        set_base_offset_and_epoch(data, 0, offset, 0)
        return bytes(data)
    record = Record(offset, 0, None, value.encode())
    return bytes(
        encode_batch(
            [record],
            base_offset=offset,
            producer_id=producer,
            producer_epoch=epoch,
            base_sequence=0,
            is_transactional=True,
            partition_leader_epoch=0,
        )
    )


def test_all_or_nothing_is_fine() -> None:
    done = transaction((A0, "x"), (B0, "y"))
    aborted = transaction((A0, "u"), (B0, "v"), outcome=Outcome.FAILED)
    unknown = transaction((A0, "m"), (B0, "n"), outcome=Outcome.UNKNOWN)
    assert kinds(history(done, aborted, unknown, committed={A0: ["x"], B0: ["y"]})) == set()
    assert kinds(history(done, aborted, unknown, committed={A0: ["x", "m"], B0: ["y", "n"]})) == set()


def test_a_torn_transaction_is_found() -> None:
    for outcome in (Outcome.OK, Outcome.UNKNOWN):
        half = transaction((A0, "x"), (B0, "y"), outcome=outcome)
        assert kinds(history(half, committed={A0: ["x"]})) == {"torn"}


def test_a_committed_transaction_that_is_gone_is_found() -> None:
    assert kinds(history(transaction((A0, "x")), committed={})) == {"transaction lost"}


def test_what_was_never_committed_must_not_be_read() -> None:
    aborted = transaction((A0, "x"), outcome=Outcome.FAILED)
    assert kinds(history(aborted, committed={A0: ["x"]})) == {"aborted read"}
    seen_once = history(aborted, committed={})
    seen_once.polls.append(Poll("r", A0, 0, [(0, b"x")], committed_only=True))
    assert kinds(seen_once) == {"aborted read"}


def test_a_reader_with_isolation_passes_what_is_aborted_and_nothing_else() -> None:
    aborted = transaction((A0, "x"), outcome=Outcome.FAILED)
    done = transaction((A0, "y"))
    checked = history(aborted, done, committed={A0: ["y"]})
    checked.polls.append(Poll("r", A0, 0, [(1, b"y")], committed_only=True, up_to=3))
    assert kinds(checked) == set()
    checked.polls[0] = Poll("r", A0, 0, [], committed_only=True, up_to=3)
    assert kinds(checked) == {"skipped"}


def test_readers_get_what_the_markers_say() -> None:
    checked = history(transaction((A0, "x")), committed={A0: ["x"]})

    def held(*batches: bytes) -> set[str]:
        checked.replicas = {A0: [Replica(1, 0, 9, 9, b"".join(batches), leader=True)]}
        return kinds(checked)

    assert held(batch(0, "x"), batch(1)) == set()
    assert held(batch(0, "x"), batch(1, committed=False)) == {"aborted read"}
    assert held(batch(0, "x")) == {"hanging", "aborted read"}
    assert held(batch(0, "x"), batch(1), batch(2, "z"), batch(3)) == {"committed unread"}
    assert held(batch(0, "x", epoch=4), batch(1, epoch=3)) == {"epoch went back"}


def test_what_one_account_loses_another_gains() -> None:
    checked = history(transaction((A0, "x")), transaction((B0, "y")), committed={A0: ["x"], B0: ["y"]})
    checked.transfers = {b"x": 5, b"y": -5}
    assert kinds(checked) == set()
    checked.transfers[b"y"] = -4
    assert kinds(checked) == {"sum"}


def test_every_committed_record_is_copied_once() -> None:
    def copied(*values: str) -> set[str]:
        source = transaction((A0, "x"), (A0, "y"))
        copies = [transaction((B0, value)) for value in values]
        checked = history(source, *copies, committed={A0: ["x", "y"], B0: list(values)})
        checked.copyings.append(Copying("g", (A0,), (B0,)))
        return kinds(checked)

    assert copied("1|x", "2|y") == set()
    assert copied("1|x") == {"not copied"}
    assert copied("1|x", "2|y", "3|y") == {"copied twice"}


def test_offsets_count_with_their_transaction() -> None:
    done = transaction((A0, "x"), outcome=Outcome.FAILED)
    done.commits.append(Commit("g", "m", B0, 5, outcome=Outcome.FAILED))
    done.commit_asked()
    checked = history(done, committed={A0: ["x"]})
    checked.commits = done.commits
    checked.committed_reads.append(CommittedRead("g", B0, 5, 20.0, 21.0))
    assert kinds(checked) == set()
    done.committed(10.0)
    checked.committed_reads[0] = CommittedRead("g", B0, 3, 20.0, 21.0)
    assert kinds(checked) == {"commit lost"}
    done.aborted()
    checked.committed_reads[0] = CommittedRead("g", B0, 5, 20.0, 21.0)
    checked.final_committed[A0] = []
    assert kinds(checked) == {"commit invented"}
