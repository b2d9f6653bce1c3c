"""A Spark job as a program of its own, run by tests that kill it: a topic to Parquet, then what came of it on stdout.

python streaming_job.py MASTER BOOTSTRAP TOPIC DIRECTORY
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from pyspark.sql import Row, SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    # No task before every executor is there, or one of them would do all the work.
    "spark.scheduler.minRegisteredResourcesRatio": "1.0",
    "spark.scheduler.maxRegisteredResourcesWaitingTime": "90s",
    "spark.locality.wait": "0",
    "spark.sql.codegen.wholeStage": "false",
}


def main(master: str, bootstrap: str, topic: str, directory: str) -> None:
    # The driver looks for data sources with this Python, and the workers run their tasks with it.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(master).appName("streaming-job").config("spark.cores.max", "2")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    options = {"kafka.bootstrap.servers": bootstrap, "subscribe": topic, "startingOffsets": "earliest"}
    base = Path(directory)
    stream = spark.readStream.format("culver").options(**options, maxOffsetsPerTrigger="40").load()
    writer = stream.select("value").writeStream.option("checkpointLocation", str(base / "checkpoint"))
    query = writer.format("parquet").trigger(availableNow=True).start(str(base / "data"))
    query.awaitTermination()
    values = [bytes(row.value).decode() for row in spark.read.parquet(str(base / "data")).collect()]
    table = spark.read.format("culver").options(**options).load().select("value")
    print(
        json.dumps({"values": sorted(values), "workers": table.rdd.mapPartitions(where).distinct().collect()})
    )
    spark.stop()


def where(rows: Iterable[Row]) -> Iterable[str]:
    """The working directory of whoever reads the partition: each executor has one of its own."""
    return [os.getcwd() for _ in [sum(1 for _ in rows)]]


if __name__ == "__main__":
    main(*sys.argv[1:])
