"""What the transaction coordinator is given from outside: its settings, and a look at the topics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class TransactionSettings:
    """One field per broker setting (same name, with underscores), in units that the coordinator uses;
    the defaults are Kafka's."""

    # A producer may ask for a transaction timeout up to this.
    transaction_max_timeout_ms: int = 900_000
    # How long a transactional id that is not used is remembered, and how often to look for such ids.
    transactional_id_expiration_ms: int = 7 * 24 * 3_600_000
    transaction_remove_expired_transaction_cleanup_interval_ms: int = 3_600_000
    transaction_state_log_num_partitions: int = 50
    # Beyond Kafka: how long a request waits for the end of an earlier step of its transaction before it is told
    # CONCURRENT_TRANSACTIONS. A client that is told so waits by its own clock, 20 to 100 ms.
    patience_ms: int = 5_000
    # The same for requests of brokers: theirs for all producers come through one connection, where the answer to one
    # that waits holds back all others.
    broker_patience_ms: int = 100
    # How long after a failure the coordinator tries again to write what has to be written.
    retry_ms: int = 500


class Topics(Protocol):
    """What the coordinator has to know of topics; the broker answers from its cluster image."""

    def partition_exists(self, name: str, partition: int) -> bool: ...
