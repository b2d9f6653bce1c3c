"""`make demo`: a broker, a stream of log lines with a spike, the logs pipeline and a search, in under two minutes.

Everything runs as a user would run it, `culver` commands in processes of their own, in a directory that is removed
at the end; with --keep it stays, for a look around.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TypeAlias

import click

from culver.cli.failure import Failure
from culver.cli.output import counted
from culver.pipelines.demo_lines import NEEDLE, ShopLines

_TOPIC = "logs"
_STEADY_PER_SECOND, _SPIKE_PER_SECOND = 1_000, 20_000
_BEFORE_S, _SPIKE_S, _AFTER_S = 6.0, 4.0, 4.0
_TICK_S = 0.1
_PATIENCE_S = 240.0

Services: TypeAlias = dict[str, subprocess.Popen[bytes]]


@click.command()
@click.option("--keep", is_flag=True, help="Leave the directory where it is.")
def demo(keep: bool) -> None:
    """Show the way of log lines from a file to a search result."""
    began = time.monotonic()
    directory = Path(tempfile.mkdtemp(prefix="culver-demo-"))
    try:
        _run(directory, began)
        if keep:
            _say(f"everything is in {directory}; remove it when you are done")
    finally:
        if not keep:
            shutil.rmtree(directory, ignore_errors=True)
            _say(f"done in {time.monotonic() - began:.0f} s, {directory} is removed (--keep leaves it)")


def _run(directory: Path, began: float) -> None:
    log, store = directory / "shop.log", directory / "store"
    log.touch()
    with contextlib.ExitStack() as stack:
        _say("1. a broker")
        broker, bootstrap = stack.enter_context(_broker(directory))
        _culver("topic", "create", _TOPIC, "--partitions", "2", "--bootstrap", bootstrap)
        common = ("--bootstrap", bootstrap)
        _say("2. culver ingest follows shop.log; culver pipeline logs takes the topic to a store")
        ingest = stack.enter_context(
            _service(
                "ingest",
                _TOPIC,
                "--file",
                str(log),
                "--state",
                str(directory / "ingest"),
                *common,
                to=directory,
            )
        )
        pipeline = stack.enter_context(
            _service(
                "pipeline", "logs", _TOPIC, "--store", str(store), "--interval", "1", *common, to=directory
            )
        )
        _say("3. a shop writes its log, with a spike in the middle")
        services = {"the broker": broker, "culver ingest": ingest, "the pipeline": pipeline}
        lines = _write(log, services, directory)
        _say(f"   {lines:,} lines are written; the pipeline catches up")
        _wait_for(store, lines, services, directory)
        for service in (pipeline, ingest):
            _end(service)
    _say(f"4. {lines:,} lines are in the store, each once, {time.monotonic() - began:.0f} s after the start")
    _search(store, lines)


def _search(store: Path, lines: int) -> None:
    from culver.pipelines.log_store.store import LogStore

    logs = LogStore(str(store), create=False)
    found = logs.state().rows
    if found != lines:
        raise Failure(f"the store holds {found:,} lines, not {lines:,}")
    for arguments in (
        [f'"{NEEDLE}"'],
        ["refused", "--where", "level = 'ERROR' and service = 'api'", "--limit", "3"],
    ):
        _say(f"\n$ culver search {' '.join(_quoted(word) for word in arguments)}")
        _culver("search", *arguments, "--store", str(store))
    files = logs.parquet_files()
    size = sum(os.path.getsize(path) for path in files)
    _say(f"\n5. {counted(len(files), 'Parquet file')}, {size / 1e6:.1f} MB, in {store}/data:")
    for path in files[:4]:
        _say(f"   {os.path.relpath(path, store.parent)}")


def _quoted(word: str) -> str:
    return f"'{word}'" if " " in word and "'" not in word else f'"{word}"' if " " in word else word


# -- the shop -----------------------------------------------------------------------------------------------


def _write(log: Path, services: Services, directory: Path) -> int:
    """Write lines at a pace, much faster in the middle; how many."""
    shop = ShopLines()
    written = 0
    begin = time.monotonic()
    needle_is_out = False
    with log.open("a") as file:
        while (now := time.monotonic() - begin) < _BEFORE_S + _SPIKE_S + _AFTER_S:
            _check(services, directory)
            in_spike = _BEFORE_S <= now < _BEFORE_S + _SPIKE_S
            count = round((_SPIKE_PER_SECOND if in_spike else _STEADY_PER_SECOND) * _TICK_S)
            lines = shop.lines(count)
            if in_spike and not needle_is_out:
                lines.append(shop.needle())
                needle_is_out = True
            file.write("\n".join(lines) + "\n")
            file.flush()
            written += len(lines)
            time.sleep(max(0.0, _TICK_S - (time.monotonic() - begin - now)))
    return written


def _wait_for(store: Path, lines: int, services: Services, directory: Path) -> None:
    from culver.pipelines.log_store.errors import StoreNotFound
    from culver.pipelines.log_store.store import LogStore

    deadline = time.monotonic() + _PATIENCE_S
    found = 0
    while found < lines:
        _check(services, directory)
        if time.monotonic() > deadline:
            raise Failure(f"only {found:,} of {lines:,} lines have arrived", _last_words(directory))
        time.sleep(0.3)
        with contextlib.suppress(StoreNotFound):
            found = LogStore(str(store), create=False).state().rows


# -- processes ----------------------------------------------------------------------------------------------


@contextlib.contextmanager
def _broker(directory: Path) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    serve = ("serve", "--no-http", "--listen", "127.0.0.1:0", "--data-dir", str(directory / "broker"))
    with _service(*serve, to=directory, stdout=subprocess.PIPE) as broker:
        assert broker.stdout is not None
        words = broker.stdout.readline().decode().split()
        if not words or words[0] != "ready":
            raise Failure("the broker did not start", _last_words(directory))
        yield broker, words[1]
        broker.stdout.close()


@contextlib.contextmanager
def _service(*arguments: str, to: Path, stdout: int | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """A culver command that runs until the block ends, in a process group of its own; it logs to a file."""
    with (to / f"{arguments[0]}.err").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "culver", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=stdout or log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _check(services: Services, directory: Path) -> None:
    for name, service in services.items():
        if service.poll() is not None:
            raise Failure(f"{name} has ended", _last_words(directory))


def _last_words(directory: Path) -> str:
    return "\n".join(
        f"{path.name}: {line}"
        for path in directory.glob("*.err")
        for line in path.read_text().splitlines()[-5:]
    )


def _culver(*arguments: str) -> None:
    done = subprocess.run([sys.executable, "-m", "culver", *arguments], check=False)
    if done.returncode:
        raise Failure(f"culver {arguments[0]} ended with {done.returncode}")


def _say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    """As a program: Ctrl-C and failures clean up, too."""
    try:
        demo.main(standalone_mode=False)
    except Failure as failure:
        sys.exit(f"culver: {failure.message}\n  {failure.hint}")
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)


if __name__ == "__main__":
    main()
