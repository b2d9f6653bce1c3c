"""HTTP in front of a cluster: produce, consume, ingest, push, metrics and the console, in a process of its own."""
