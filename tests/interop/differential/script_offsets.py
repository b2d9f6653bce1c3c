"""Scripts about where partitions begin and end: ListOffsets, DeleteRecords, OffsetForLeaderEpoch, DescribeLogDirs."""

from __future__ import annotations

from culver.protocol.compression import Codec
from culver.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsTopic,
)
from culver.protocol.messages.describe_log_dirs import DescribableLogDirTopic, DescribeLogDirsRequest
from culver.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from culver.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from differential import batches
from differential.play import Play, script
from differential.script_fetch import fetch_request, part
from differential.script_metadata import BAD_NAMES

START_MS = batches.TIMESTAMP_MS


def offsets_request(
    topic: str, *asked: tuple[int, int], epoch: int = -1, replica_id: int = -1, isolation: int = 0
) -> ListOffsetsRequest:
    """`asked` holds pairs of partition and timestamp."""
    return ListOffsetsRequest(
        replica_id=replica_id,
        isolation_level=isolation,
        topics=[
            ListOffsetsTopic(
                name=topic,
                partitions=[
                    ListOffsetsPartition(
                        partition_index=partition, timestamp=timestamp, current_leader_epoch=epoch
                    )
                    for partition, timestamp in asked
                ],
            )
        ],
        timeout_ms=5000,
    )


@script
def list_offsets(play: Play) -> None:
    play.topic("offsets", 2)
    # Records at 0, 1, 2 and 1000, 1001 and 500 ms after the start: time does not rise with offsets.
    for count, delay_ms in ((3, 0), (2, 1000), (1, 500)):
        play.produce("offsets", batches.batch(count, timestamp=START_MS + delay_ms))
    packed = batches.batch(3, timestamp=START_MS + 2000, compression=Codec.SNAPPY)
    play.produce("offsets", packed)
    for version in range(1, 12):
        for timestamp in (-1, -2, -3, -4, -5, -6, -7, START_MS):
            play.step(
                f"timestamp {timestamp}, v{version}", offsets_request("offsets", (0, timestamp)), version
            )
            if version in (1, 11):
                request = offsets_request("offsets", (1, timestamp))
                play.step(f"timestamp {timestamp} of an empty partition, v{version}", request, version)
    for delay_ms in (-1, 0, 1, 2, 3, 400, 500, 501, 1000, 1001, 1002, 2000, 2001, 2002, 2003, 10**9):
        request = offsets_request("offsets", (0, START_MS + delay_ms))
        play.step(f"{delay_ms} ms after the start", request, 7)
    play.step("timestamp 0", offsets_request("offsets", (0, 0)), 7)
    play.step("the last timestamp of all", offsets_request("offsets", (0, 2**63 - 1)), 7)
    play.step("the lowest of all", offsets_request("offsets", (0, -(2**63))), 7)
    for isolation in (1, 2):
        request = offsets_request("offsets", (0, -1), isolation=isolation)
        play.step(f"isolation level {isolation}", request, 7)
    for epoch in (0, 1, -5):
        play.step(f"leader epoch {epoch}", offsets_request("offsets", (0, -1), epoch=epoch), 7)
    for replica_id in (-2, 77):
        request = offsets_request("offsets", (0, -1), replica_id=replica_id)
        play.step(f"replica {replica_id}", request, 7)


@script
def list_offsets_where_nothing_is(play: Play) -> None:
    play.topic("offsets.where", 1)
    for version in (1, 4, 11):
        play.step(f"a missing topic, v{version}", offsets_request("offsets.missing", (0, -1)), version)
        play.step(
            f"a missing partition, v{version}", offsets_request("offsets.where", (0, -1), (4, -1)), version
        )
        twice = offsets_request("offsets.where", (0, -1), (0, -2))
        play.step(f"a partition twice, v{version}", twice, version)
    play.step("a negative partition", offsets_request("offsets.where", (-1, -1)), 7)
    for number, name in enumerate(BAD_NAMES):
        play.step(f"bad name {number}", offsets_request(name, (0, -1)), 7)
    play.step("none", ListOffsetsRequest(replica_id=-1, topics=[]), 7)
    play.step("no partitions", offsets_request("offsets.where"), 7)


@script
def list_offsets_of_append_time(play: Play) -> None:
    play.topic("offsets.append", 1, message_timestamp_type="LogAppendTime")
    for _ in range(2):
        play.produce("offsets.append", batches.batch(3))
    for timestamp in (-1, -2, -3, START_MS):
        play.step(f"timestamp {timestamp}", offsets_request("offsets.append", (0, timestamp)), 7)


