"""Scripts about Fetch: offsets, limits, topic ids, isolation, waiting."""

from __future__ import annotations

from collections.abc import Sequence

from culver.protocol.compression import Codec
from culver.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
from culver.protocol.schema import ZERO_UUID
from differential import batches
from differential.play import Play, script
from differential.script_metadata import BAD_NAMES, SOME_ID


def part(
    partition: int = 0,
    offset: int = 0,
    max_bytes: int = 1 << 20,
    *,
    epoch: int = -1,
    last_epoch: int = -1,
    log_start: int = -1,
) -> FetchPartition:
    return FetchPartition(
        partition=partition,
        current_leader_epoch=epoch,
        fetch_offset=offset,
        last_fetched_epoch=last_epoch,
        log_start_offset=log_start,
        partition_max_bytes=max_bytes,
    )


def fetch_request(
    topics: Sequence[tuple[str | bytes, Sequence[FetchPartition]]],
    *,
    max_wait_ms: int = 0,
    min_bytes: int = 1,
    max_bytes: int = 1 << 24,
    isolation: int = 0,
    session: tuple[int, int] = (0, -1),
) -> FetchRequest:
    """Topics by name or by id."""
    session_id, session_epoch = session
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=min_bytes,
        max_bytes=max_bytes,
        isolation_level=isolation,
        session_id=session_id,
        session_epoch=session_epoch,
        topics=[
            FetchTopic(
                topic=which if isinstance(which, str) else "",
                topic_id=which if isinstance(which, bytes) else ZERO_UUID,
                partitions=list(partitions),
            )
            for which, partitions in topics
        ],
    )


@script
def fetch(play: Play) -> None:
    topic_id = play.topic("fetch", 2)
    for count in (1, 2, 3):
        play.produce("fetch", batches.batch(count))
    for version in range(4, 13):
        play.step(f"from the start, v{version}", fetch_request([("fetch", [part(), part(1)])]), version)
    for version in range(13, 19):
        play.step(f"from the start, v{version}", fetch_request([(topic_id, [part(), part(1)])]), version)
    for offset in range(8):
        play.step(f"from {offset}", fetch_request([("fetch", [part(offset=offset)])]), 11)
    for offset in (-1, -2, 1 << 62, -(1 << 62)):
        play.step(f"from {offset}", fetch_request([("fetch", [part(offset=offset)])]), 11)
        play.step(f"from {offset}, v4", fetch_request([("fetch", [part(offset=offset)])]), 4)
    for isolation in (1, 2, -1):
        play.step(
            f"isolation level {isolation}", fetch_request([("fetch", [part()])], isolation=isolation), 11
        )
    play.step("nothing there, waited for", fetch_request([("fetch", [part(offset=6)])], max_wait_ms=50), 11)
    play.step("a negative wait", fetch_request([("fetch", [part(offset=6)])], max_wait_ms=-1), 11)


@script
def fetch_limits(play: Play) -> None:
    play.topic("fetch.limits", 2)
    for partition in (0, 1):
        for _ in range(4):
            play.produce("fetch.limits", batches.batch(2, value=b"x" * 400), partition)
    size = len(batches.batch(2, value=b"x" * 400))
    for limit in (-1, 0, 1, size - 1, size, size + 1, 2 * size, 3 * size + 10):
        short = "one batch" if limit == size else str(limit)
        both = [part(0, max_bytes=limit), part(1, max_bytes=limit)]
        play.step(f"partition limit {short}", fetch_request([("fetch.limits", both)]), 11)
        both = [part(0), part(1)]
        play.step(f"total limit {short}", fetch_request([("fetch.limits", both)], max_bytes=limit), 11)
        both = [part(0, max_bytes=limit), part(1)]
        play.step(f"first partition's limit {short}", fetch_request([("fetch.limits", both)]), 11)
    for least in (-1, 0, 1 << 30):
        request = fetch_request([("fetch.limits", [part()])], min_bytes=least, max_wait_ms=50)
        play.step(f"at least {least} bytes", request, 11)
    request = fetch_request([("fetch.limits", [part(offset=8)])], min_bytes=0, max_wait_ms=60_000)
    play.step("at least 0 bytes where nothing is", request, 11)
    request = fetch_request([("fetch.limits", [part(offset=3, max_bytes=size)])])
    play.step("from the middle of a batch", request, 11)


