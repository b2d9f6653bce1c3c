"""What all Kafka clients of a chaos run have in common, whichever process they live in."""

from __future__ import annotations

from typing import Any

DEBUG = "broker,topic,metadata,msg,eos,cgrp"


def client_settings(bootstrap: str, name: str) -> dict[str, Any]:
    """Of librdkafka, for every kind of client."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": name,
        "topic.metadata.refresh.interval.ms": 2_000,
        "reconnect.backoff.max.ms": 1_000,
        # When all brokers are away librdkafka would throw away what it knows of them and start over, in the course
        # of which it may lock itself up for ever (confluentinc/librdkafka#5476).
        "metadata.recovery.strategy": "none",
        "log_level": 0,
    }
