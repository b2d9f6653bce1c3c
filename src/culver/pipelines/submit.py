"""The entry for spark-submit: `spark-submit submit.py logs --bootstrap ... --topics ... --store ...`.

    python -m culver.pipelines.submit PIPELINE --help

The options of a pipeline are the arguments of its `run` function, `records_per_batch_max` as --records-per-batch-max.
`culver pipeline` does the same with more comfort, on one machine.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import signal
import sys
from collections.abc import Callable, Sequence
from typing import Any

PIPELINES = ("logs", "transform", "archive", "replay")
# Arguments of the functions that cannot be given on a command line, or mean nothing there.
_NOT_OPTIONS = {"spark", "stop", "on_progress", "on_plan"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the pipeline that the command line names until it ends, or SIGTERM comes."""
    from culver.pipelines.streaming import Stop

    parser = argparse.ArgumentParser(prog="culver.pipelines.submit", description=__doc__)
    pipelines = parser.add_subparsers(dest="pipeline", required=True, metavar="PIPELINE")
    functions: dict[str, Callable[..., Any]] = {}
    for name in PIPELINES:
        function = functions[name] = importlib.import_module(f"culver.pipelines.{name}").run
        add_options(pipelines.add_parser(name, description=inspect.getdoc(function)), function)
    given = vars(parser.parse_args(arguments))
    function = functions[given.pop("pipeline")]
    accepted = inspect.signature(function).parameters
    if "stop" in accepted:
        stop = given["stop"] = Stop()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: stop())
    if "on_progress" in accepted:
        given["on_progress"] = lambda progress: print(progress, flush=True)
    print(function(**given), flush=True)


def add_options(parser: argparse.ArgumentParser, function: Callable[..., Any]) -> None:
    """One option for each argument of the function, required where the argument has no default."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    for name, parameter in inspect.signature(function).parameters.items():
        if name in _NOT_OPTIONS:
            continue
        option = "--" + name.replace("_", "-")
        if isinstance(parameter.default, bool):
            parser.add_argument(option, action=argparse.BooleanOptionalAction, default=parameter.default)
        elif parameter.default is inspect.Parameter.empty:
            parser.add_argument(option, required=True)
        else:
            parser.add_argument(option, type=_kind(parameter.annotation), default=parameter.default)


def _kind(annotation: str) -> Callable[[str], Any]:
    """int for `int | None` and the like. Annotations are text in these modules."""
    first = str(annotation).partition(" ")[0]
    return {"int": int, "float": float}.get(first, str)


if __name__ == "__main__":
    main(sys.argv[1:])