def trim(topic: str, *asked: tuple[int, int], timeout_ms: int = 5000) -> DeleteRecordsRequest:
    return DeleteRecordsRequest(
        topics=[
            DeleteRecordsTopic(
                name=topic,
                partitions=[
                    DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in asked
                ],
            )
        ],
        timeout_ms=timeout_ms,
    )


@script
def delete_records(play: Play) -> None:
    play.topic("trimmed", 2)
    for _ in range(4):
        play.produce("trimmed", batches.batch(3))
    for version, offset in ((0, 1), (1, 2), (2, 4)):
        play.step(f"to {offset}, v{version}", trim("trimmed", (0, offset)), version)
        play.step(f"fetch from 0 after {offset}", fetch_request([("trimmed", [part(offset=0)])]), 11)
        play.step(f"fetch from {offset}", fetch_request([("trimmed", [part(offset=offset)])]), 11)
        play.step(f"earliest after {offset}", offsets_request("trimmed", (0, -2)), 7)
        play.step(f"by time after {offset}", offsets_request("trimmed", (0, START_MS)), 7)
    play.step("to where it is already", trim("trimmed", (0, 4)), 2)
    play.step("back", trim("trimmed", (0, 1)), 2)
    play.step("beyond the end", trim("trimmed", (0, 13)), 2)
    play.step("to -2", trim("trimmed", (0, -2)), 2)
    play.step("to the end", trim("trimmed", (0, -1)), 2)
    play.step("fetch where all is gone", fetch_request([("trimmed", [part(offset=12)])]), 11)
    for timestamp in (-1, -2, -3, START_MS):
        play.step(f"timestamp {timestamp} where all is gone", offsets_request("trimmed", (0, timestamp)), 7)
    play.step("an empty partition to 0", trim("trimmed", (1, 0)), 2)
    play.step("an empty partition to the end", trim("trimmed", (1, -1)), 2)
    play.step("a missing partition", trim("trimmed", (5, 0), (-1, 0)), 2)
    play.step("a missing topic", trim("trimmed.missing", (0, 0)), 2)
    play.step("a bad name", trim("bad name", (0, 0)), 2)
    play.step("none", DeleteRecordsRequest(topics=[], timeout_ms=5000), 2)
    play.step("no timeout", trim("trimmed", (0, 12), timeout_ms=0), 2)
    play.topic("trimmed.compacted", 1, cleanup_policy="compact")
    play.produce("trimmed.compacted", batches.batch(3))
    play.step("a compacted topic", trim("trimmed.compacted", (0, 1)), 2)
    play.produce("trimmed", batches.batch(2))
    play.step("after the next produce", fetch_request([("trimmed", [part(offset=12)])]), 11)


@script
def offset_for_leader_epoch(play: Play) -> None:
    play.topic("epochs", 2)
    play.produce("epochs", batches.batch(3))

    def ask(
        title: str,
        topic: str,
        partition: int,
        epoch: int,
        current: int = -1,
        version: int = 4,
        replica_id: int = -1,
    ) -> None:
        request = OffsetForLeaderEpochRequest(
            replica_id=replica_id,
            topics=[
                OffsetForLeaderTopic(
                    topic=topic,
                    partitions=[
                        OffsetForLeaderPartition(
                            partition=partition, current_leader_epoch=current, leader_epoch=epoch
                        )
                    ],
                )
            ],
        )
        play.step(title, request, version)

    for version in (2, 3, 4):
        for epoch in (0, 1, -1, -2, 100):
            ask(f"epoch {epoch}, v{version}", "epochs", 0, epoch, version=version)
            ask(f"epoch {epoch} of an empty partition, v{version}", "epochs", 1, epoch, version=version)
    ask("the right current epoch", "epochs", 0, 0, 0)
    ask("an unknown current epoch", "epochs", 0, 0, 5)
    ask("a negative current epoch", "epochs", 0, 0, -3)
    ask("a missing partition", "epochs", 7, 0)
    ask("a missing topic", "epochs.missing", 0, 0)
    ask("a bad name", "bad name", 0, 0)
    ask("as a replica", "epochs", 0, 0, replica_id=77)


@script
def describe_log_dirs(play: Play) -> None:
    play.topic("log.dirs", 2)
    play.produce("log.dirs", batches.batch(3))
    for version in range(1, 6):
        asked = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="log.dirs", partitions=[0, 1])])
        play.step(f"two partitions, v{version}", asked, version)
        asked = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="log.missing", partitions=[0])])
        play.step(f"a missing topic, v{version}", asked, version)
    asked = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="log.dirs", partitions=[0, 9])])
    play.step("a missing partition", asked, 4)
    play.step("no topics", DescribeLogDirsRequest(topics=[]), 4)
    asked = DescribeLogDirsRequest(topics=[DescribableLogDirTopic(topic="log.dirs", partitions=[])])
    play.step("no partitions", asked, 4)
