"""Reads topics with Spark's Kafka connector and with Culver's source in one session, and prints how they differ.

python connector_comparison.py JARS BOOTSTRAP '[{"subscribe": "orders", ...}, ...]'
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from pyspark.sql import DataFrame, SparkSession


def main(jars: str, bootstrap: str, cases: str) -> None:
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("comparison").config("spark.jars", jars)
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        builder = builder.config(name, "127.0.0.1")
    spark = builder.config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    answers = []
    for options in json.loads(cases):
        frames = []
        for name in ("kafka", "culver"):
            reader = spark.read.format(name).option("kafka.bootstrap.servers", bootstrap)
            frames.append(reader.options(**options).load())
        answers.append(compared(*frames))
    spark.stop()
    print(json.dumps(answers))


def compared(theirs: DataFrame, ours: DataFrame) -> dict[str, Any]:
    order = ["topic", "partition", "offset"]
    their_rows = [repr(row) for row in theirs.orderBy(*order).collect()]
    our_rows = [repr(row) for row in ours.orderBy(*order).collect()]
    return {
        "same schema": theirs.schema == ours.schema,
        "rows": len(their_rows),
        "only theirs": [row for row in their_rows if row not in our_rows][:5],
        "only ours": [row for row in our_rows if row not in their_rows][:5],
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
