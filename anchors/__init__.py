"""The real systems that Culver is held against: Apache Kafka, kcat, librdkafka.

Nothing here is needed to run Culver. Whatever cannot be had on this machine raises `Unavailable`, whose text
says what is missing and how to get it: a test skips with that reason, a benchmark leaves the row out with it.
"""

from __future__ import annotations


class Unavailable(Exception):
    """An anchor that cannot be had here; the text says why and what would provide it."""
