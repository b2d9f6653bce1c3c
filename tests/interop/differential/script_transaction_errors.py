"""Scripts about transactional producers that are wrong: ids, epochs, states, partitions, timeouts, records."""

from __future__ import annotations

from culver.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnTopic
from differential import batches
from differential.play import Play, produce_request, script
from differential.producer import END_V2, OFFSETS_V2, PRODUCE_V2, TransactionalProducer
from differential.script_metadata import BAD_NAMES
from differential.script_transactions import describe_producers, read

END_VERSIONS = range(6)
ADD_VERSIONS = range(4)


def ends(play: Play, title: str, producer: TransactionalProducer) -> None:
    """Both ends in every version, none of which is meant to succeed."""
    for version in END_VERSIONS:
        for commit in (True, False):
            way = "commit" if commit else "abort"
            play.step(f"{title}: {way}, v{version}", producer.end_request(commit=commit), version)
            producer.settled()


@script
def init_producer_id_with_a_transactional_id(play: Play) -> None:
    producer = TransactionalProducer(play, "init.bad")
    for timeout_ms in (0, -1, -(2**31), 900_001, 2**31 - 1):
        for version in (0, 1, 2, 5):
            request = producer.init_request(timeout_ms)
            play.step(f"a timeout of {timeout_ms}, v{version}", request, version)
    producer.describe("described after that")
    for timeout_ms in (1, 900_000):
        producer.init(f"a timeout of {timeout_ms}", timeout_ms=timeout_ms)
        producer.describe(f"described with a timeout of {timeout_ms}")
    for name, transactional_id in (
        ("empty", ""),
        ("blank", " "),
        ("odd", "a\nb/ü ."),
        ("long", "x" * 30_000),
    ):
        request = producer.init_request()
        request.transactional_id = transactional_id
        for version in (0, 5):
            play.step(f"an id that is {name}, v{version}", request, version)


@script
def transactions_without_a_begin(play: Play) -> None:
    topic = "txn.unbegun"
    play.topic(topic, 1)
    play.coordinator("txn.unbegun.group")
    producer = TransactionalProducer(play, "txn.unbegun").begun()
    for version in range(5):
        for commit in (True, False):
            request = producer.end_request(commit=commit)
            play.step(f"end {commit}, v{version}", request, version)
    for version in range(5):
        title = f"offsets without adding the group, v{version}"
        producer.commit_offsets(title, "txn.unbegun.group", topic, (0, 1), version=version)
    for version in (3, 7, 8, 9, 10, 11):
        producer.produce(f"produce without adding the partition, v{version}", topic, version=version)
    producer.describe("described")
    producer.end("commit of nothing, v5", version=END_V2)
    producer.end("abort of nothing, v5", commit=False, version=END_V2)
    producer.describe("described after an abort of nothing")
    producer.end("abort of nothing once more, v5", commit=False, version=END_V2)
    producer.end("commit of nothing after that, v5", version=END_V2)
    describe_producers(play, "producers", topic, 0)
    read(play, "nothing was written", topic)


@script
def transactions_that_end_twice(play: Play) -> None:
    topic = "txn.twice"
    play.topic(topic, 1)
    for commit in (True, False):
        title = "committed" if commit else "aborted"
        first = TransactionalProducer(play, f"txn.twice.first.{title}").begun()
        first.add(f"{title}: add", topic, 0)
        first.produce(f"{title}: produce", topic)
        first.end(f"{title}: end", commit=commit)
        for version in range(5):
            for again in (True, False):
                request = first.end_request(commit=again)
                play.step(f"{title}: again {again}, v{version}", request, version)
        first.produce(f"{title}: produce after the end", topic)
        first.describe(f"{title}: described")
        second = TransactionalProducer(play, f"txn.twice.second.{title}").begun()
        second.produce(f"{title}: produce, second generation", topic, version=PRODUCE_V2)
        request = second.end_request(commit=commit)
        opposite = second.end_request(commit=not commit)
        second.end(f"{title}: end, second generation", commit=commit, version=END_V2)
        play.step(f"{title}: the same request again", request, END_V2)
        play.step(f"{title}: the opposite request", opposite, END_V2)
        second.describe(f"{title}: described, second generation")
        for again in (True, False):
            second.end(f"{title}: the next end {again}", commit=again, version=END_V2)
        play.step(f"{title}: the first request again, after that", request, END_V2)
        second.describe(f"{title}: described after all, second generation")
        second.produce(f"{title}: produce after all", topic, version=PRODUCE_V2)
        second.end(f"{title}: end after all", version=END_V2)
    read(play, "after all", topic)


