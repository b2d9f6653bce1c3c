"""The Spark data source `culver`: topics as tables and streams, to read from and to write to, without a jar.

    spark.read.format("culver").option("kafka.bootstrap.servers", "127.0.0.1:9092").option("subscribe", "orders").load()

Spark finds it by itself where Culver is installed (see `pyspark_culver`); elsewhere, as with `--py-files`, register
it: `spark.dataSource.register(CulverDataSource)`.
"""

from __future__ import annotations

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from culver.spark.batch_reader import BatchReader
from culver.spark.option_values import InvalidOption
from culver.spark.options import include_headers, read_options
from culver.spark.schema import spark_schema
from culver.spark.sink import BatchWriter, StreamWriter
from culver.spark.stream_reader import StreamReader
from culver.spark.write_options import WriteOptions, write_options
from culver.spark.write_rows import check_columns

NAME = "culver"


class CulverDataSource(DataSource):
    """What Spark makes for each query; it keeps nothing but the options."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> StructType:
        return spark_schema(include_headers(self.options))

    def reader(self, schema: StructType) -> BatchReader:
        self._check_schema(schema)
        return BatchReader(read_options(self.options, streaming=False))

    def streamReader(self, schema: StructType) -> StreamReader:
        self._check_schema(schema)
        return StreamReader(read_options(self.options, streaming=True))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        if overwrite:
            raise InvalidOption("mode", "a topic is appended to; use mode('append')")
        return BatchWriter(self._write_options(schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        return StreamWriter(self._write_options(schema))

    def _write_options(self, schema: StructType) -> WriteOptions:
        options = write_options(self.options)
        check_columns(schema, options.topic)
        return options

    def _check_schema(self, schema: StructType) -> None:
        if schema != self.schema():
            raise InvalidOption("schema", "cannot be given: a topic has the columns that it has")
