"""Scripts about looking at transactions and meddling with them: describing, listing, what only brokers may say."""

from __future__ import annotations

from typing import Any

from culver.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from culver.protocol.messages.describe_transactions import DescribeTransactionsRequest
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest
from culver.protocol.messages.list_transactions import ListTransactionsRequest
from culver.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from differential.play import Play, script
from differential.producer import END_V2, PRODUCE_V2, TransactionalProducer, find_coordinator
from differential.script_transactions import describe_producers, read


@script
def find_coordinators_of_transactions(play: Play) -> None:
    find_coordinator(play, "found")
    for version in range(1, 4):
        for name in ("found", "", "x" * 30_000):
            request = FindCoordinatorRequest(key=name, key_type=1)
            play.step(f"{name[:5]!r}, v{version}", request, version)
    for version in range(4, 7):
        request = FindCoordinatorRequest(coordinator_keys=["found", "", "found", "other"], key_type=1)
        play.step(f"several, v{version}", request, version)


@script
def describe_transactions(play: Play) -> None:
    topic = "txn.described"
    play.topic(topic, 3)
    producers = [
        TransactionalProducer(play, f"txn.described.{name}").begun()
        for name in ("empty", "open", "committed", "aborted")
    ]
    for producer in producers[1:]:
        producer.produce(f"produce {producer.transactional_id}", topic, 2, version=PRODUCE_V2)
        producer.produce(f"produce more {producer.transactional_id}", topic, 0, version=PRODUCE_V2)
    for producer, commit in ((producers[2], True), (producers[3], False)):
        producer.end(f"end {producer.transactional_id}", commit=commit, version=END_V2)

    def ask(title: str, *transactional_ids: str) -> None:
        play.step(title, DescribeTransactionsRequest(transactional_ids=list(transactional_ids)), 0)

    ask("all", *(producer.transactional_id for producer in producers))
    ask("one twice", "txn.described.open", "txn.described.open")
    ask("one that nobody has", "txn.described.open", "txn.described.nobody")
    ask("no name", "")
    ask("a long name", "x" * 30_000)
    ask("none")
    producers[1].end("end", version=END_V2)


@script
def list_transactions(play: Play) -> None:
    topic = "txn.listed"
    play.topic(topic, 1)
    names = ("empty", "open", "committed", "aborted")
    producers = {name: TransactionalProducer(play, f"txn.listed.{name}").begun() for name in names}
    for name in names[1:]:
        producers[name].produce(f"produce {name}", topic, version=PRODUCE_V2)
    producers["committed"].end("commit", version=END_V2)
    producers["aborted"].end("abort", commit=False, version=END_V2)

    def ask(title: str, version: int = 2, **filters: Any) -> None:
        # Other scripts leave ids behind: only this one's are shown.
        wanted = {"state_filters": [], "producer_id_filters": [], **filters}
        answer = play.quiet(ListTransactionsRequest(**wanted), version)
        shown = [
            play.normal.message(one)
            for one in answer.transaction_states
            if one.transactional_id.startswith("txn.listed")
        ]
        play.note(
            title,
            {
                "error_code": answer.error_code,
                "unknown_state_filters": sorted(answer.unknown_state_filters),
                "transaction_states": sorted(shown, key=lambda one: str(one["transactional_id"])),
            },
        )

    for version in range(3):
        ask(f"all, v{version}", version)
        for states in (
            ("Ongoing",),
            ("Empty", "CompleteCommit"),
            ("PrepareCommit", "PrepareAbort", "CompleteAbort", "Dead", "PrepareEpochFence"),
            ("ongoing",),
            ("Nonsense",),
            ("Nonsense", "Ongoing"),
            ("Unknown",),
            ("",),
        ):
            ask(f"states {states}, v{version}", version, state_filters=list(states))
        for title, ids in (
            ("one", [producers["open"].id]),
            ("two", [producers["open"].id, producers["aborted"].id]),
            ("none", [2**50]),
            ("a negative one", [-1]),
        ):
            ask(f"producer ids: {title}, v{version}", version, producer_id_filters=ids)
        ask(
            f"state and producer id, v{version}",
            version,
            state_filters=["Empty"],
            producer_id_filters=[producers["open"].id],
        )
    for version in (1, 2):
        for duration_ms in (-1, -2, 0, 60_000, 2**62):
            ask(f"running for {duration_ms}, v{version}", version, duration_filter=duration_ms)
    for pattern in (
        None,
        "",
        "txn.listed.*",
        "listed",
        ".*open|.*empty",
        "txn\\.listed\\.open",
        "(",
        "[a",
        "*",
        "txn.listed.(?i)OPEN",
    ):
        ask(f"pattern {pattern}", transactional_id_pattern=pattern)
    producers["open"].end("end", version=END_V2)