@script
def transactions_with_wrong_ids(play: Play) -> None:
    topic = "txn.wrong"
    play.topic(topic, 2)
    play.coordinator("txn.wrong.group")
    for state in ("empty", "open"):
        producer = TransactionalProducer(play, f"txn.wrong.{state}").begun()
        if state == "open":
            producer.add("open: add", topic, 0)
            producer.produce("open: produce", topic)
        producer_id, epoch = producer.id, producer.epoch
        for what, wrong_id, wrong_epoch in (
            ("a later epoch", producer_id, epoch + 1),
            ("a much later epoch", producer_id, epoch + 100),
            ("an earlier epoch", producer_id, epoch - 1),
            ("the last epoch", producer_id, 32767),
            ("epoch -2", producer_id, -2),
            ("another id", producer_id + 100_000, epoch),
            ("id -1", -1, epoch),
            ("id -2", -2, epoch),
        ):
            title = f"{state}: {what}"
            producer.id, producer.epoch = wrong_id, wrong_epoch
            for version in ADD_VERSIONS:
                producer.add(f"{title}: add, v{version}", topic, 1, version=version)
            for version in (0, 1, 2, 4):
                producer.add_offsets(f"{title}: add offsets, v{version}", "txn.wrong.group", version)
            for version in (0, 2, 3, 4, OFFSETS_V2):
                producer.commit_offsets(
                    f"{title}: offsets, v{version}", "txn.wrong.group", topic, (0, 1), version=version
                )
            for version in (7, 10, 11, PRODUCE_V2):
                for partition in (0, 1):
                    where = f"{title}: produce to {partition}, v{version}"
                    producer.produce(where, topic, partition, version=version)
            ends(play, title, producer)
        producer.id, producer.epoch = producer_id, epoch
        producer.describe(f"{state}: described after all")
        describe_producers(play, f"{state}: producers after all", topic, 0, 1)
        if state == "open":
            producer.end("open: the right one ends")
    read(play, "after all", topic)
    read(play, "after all, the other partition", topic, 1)


@script
def transactions_with_ids_that_nobody_has(play: Play) -> None:
    topic = "txn.nobody"
    play.topic(topic, 1)
    play.coordinator("txn.nobody.group")
    producer = TransactionalProducer(play, "txn.nobody")
    for name, transactional_id in (("unknown", "txn.nobody"), ("empty", ""), ("long", "x" * 32_000)):
        producer.transactional_id = transactional_id
        for producer_id, epoch in ((2**40, 0), (-1, -1)):
            producer.id, producer.epoch = producer_id, epoch
            title = f"{name}, producer {producer_id}"
            for version in ADD_VERSIONS:
                producer.add(f"{title}: add, v{version}", topic, 0, version=version)
            for version in (0, 2, 4):
                producer.add_offsets(f"{title}: add offsets, v{version}", "txn.nobody.group", version)
            for version in (0, 3, 4, OFFSETS_V2):
                producer.commit_offsets(
                    f"{title}: offsets, v{version}", "txn.nobody.group", topic, (0, 1), version=version
                )
            for version in (10, 11, PRODUCE_V2):
                producer.produce(f"{title}: produce, v{version}", topic, version=version)
            for version in END_VERSIONS:
                play.step(f"{title}: end, v{version}", producer.end_request(commit=True), version)


@script
def transactions_with_bad_partitions(play: Play) -> None:
    topic = "txn.partitions"
    play.topic(topic, 2)
    play.coordinator("txn.partitions.group")
    producer = TransactionalProducer(play, "txn.partitions").begun()
    for version in ADD_VERSIONS:
        producer.add(f"a partition that is not there, v{version}", topic, 0, 9, version=version)
        producer.add(f"a negative partition, v{version}", topic, -1, version=version)
        producer.add(f"a topic that is not there, v{version}", "txn.missing", 0, version=version)
        producer.add(f"no partitions, v{version}", topic, version=version)
        for internal in ("__consumer_offsets", "__transaction_state"):
            producer.add(f"{internal}, v{version}", internal, 0, version=version)
        for name in BAD_NAMES:
            producer.add(f"a topic called {name[:20]!r} {len(name)}, v{version}", name, 0, version=version)
    nothing = producer.add_request(topic)
    nothing.v3_and_below_topics = []
    play.step("no topics", nothing, 3)
    producer.describe("described after that")
    producer.add("a partition twice", topic, 1, 1)
    mixed = producer.add_request(topic, 0)
    mixed.v3_and_below_topics = [
        AddPartitionsToTxnTopic(name=topic, partitions=[0]),
        AddPartitionsToTxnTopic(name="txn.missing", partitions=[0]),
        AddPartitionsToTxnTopic(name=topic, partitions=[1]),
    ]
    play.step("several topics, one of them not there", mixed, 3)
    producer.describe("described after all")
    producer.produce("produce where nothing was added, v11", topic, 0, version=11)
    producer.produce("produce where nothing was added, v10", topic, 0, version=10)
    for version in (11, PRODUCE_V2):
        producer.produce(f"produce to a topic that is not there, v{version}", "txn.missing", version=version)
        producer.produce(f"produce to a partition that is not there, v{version}", topic, 9, version=version)
        producer.produce(f"produce to __consumer_offsets, v{version}", "__consumer_offsets", version=version)
    producer.end("end")
    producer.describe("described when over")


