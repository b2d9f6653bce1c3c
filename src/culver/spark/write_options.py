"""Options of the sink `culver`, with the names of Spark's Kafka sink."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from culver.spark.option_values import InvalidOption
from culver.spark.options import BOOTSTRAP

_PREFIX = "kafka."
_OWN = frozenset({"topic", "includeheaders", "transactiontimeoutms"})
# Spark's own, which it hands on to the sink.
_SPARKS = frozenset({"path", "checkpointlocation", "queryname"})
# Settings of the producer that the sink makes itself, or that mean nothing to the client library that it uses.
_REFUSED = {
    "kafka.transactional.id": "a streaming sink makes one for each task",
    "kafka.enable.idempotence": "is always on",
    "kafka.key.serializer": "keys are binary or string columns",
    "kafka.value.serializer": "values are binary or string columns",
    "kafka.interceptor.classes": "there is no producer to intercept",
}
_DEFAULT_TRANSACTION_TIMEOUT_MS = 300_000


@dataclass(frozen=True)
class WriteOptions:
    """Checked options of one write."""

    bootstrap: str
    # For rows without a topic column.
    topic: str | None
    transaction_timeout_ms: int
    # Of the producer, as librdkafka calls them.
    producer: Mapping[str, str] = field(default_factory=dict)


def write_options(options: Mapping[str, str]) -> WriteOptions:
    """Raises InvalidOption, with the remedy, for what cannot be used."""
    given = {name.lower(): value for name, value in options.items()}
    bootstrap = given.get(BOOTSTRAP, "").strip()
    if not bootstrap:
        raise InvalidOption(BOOTSTRAP, "is missing: name one broker or more, as HOST:PORT,HOST:PORT")
    producer: dict[str, str] = {}
    for name, value in given.items():
        if name in _REFUSED:
            raise InvalidOption(name, _REFUSED[name])
        if name.startswith(_PREFIX):
            producer[name.removeprefix(_PREFIX)] = value
        elif name not in _OWN | _SPARKS:
            raise InvalidOption(name, "is not known to the sink culver")
    timeout = given.get("transactiontimeoutms", str(_DEFAULT_TRANSACTION_TIMEOUT_MS))
    if not timeout.isdigit() or int(timeout) == 0:
        raise InvalidOption("transactionTimeoutMs", f"{timeout!r} is no number of milliseconds above 0")
    producer.pop("bootstrap.servers", None)
    return WriteOptions(bootstrap, given.get("topic") or None, int(timeout), producer)
