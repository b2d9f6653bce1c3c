"""The entry point `culver`: finds the command, runs it, turns every failure into a message and an exit code.

Commands are imported when they are called: `culver serve` loads neither the Kafka client nor rich.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

import click

import culver
from culver.cli.failure import EXIT_CODE_MEANINGS, ExitCode, Failure
from culver.cli.session import Session, client_options

# name: (module, what it does). The attribute in the module has the command's name.
COMMANDS = {
    "serve": ("culver.cli.serve", "Run a broker, or several."),
    "gateway": ("culver.cli.gateway", "Serve HTTP in front of a cluster."),
    "webhook": ("culver.cli.webhook", "List, create, describe, pause, resume, test and delete webhooks."),
    "topic": ("culver.cli.topic", "List, create, describe, alter, delete and trim topics."),
    "produce": ("culver.cli.produce", "Write records to a topic."),
    "consume": ("culver.cli.consume", "Read records from topics."),
    "ingest": ("culver.cli.ingest", "Take lines from files, standard input and syslog to a topic."),
    "group": ("culver.cli.group", "List, describe, seek and delete consumer groups; lag."),
    "txn": ("culver.cli.txn", "List, describe and abort transactions; find hanging ones."),
    "cluster": ("culver.cli.cluster", "Look at a cluster; move partitions; add and remove brokers."),
    "log": ("culver.cli.log", "Look at the log files of a broker, without the broker."),
    "pipeline": ("culver.cli.pipeline", "Run logs, transform, archive and replay on Spark."),
    "search": ("culver.cli.search", "Find log lines in the store of the logs pipeline."),
    "config": ("culver.cli.config", "Explain the settings of brokers and topics."),
}


class LazyCommands(click.Group):
    """A group whose commands are imported when they are needed, and listed without being imported."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(int(code)), text) for code, text in EXIT_CODE_MEANINGS.items()])


@click.group(cls=LazyCommands, context_settings={"help_option_names": ["-h", "--help"]})
@client_options
@click.version_option(culver.__version__, prog_name="culver")
def cli() -> None:
    """Culver: a message queue and event log that speaks the Kafka protocol.

    `culver serve` runs a broker; the other commands talk to a running one, Culver or Kafka.
    """


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code. The only place where exceptions become messages."""
    session = Session(bootstrap=os.environ.get("CULVER_BOOTSTRAP") or Session().bootstrap)
    try:
        result = _invoke(list(arguments), session)
        sys.stdout.flush()
        return result if isinstance(result, int) else ExitCode.OK
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except Failure as failure:
        return _complain(failure)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    except BrokenPipeError:
        # The reader had enough. Point stdout elsewhere, or the interpreter complains once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return ExitCode.BROKEN_PIPE
    except Exception as error:
        if os.environ.get("CULVER_DEBUG"):
            raise
        return _complain(
            Failure(
                f"unexpected {type(error).__name__}: {error}",
                "this is a fault in culver; CULVER_DEBUG=1 shows where it happened",
                code=ExitCode.INTERNAL,
            )
        )


def _invoke(arguments: list[str], session: Session) -> object:
    """As click's own main(), without its handling of Ctrl-C and broken pipes: run() does both, quietly."""
    if "_CULVER_COMPLETE" in os.environ:  # a shell asks for completions
        return cli.main(arguments, prog_name="culver", standalone_mode=False)
    with cli.make_context("culver", arguments, obj=session) as context:
        return cli.invoke(context)


def _complain(failure: Failure) -> int:
    print(f"culver: {failure.message}", file=sys.stderr)
    if failure.hint:
        print(f"  {failure.hint}", file=sys.stderr)
    return failure.code


def main() -> NoReturn:
    """The console script."""
    sys.exit(run(sys.argv[1:]))