@script
def transactions_with_bad_records(play: Play) -> None:
    topic = "txn.records"
    play.topic(topic, 2)
    producer = TransactionalProducer(play, "txn.records").begun()
    other = TransactionalProducer(play, "txn.records.other").begun()
    producer.add("add", topic, 0)

    def send(title: str, records: bytes, transactional_id: str | None, version: int = 11) -> None:
        request = produce_request(topic, records, transactional_id=transactional_id)
        play.step(title, request, version)

    mine = producer.transactional_id
    for version in (9, 11, PRODUCE_V2):
        title = f"v{version}"
        whole = (producer.id, producer.epoch, 0)
        send(
            f"without the transactional id, {title}",
            batches.batch(producer=whole, transactional=True),
            None,
            version,
        )
        send(
            f"with another's id, {title}",
            batches.batch(producer=whole, transactional=True),
            "txn.records.other",
            version,
        )
        send(f"with an empty id, {title}", batches.batch(producer=whole, transactional=True), "", version)
        foreign = (other.id, other.epoch, 0)
        send(
            f"another's records, {title}", batches.batch(producer=foreign, transactional=True), mine, version
        )
        send(
            f"a marker, {title}",
            batches.batch(producer=whole, transactional=True, control=True),
            mine,
            version,
        )
        late = (producer.id, producer.epoch, 7)
        send(
            f"a sequence that does not begin at 0, {title}",
            batches.batch(producer=late, transactional=True),
            mine,
            version,
        )
        anonymous = (-1, -1, -1)
        send(
            f"without a producer id, {title}",
            batches.batch(producer=anonymous, transactional=True),
            mine,
            version,
        )
        send(f"nothing transactional, {title}", batches.batch(producer=anonymous), mine, version)
    producer.describe("described")
    producer.end("abort, to begin anew", commit=False)
    fresh = TransactionalProducer(play, "txn.records.fresh").begun()
    fresh.produce("idempotent records before a transaction", topic, transactional=False)
    fresh.add("fresh: add", topic, 0)
    fresh.produce("transactional ones behind them", topic)
    fresh.produce("idempotent ones in the open transaction", topic, transactional=False)
    fresh.produce("idempotent ones elsewhere", topic, 1, transactional=False)
    fresh.end("fresh: end")
    fresh.produce("idempotent ones behind the transaction", topic, transactional=False)
    describe_producers(play, "producers", topic, 0, 1)
    read(play, "after all", topic)


@script
def transactions_that_change_generation(play: Play) -> None:
    topic = "txn.change"
    play.topic(topic, 2)
    producer = TransactionalProducer(play, "txn.change").begun()
    producer.add("first generation: add", topic, 0)
    producer.produce("first generation: produce", topic)
    producer.produce("second generation: produce elsewhere", topic, 1, version=PRODUCE_V2)
    producer.describe("described")
    producer.end("second generation: end", version=END_V2)
    producer.describe("described when over")
    producer.produce("second generation: produce", topic, version=PRODUCE_V2)
    producer.add("first generation: add elsewhere", topic, 1)
    producer.produce("first generation: produce elsewhere", topic, 1)
    producer.end("first generation: end")
    producer.describe("described when over again")
    producer.produce("second generation: produce with the same epoch", topic, version=PRODUCE_V2)
    producer.end("second generation: abort", commit=False, version=END_V2)
    producer.describe("described in the end")
    read(play, "after all", topic)
    read(play, "after all, the other partition", topic, 1)
