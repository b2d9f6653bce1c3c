"""Bounds of the log layer that belong to the broker, not to a topic."""

from __future__ import annotations

from dataclasses import dataclass

from culver.config import BrokerConfig


@dataclass(frozen=True, slots=True)
class LogLimits:
    """Each has the default of the broker setting it comes from."""

    # producer.id.expiration.ms: a producer silent for so long is forgotten.
    producer_id_expiration_ms: int = 86_400_000
    # Producer ids remembered per partition at most.
    producers_max: int = 20_000
    # max.decompressed.bytes: what one batch may unpack to when the broker has to look inside.
    max_decompressed_bytes: int = 128 * 1024 * 1024
    # log.cleaner.dedupe.buffer.size: memory for the key map of one compaction.
    dedupe_buffer_bytes: int = 128 * 1024 * 1024
    # Segment files kept open at once, beyond those that hold unsynced data.
    open_files_max: int = 4096

    @classmethod
    def of(cls, broker: BrokerConfig) -> LogLimits:
        return cls(
            producer_id_expiration_ms=broker.producer_id_expiration_ms,
            max_decompressed_bytes=broker.max_decompressed_bytes,
            dedupe_buffer_bytes=broker.log_cleaner_dedupe_buffer_size,
        )
