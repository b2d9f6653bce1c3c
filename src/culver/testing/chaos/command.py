"""A chaos run from the command line: what happens as it happens, then the report; exit code 1 for a violation."""

from __future__ import annotations

import argparse
import random
import sys

from culver.testing.chaos.nemesis import ANYWHERE, WITH_ZOOKEEPER
from culver.testing.chaos.plan import COPY_RATE, LOCAL, ZOOKEEPER, Plan, TransactionPlan, copying
from culver.testing.chaos.run import Run


def main() -> None:
    parser = argparse.ArgumentParser(prog="culver.testing.chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long faults go on")
    parser.add_argument(
        "--seed", type=int, default=None, help="which faults, in which order; random if not given"
    )
    parser.add_argument("--store", choices=(ZOOKEEPER, LOCAL), default=ZOOKEEPER, help="the metadata store")
    parser.add_argument("--brokers", type=int, default=3, help="how many to begin with")
    parser.add_argument("--session-timeout", type=int, default=2_000, metavar="MS", help="of the brokers")
    parser.add_argument("--rate", type=int, default=150, metavar="N", help="records per second and producer")
    parser.add_argument(
        "--faults",
        default="",
        metavar="KIND,...",
        help=f"only these: {', '.join(ANYWHERE)}; with ZooKeeper also {', '.join(WITH_ZOOKEEPER)}",
    )
    parser.add_argument(
        "--no-transactions", action="store_true", help="without clients that work in transactions"
    )
    parser.add_argument(
        "--copies",
        type=int,
        default=0,
        metavar="N",
        help="only this: N messages are copied in transactions while brokers and clients are killed and restarted",
    )
    parser.add_argument(
        "--transaction", type=int, default=750, metavar="N", help="messages in a transaction of --copies"
    )
    parser.add_argument(
        "--copy-rate",
        type=int,
        default=COPY_RATE,
        metavar="N",
        help="messages a second with --copies, at most",
    )
    parser.add_argument(
        "--group-protocol", choices=("classic", "consumer"), default="classic", help="of the copiers' group"
    )
    parser.add_argument(
        "--keep", action="store_true", help="keep logs, data and history also when all is well"
    )
    parser.add_argument("--client-logs", action="store_true", help="have the clients write down what they do")
    parser.add_argument("--quiet", action="store_true", help="the report only")
    arguments = parser.parse_args()
    kinds = tuple(kind.strip() for kind in arguments.faults.split(",") if kind.strip())
    unknown = sorted(set(kinds) - set(ANYWHERE) - set(WITH_ZOOKEEPER))
    if unknown:
        parser.error(f"there is no fault {unknown[0]!r}")
    if arguments.store == LOCAL and set(kinds) & set(WITH_ZOOKEEPER):
        parser.error(f"{sorted(set(kinds) & set(WITH_ZOOKEEPER))[0]!r} needs ZooKeeper")
    seed = arguments.seed if arguments.seed is not None else random.randrange(1_000_000)
    if arguments.copies:
        plan = copying(
            seed,
            arguments.copies,
            arguments.transaction,
            store=arguments.store,
            brokers=arguments.brokers,
            rate=arguments.copy_rate,
            group_protocol=arguments.group_protocol,
            client_logs=arguments.client_logs,
        )
        what = f"{arguments.copies} messages in transactions of {arguments.transaction}"
    else:
        plan = Plan(
            seed,
            arguments.seconds,
            arguments.store,
            arguments.brokers,
            arguments.session_timeout,
            arguments.rate,
            kinds=kinds,
            transactions=None
            if arguments.no_transactions
            else TransactionPlan(group_protocol=arguments.group_protocol),
            client_logs=arguments.client_logs,
        )
        what = f"{plan.seconds:.0f} s"
    print(f"seed {seed}, {what}, {plan.store}", flush=True)
    report = Run(plan, (lambda _line: None) if arguments.quiet else _say, keep=arguments.keep).run()
    print(report.text())
    sys.exit(0 if report.passed else 1)


def _say(line: str) -> None:
    print(line, flush=True)
