"""Log lines: one a event, readable, and not to be broken by what is in them."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from culver.logging import configure_logging, get_logger

log = get_logger("culver.test")


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    root, culver = logging.getLogger(), logging.getLogger("culver")
    handlers, level = list(root.handlers), culver.level
    yield
    root.handlers[:] = handlers
    culver.setLevel(level)


def lines_of(level: str = "info", form: str = "text") -> io.StringIO:
    stream = io.StringIO()
    configure_logging(level, form, stream)
    return stream


def test_a_line_has_time_level_logger_event_and_fields() -> None:
    stream = lines_of()
    log.info("recovered", partition="orders-0", truncated_bytes=61)
    time, rest = stream.getvalue().split(" ", 1)
    assert rest == "info culver.test recovered partition=orders-0 truncated_bytes=61\n"
    assert len(time) == len("2026-01-31T12:00:00.123Z")
    assert time.endswith("Z")


def test_quiet_by_default() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    log.debug("a")
    log.info("b")
    assert stream.getvalue() == ""
    log.warning("c")
    log.error("d")
    assert len(stream.getvalue().splitlines()) == 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("plain", "plain"),
        ("two words", '"two words"'),
        ("", '""'),
        ('say "x"', '"say \\"x\\""'),
        ("a=b", '"a=b"'),
        ("line\nerror culver forged", '"line\\nerror culver forged"'),
        ("\x1b[31m", '"\\u001b[31m"'),
        (None, "None"),
        (b"\x00", "\"b'\\\\x00'\""),
    ],
)
def test_values_that_could_break_a_line_are_quoted(value: object, text: str) -> None:
    stream = lines_of()
    log.info("seen", value=value)
    assert stream.getvalue().endswith(f" seen value={text}\n")
    assert stream.getvalue().count("\n") == 1


def test_json_lines() -> None:
    stream = lines_of(form="json")
    log.info("recovered", partition="orders-0", size=5, path=ValueError("x"), event="not the event")
    line = json.loads(stream.getvalue())
    del line["time"]
    assert line == {
        "level": "info",
        "logger": "culver.test",
        "event": "recovered",
        "partition": "orders-0",
        "size": 5,
        "path": "x",
        "event_": "not the event",
    }


@pytest.mark.parametrize("form", ["text", "json"])
def test_an_exception_stays_on_its_line(form: str) -> None:
    stream = lines_of(form=form)
    try:
        raise ValueError("bad thing")
    except ValueError:
        log.exception("request failed", peer="10.0.0.1")
    assert stream.getvalue().count("\n") == 1
    assert "ValueError: bad thing" in stream.getvalue()
    assert "test_logging.py" in stream.getvalue()


def test_lines_of_other_libraries_come_out_in_the_same_form() -> None:
    stream = lines_of()
    logging.getLogger("asyncio").warning("took %.3f\nseconds", 1.5)
    assert stream.getvalue().endswith("Z warning asyncio took 1.500\\nseconds\n")


def test_a_percent_sign_is_no_placeholder() -> None:
    stream = lines_of()
    log.info("100% done", rate="50%s")
    assert stream.getvalue().endswith(" 100% done rate=50%s\n")


def test_set_up_twice_writes_once() -> None:
    first = lines_of()
    second = lines_of()
    log.info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_a_level_or_form_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="no log level 'loud'; choose one of debug, info"):
        configure_logging("loud")
    with pytest.raises(ValueError, match="no log format 'xml'"):
        configure_logging("info", "xml")
