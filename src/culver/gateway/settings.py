"""What one gateway works by: its configuration, and the cluster it stands in front of."""

from __future__ import annotations

from collections.abc import Mapping

from culver.config.gateway import GatewayConfig

_NOTHING: Mapping[str, str] = {}


class GatewaySettings(GatewayConfig):
    """The settings `culver.http.*`, and what only the command line knows."""

    # The cluster, as HOST:PORT with commas between.
    bootstrap: str = "127.0.0.1:9092"
    # Settings of librdkafka for the producers, as `-X` gives them.
    client_settings: Mapping[str, str] = _NOTHING
