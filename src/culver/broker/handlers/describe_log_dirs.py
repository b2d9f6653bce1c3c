"""DescribeLogDirs: how much each partition takes on disk. Serves versions 1 to 5.

2: flexible. 3: an error for the whole answer. 4: the size of the disk. 5: cordoned directories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node
    from culver.broker.partition import Partition


def handle(node: Node, exchange: Exchange, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    by_topic: dict[str, list[Partition]] = {}
    if request.topics is None:
        for partition in node.partitions:
            by_topic.setdefault(partition.topic, []).append(partition)
    else:
        for topic in request.topics:
            for index in topic.partitions:
                found = node.partitions.get(topic.topic, index)
                if found is not None:
                    by_topic.setdefault(topic.topic, []).append(found)
    total_bytes, usable_bytes = node.filesystem.disk_space(node.data_directory)
    return DescribeLogDirsResponse(
        results=[
            DescribeLogDirsResult(
                log_dir=node.data_directory,
                topics=[
                    DescribeLogDirsTopic(
                        name=name,
                        partitions=[
                            DescribeLogDirsPartition(
                                partition_index=partition.index,
                                partition_size=partition.log.size_bytes,
                                # What a follower has not copied yet of what its leader told it is committed.
                                offset_lag=max(partition.log.high_watermark - partition.log.end_offset, 0),
                                is_future_key=False,
                            )
                            for partition in partitions
                        ],
                    )
                    for name, partitions in by_topic.items()
                ],
                total_bytes=total_bytes,
                usable_bytes=usable_bytes,
            )
        ]
    )
