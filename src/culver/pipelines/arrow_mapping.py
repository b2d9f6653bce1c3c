"""DataFrame.mapInArrow for machines without pandas: Spark asks for pandas there, but makes no use of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.udf import UserDefinedFunction
from pyspark.util import PythonEvalType


def map_in_arrow(
    frame: DataFrame, function: Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]], schema: str
) -> DataFrame:
    """What the function makes of the Arrow batches of each task; `schema` as Spark writes it in DDL."""
    # The same steps as Spark's own, without the check. Written for PySpark 4.3, which pyproject.toml pins.
    evaluation: Any = PythonEvalType.SQL_MAP_ARROW_ITER_UDF
    call: Any = UserDefinedFunction(function, returnType=schema, evalType=evaluation)
    column = call(*[frame[name] for name in frame.columns])
    java_frame: Any = frame._jdf
    return DataFrame(java_frame.mapInArrow(column._jc, False, None), frame.sparkSession)
