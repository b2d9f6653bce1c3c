"""The checker finds each broken promise, and nothing where none was broken."""

from __future__ import annotations

from culver.protocol.records import Record, encode_batch
from culver.testing.checker import judge
from culver.testing.history import ACKS_ALL, Commit, CommittedRead, History, Outcome, Poll, Replica, Send

A0 = ("a", 0)


def sent(value: str, number: int, **more: object) -> Send:
    fields: dict[str, object] = {
        "outcome": Outcome.OK,
        "offset": number,
        "completed_ms": float(number),
    } | more
    return Send("p", A0, value.encode(), number, **fields)  # type: ignore[arg-type]


def log(*values: str) -> list[tuple[int, bytes]]:
    return [(offset, value.encode()) for offset, value in enumerate(values)]


def replica(broker: int, *values: str, leader: bool = False, epoch: int = 0) -> Replica:
    data = b"".join(
        encode_batch(
            [Record(offset, 0, None, value.encode())], base_offset=offset, partition_leader_epoch=epoch
        )
        for offset, value in enumerate(values)
    )
    return Replica(broker, 0, len(values), len(values), data, leader)


def kinds(history: History) -> set[str]:
    return judge(history).kinds()


def test_a_history_in_order_has_no_violations() -> None:
    history = History(
        sends=[sent("x", 0), sent("y", 1), sent("z", 2, outcome=Outcome.UNKNOWN, offset=None)],
        polls=[Poll("c", A0, 0, log("x")), Poll("c", A0, 1, [(1, b"y")])],
        final={A0: log("x", "y")},
        replicas={A0: [replica(1, "x", "y", leader=True), replica(2, "x", "y")]},
    )
    verdict = judge(history)
    assert verdict.violations == []
    assert (verdict.sends, verdict.acknowledged, verdict.read) == (3, 2, 2)


def test_an_acknowledged_record_that_is_gone_is_lost() -> None:
    history = History(
        sends=[sent("x", 0), sent("y", 1)],
        final={A0: log("x")},
        replicas={A0: [replica(1, "x", leader=True), replica(2, "x", "y")]},
    )
    verdict = judge(history)
    assert verdict.kinds() == {"lost"}
    assert verdict.lost == 1
    # The report says which record, where it was, and who holds it.
    assert "y" in verdict.report()
    assert "offset 1" in verdict.report()
    assert "broker 2 [0, 2) hw 2: at [1]" in verdict.report()


def test_acks_1_may_be_lost() -> None:
    history = History(sends=[sent("x", 0, acks=1, idempotent=False)], final={A0: []})
    verdict = judge(history)
    assert verdict.violations == []
    assert verdict.lost_with_acks_1 == 1


def test_a_record_at_two_offsets_is_a_duplicate_with_idempotence_only() -> None:
    assert kinds(History(sends=[sent("x", 0)], final={A0: log("x", "x")})) == {"duplicate"}
    assert kinds(History(sends=[sent("x", 0, idempotent=False)], final={A0: log("x", "x")})) == set()


def test_a_record_elsewhere_than_acknowledged_has_moved() -> None:
    history = History(sends=[sent("x", 0, offset=1), sent("y", 1, offset=0)], final={A0: log("x", "y")})
    assert kinds(history) == {"moved"}


def test_a_refused_record_must_not_be_there() -> None:
    history = History(sends=[sent("x", 0, outcome=Outcome.FAILED)], final={A0: log("x")})
    assert kinds(history) == {"ghost"}


def test_a_record_that_nobody_sent_is_invented() -> None:
    assert kinds(History(final={A0: log("x")})) == {"invented"}


def test_a_producers_records_keep_their_order() -> None:
    history = History(sends=[sent("x", 0, offset=None), sent("y", 1, offset=None)], final={A0: log("y", "x")})
    assert kinds(history) == {"order"}


def test_what_was_read_stays() -> None:
    history = History(
        sends=[sent("x", 0, acks=1, idempotent=False), sent("y", 1, offset=0)],
        polls=[Poll("c", A0, 0, log("x"))],
        final={A0: log("y")},
    )
    assert kinds(history) == {"changed"}


def test_polls_under_assign_neither_skip_nor_go_back() -> None:
    sends = [sent(value, number) for number, value in enumerate("xyz")]
    final = {A0: log("x", "y", "z")}
    skipped = [Poll("c", A0, 0, log("x")), Poll("c", A0, 2, [(2, b"z")])]
    assert kinds(History(sends=sends, polls=skipped, final=final)) == {"skipped"}
    left_out = [Poll("c", A0, 0, [(0, b"x"), (2, b"z")])]
    assert kinds(History(sends=sends, polls=left_out, final=final)) == {"skipped"}
    backward = [Poll("c", A0, 0, log("x", "y")), Poll("c", A0, 1, [(1, b"y")])]
    assert kinds(History(sends=sends, polls=backward, final=final)) == {"backward"}
    # A group's member that is assigned the partition again begins where the group has committed.
    again = [Poll("c", A0, 0, log("x", "y")), Poll("c", A0, 1, [(1, b"y")], assignment=1)]
    assert kinds(History(sends=sends, polls=again, final=final)) == set()


def committed(offset: int, at_ms: float) -> Commit:
    return Commit("g", "m", A0, offset, at_ms, at_ms, Outcome.OK)


def test_a_commit_is_never_forgotten() -> None:
    sends, final = [sent("x", 0), sent("y", 1)], {A0: log("x", "y")}
    polls = [Poll("m", A0, 0, log("x", "y"), group="g")]
    history = History(sends=sends, polls=polls, final=final)
    history.commits = [committed(1, 10.0), committed(2, 20.0)]
    history.committed_reads = [CommittedRead("g", A0, 2, 30.0, 31.0), CommittedRead("g", A0, 1, 15.0, 25.0)]
    assert kinds(history) == set()
    history.committed_reads = [CommittedRead("g", A0, 1, 30.0, 31.0)]
    assert kinds(history) == {"commit lost"}
    history.committed_reads = [CommittedRead("g", A0, 7, 30.0, 31.0)]
    assert kinds(history) == {"commit invented"}


def test_what_a_group_has_committed_a_member_has_read() -> None:
    history = History(
        sends=[sent("x", 0), sent("y", 1)],
        polls=[Poll("m", A0, 1, [(1, b"y")], group="g")],
        commits=[committed(2, 10.0)],
        final={A0: log("x", "y")},
    )
    assert kinds(history) == {"undelivered"}


def test_replicas_hold_the_same_bytes_below_the_high_watermark() -> None:
    sends = [sent("x", 0), sent("y", 1)]
    final = {A0: log("x", "y")}
    same_values = [replica(1, "x", "y", leader=True), replica(2, "x", "y", epoch=1)]
    assert kinds(History(sends=sends, final=final, replicas={A0: same_values})) == {"replicas differ"}
    beyond = [replica(1, "x", "y", leader=True), replica(2, "x", "y", "z")]
    assert kinds(History(sends=sends, final=final, replicas={A0: beyond})) == set()


def test_the_longest_wait_counts_only_while_a_write_waits() -> None:
    history = History(
        sends=[
            sent("x", 0, invoked_ms=0.0, completed_ms=10.0),
            sent("y", 1, invoked_ms=500.0, completed_ms=600.0),
            sent("z", 2, invoked_ms=520.0, completed_ms=1000.0),
            sent("w", 3, invoked_ms=550.0, completed_ms=1001.0, acks=ACKS_ALL),
        ],
        final={A0: log("x", "y", "z", "w")},
    )
    assert judge(history).longest_unavailable_ms == 400.0
