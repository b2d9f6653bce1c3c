"""The reference of all settings: rows for `culver config`, and the page docs/configuration.md."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from culver.config.broker import BrokerConfig
from culver.config.gateway import GatewayConfig
from culver.config.setting import (
    DAY_MS,
    GIB,
    HOUR_MS,
    INT_MAX,
    LONG_MAX,
    MIB,
    MINUTE_MS,
    ConfigType,
    Setting,
    Settings,
)
from culver.config.sources import environment_name
from culver.config.topic import TopicConfig

_PREAMBLE = """\
# Configuration

<!-- Made by `python -m culver.config.reference > docs/configuration.md`, from src/culver/config. -->

A broker takes its settings from three places; the later wins:

1. a TOML file, `culver serve --config FILE`, with tables or dotted keys: `log.retention.ms = 3600000`, or
   `ms = 3600000` under `[log.retention]`;
2. environment variables: `CULVER_LOG_RETENTION_MS=3600000`;
3. the command line: `--set log.retention.ms=3600000`. `--data-dir`, `--listen`, `--advertise` and
   `--http` are short for `data.dir`, `listen`, `advertise` and `culver.http.listen`.

A name that is no setting, or a value outside its range, stops the start with a message that says where it
stands. Names, types and defaults are Kafka's wherever Kafka has the setting. `culver config` prints this
reference in the terminal.

Settings marked dynamic can also change while the broker runs (IncrementalAlterConfigs, for one broker or
for all). A topic's settings are given when it is created, or later with `culver topic alter`; those it does
not set come from the broker setting that is named as `from`.

The gateway (`culver gateway`, or the one that `culver serve` runs) reads the same file, variables and `--set`.
"""

_TITLES = (("broker", "Broker settings"), ("topic", "Topic settings"), ("gateway", "Gateway settings"))


class SettingRow(NamedTuple):
    """One setting for a person: everything as text."""

    scope: str
    section: str
    name: str
    type: str
    default: str
    range: str
    dynamic: bool
    environment: str
    synonym: str
    documentation: str


def setting_rows() -> list[SettingRow]:
    """Every setting, the broker's first, in the order of their declaration; internal ones left out."""
    return [*_rows("broker", BrokerConfig), *_rows("topic", TopicConfig), *_rows("gateway", GatewayConfig)]


def reference_markdown() -> str:
    """The whole page docs/configuration.md."""
    rows = setting_rows()
    parts = [_PREAMBLE]
    for scope, title in _TITLES:
        parts.append(f"## {title}\n")
        section = ""
        for row in rows:
            if row.scope != scope:
                continue
            if row.section != section:
                section = row.section
                parts.append(f"### {section}\n")
            parts.append(_markdown(row))
    return "\n".join(parts)


def _rows(scope: str, settings: type[Settings]) -> Iterator[SettingRow]:
    for setting in settings.settings.values():
        if setting.internal:
            continue
        yield SettingRow(
            scope=scope,
            section=setting.section,
            name=setting.name,
            type=setting.type_name,
            default=_with_meaning(setting),
            range=setting.range_text,
            dynamic=setting.dynamic,
            environment=environment_name(setting.name) if scope != "topic" else "",
            synonym=setting.synonyms[0] if setting.synonyms else "",
            documentation=setting.documentation,
        )


def _markdown(row: SettingRow) -> str:
    facts = [row.type, f"default {row.default}"]
    if row.range:
        facts.append(row.range)
    if row.dynamic:
        facts.append("dynamic")
    if row.synonym:
        facts.append(f"from `{row.synonym}`")
    return f"- **`{row.name}`** ({'; '.join(facts)})<br>\n  {row.documentation}\n"


def _with_meaning(setting: Setting) -> str:
    """The default, with what a long number amounts to: `604800000 (7 days)`."""
    value = setting.default
    text = setting.default_text
    if text is None:
        return "not set"
    if text == "":
        return "empty"
    if setting.type in (ConfigType.INT, ConfigType.LONG) and value in (INT_MAX, LONG_MAX):
        return f"{text} (no limit)"
    meaning = ""
    if setting.name.endswith(".ms"):
        meaning = _amount(
            value, ((DAY_MS, "day"), (HOUR_MS, "hour"), (MINUTE_MS, "minute"), (1000, "second"))
        )
    elif setting.name.endswith(("bytes", ".size")):
        meaning = _amount(value, ((GIB, "GiB"), (MIB, "MiB"), (1024, "KiB")))
    return f"{text} ({meaning})" if meaning else text


def _amount(value: int, units: tuple[tuple[int, str], ...]) -> str:
    for size, unit in units:
        if value >= size and value % size == 0:
            count = value // size
            plural = "s" if count != 1 and unit[0].islower() else ""
            return f"{count} {unit}{plural}"
    return ""


if __name__ == "__main__":
    print(reference_markdown(), end="")
