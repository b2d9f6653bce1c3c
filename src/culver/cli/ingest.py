"""`culver ingest`: take lines from files, standard input and syslog to a topic."""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from culver.cli.clients import Cluster
from culver.cli.failure import ExitCode, Failure
from culver.cli.output import note
from culver.cli.session import Session, client_options
from culver.wire_client import host_and_port

if TYPE_CHECKING:
    from culver.ingest.run import Ingest

_SYSLOG_PORT = 514


class Address(click.ParamType[tuple[str, int]]):
    """HOST:PORT, :PORT for all addresses, or HOST for syslog's own port."""

    name = "HOST:PORT"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, int]:
        if isinstance(value, tuple):
            return value
        try:
            host, port = host_and_port(str(value) if ":" in str(value) else f"{value}:{_SYSLOG_PORT}")
        except ValueError as error:
            self.fail(str(error), param, ctx)
        return host or "0.0.0.0", port


@click.command()
@click.argument("topic")
@click.option(
    "-f", "--file", "files", metavar="PATTERN", multiple=True, help="Follow these files; repeatable."
)
@click.option("--stdin", "use_stdin", is_flag=True, help="Read standard input.")
@click.option("--syslog-udp", type=Address(), metavar="HOST:PORT", help="Listen for syslog datagrams.")
@click.option("--syslog-tcp", type=Address(), metavar="HOST:PORT", help="Listen for syslog connections.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("culver-ingest"),
    show_default=True,
    help="Where positions are kept, and lines while no broker takes them.",
)
@click.option("--once", is_flag=True, help="End when all that is there has arrived.")
@click.option(
    "--from-end", is_flag=True, help="Of files that are there now, take only what is added to them."
)
@click.option(
    "--spool-max-mb",
    type=click.IntRange(min=1),
    default=1024,
    show_default=True,
    help="How much may wait on disk.",
)
@client_options
@click.pass_obj
def ingest(
    session: Session,
    topic: str,
    files: tuple[str, ...],
    use_stdin: bool,
    syslog_udp: tuple[str, int] | None,
    syslog_tcp: tuple[str, int] | None,
    state: Path,
    once: bool,
    from_end: bool,
    spool_max_mb: int,
) -> None:
    """Take lines to TOPIC: of each source in order, and none is lost while brokers are away.

    \b
    culver ingest logs --file '/var/log/nginx/*.log' --file /var/log/app.log
    journalctl -f | culver ingest logs --stdin
    culver ingest logs --syslog-udp 0.0.0.0:5514 --syslog-tcp 0.0.0.0:5514

    Files are followed through rotations. What comes in by itself waits in the state directory until a broker has it.
    Started again, it goes on where it stopped; after a crash the last lines may be sent a second time.
    """
    if not (files or use_stdin or syslog_udp or syslog_tcp):
        raise click.UsageError("nothing to read: give --file, --stdin, --syslog-udp or --syslog-tcp")
    from culver.ingest.checkpoints import CheckpointsUnreadable
    from culver.ingest.run import AlreadyRunning, Ingest, Plan
    from culver.ingest.shipper import DeliveryRefused

    _check_topic(session, topic)
    plan = Plan(
        bootstrap=session.bootstrap,
        topic=topic,
        state_dir=state,
        files=files,
        stdin=sys.stdin.buffer if use_stdin else None,
        syslog_udp=syslog_udp,
        syslog_tcp=syslog_tcp,
        once=once,
        from_end=from_end,
        spool_max_bytes=spool_max_mb << 20,
        producer=session.client_settings,
    )
    try:
        running = Ingest(plan)
        running.begin()
    except AlreadyRunning as error:
        raise Failure(str(error), code=ExitCode.IN_USE) from error
    except CheckpointsUnreadable as error:
        raise Failure(str(error), code=ExitCode.CORRUPT) from error
    except OSError as error:
        raise Failure(f"cannot listen for syslog: {error.strerror}", code=ExitCode.IN_USE) from error
    if running.syslog is not None:
        addresses = [("udp", running.syslog.udp_address), ("tcp", running.syslog.tcp_address)]
        for protocol, address in addresses:
            if address is not None:
                note(f"listening for syslog on {protocol} {address[0]}:{address[1]}")
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: running.stop())
    try:
        running.run(_Progress())
    except DeliveryRefused as error:
        raise Failure(str(error), "the lines are kept; once it is mended, start again") from error


def _check_topic(session: Session, topic: str) -> None:
    """A topic that is not there is better heard of now; a broker that is not there may come."""
    try:
        Cluster(session).partitions([topic], ())
    except Failure as failure:
        if failure.code is not ExitCode.UNREACHABLE:
            raise
        note(f"{failure.message}; lines are kept until it can be reached")


class _Progress:
    """A line on a terminal that says how far it is; otherwise one at the end."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._terminal = sys.stderr.isatty()

    def __call__(self, running: Ingest) -> None:
        if not self._terminal:
            return
        rate = running.delivered / max(time.monotonic() - self._began, 0.001)
        waiting = f", {running.spooled_bytes >> 20} MB on disk" if running.spooled_bytes >> 20 else ""
        text = f"{running.delivered:,} lines delivered, {rate:,.0f}/s, {running.in_flight:,} on their way{waiting}"
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
