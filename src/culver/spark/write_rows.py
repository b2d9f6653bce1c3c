"""Rows to be written, from Arrow batches to records: the columns of Spark's Kafka sink, checked once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    IntegerType,
    StringType,
    StructField,
    StructType,
)

_TEXT_OR_BYTES: tuple[type[DataType], ...] = (StringType, BinaryType)
_HEADERS = ArrayType(
    StructType([StructField("key", StringType()), StructField("value", BinaryType())])
).simpleString()


class InvalidRows(ValueError):
    """Columns or rows that cannot become records."""


class Record(NamedTuple):
    """One record on its way to a topic."""

    topic: str
    value: bytes | str | None
    key: bytes | str | None
    partition: int | None
    headers: list[tuple[str, bytes | None]] | None


def check_columns(schema: StructType, topic: str | None) -> None:
    """Raise InvalidRows unless the columns are those that a record is made of."""
    kinds = {field.name: field.dataType for field in schema.fields}
    if "value" not in kinds:
        raise InvalidRows(
            "there is no column `value`: name the one that records are to hold, with `AS value`"
        )
    for name in ("value", "key"):
        if name in kinds and not isinstance(kinds[name], _TEXT_OR_BYTES):
            raise InvalidRows(
                f"column {name} is {kinds[name].simpleString()}; records hold string or binary: "
                f"CAST({name} AS STRING), or to_json(...)"
            )
    if "topic" in kinds and not isinstance(kinds["topic"], StringType):
        raise InvalidRows(f"column topic is {kinds['topic'].simpleString()}, not string")
    if "topic" not in kinds and topic is None:
        raise InvalidRows("there is neither an option `topic` nor a column of that name")
    if "partition" in kinds and not isinstance(kinds["partition"], IntegerType):
        raise InvalidRows(f"column partition is {kinds['partition'].simpleString()}, not int")
    if "headers" in kinds and kinds["headers"].simpleString() != _HEADERS:
        raise InvalidRows(f"column headers is {kinds['headers'].simpleString()}, not {_HEADERS}")
    unknown = sorted(kinds.keys() - {"value", "key", "topic", "partition", "headers"})
    if unknown:
        raise InvalidRows(
            f"no record has a column {', '.join(unknown)}: select key, value, topic, partition or headers"
        )


def records(batch: pa.RecordBatch, default_topic: str | None) -> Iterator[Record]:
    """The rows of a batch. The option wins over the column, as in Spark's Kafka sink."""
    count = batch.num_rows
    nothing: list[None] = [None] * count

    def column(name: str) -> list[object]:
        index = batch.schema.get_field_index(name)
        return list(nothing) if index < 0 else batch.column(index).to_pylist()

    topics = [default_topic] * count if default_topic is not None else column("topic")
    for topic, value, key, partition, headers in zip(
        topics, column("value"), column("key"), column("partition"), column("headers"), strict=True
    ):
        if topic is None:
            raise InvalidRows("a row has no topic, and there is no option `topic`")
        pairs = None
        if headers is not None:
            assert isinstance(headers, list)
            pairs = [(header["key"], header["value"]) for header in headers]
        yield Record(topic, value, key, partition, pairs)  # type: ignore[arg-type]