@script
def fetch_where_nothing_is(play: Play) -> None:
    topic_id = play.topic("fetch.where", 1)
    play.produce("fetch.where", batches.batch())
    for version in (4, 7, 11, 12):
        play.step(f"a missing topic, v{version}", fetch_request([("fetch.missing", [part()])]), version)
        play.step(f"a missing partition, v{version}", fetch_request([("fetch.where", [part(3)])]), version)
        mixed = fetch_request([("fetch.where", [part(), part(3)]), ("fetch.missing", [part()])])
        play.step(f"a good and missing ones, v{version}", mixed, version)
    play.step("a negative partition", fetch_request([("fetch.where", [part(-1)])]), 11)
    for version in (13, 18):
        play.step(f"an unknown id, v{version}", fetch_request([(SOME_ID, [part()])]), version)
        play.step(f"no id, v{version}", fetch_request([(ZERO_UUID, [part()])]), version)
        mixed = fetch_request([(topic_id, [part(), part(3)]), (SOME_ID, [part()])])
        play.step(f"a good and an unknown id, v{version}", mixed, version)
    for number, name in enumerate(BAD_NAMES):
        play.step(f"bad name {number}", fetch_request([(name, [part()])]), 11)
    play.step("no topics", fetch_request([]), 11)
    play.step("no partitions", fetch_request([("fetch.where", [])]), 11)
    play.step(
        "a missing topic is not waited for",
        fetch_request([("fetch.missing", [part()])], max_wait_ms=60_000),
        11,
    )
    out = fetch_request([("fetch.where", [part(offset=99)])], max_wait_ms=60_000)
    play.step("an offset out of range is not waited for", out, 11)


@script
def fetch_twice(play: Play) -> None:
    topic_id = play.topic("fetch.twice", 1)
    play.produce("fetch.twice", batches.batch())
    play.step("a partition twice", fetch_request([("fetch.twice", [part(), part(offset=1)])]), 11)
    play.step("a topic twice", fetch_request([("fetch.twice", [part()]), ("fetch.twice", [part()])]), 11)
    play.step("an id twice", fetch_request([(topic_id, [part()]), (topic_id, [part()])]), 13)


@script
def fetch_epochs(play: Play) -> None:
    play.topic("fetch.epochs", 1)
    play.produce("fetch.epochs", batches.batch(3))
    for epoch in (0, 1, 100, -2):
        play.step(f"current leader epoch {epoch}", fetch_request([("fetch.epochs", [part(epoch=epoch)])]), 11)
        play.step(
            f"current leader epoch {epoch}, v12", fetch_request([("fetch.epochs", [part(epoch=epoch)])]), 12
        )
    for epoch, offset in ((0, 0), (0, 2), (1, 2), (-2, 1), (5, 3)):
        request = fetch_request([("fetch.epochs", [part(offset=offset, last_epoch=epoch)])])
        play.step(f"last fetched epoch {epoch} at {offset}", request, 12)
    as_replica = fetch_request([("fetch.epochs", [part()])])
    as_replica.replica_id = 77
    play.step("from a replica that does not exist", as_replica, 11)
    as_replica = fetch_request([("fetch.epochs", [part()])])
    as_replica.replica_id = -2
    play.step("as a debugging consumer", as_replica, 11)
    as_replica = fetch_request([(play.topic("fetch.epochs.id"), [part()])])
    as_replica.replica_state = ReplicaState(replica_id=77, replica_epoch=1)
    play.step("from a replica that does not exist, v15", as_replica, 15)
    named = fetch_request([("fetch.epochs", [part()])])
    named.cluster_id = "another"
    play.step("for another cluster", named, 12)
    racked = fetch_request([("fetch.epochs", [part()])])
    racked.rack_id = "somewhere"
    play.step("from a rack", racked, 11)


@script
def fetch_what_was_produced(play: Play) -> None:
    play.topic("fetch.codecs", 1)
    play.topic("fetch.append", 1, message_timestamp_type="LogAppendTime")
    play.topic("fetch.recompressed", 1, compression_type="gzip")
    play.topic("fetch.uncompressed", 1, compression_type="uncompressed")
    for topic in ("fetch.codecs", "fetch.append", "fetch.recompressed", "fetch.uncompressed"):
        for codec in Codec:
            play.produce(topic, batches.batch(3, value=b"y" * 30, compression=codec))
        play.step(f"{topic}", fetch_request([(topic, [part()])]), 11)
    for version in (4, 9, 10):
        play.step(f"zstd, v{version}", fetch_request([("fetch.codecs", [part()])]), version)
