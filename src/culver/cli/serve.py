"""`culver serve`: read the configuration, then run the broker until it is told to stop.

Light on imports: everything here counts into the time from the command to the first request served.
"""

from __future__ import annotations

import errno
import os

import click

from culver.cli.failure import ExitCode, Failure
from culver.cli.session import name_value


@click.command()
@click.option("--data-dir", metavar="DIR", help="Where the records are kept.  [default: ./culver-data]")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where to listen; port 0 picks a free one.  [default: 127.0.0.1:9092]",
)
@click.option("--advertise", metavar="HOST:PORT", help="The address that clients are told to use.")
@click.option("--config", "file", metavar="FILE.toml", type=click.Path(), help="A file with settings.")
@click.option("--set", "settings", metavar="NAME=VALUE", multiple=True, help="One setting; repeatable.")
def serve(
    data_dir: str | None,
    listen: str | None,
    advertise: str | None,
    file: str | None,
    settings: tuple[str, ...],
) -> int:
    """Run a broker until SIGTERM or Ctrl-C.

    When ready it prints one line, `ready HOST:PORT`. `culver config` explains every setting. A flag beats
    an environment variable, which beats the file.
    """
    from culver.config import load_broker_config
    from culver.errors import KafkaError

    overrides = dict(name_value(each, "'--set'") for each in settings)
    flags = {"data.dir": data_dir, "listen": listen, "advertise": advertise}
    overrides |= {name: value for name, value in flags.items() if value is not None}
    try:
        config = load_broker_config(file, os.environ, overrides)
    except KafkaError as error:
        raise Failure(
            f"the configuration cannot be used: {error.message}",
            "`culver config` explains every setting",
            code=ExitCode.USAGE,
        ) from None
    except FileNotFoundError:
        raise Failure(f"there is no configuration file {file}", code=ExitCode.NOT_FOUND) from None

    from culver.broker import node

    try:
        return node.serve(config)
    except OSError as error:
        raise _explained(error) from error


def _explained(error: OSError) -> Failure:
    if error.errno == errno.EADDRINUSE:
        return Failure(
            f"the address is in use by another process: {error}",
            "choose another with --listen HOST:PORT; port 0 picks a free one",
            code=ExitCode.IN_USE,
        )
    return Failure(str(error))
