"""A member of a group whose broker assigns, as a process of its own, to be killed.

Usage: consumer_member_process.py BOOTSTRAP GROUP TOPIC
"""

from __future__ import annotations

import sys

import confluent_kafka


def main(bootstrap: str, group: str, topic: str) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([topic])
    while True:
        consumer.poll(0.05)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3])
