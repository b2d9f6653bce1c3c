"""BrokerHello, version 0: a broker says to another of its cluster who it is. Culver's own, not of Kafka's protocol."""

from __future__ import annotations

from culver.protocol.schema import Message, int16, int32, int64, string


class BrokerHelloRequest(Message, api_key=30_000, versions=(0, 0)):
    cluster_id: str = string()
    broker_id: int = int32()
    # Which of its lives the broker is in: the version of its registration.
    broker_epoch: int = int64()
    # What only brokers of the cluster can read in the metadata store.
    secret: str = string()
    # What the connection is for, where there may be one such connection only: a newer one takes the older one's place.
    sole_purpose: str = string(default="")


class BrokerHelloResponse(Message, api_key=30_000, versions=(0, 0)):
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0, default=None)
    # Who answers: an address in the store may be that of another broker by now.
    broker_id: int = int32(default=-1)
