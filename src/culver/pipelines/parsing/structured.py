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
_PAIR = re.compile(r'([^\s="]+)(?:=(?:"((?:[^"\\]|\\.)*)"|(\S*)))?', re.DOTALL)
_PAIRS_MAX = 1000


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
    values: dict[str, Any] = {}
    bare = 0
    for count, match in enumerate(_PAIR.finditer(line)):
        if count == _PAIRS_MAX:
            raise Unparsable("too many pairs")
        key, quoted, plain = match.groups()
        if quoted is None and plain is None:
            bare += 1
            values.setdefault(key, True)
        else:
            values[key] = plain if quoted is None else _unescaped(quoted)
    if len(values) - bare < 2 or bare > len(values) - bare:
        raise Unparsable("too few pairs")
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
