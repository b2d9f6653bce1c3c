"""Culver for Spark: the data source and sink `culver`, in Python, without a jar."""
