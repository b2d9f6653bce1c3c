"""Where Spark finds the data source `culver` by itself: it looks for modules whose name begins with `pyspark_`."""

from culver.spark.source import CulverDataSource


class DefaultSource(CulverDataSource):
    """The name that Spark looks for in such a module."""


__all__ = ["CulverDataSource", "DefaultSource"]
