"""What DescribeConfigs answers: each setting's value, where it comes from, and what lies underneath."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from culver.config.broker import BrokerConfig
from culver.config.setting import Setting
from culver.config.topic import TopicConfig


class ConfigSource(IntEnum):
    """Where a value was set, by its number in DescribeConfigs."""

    UNKNOWN = 0
    TOPIC = 1
    DYNAMIC_BROKER = 2
    DYNAMIC_DEFAULT_BROKER = 3
    STATIC_BROKER = 4
    DEFAULT = 5


class ConfigSynonym(NamedTuple):
    """One place that could have given a setting its value."""

    name: str
    value: str | None
    source: ConfigSource


class ConfigEntry(NamedTuple):
    """One setting of a topic or broker, as it is in force. `synonyms` come in the order of their weight."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool
    sensitive: bool
    type: int
    documentation: str
    synonyms: tuple[ConfigSynonym, ...]

    @property
    def is_default(self) -> bool:
        return self.source == ConfigSource.DEFAULT


def describe_topic(
    broker: BrokerConfig, overrides: Mapping[str, str], names: Iterable[str] | None = None
) -> list[ConfigEntry]:
    """The settings of a topic, all of them or those named; names that are no settings are left out."""
    config = TopicConfig.resolve(broker, overrides)
    return [
        _topic_entry(broker, overrides, config, setting)
        for setting in _wanted(TopicConfig.settings, names)
        if not setting.internal or setting.name in overrides
    ]


def describe_broker(broker: BrokerConfig, names: Iterable[str] | None = None) -> list[ConfigEntry]:
    """The settings of a broker, all of them or those named; names that are no settings are left out."""
    entries = []
    for setting in _wanted(BrokerConfig.settings, names):
        synonyms = _broker_synonyms(broker, setting.name, _SIBLINGS.get(setting.name, (setting.name,)))
        entries.append(
            ConfigEntry(
                name=setting.name,
                value=broker.text(setting.name),
                source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
                read_only=not setting.dynamic,
                sensitive=False,
                type=setting.type,
                documentation=setting.documentation,
                synonyms=synonyms,
            )
        )
    return entries


def _topic_entry(
    broker: BrokerConfig, overrides: Mapping[str, str], config: TopicConfig, setting: Setting
) -> ConfigEntry:
    synonyms: tuple[ConfigSynonym, ...] = ()
    if setting.synonyms:
        synonyms = _broker_synonyms(broker, setting.synonyms[0], setting.synonyms)
    # A topic's own text is shown as it was given, so that a list keeps its order.
    value = overrides.get(setting.name)
    if value is not None:
        value = setting.normalise(value)
        synonyms = (ConfigSynonym(setting.name, value, ConfigSource.TOPIC), *synonyms)
    else:
        value = setting.format(getattr(config, setting.attribute))
        if setting.name == "segment.bytes":
            # What the internal setting overrules is still the value of this one.
            value = broker.text("log.segment.bytes")
    return ConfigEntry(
        name=setting.name,
        value=value,
        source=synonyms[0].source if synonyms else ConfigSource.DEFAULT,
        read_only=False,
        sensitive=False,
        type=setting.type,
        documentation=setting.documentation,
        synonyms=synonyms,
    )


def _broker_synonyms(broker: BrokerConfig, name: str, siblings: tuple[str, ...]) -> tuple[ConfigSynonym, ...]:
    found = [
        ConfigSynonym(sibling, texts[sibling], source)
        for texts, source in (
            (broker.dynamic, ConfigSource.DYNAMIC_BROKER),
            (broker.dynamic_default, ConfigSource.DYNAMIC_DEFAULT_BROKER),
            (broker.static, ConfigSource.STATIC_BROKER),
            (_DEFAULT_TEXTS, ConfigSource.DEFAULT),
        )
        for sibling in siblings
        if sibling in texts
    ]
    # Kafka starts the list at the setting's main name: log.retention.hours alone shows no synonym at all and
    # counts as a default. Tools compare with that, so it is the same here.
    while found and found[0].name != name:
        del found[0]
    return tuple(found)


def _wanted(settings: Mapping[str, Setting], names: Iterable[str] | None) -> Iterable[Setting]:
    if names is None:
        return settings.values()
    return [settings[name] for name in names if name in settings]


_DEFAULT_TEXTS = {
    name: text
    for name, setting in BrokerConfig.settings.items()
    if (text := setting.default_text) is not None
}

# Broker settings that exist in several units, by their main name.
_SIBLINGS = {
    setting.synonyms[0]: setting.synonyms
    for setting in TopicConfig.settings.values()
    if len(setting.synonyms) > 1
}
