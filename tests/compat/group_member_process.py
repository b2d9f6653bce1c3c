"""A group member as a process of its own, to be stopped or killed: prints what it owns as JSON lines.

Usage: group_member_process.py BOOTSTRAP GROUP TOPIC SESSION_TIMEOUT_MS
"""

from __future__ import annotations

import json
import sys

import confluent_kafka


def main(bootstrap: str, group: str, topic: str, session_timeout_ms: int) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "session.timeout.ms": session_timeout_ms,
            "heartbeat.interval.ms": 100,
        }
    )
    consumer.subscribe([topic])
    owned: list[int] = []
    while True:
        consumer.poll(0.05)
        now_owned = sorted(assigned.partition for assigned in consumer.assignment())
        if now_owned != owned:
            owned = now_owned
            print(json.dumps(owned), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
