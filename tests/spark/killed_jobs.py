"""Run Spark jobs as processes of their own and kill them, the JVM and Python workers with them, at a given moment."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence

# How often a job is killed before it may finish. One JVM start more each: `make test` has time for one.
KILLS = int(os.environ.get("SPARK_KILLS", "1"))
# Seconds on an idle machine; but a JVM among many takes its time.
REACH_SECONDS = 180.0
# Jobs this short end before the better compiler has paid for itself.
_JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_LOOK_SECONDS = 0.1


def kill_when(command: Sequence[str], reached: Callable[[], bool]) -> None:
    """Start a job and SIGKILL all of it once it has got so far; it must not have ended by itself."""
    process = _started(command)
    try:
        deadline_s = time.monotonic() + REACH_SECONDS
        while not reached():
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK_SECONDS)
                raise AssertionError(f"it ended by itself: {_output(process)}")
            assert time.monotonic() < deadline_s, "the job does not get on"
        assert process.poll() is None, f"it was done before it could be killed: {_output(process)}"
    finally:
        end_group(process)
    assert process.returncode == -signal.SIGKILL


def finish(command: Sequence[str], timeout_s: float = REACH_SECONDS) -> str:
    """Run a job to its end, which must be a good one; what it said."""
    process = _started(command)
    try:
        output, _ = process.communicate(timeout=timeout_s)
        assert process.returncode == 0, output.decode()[-3000:]
        return output.decode()
    finally:
        end_group(process)


def _started(command: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        env=os.environ | {"JDK_JAVA_OPTIONS": _JAVA_OPTIONS},
    )


def end_group(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL for the process and for whatever it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _output(process: subprocess.Popen[bytes]) -> str:
    return process.communicate()[0].decode()[-3000:]
