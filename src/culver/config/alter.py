"""What AlterConfigs and IncrementalAlterConfigs do to the settings of a topic or a broker.

Each function takes the texts that are set now and returns those to store in their place, checked and in
their stored form; it changes nothing itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import IntEnum
from typing import NamedTuple

from culver.config.broker import BrokerConfig
from culver.config.setting import ConfigType, Setting, unknown_setting
from culver.config.topic import TopicConfig, topic_setting
from culver.errors import ConfigError, ErrorCode, KafkaError


class AlterOperation(IntEnum):
    """What to do with a setting, by its number in IncrementalAlterConfigs."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3


class Alteration(NamedTuple):
    """One change: a setting's name, what to do, and with what."""

    name: str
    operation: int
    value: str | None


def checked_topic_overrides(broker: BrokerConfig, values: Mapping[str, str | None]) -> dict[str, str]:
    """The texts to store for a topic that is created with, or whose settings are replaced by, `values`."""
    overrides = {}
    for name, value in values.items():
        if value is None:
            raise ConfigError(name, f"{name}: give a value, or leave the setting out to have its default")
        overrides[name] = topic_setting(name).normalise(value)
    TopicConfig.resolve(broker, overrides)  # for values that contradict each other
    return overrides


def alter_topic(
    broker: BrokerConfig, overrides: Mapping[str, str], alterations: Iterable[Alteration]
) -> dict[str, str]:
    """A topic's own settings after the alterations. KafkaError, and none is done, if one cannot be."""
    altered = dict(overrides)
    for alteration in _once_each(alterations):
        if alteration.operation == AlterOperation.DELETE:
            altered.pop(alteration.name, None)
            continue
        setting = topic_setting(alteration.name)
        current = altered.get(setting.name)
        if current is None and setting.synonyms:
            current = broker.text(setting.synonyms[0])
        altered[setting.name] = _altered_text(setting, alteration, current or "")
    TopicConfig.resolve(broker, altered)
    return altered


def alter_broker(
    broker: BrokerConfig, dynamic: Mapping[str, str], alterations: Iterable[Alteration]
) -> dict[str, str]:
    """Run-time settings of one broker, or of all, after the alterations.

    INVALID_REQUEST for a setting that only counts at the start, and for a bad value, as Kafka answers.
    """
    altered = dict(dynamic)
    for alteration in _once_each(alterations):
        setting = BrokerConfig.settings.get(alteration.name)
        if alteration.operation == AlterOperation.DELETE and (setting is None or setting.dynamic):
            altered.pop(alteration.name, None)
            continue
        if setting is None:
            raise unknown_setting(alteration.name, BrokerConfig.settings, "broker")
        if not setting.dynamic:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST,
                f"{setting.name} cannot change while the broker runs; set it where the broker is started",
            )
        current = altered.get(setting.name, broker.text(setting.name))
        try:
            altered[setting.name] = _altered_text(setting, alteration, current or "")
        except ConfigError as error:
            raise KafkaError(ErrorCode.INVALID_REQUEST, error.message) from None
    return altered


def _altered_text(setting: Setting, alteration: Alteration, current: str) -> str:
    name, operation, value = alteration
    if value is None:
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name}: give a value, or use DELETE for the default")
    if operation == AlterOperation.SET:
        return setting.normalise(value)
    if operation not in (AlterOperation.APPEND, AlterOperation.SUBTRACT):
        raise KafkaError(ErrorCode.INVALID_REQUEST, f"{name}: there is no operation {operation}")
    if setting.type is not ConfigType.LIST:
        raise ConfigError(
            name, f"{name}: {AlterOperation(operation).name} is for lists, and this is a {setting.type_name}"
        )
    entries = _split(current)
    changes = _split(value)
    if operation == AlterOperation.APPEND:
        entries.extend(change for change in changes if change not in entries)
    else:
        entries = [entry for entry in entries if entry not in changes]
    return setting.normalise(",".join(entries))


def _split(text: str) -> list[str]:
    return [entry.strip() for entry in text.split(",")] if text.strip() else []


def _once_each(alterations: Iterable[Alteration]) -> list[Alteration]:
    listed = list(alterations)
    if len({alteration.name for alteration in listed}) != len(listed):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "a setting is named twice in the same request")
    return listed
