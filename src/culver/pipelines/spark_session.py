"""Start the Spark session that a pipeline runs in: on this machine, or on the cluster that spark-submit has chosen."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping

from pyspark import SparkContext
from pyspark.sql import SparkSession

from culver.spark.source import CulverDataSource

SETTINGS = {
    # Spark's default for timestamps in Parquet is an old type whose statistics nobody uses to pass files over.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "10000",
    # A micro-batch that is run again must consist of the same tasks: nothing may change their number on the way.
    "spark.sql.adaptive.enabled": "false",
}
# For sessions that live in this process, where nobody has set up anything.
LOCAL_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
}


def session(
    name: str, *, master: str | None = None, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """The session of a pipeline; one that runs in this process already is used as it is.

    `master` is Spark's: local[4], spark://HOST:7077, yarn, k8s://...; by default what spark-submit was given, and
    without spark-submit all cores of this machine. `settings` of Spark come before those that pipelines set.
    """
    # Spark starts Python workers with whatever `python3` is on the path, unless told otherwise. What spark-submit or
    # the user has said stays: on a cluster the interpreter may lie elsewhere.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    builder = SparkSession.builder.appName(name)
    if master is None and not submitted:
        master = "local[*]"
    if master is not None:
        builder = builder.master(master)
    local = LOCAL_SETTINGS if master is not None and master.startswith("local") else {}
    active = SparkSession.getActiveSession()
    if active is None:
        for key, value in {**SETTINGS, **local, **(settings or {})}.items():
            builder = builder.config(key, value)
    spark = active or builder.getOrCreate()
    # Where Culver came with --py-files, Spark does not find the data source by itself.
    spark.dataSource.register(CulverDataSource)
    return spark


def stop(spark: SparkSession) -> None:
    """Stop the session and its JVM, which Spark would leave running until this process ends."""
    spark.stop()
    gateway = SparkContext._gateway
    if gateway is not None and getattr(gateway, "proc", None) is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = None
        SparkContext._jvm = None
