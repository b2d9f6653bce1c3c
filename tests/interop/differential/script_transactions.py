"""Scripts about transactions in good order: both generations of the protocol, what readers see, fencing."""

from __future__ import annotations

from culver.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from differential.play import Play, script
from differential.producer import END_V2, OFFSETS_V2, PRODUCE_V2, TransactionalProducer
from differential.script_fetch import fetch_request, part
from differential.script_group_offsets import fetched
from differential.script_offsets import offsets_request


def read(play: Play, title: str, topic: str, partition: int = 0, offset: int = 0) -> None:
    """What a partition shows with both isolation levels, and where it ends."""
    for isolation, name in enumerate(("uncommitted", "committed")):
        request = fetch_request([(topic, [part(partition, offset)])], isolation=isolation)
        play.step(f"{title}: read {name}", request, 11)
        request = offsets_request(topic, (partition, -1), isolation=isolation)
        play.step(f"{title}: end {name}", request, 5)


def describe_producers(play: Play, title: str, topic: str, *partitions: int) -> None:
    topics = [TopicRequest(name=topic, partition_indexes=list(partitions))]
    play.step(title, DescribeProducersRequest(topics=topics), 0)


@script
def transactions_by_version(play: Play) -> None:
    play.topic("txn.versions", 2)
    play.coordinator("txn.versions.group")
    producer = TransactionalProducer(play, "txn.versions")
    producer.describe("nobody knows the id")
    for version in range(6):
        producer.init(f"init, v{version}", version)
        producer.describe(f"described after init, v{version}")
    for version in range(5):
        title = f"v{version}"
        producer.add(f"add partitions, {title}", "txn.versions", 0, 1, version=min(version, 3))
        producer.add(f"add them again, {title}", "txn.versions", 1, version=min(version, 3))
        producer.describe(f"described when open, {title}")
        producer.produce(f"produce, {title}", "txn.versions", version=7 + version)
        producer.add_offsets(f"add offsets, {title}", "txn.versions.group", version)
        producer.commit_offsets(
            f"commit offsets, {title}", "txn.versions.group", "txn.versions", (0, version), version=version
        )
        producer.end(f"end, {title}", commit=version % 2 == 0, version=version)
        producer.describe(f"described when over, {title}")
    read(play, "after all", "txn.versions")
    read(play, "after all, the other partition", "txn.versions", 1)
    describe_producers(play, "producers after all", "txn.versions", 0, 1)
    play.step("offsets after all", fetched("txn.versions.group", "txn.versions", 0, version=7), 7)


@script
def transactions_of_the_second_generation(play: Play) -> None:
    play.topic("txn.second", 2)
    play.coordinator("txn.second.group")
    producer = TransactionalProducer(play, "txn.second")
    producer.init("init", 5)
    for number, commit in enumerate((True, False, True)):
        title = f"transaction {number}"
        producer.produce(f"{title}: produce", "txn.second", count=2, version=PRODUCE_V2)
        producer.describe(f"{title}: described with one partition")
        producer.produce(f"{title}: produce more", "txn.second", version=PRODUCE_V2)
        producer.produce(f"{title}: produce elsewhere", "txn.second", 1, version=PRODUCE_V2)
        producer.commit_offsets(
            f"{title}: commit offsets", "txn.second.group", "txn.second", (1, number), version=OFFSETS_V2
        )
        producer.describe(f"{title}: described")
        describe_producers(play, f"{title}: producers", "txn.second", 0, 1)
        read(play, f"{title}: open", "txn.second")
        producer.end(f"{title}: end", commit=commit, version=END_V2)
        producer.describe(f"{title}: described when over")
        read(play, f"{title}: over", "txn.second")
        stable = fetched("txn.second.group", "txn.second", 0, 1, version=8, stable=True)
        play.step(f"{title}: offsets", stable, 8)
    describe_producers(play, "producers after all", "txn.second", 0, 1)


@script
def transactions_of_two_producers(play: Play) -> None:
    topic = "txn.two"
    play.topic(topic, 1)
    first = TransactionalProducer(play, "txn.two.first").begun()
    second = TransactionalProducer(play, "txn.two.second").begun()
    for turn, (first_commits, second_commits) in enumerate(((True, False), (False, True), (False, False))):
        first.produce(f"{turn}: first", topic, version=PRODUCE_V2)
        second.produce(f"{turn}: second", topic, version=PRODUCE_V2)
        first.produce(f"{turn}: first again", topic, version=PRODUCE_V2)
        first.end(f"{turn}: first ends", commit=first_commits, version=END_V2)
        read(play, f"{turn}: one is open", topic)
        second.produce(f"{turn}: second again", topic, version=PRODUCE_V2)
        second.end(f"{turn}: second ends", commit=second_commits, version=END_V2)
    read(play, "from the start", topic)
    for offset in (1, 3, 5, 9, 12, 17):
        read(play, f"from {offset}", topic, offset=offset)
    small = fetch_request([(topic, [part(0, 0, 100)])], isolation=1)
    play.step("a small piece", small, 11)


