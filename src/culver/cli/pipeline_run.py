"""What all pipeline commands need around them: Spark, errors in plain words, a line of progress, Ctrl-C."""

from __future__ import annotations

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from culver.cli.failure import ExitCode, Failure
from culver.cli.output import note

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_NOT_A_TERMINAL_SECONDS = 30.0


@contextlib.contextmanager
def spark_running(name: str, master: str | None) -> Iterator[SparkSession]:
    """A session for the command, and its errors in plain words."""
    with failures():
        from pyspark.logger import PySparkLogger

        from culver.pipelines import spark_session

        started = time.monotonic()
        spark = spark_session.session(name, master=master)
        spark.sparkContext.setLogLevel("OFF")  # what goes wrong is said once, at the end
        note(f"Spark {spark.version} started in {time.monotonic() - started:.1f} s")
        PySparkLogger.getLogger("SQLQueryContextLogger").disabled = True
        try:
            with failures():  # here as well: Spark's errors have no text once its JVM has gone
                yield spark
        finally:
            spark_session.stop(spark)


@contextlib.contextmanager
def failures() -> Iterator[None]:
    try:
        from pyspark.errors import PySparkException

        from culver.errors import KafkaError
        from culver.pipelines.archive_manifest import ArchiveError
        from culver.pipelines.log_store.errors import LogStoreError, StoreNotFound
        from culver.pipelines.streaming import PipelineFailed, cause
        from culver.wire_client import Unreachable
    except ModuleNotFoundError as missing:
        raise Failure(
            f"pipelines need {missing.name}, which is not installed", "pip install 'culver[spark]'"
        ) from None
    try:
        yield
    except StoreNotFound as error:
        raise Failure(error.message, f"{error.remedy}: --store DIR", code=ExitCode.NOT_FOUND) from None
    except LogStoreError as error:
        raise Failure(error.message, error.remedy) from None
    except Unreachable as error:
        raise Failure(str(error), code=ExitCode.UNREACHABLE) from None
    except (PipelineFailed, ArchiveError, KafkaError, ValueError) as error:
        raise Failure(str(error)) from None
    except PySparkException as error:
        raise Failure(cause(str(error))) from None


@contextlib.contextmanager
def stoppable() -> Iterator[Any]:
    """Ctrl-C and SIGTERM end the pipeline in order: what it has begun is finished, or done again next time."""
    from culver.pipelines.streaming import Stop

    stop = Stop()
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda *_: stop())
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class ProgressLine:
    """One line that is written over on a terminal; elsewhere a line now and then, and one at the end."""

    def __init__(self, text: Callable[[Any], str]) -> None:
        self._text = text
        self._terminal = sys.stderr.isatty()
        self._last_s = float("-inf")
        self._last_text = ""

    def __call__(self, progress: Any) -> None:
        if self._terminal:
            print(f"\r\x1b[K{self._text(progress)}", end="", file=sys.stderr, flush=True)
        elif time.monotonic() - self._last_s >= _NOT_A_TERMINAL_SECONDS:
            self._last_s = time.monotonic()
            self._last_text = self._text(progress)
            note(self._last_text)

    def end(self, progress: Any) -> None:
        """The last word, unless it has been said."""
        if self._terminal or self._text(progress) != self._last_text:
            note(("\r\x1b[K" if self._terminal else "") + self._text(progress))
