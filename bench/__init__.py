"""Benchmarks: Culver and Apache Kafka on the same machine, the same load, one table (`python -m bench`)."""
