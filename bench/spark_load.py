"""`python -m bench.spark_load`: times how a Spark session on local[2] reads topics. JSON comes on stdin:

    {"jars": [...], "directory": "...", "rounds": 3,
     "reads": [{"format": "culver", "bootstrap": "...", "topic": "..."}]}

Prints, for "noop" and "parquet", a list for each read of the seconds that every round took. The reads take turns; the
first round warms the JVM up and is left out.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "3g",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
}
SINKS = ("noop", "parquet")


def main() -> int:
    asked = json.load(sys.stdin)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("culver-bench")
    for name, value in {**SETTINGS, "spark.jars": ",".join(asked["jars"])}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    target = Path(asked["directory"]) / "parquet"
    took: dict[str, list[list[float]]] = {sink: [[] for _ in asked["reads"]] for sink in SINKS}
    for sink in SINKS:
        for number in range(asked["rounds"] + 1):
            for index, read in enumerate(asked["reads"]):
                seconds = _seconds(_frame(spark, read), sink, target)
                if number:
                    took[sink][index].append(seconds)
    rows = [_frame(spark, read).count() for read in asked["reads"]]
    spark.stop()
    json.dump({"rows": rows, **took}, sys.stdout)
    return 0


def _frame(spark: SparkSession, read: dict[str, Any]) -> DataFrame:
    reader = spark.read.format(read["format"]).option("kafka.bootstrap.servers", read["bootstrap"])
    return reader.option("subscribe", read["topic"]).load()


def _seconds(frame: DataFrame, sink: str, target: Path) -> float:
    shutil.rmtree(target, ignore_errors=True)
    os.sync()
    writer = frame.write.format(sink).mode("overwrite")
    begun = time.perf_counter()
    writer.save() if sink == "noop" else writer.save(str(target))
    return time.perf_counter() - begun


if __name__ == "__main__":
    sys.exit(main())
