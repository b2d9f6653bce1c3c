"""Ready-made pipelines on Spark: logs to a searchable store, transforms, archives."""
