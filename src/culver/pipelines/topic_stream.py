"""A stream of the records of topics, as all pipelines read it: committed records, from the first on, within limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from culver.spark.options import BOOTSTRAP

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PATTERN_PREFIX = "^"


def topic_stream(
    spark: SparkSession,
    bootstrap: str,
    topics: str,
    *,
    starting: str = "earliest",
    records_per_batch_max: int,
    group: str | None = None,
    include_headers: bool = False,
    options: Mapping[str, str] | None = None,
) -> DataFrame:
    """`topics` are names with commas between them, or a regular expression that begins with ^.

    `starting` counts for the very first run alone; later ones go on where the checkpoint says. `group` is the
    consumer group that progress is shown under. `options` are further ones of the source.
    """
    settings = {
        BOOTSTRAP: bootstrap,
        "subscribePattern" if topics.startswith(PATTERN_PREFIX) else "subscribe": topics,
        "startingOffsets": starting,
        "maxOffsetsPerTrigger": str(records_per_batch_max),
        "includeHeaders": str(include_headers).lower(),
        "kafka.isolation.level": "read_committed",
        **({"commitGroup": group} if group else {}),
        **(options or {}),
    }
    return spark.readStream.format("culver").options(**settings).load()
