"""Run a streaming query until it has read what there was, or until it is told to stop."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyspark.errors import PySparkException, StreamingQueryException

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

_LOOK_SECONDS = 0.5
# What Spark appends to the error of a streaming query: its plan.
_QUERY_DUMP = "=== Streaming Query ==="


class PipelineFailed(RuntimeError):
    """The query ended with an error; the text is that of its cause, without Spark's stack."""


@dataclass
class Stop:
    """Tells a pipeline, from another thread or a signal handler, to end after what it has begun."""

    _event: threading.Event = field(default_factory=threading.Event)

    def __call__(self) -> None:
        self._event.set()

    @property
    def wanted(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Whether it came within that time."""
        return self._event.wait(seconds)


def with_trigger(writer: DataStreamWriter, once: bool, interval_s: float) -> DataStreamWriter:
    """Read what there is and end, or go on and look for more every so often."""
    if once:
        return writer.trigger(availableNow=True)
    return writer.trigger(processingTime=f"{round(interval_s * 1000)} milliseconds")


def run_query(
    query: StreamingQuery,
    stop: Stop | None = None,
    look: Callable[[StreamingQuery], object] | None = None,
    between_looks_s: float = _LOOK_SECONDS,
) -> None:
    """Wait for the query to end, and stop it when that is wanted; `look` is called again and again meanwhile.

    Raises PipelineFailed when the query did.
    """
    try:
        while not query.awaitTermination(between_looks_s):  # type: ignore[arg-type]
            if look is not None:
                look(query)
            if stop is not None and stop.wanted:
                # What the micro-batch under way has not committed is read again by the next run.
                query.stop()
                break
        if look is not None:
            look(query)
    except StreamingQueryException as error:
        raise PipelineFailed(cause(str(error))) from error
    finally:
        if query.isActive:
            query.stop()


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Errors of jobs that are no streaming queries, as PipelineFailed."""
    try:
        yield
    except PySparkException as error:
        raise PipelineFailed(cause(str(error))) from error


def cause(text: str) -> str:
    """The line of an error that says what happened: of the first Python traceback in Spark's words, the last."""
    lines = [line.strip() for line in text.partition(_QUERY_DUMP)[0].splitlines() if line.strip()]
    found = lines[0] if lines else "the query ended without saying why"
    in_traceback = False
    for line in lines:
        if "Traceback (most recent call last)" in line:
            in_traceback = True
        elif line.startswith("at "):  # the JVM's own stack, and after it the same again in other words
            in_traceback = False
        elif in_traceback and _names_an_error(line):
            found = line
    # Culver's own errors say what they have to say without their names.
    return found.partition(": ")[2] if found.startswith("culver.") else found


def _names_an_error(line: str) -> bool:
    name, colon, _ = line.partition(":")
    last = name.rpartition(".")[2]
    return bool(colon) and last.isidentifier() and last[0].isupper() and name != "SQLSTATE"
