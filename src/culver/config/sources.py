"""Where settings come from: a TOML file, the environment, the command line; the later wins.

Brokers and the gateway read the same places: each takes the settings that are its own, and both refuse a name that
belongs to neither.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from culver.config.broker import BrokerConfig
from culver.config.gateway import GatewayConfig
from culver.config.setting import Setting, unknown_setting
from culver.errors import ConfigError

ENVIRONMENT_PREFIX = "CULVER_"

# Variables that the command line reads for itself.
NO_SETTINGS = frozenset(
    {
        "CULVER_ARTIFACTS",
        "CULVER_BOOTSTRAP",
        "CULVER_CONFIG",
        "CULVER_DEBUG",
        "CULVER_HTTP_URL",
        "CULVER_LOG_STORE",
        "CULVER_TEST_BOOTSTRAP",
    }
)

# What Kubernetes puts into every container for a service whose name starts with "culver": CULVER_SERVICE_HOST,
# CULVER_PORT_9092_TCP_ADDR and the like.
_SERVICE_LINK = re.compile(r"_SERVICE_(HOST|PORT)(_\w+)?$|_PORT(_\d+_(TCP|UDP|SCTP)(_\w+)?)?$")

# Kafka's second name for the same thing.
ALIASES = {"broker.id": "node.id"}

_NAMES = (*BrokerConfig.settings, *ALIASES, *GatewayConfig.settings)


def load_broker_config(
    file: str | None, environment: Mapping[str, str], overrides: Mapping[str, str]
) -> BrokerConfig:
    """The broker's configuration. ConfigError says which source holds what is wrong."""
    texts = _texts(file, environment, overrides)
    config = BrokerConfig.from_text({name: texts[name] for name in texts if name in BrokerConfig.settings})
    _check_together(config)
    return config


def load_gateway_settings(
    file: str | None, environment: Mapping[str, str], overrides: Mapping[str, str]
) -> dict[str, Any]:
    """Those of the gateway's settings that are given somewhere, as typed values by attribute."""
    texts = _texts(file, environment, overrides)
    settings = GatewayConfig.settings
    return {settings[name].attribute: settings[name].parse(texts[name]) for name in texts if name in settings}


def _texts(file: str | None, environment: Mapping[str, str], overrides: Mapping[str, str]) -> dict[str, str]:
    """Every setting that is given somewhere, checked one by one."""
    texts: dict[str, str] = {}
    sources = [_from_environment(environment), _from_overrides(overrides)]
    if file is not None:
        sources.insert(0, _from_file(file))
    for source in sources:
        for where, name, text in source:
            setting = _setting(name, where)
            try:
                texts[setting.name] = setting.normalise(text)
            except ConfigError as error:
                raise ConfigError(setting.name, f"{where}{error.message}") from None
    return texts


def environment_name(name: str) -> str:
    """The environment variable of a setting: CULVER_NUM_PARTITIONS for num.partitions."""
    return ENVIRONMENT_PREFIX + name.removeprefix("culver.").upper().replace(".", "_")


def _setting(name: str, where: str) -> Setting:
    setting = BrokerConfig.settings.get(ALIASES.get(name, name)) or GatewayConfig.settings.get(name)
    if setting is None:
        raise unknown_setting(name, _NAMES, "broker", where)
    return setting


def _from_overrides(overrides: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, text in overrides.items():
        yield "", name, text


def _from_environment(environment: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    names: dict[str, str] = {}
    for variable, text in sorted(environment.items()):
        if not variable.startswith(ENVIRONMENT_PREFIX) or variable in NO_SETTINGS:
            continue
        if not names:
            names = {environment_name(name): name for name in _NAMES}
        if variable not in names and _SERVICE_LINK.search(variable):
            continue
        where = f"environment variable {variable}: "
        # An unknown variable goes on under the name it would have, so that the error can say what was meant.
        guess = variable.removeprefix(ENVIRONMENT_PREFIX).lower().replace("_", ".")
        yield where, names.get(variable, guess), text


def _from_file(file: str) -> Iterator[tuple[str, str, str]]:
    import tomllib  # most brokers start without a file

    try:
        with open(file, "rb") as stream:
            document = tomllib.load(stream)
    except OSError as error:
        raise ConfigError("config", f"cannot read the configuration file {file}: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError("config", f"the configuration file {file} is not TOML: {error}") from None
    for name, value in _flatten("", document):
        where = f"{file}: "
        yield where, name, _toml_text(name, value, where)


def _flatten(prefix: str, table: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Tables and dotted keys alike: [log.retention] ms = 1 is log.retention.ms."""
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _flatten(f"{prefix}{key}.", value)
        else:
            yield prefix + key, value


def _toml_text(name: str, value: object, where: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str | int | float):
        return str(value)
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return ",".join(value)
    raise ConfigError(name, f"{where}{name}: give text, a number, true, false or a list of texts")


def _check_together(config: BrokerConfig) -> None:
    """Values that are right one by one and wrong together."""
    if config.group_min_session_timeout_ms > config.group_max_session_timeout_ms:
        raise ConfigError(
            "group.min.session.timeout.ms",
            f"group.min.session.timeout.ms ({config.group_min_session_timeout_ms}) is more than "
            f"group.max.session.timeout.ms ({config.group_max_session_timeout_ms}); no member could join",
        )
    if config.log_cleaner_min_compaction_lag_ms > config.log_cleaner_max_compaction_lag_ms:
        raise ConfigError(
            "log.cleaner.min.compaction.lag.ms",
            f"log.cleaner.min.compaction.lag.ms ({config.log_cleaner_min_compaction_lag_ms}) is more than "
            f"log.cleaner.max.compaction.lag.ms ({config.log_cleaner_max_compaction_lag_ms})",
        )
