"""Parse syslog lines: RFC 5424, and RFC 3164 as programs really write it, with or without its priority."""

from __future__ import annotations

import re

from culver.pipelines.parsing.row import Row, Unparsable, fields_json
from culver.pipelines.parsing.timestamps import bsd_time_us

SEVERITY_LEVELS = ("FATAL", "FATAL", "FATAL", "ERROR", "WARN", "INFO", "INFO", "DEBUG")
_SEVERITIES = ("emerg", "alert", "crit", "err", "warning", "notice", "info", "debug")
_NAMED_FACILITIES = (
    *("kern", "user", "mail", "daemon", "auth", "syslog", "lpr", "news"),
    *("uucp", "cron", "authpriv", "ftp", "ntp", "audit", "alert", "clock"),
)
_FACILITIES = (*_NAMED_FACILITIES, *(f"local{number}" for number in range(8)))
_PRIORITY_MAX = 191

_RFC5424 = re.compile(
    r"<(\d{1,3})>\d{1,2} (\S+) (\S+) (\S+) (\S+) (\S+) "
    r'(-|(?:\[(?:[^"\]]|"[^"\\]*(?:\\.[^"\\]*)*")*\])+)(?: (.*))?',
    re.DOTALL | re.ASCII,
)
_RFC3164 = re.compile(
    r"(?:<(\d{1,3})>)?(?:([A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d)|(\d{4}-\d\d-\d\dT\S+)) "
    r"(\S+) (?:([^\s:\[\]]{1,64})(?:\[([^\]\s]{1,64})\])?: ?)?(.*)",
    re.DOTALL | re.ASCII,
)
_PRIORITY_ONLY = re.compile(r"<(\d{1,3})>(.+)", re.DOTALL | re.ASCII)
_ELEMENT = re.compile(r'\[([^\s\]="]+)((?: +[^\s\]="]+="[^"\\]*(?:\\.[^"\\]*)*")*)\]', re.DOTALL)
_PARAMETER = re.compile(r'([^\s\]="]+)="([^"\\]*(?:\\.[^"\\]*)*)"', re.DOTALL)
_ESCAPED = re.compile(r'\\(["\\\]])')


def parse_rfc5424(line: str) -> Row:
    """<34>1 2026-11-15T16:00:00Z host app 123 ID47 [x@1 a="b"] message. Raises Unparsable."""
    match = _RFC5424.fullmatch(line)
    if match is None:
        raise Unparsable("not RFC 5424")
    priority, time, host, app, process, message_id, structured, message = match.groups()
    level, fields = _priority(priority)
    if process != "-":
        fields["pid"] = process
    if message_id != "-":
        fields["msgid"] = message_id
    for element, parameters in _ELEMENT.findall(structured):
        fields[element] = {name: _ESCAPED.sub(r"\1", value) for name, value in _PARAMETER.findall(parameters)}
    return Row(
        None if time == "-" else time,
        level,
        None if app == "-" else app,
        None if host == "-" else host,
        (message or "").removeprefix("\ufeff"),
        fields_json(fields),
        "syslog5424",
    )


def parse_rfc3164(line: str, recorded_us: int) -> Row:
    """<34>Nov 15 16:00:00 host app[123]: message. Raises Unparsable."""
    match = _RFC3164.fullmatch(line)
    if match is None:
        return _only_priority(line)
    priority, bsd_time, iso_time, host, app, process, message = match.groups()
    if priority is None and (iso_time or app is None):
        raise Unparsable("no syslog")  # a line of any program that begins with a time
    level, fields = _priority(priority)
    if process:
        fields["pid"] = process
    time = bsd_time_us(bsd_time, recorded_us) if bsd_time else iso_time
    return Row(time, level, app, host, message, fields_json(fields), "syslog3164")


def _only_priority(line: str) -> Row:
    """What RFC 3164 asks for: anything after a priority is a message."""
    match = _PRIORITY_ONLY.fullmatch(line)
    if match is None:
        raise Unparsable("not RFC 3164")
    level, fields = _priority(match[1])
    return Row(None, level, None, None, match[2], fields_json(fields), "syslog3164")


def _priority(text: str | None) -> tuple[str | None, dict[str, object]]:
    if text is None:
        return None, {}
    priority = int(text)
    if priority > _PRIORITY_MAX:
        raise Unparsable(f"priority {priority}")
    facility, severity = divmod(priority, 8)
    return SEVERITY_LEVELS[severity], {"facility": _FACILITIES[facility], "severity": _SEVERITIES[severity]}
