"""Where Spark finds the data source `culver` by itself: it looks for modules whose name begins with `pyspark_`."""
