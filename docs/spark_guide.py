# %% [markdown]
"""A tour of Culver in PySpark, to be run cell by cell in a notebook or editor, or as a whole:

culver serve &
python docs/spark_guide.py 127.0.0.1:9092
"""

# %%
from __future__ import annotations

import os
import sys
import tempfile
import uuid

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

BOOTSTRAP = sys.argv[1] if len(sys.argv) > 1 else "127.0.0.1:9092"
TOPIC = f"guide-{uuid.uuid4().hex[:8]}"
DIRECTORY = tempfile.mkdtemp(prefix="culver-guide-")

# %% A session. Spark runs Python workers, and has to know with which Python.
os.environ["PYSPARK_PYTHON"] = sys.executable
spark = SparkSession.builder.master("local[2]").appName("guide").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
culver = {"kafka.bootstrap.servers": BOOTSTRAP}

# %% Write: a batch job appends rows to a topic. The broker creates the topic when it is first written to.
orders = spark.range(1000).select(
    F.concat(F.lit("customer-"), (F.col("id") % 10).cast("string")).alias("key"),
    F.to_json(F.struct("id", (F.col("id") % 7).alias("items"))).alias("value"),
)
orders.write.format("culver").options(**culver).option("topic", TOPIC).mode("append").save()

# %% Read: the topic as a table, with the columns that Spark's Kafka source has.
table = spark.read.format("culver").options(**culver).option("subscribe", TOPIC).load()
table.printSchema()
parsed = table.select(
    F.col("key").cast("string").alias("customer"),
    F.from_json(F.col("value").cast("string"), "id BIGINT, items BIGINT").alias("order"),
    "partition",
    "offset",
    "timestamp",
)
parsed.groupBy("customer").agg(F.sum("order.items").alias("items")).orderBy("customer").show()

# %% Stream: what is new since the last run goes to Parquet; the checkpoint knows how far it came.
stream = (
    spark.readStream.format("culver")
    .options(**culver)
    .option("subscribe", TOPIC)
    .option("startingOffsets", "earliest")
    .option("maxOffsetsPerTrigger", "600")
    .option("commitGroup", f"{TOPIC}-to-parquet")
    .load()
)
query = (
    stream.selectExpr("CAST(key AS STRING) AS customer", "CAST(value AS STRING) AS value")
    .writeStream.format("parquet")
    .option("checkpointLocation", f"{DIRECTORY}/checkpoint")
    .trigger(availableNow=True)
    .start(f"{DIRECTORY}/table")
)
query.awaitTermination()
rows = spark.read.parquet(f"{DIRECTORY}/table").count()
print(
    f"{rows} rows in {DIRECTORY}/table; `culver group describe {TOPIC}-to-parquet` shows how far the query is"
)