@script
def transactions_and_fencing(play: Play) -> None:
    topic = "txn.fencing"
    play.topic(topic, 2)
    play.coordinator("txn.fencing.group")
    for generation, produce_version, end_version in ((1, 11, 4), (2, PRODUCE_V2, END_V2)):
        title = f"generation {generation}"
        old = TransactionalProducer(play, f"txn.fencing.{generation}").begun()
        if generation == 1:
            old.add(f"{title}: add", topic, 0)
        old.produce(f"{title}: produce", topic, version=produce_version)
        new = TransactionalProducer(play, old.transactional_id)
        # Kafka says CONCURRENT_TRANSACTIONS until the old transaction's markers are written.
        play.until(lambda: play.quiet(new.init_request(), 4).error_code == 0)  # noqa: B023
        new.init(f"{title}: another takes over", 4)
        new.describe(f"{title}: described")
        read(play, f"{title}: aborted", topic)
        for version in (7, produce_version):
            old.produce(f"{title}: the old one produces, v{version}", topic, version=version)
            old.produce(f"{title}: the old one produces elsewhere, v{version}", topic, 1, version=version)
        for version in range(4):
            old.add(f"{title}: the old one adds, v{version}", topic, 1, version=version)
        for version in range(5):
            old.add_offsets(f"{title}: the old one adds offsets, v{version}", "txn.fencing.group", version)
        for version in range(6):
            old.commit_offsets(
                f"{title}: the old one commits offsets, v{version}",
                "txn.fencing.group",
                topic,
                (0, 1),
                version=version,
            )
            for commit in (True, False):
                request = old.end_request(commit=commit)
                play.step(f"{title}: the old one ends {commit}, v{version}", request, version)
        for version in (3, 4, 5):
            request = old.init_request(producer_id=old.id, epoch=old.epoch)
            play.step(f"{title}: the old one begins anew with its id, v{version}", request, version)
        new.describe(f"{title}: described after all that")
        new.add(f"{title}: the new one adds", topic, 0)
        new.produce(f"{title}: the new one produces", topic)
        new.end(f"{title}: the new one ends", version=end_version)
    read(play, "after all", topic)
    read(play, "after all, the other partition", topic, 1)
    describe_producers(play, "producers after all", topic, 0, 1)


@script
def transactions_that_are_taken_over(play: Play) -> None:
    """InitProducerId ends what is open first; until then Kafka asks for patience."""
    topic = "txn.taken"
    play.topic(topic, 1)
    for version in range(6):
        producer = TransactionalProducer(play, f"txn.taken.v{version}").begun()
        producer.produce(f"produce, v{version}", topic, version=PRODUCE_V2)
        play.step(f"another producer comes, v{version}", producer.init_request(), version)
        producer.settled()
    read(play, "all was aborted", topic)


@script
def producers_that_come_back(play: Play) -> None:
    """InitProducerId with the id and epoch that a producer had: after an error it can go on from, it gets the next."""
    topic = "txn.back"
    play.topic(topic, 1)
    producer = TransactionalProducer(play, "txn.back").begun()
    mine = {"producer_id": producer.id, "epoch": producer.epoch}
    play.step("with its id and epoch", producer.init_request(**mine), 4)
    play.step("and once more: it may have missed the answer", producer.init_request(**mine), 4)
    producer.epoch += 1
    producer.produce("the next epoch", topic, version=PRODUCE_V2)
    open_one = producer.init_request(producer_id=producer.id, epoch=producer.epoch)
    play.until(lambda: play.quiet(open_one, 4).error_code == 0)
    producer.describe("described after coming back in an open transaction")
    for title, producer_id, epoch in (
        ("an epoch too new", producer.id, producer.epoch + 10),
        ("an epoch too old", producer.id, 0),
        ("another id", producer.id + 1000, producer.epoch),
        ("no epoch", producer.id, -1),
        ("no id", -1, producer.epoch),
        ("the last epoch", producer.id, 32767),
        ("negative both", -2, -2),
    ):
        for version in (3, 4, 5):
            request = producer.init_request(producer_id=producer_id, epoch=epoch)
            play.step(f"{title}, v{version}", request, version)
    producer.describe("described after all")
    stranger = TransactionalProducer(play, "txn.back.stranger")
    for version in (3, 4, 5):
        request = stranger.init_request(producer_id=producer.id, epoch=0)
        play.step(f"an unknown transactional id with an id and an epoch, v{version}", request, version)
        stranger.describe(f"the stranger, v{version}")
