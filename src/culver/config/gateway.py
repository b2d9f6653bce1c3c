"""The settings of the gateway: HTTP in front of a cluster."""

from __future__ import annotations

from culver.config.address import address_fault
from culver.config.setting import (
    GIB,
    INT_MAX,
    MIB,
    MINUTE_MS,
    Section,
    Settings,
    boolean,
    integer,
    long,
    string,
)


class GatewayConfig(Settings):
    """What the gateway was told, and defaults for the rest. It stands in the same file as the broker's settings."""

    _http = Section("HTTP")

    enable: bool = boolean(
        name="culver.http.enable",
        default=True,
        doc="Whether `culver serve` runs a gateway beside the broker; `--no-http` says no.",
    )
    http: str = string(
        name="culver.http.listen",
        default="127.0.0.1:8080",
        check=address_fault,
        doc="The address of the HTTP API and the console, as HOST:PORT. Port 0: a free one. An empty host: all. "
        "There is no authentication yet: on any address but a loopback one, whoever reaches it may do everything.",
    )
    body_max_bytes: int = integer(
        name="culver.http.body.max.bytes",
        default=16 * MIB,
        minimum=1024,
        maximum=GIB,
        doc="The largest body of a request, and what it may take when decompressed. Beyond it the answer is 413.",
    )
    in_flight_max_bytes: int = long(
        name="culver.http.in.flight.max.bytes",
        default=64 * MIB,
        minimum=1024,
        doc="Memory for bodies that are being read and records that are not yet acknowledged by the cluster, over "
        "all requests. Beyond it the answer is 429 with Retry-After.",
    )
    body_timeout_ms: int = integer(
        name="culver.http.body.timeout.ms",
        default=MINUTE_MS,
        minimum=1,
        doc="How long the body of a request may take to arrive. A client that takes longer gets 408.",
    )

    _ingest = Section("Ingest and search")

    ingest_topic: str = string(
        name="culver.http.ingest.topic",
        default="logs",
        doc="The topic of log lines whose shipper names none.",
    )
    log_store: str | None = string(
        name="culver.http.log.store",
        default=None,
        doc="The directory of a log store (`culver pipeline logs`) that the console searches.",
    )

    _push = Section("Push")

    push_subscribers_max: int = integer(
        name="culver.http.push.subscribers.max",
        default=10_000,
        minimum=0,
        doc="Push subscribers (server-sent events and WebSocket) at a time. Further ones get 429.",
    )
    push_buffer_bytes: int = integer(
        name="culver.http.push.buffer.bytes",
        default=MIB,
        minimum=1024,
        doc="Records that wait in memory for one slow push subscriber. Beyond it, reading for it stops until it "
        "has taken some.",
    )
    push_receiver_timeout_ms: int = integer(
        name="culver.http.push.receiver.timeout.ms",
        default=MINUTE_MS,
        minimum=100,
        doc="A push subscriber that takes nothing of what is sent to it, or answers no ping, for this long is "
        "disconnected, and its partitions go to others of its group.",
    )
    reading_buffer_max_bytes: int = long(
        name="culver.http.reading.buffer.max.bytes",
        default=64 * MIB,
        minimum=MIB,
        doc="Memory for the ends of partitions that are read once for everybody who waits there.",
    )
    webhook_allow_private: str = string(
        name="culver.http.webhook.allow.private",
        default="",
        doc="Private and loopback addresses that webhooks may be sent to though they are: networks "
        "(10.1.0.0/16) and host names, with commas between. `*`: all of them.",
    )

    _consumers = Section("Consumers over HTTP")

    consumer_instances_max: int = integer(
        name="culver.http.consumer.instances.max",
        default=100,
        minimum=0,
        maximum=INT_MAX,
        doc="Consumer instances that may be open at a time. Further ones get 429.",
    )
    consumer_instance_timeout_ms: int = integer(
        name="culver.http.consumer.instance.timeout.ms",
        default=5 * MINUTE_MS,
        minimum=1,
        doc="A consumer instance that nobody has used for this long is closed, and leaves its group.",
    )
