"""Run seeds: many side by side and a line for each failure, or one with its whole trace."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Iterable, Iterator

from culver.testing.simulation.run import RunResult, run_seed


def main() -> None:
    parser = argparse.ArgumentParser(prog="culver.testing.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=200, help="how many")
    parser.add_argument("--first", type=int, default=1, help="where to begin")
    parser.add_argument("--seed", type=int, default=None, help="only this one, with its trace")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes side by side")
    arguments = parser.parse_args()
    if arguments.seed is not None:
        sys.exit(_one(arguments.seed))
    sys.exit(_many(range(arguments.first, arguments.first + arguments.seeds), arguments.jobs))


def _one(seed: int) -> int:
    result = run_seed(seed)
    print("\n".join(result.trace))
    print(result.report(0))
    print(f"digest {result.digest}, {result.events} events in {result.virtual_seconds:.1f} virtual seconds")
    return 0 if result.passed else 1


def run_many(seeds: Iterable[int], jobs: int) -> Iterator[RunResult]:
    """Results as they come in, in the order of the seeds."""
    if jobs <= 1:
        yield from map(run_seed, seeds)
        return
    context = multiprocessing.get_context("fork")
    with context.Pool(jobs) as pool:
        yield from pool.imap(run_seed, seeds)


def _many(seeds: range, jobs: int) -> int:
    began = time.monotonic()
    failed: list[int] = []
    sent = acknowledged = faults = 0
    virtual_seconds = 0.0
    for result in run_many(seeds, jobs):
        sent += result.verdict.sends
        acknowledged += result.verdict.acknowledged
        faults += result.faults
        virtual_seconds += result.virtual_seconds
        if not result.passed:
            failed.append(result.seed)
            print(result.report(30), flush=True)
    print(
        f"{len(seeds)} seeds, {len(failed)} failed{': ' + ', '.join(map(str, failed)) if failed else ''}; "
        f"{faults} faults, {sent} records sent, {acknowledged} acknowledged, "
        f"{virtual_seconds / 60:.0f} virtual minutes in {time.monotonic() - began:.0f} s"
    )
    return 1 if failed else 0