@script
def partitions_added_in_the_way_of_brokers(play: Play) -> None:
    topic = "txn.brokers"
    play.topic(topic, 2)
    producer = TransactionalProducer(play, "txn.brokers").begun()
    for version in (4, 5):
        for verify_only in (True, False):
            request = AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id=producer.transactional_id,
                        producer_id=producer.id,
                        producer_epoch=producer.epoch,
                        verify_only=verify_only,
                        topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
                    )
                ]
            )
            play.step(f"{'verify' if verify_only else 'add'}, v{version}", request, version)
    play.step("none", AddPartitionsToTxnRequest(transactions=[]), 5)


@script
def markers_from_clients(play: Play) -> None:
    topic = "txn.markers"
    play.topic(topic, 2)
    producer = TransactionalProducer(play, "txn.markers").begun()
    producer.produce("produce", topic, version=PRODUCE_V2)

    def write(
        title: str, topic: str, partition: int, *, epoch: int = 0, commit: bool = True, version: int = 2
    ) -> None:
        marker = WritableTxnMarker(
            producer_id=producer.id,
            producer_epoch=producer.epoch + epoch,
            transaction_result=commit,
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[partition])],
            coordinator_epoch=0,
            transaction_version=2,
        )
        play.step(title, WriteTxnMarkersRequest(markers=[marker]), version)

    for version in (1, 2):
        write(f"an older epoch, v{version}", topic, 0, epoch=-1, version=version)
        write(f"a topic that is not there, v{version}", "txn.markers.missing", 0, version=version)
        write(f"a partition that is not there, v{version}", topic, 9, version=version)
    play.step("none", WriteTxnMarkersRequest(markers=[]), 2)
    write("a commit", topic, 0, epoch=1)
    write("an abort", topic, 1, commit=False, epoch=1)


@script
def transactions_that_take_too_long(play: Play) -> None:
    topic = "txn.slow"
    play.topic(topic, 1)
    for generation, produce_version, end_version in ((1, 11, 4), (2, PRODUCE_V2, END_V2)):
        title = f"generation {generation}"
        producer = TransactionalProducer(play, f"txn.slow.{generation}")
        producer.init(f"{title}: init", timeout_ms=100)
        if generation == 1:
            producer.add(f"{title}: add", topic, 0)
        producer.produce(f"{title}: produce", topic, version=produce_version)
        asked = DescribeTransactionsRequest(transactional_ids=[producer.transactional_id])
        play.until(
            lambda: play.quiet(asked, 0).transaction_states[0].transaction_state == "CompleteAbort"  # noqa: B023
        )
        producer.describe(f"{title}: described")
        describe_producers(play, f"{title}: producers", topic, 0)
        producer.produce(f"{title}: produce after that", topic, version=produce_version)
        for commit in (True, False):
            request = producer.end_request(commit=commit)
            play.step(f"{title}: end {commit}", request, end_version)
        mine = producer.init_request(producer_id=producer.id, epoch=producer.epoch)
        play.step(f"{title}: begin anew with its id", mine, 4)
        producer.init(f"{title}: begin anew")
        producer.add(f"{title}: add again", topic, 0)
        producer.produce(f"{title}: produce again", topic)
        producer.end(f"{title}: end again")
    read(play, "after all", topic)
