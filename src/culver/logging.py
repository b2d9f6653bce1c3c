"""Structured log lines: one line an event, with its facts as key=value.

    2026-01-31T12:00:00.123Z info culver.log recovered partition=orders-0 truncated_bytes=61

or, with `log.format=json`, one JSON object a line. The standard library's logging does the work underneath,
so lines of asyncio and of other libraries come out in the same form, and tests can use caplog. An event is a
few fixed words; what varies goes into the fields, where nothing a client sends can break the line.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}
FORMATS = ("text", "json")

_ROOT = "culver"
_FIELDS = "culver_fields"


class Logger:
    """Writes events with fields. Make one per module with `get_logger`."""

    __slots__ = ("_logger",)

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger

    def debug(self, event: str, /, **fields: object) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._write(logging.DEBUG, event, fields)

    def info(self, event: str, /, **fields: object) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            self._write(logging.INFO, event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        if self._logger.isEnabledFor(logging.WARNING):
            self._write(logging.WARNING, event, fields)

    def error(self, event: str, /, **fields: object) -> None:
        if self._logger.isEnabledFor(logging.ERROR):
            self._write(logging.ERROR, event, fields)

    def exception(self, event: str, /, **fields: object) -> None:
        """An error with the exception being handled: its text, and its traceback in the same line."""
        if self._logger.isEnabledFor(logging.ERROR):
            self._write(logging.ERROR, event, fields, traceback=True)

    def _write(self, level: int, event: str, fields: dict[str, object], *, traceback: bool = False) -> None:
        # The event is passed as an argument, so that a % in it is no placeholder.
        self._logger.log(level, "%s", event, exc_info=traceback, stacklevel=3, extra={_FIELDS: fields})


def get_logger(name: str) -> Logger:
    """The logger of one part of Culver, such as "culver.log"."""
    return Logger(logging.getLogger(name))


def configure_logging(
    level: str = "warning",
    form: str = "text",
    stream: TextIO | None = None,
    *,
    always: Mapping[str, object] | None = None,
) -> None:
    """Send log lines to `stream`, standard error if None, with the fields `always`. Called again, it starts afresh."""
    if level not in LEVELS:
        raise ValueError(f"there is no log level {level!r}; choose one of {', '.join(LEVELS)}")
    if form not in FORMATS:
        raise ValueError(f"there is no log format {form!r}; choose one of {', '.join(FORMATS)}")
    root = logging.getLogger()
    for handler in [handler for handler in root.handlers if isinstance(handler, _LineHandler)]:
        root.removeHandler(handler)
    handler = _LineHandler(stream or sys.stderr)
    handler.setFormatter((_JsonFormatter if form == "json" else _TextFormatter)(always or {}))
    root.addHandler(handler)
    logging.getLogger(_ROOT).setLevel(LEVELS[level])


class _LineHandler(logging.StreamHandler[TextIO]):
    """A handler of ours, told apart from those that a test runner or an embedding program has set."""


class _Formatter(logging.Formatter):
    def __init__(self, always: Mapping[str, object]) -> None:
        super().__init__()
        self.always = always


class _TextFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        parts = [_time(record), record.levelname.lower(), record.name, _one_line(record.getMessage())]
        parts.extend(f"{key}={_value(value)}" for key, value in _fields(record, self).items())
        return " ".join(parts)


class _JsonFormatter(_Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": record.getMessage(),
        }
        # A field never hides the line's own keys.
        for key, value in _fields(record, self).items():
            line[f"{key}_" if key in line else key] = value
        return json.dumps(line, default=str)


def _fields(record: logging.LogRecord, formatter: _Formatter) -> dict[str, object]:
    fields: dict[str, object] = {**formatter.always, **getattr(record, _FIELDS, {})}
    if record.exc_info and record.exc_info[1] is not None:
        error = record.exc_info[1]
        text = str(error)
        fields = {
            **fields,
            "error": f"{type(error).__name__}: {text}" if text else type(error).__name__,
            "traceback": formatter.formatException(record.exc_info),
        }
    return fields


def _time(record: logging.LogRecord) -> str:
    return datetime.fromtimestamp(record.created, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _value(value: object) -> str:
    """A field's value: bare where that is unambiguous, quoted and escaped where it is not."""
    text = value if isinstance(value, str) else str(value)
    if text and text.isprintable() and not any(character in ' "=\\' for character in text):
        return text
    return json.dumps(text)


def _one_line(text: str) -> str:
    """The event itself. Ours are fixed words; those of other libraries may hold anything."""
    return text if text.isprintable() else json.dumps(text)[1:-1]
