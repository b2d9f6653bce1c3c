"""Scripts about idempotent producers: InitProducerId, sequences and epochs, DescribeProducers."""

from __future__ import annotations

from culver.protocol.messages.describe_producers import DescribeProducersRequest, TopicRequest
from culver.protocol.messages.init_producer_id import InitProducerIdRequest
from differential import batches
from differential.play import Play, produce_request, script


def new_producer(play: Play) -> int:
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000)
    # A broker that has just started may not have any ids to give yet.
    play.until(lambda: play.quiet(request, 4).error_code == 0)
    producer_id: int = play.quiet(request, 4).producer_id
    return producer_id


@script
def init_producer_id(play: Play) -> None:
    play.until(
        lambda: (
            play.quiet(InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0), 0).error_code
            == 0
        )
    )
    for version in range(6):
        play.step(
            f"idempotent, v{version}",
            InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000),
            version,
        )
    for timeout_ms in (0, -1, 2**31 - 1):
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=timeout_ms)
        play.step(f"a timeout of {timeout_ms}", request, 4)
    for title, producer_id, epoch in (
        ("an id and an epoch", 1000, 3),
        ("an id without an epoch", 1000, -1),
        ("an epoch without an id", -1, 3),
        ("negative both", -2, -2),
        ("the last epoch", 1000, 32767),
    ):
        request = InitProducerIdRequest(
            transactional_id=None,
            transaction_timeout_ms=60_000,
            producer_id=producer_id,
            producer_epoch=epoch,
        )
        for version in (3, 5):
            play.step(f"{title}, v{version}", request, version)
    empty = InitProducerIdRequest(transactional_id="", transaction_timeout_ms=60_000)
    play.step("an empty transactional id", empty, 4)


@script
def sequences(play: Play) -> None:
    play.topic("sequences", 3)
    producer_id = new_producer(play)

    def ask(
        title: str, epoch: int, sequence: int, count: int = 1, partition: int = 0, **others: bool
    ) -> None:
        data = batches.batch(count, producer=(producer_id, epoch, sequence), **others)
        play.step(title, produce_request("sequences", data, partition), 9)

    ask("first", 0, 0, 3)
    ask("second", 0, 3, 2)
    ask("the second again", 0, 3, 2)
    ask("the first again", 0, 0, 3)
    ask("part of the second", 0, 4)
    ask("a gap", 0, 6)
    ask("next", 0, 5)
    for number in range(6, 11):
        ask(f"sequence {number}", 0, number)
    ask("the last five: 6 again", 0, 6)
    ask("older than the last five: 5 again", 0, 5)
    ask("older than the last five: the first again", 0, 0, 3)
    ask("the right start with another count", 0, 10, 2)
    ask("a new epoch that does not start at zero", 1, 11)
    ask("a new epoch", 1, 0)
    ask("the old epoch", 0, 11)
    ask("a negative epoch", -1, 1)
    ask("sequence -1", 1, -1)
    ask("the next in the new epoch", 1, 1)
    ask("a skipped epoch", 5, 0)
    ask("any first sequence where the producer is unknown", 0, 42, partition=1)
    ask("and the one after it", 0, 43, partition=1)
    ask("the last sequence of all", 0, 2**31 - 1, partition=2)
    ask("after it comes zero", 0, 0, partition=2)
    data = batches.batch(producer=(producer_id, 1, 0))
    wrapping = batches.batch(4, producer=(producer_id, 6, 0))
    play.step("two batches of one producer in one request", produce_request("sequences", wrapping + data), 9)
    play.step(
        "an id that was never given out",
        produce_request("sequences", batches.batch(producer=(2**40, 0, 0))),
        9,
    )
    play.step(
        "a negative id with an epoch", produce_request("sequences", batches.batch(producer=(-2, 0, 0))), 9
    )
    play.step(
        "an id with epoch -1", produce_request("sequences", batches.batch(producer=(producer_id, -1, 0))), 9
    )
    play.step(
        "an id with sequence -1",
        produce_request("sequences", batches.batch(producer=(producer_id, 9, -1))),
        9,
    )


@script
def sequences_of_the_last_five(play: Play) -> None:
    play.topic("last.five", 1)
    producer_id = new_producer(play)
    for number in range(7):
        play.step(
            f"batch {number}",
            produce_request("last.five", batches.batch(2, producer=(producer_id, 0, 2 * number))),
            8,
        )
    for number in range(7):
        play.step(
            f"batch {number} again",
            produce_request("last.five", batches.batch(2, producer=(producer_id, 0, 2 * number))),
            8,
        )


@script
def transactional_batches_without_a_transaction(play: Play) -> None:
    play.topic("no.transaction", 1)
    producer_id = new_producer(play)
    transactional = batches.batch(producer=(producer_id, 0, 0), transactional=True)
    play.step(
        "transactional batch, no transactional id, v9", produce_request("no.transaction", transactional), 9
    )
    play.step(
        "transactional batch, no transactional id, v12", produce_request("no.transaction", transactional), 12
    )
    named = produce_request("no.transaction", transactional, transactional_id="differential")
    play.step("transactional batch, with a transactional id", named, 9)
    plain = produce_request("no.transaction", batches.batch(), transactional_id="differential")
    play.step("plain batch, with a transactional id", plain, 9)
    play.step(
        "without a producer id", produce_request("no.transaction", batches.batch(transactional=True)), 9
    )


@script
def describe_producers(play: Play) -> None:
    play.topic("described.producers", 2)
    first, second = new_producer(play), new_producer(play)
    play.produce("described.producers", batches.batch(3, producer=(first, 0, 0)))
    play.produce("described.producers", batches.batch(2, producer=(first, 0, 3)))
    play.produce("described.producers", batches.batch(producer=(second, 7, 5)))

    def ask(title: str, *topics: tuple[str, list[int]]) -> None:
        request = DescribeProducersRequest(
            topics=[TopicRequest(name=name, partition_indexes=indexes) for name, indexes in topics]
        )
        play.step(title, request, 0)

    ask("one partition", ("described.producers", [0]))
    ask("one without producers", ("described.producers", [1]))
    ask("a missing partition", ("described.producers", [0, 9, -1]))
    ask("a missing topic", ("described.missing", [0]))
    ask("a bad name", ("bad name", [0]))
    ask("a partition twice", ("described.producers", [1, 1]))
    ask("none")
    ask("no partitions", ("described.producers", []))
