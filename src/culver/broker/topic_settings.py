"""Effective topic configurations, worked out once for all topics that set the same things.

Most topics set nothing or the same few settings; with a thousand of them, sharing saves both time and memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from culver.config import BrokerConfig, TopicConfig
from culver.config.describe import ConfigEntry, describe_topic

_KINDS_MAX = 1024  # different sets of settings that are remembered

_Overrides: TypeAlias = tuple[tuple[str, str], ...]


class TopicSettings:
    """What topics have on a broker with one given configuration; a changed broker gets a new one of these."""

    def __init__(self, broker: BrokerConfig) -> None:
        self._broker = broker
        self._effective: dict[_Overrides, TopicConfig] = {}
        self._described: dict[_Overrides, list[ConfigEntry]] = {}

    def effective(self, overrides: Mapping[str, str]) -> TopicConfig:
        """The configuration of a topic with these settings of its own."""
        key = tuple(sorted(overrides.items()))
        found = self._effective.get(key)
        if found is None:
            if len(self._effective) >= _KINDS_MAX:
                self._effective.clear()
            found = self._effective[key] = TopicConfig.resolve(self._broker, overrides)
        return found

    def described(self, overrides: Mapping[str, str]) -> list[ConfigEntry]:
        """The same with sources, as clients are shown it. Not to be changed."""
        key = tuple(sorted(overrides.items()))
        found = self._described.get(key)
        if found is None:
            if len(self._described) >= _KINDS_MAX:
                self._described.clear()
            found = self._described[key] = describe_topic(self._broker, overrides)
        return found
