"""Parse lines that name their values: JSON objects and logfmt."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from culver.pipelines.parsing.events import level_name
from culver.pipelines.parsing.row import Row, Unparsable, fields_json, text_of
from culver.pipelines.parsing.syslog import SEVERITY_LEVELS
from culver.pipelines.parsing.timestamps import epoch_us

# The first that is there is taken; what is not taken stays among the fields.
_TIME_KEYS = ("ts", "time", "timestamp", "@timestamp", "datetime", "date", "t", "eventTime", "asctime")
_LEVEL_KEYS = (
    "level",
    "severity",
    "lvl",
    "log.level",
    "levelname",
    "loglevel",
    "severity_text",
    "severityText",
)
_SERVICE_KEYS = (
    "service",
    "service.name",
    "app",
    "application",
    "service_name",
    "component",
    "logger",
    "name",
)
_HOST_KEYS = ("host", "hostname", "host.name", "node", "instance")
_MESSAGE_KEYS = ("message", "msg", "short_message", "text", "event", "log", "body", "error")
# {"service": {"name": "api"}}, as the Elastic Common Schema nests them
_INNER_KEYS = ("name", "hostname", "level")

_DECODER = msgspec.json.Decoder()
_PAIR = re.compile(r'([^\s="]+)(=?)(?:"([^"\\]*(?:\\.[^"\\]*)*)"|(\S*))', re.DOTALL)
_PAIRS_MAX = 1000

# Programs write the same keys in the same order again and again, so which key holds what is looked up once for each
# such order: time, level, service, host, message, each a key or None. Emptied when a program invents keys.
_Plan = tuple[str | None, ...]
_PLANS: dict[tuple[str, ...], _Plan] = {}
_PLANS_MAX = 4096
_TEXT_OR_NONE = (str, type(None))
_ROLES = (_TIME_KEYS, _LEVEL_KEYS, _SERVICE_KEYS, _HOST_KEYS, _MESSAGE_KEYS)


def parse_json(line: str) -> Row:
    """A JSON object on one line. Raises Unparsable."""
    try:
        values = _DECODER.decode(line)
    except (msgspec.MsgspecError, RecursionError, ValueError, OverflowError) as error:
        raise Unparsable(str(error)) from error
    if not isinstance(values, dict):
        raise Unparsable("no object")
    return _row(values, line, "json")


def parse_logfmt(line: str) -> Row:
    """level=info msg="it went well" took=3ms. Raises Unparsable when it is mostly something else."""
    pairs = _PAIR.findall(line)
    if len(pairs) > _PAIRS_MAX:
        raise Unparsable("too many pairs")
    values: dict[str, Any] = {key: quoted or plain for key, equals, quoted, plain in pairs if equals}
    if len(values) != len(pairs):
        bare = [key for key, equals, _, _ in pairs if not equals]
        if len(bare) > len(values):
            raise Unparsable("mostly words")
        for key in bare:
            values.setdefault(key, True)
    if len(pairs) < 2:
        raise Unparsable("too few pairs")
    if "\\" in line:
        values.update((key, _unescaped(quoted)) for key, equals, quoted, _ in pairs if equals and quoted)
    return _row(values, line, "logfmt")


def _unescaped(quoted: str) -> str:
    if "\\" not in quoted:
        return quoted
    try:
        value = _DECODER.decode(f'"{quoted}"')
    except (msgspec.MsgspecError, ValueError):
        return quoted
    return str(value)


def _row(values: dict[str, Any], line: str, format_name: str) -> Row:
    keys = tuple(values)
    plan = _PLANS.get(keys)
    if plan is None:
        if len(_PLANS) >= _PLANS_MAX:
            _PLANS.clear()
        plan = _PLANS[keys] = tuple(next((key for key in role if key in values), None) for role in _ROLES)
    time_key, level_key, service_key, host_key, message_key = plan
    time = values[time_key] if time_key is not None else None
    level = values[level_key] if level_key is not None else None
    service = values[service_key] if service_key is not None else None
    host = values[host_key] if host_key is not None else None
    message = values[message_key] if message_key is not None else None
    if (
        type(message) is not str
        or type(time) not in _TEXT_OR_NONE
        or type(level) not in _TEXT_OR_NONE
        or type(service) not in _TEXT_OR_NONE
        or type(host) not in _TEXT_OR_NONE
        or (level is None and "log" in values)
    ):
        return _unusual_row(values, line, format_name)
    for key in plan:
        if key is not None:
            del values[key]
    return Row(
        time,
        level_name(level),
        service or None,
        host or None,
        message.rstrip("\r\n") or line,
        fields_json(values),
        format_name,
    )


def _unusual_row(values: dict[str, Any], line: str, format_name: str) -> Row:
    """A row of values that are not all text: numbers for times and levels, objects that have the name within."""
    is_gelf = "short_message" in values
    time = _taken(values, _TIME_KEYS)
    if isinstance(time, int | float) and not isinstance(time, bool):
        time = epoch_us(time)
    elif not isinstance(time, str):
        time = None
    level = _taken(values, _LEVEL_KEYS)
    if level is None and isinstance(values.get("log"), dict):
        level = values["log"].get("level")
    if is_gelf and isinstance(level, int) and 0 <= level < len(SEVERITY_LEVELS):
        level = SEVERITY_LEVELS[level]
    message = _taken(values, _MESSAGE_KEYS)
    return Row(
        time,
        level_name(level),
        text_of(_taken(values, _SERVICE_KEYS)),
        text_of(_taken(values, _HOST_KEYS)),
        (text_of(message) or line).rstrip("\r\n"),
        fields_json(values),
        format_name,
    )


def _taken(values: dict[str, Any], keys: tuple[str, ...]) -> Any:
    for key in keys:
        if key not in values:
            continue
        value = values[key]
        if isinstance(value, dict):
            # Only its name is taken; the rest of the object stays where it is.
            for inner in _INNER_KEYS:
                if isinstance(value.get(inner), str):
                    return value[inner]
            continue
        if value is None or isinstance(value, list):
            continue
        return values.pop(key)
    return None
