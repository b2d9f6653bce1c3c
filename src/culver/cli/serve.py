"""`culver serve`: read the configuration, then run the broker until it is told to stop.

Light on imports: everything here counts into the time from the command to the first request served.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

import click

from culver.cli.failure import ExitCode, Failure
from culver.cli.session import name_value

if TYPE_CHECKING:
    from culver.config import BrokerConfig


@click.command()
@click.option("--data-dir", metavar="DIR", help="Where the records are kept.  [default: ./culver-data]")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where to listen; port 0 picks a free one.  [default: 127.0.0.1:9092]",
)
@click.option("--advertise", metavar="HOST:PORT", help="The address that clients are told to use.")
@click.option(
    "--config",
    "file",
    metavar="FILE.toml",
    envvar="CULVER_CONFIG",
    help="A file with settings.  [default: $CULVER_CONFIG]",
)
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

    from culver.broker import node
    from culver.coordination.store import StoreError
    from culver.log.store import DataDirectoryLocked

    try:
        return node.serve(config)
    except DataDirectoryLocked as error:
        raise Failure(str(error), code=ExitCode.IN_USE) from None
    except StoreError as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise _explained(error, config) from error


def _explained(error: OSError, config: BrokerConfig) -> Failure:
    if error.errno == errno.EADDRINUSE:
        return Failure(
            f"cannot listen on {config.listen}: another process does",
            "choose another address with --listen HOST:PORT; port 0 picks a free one",
            code=ExitCode.IN_USE,
        )
    if error.errno in (errno.EADDRNOTAVAIL, errno.EACCES, errno.EPERM) and error.filename is None:
        return Failure(
            f"cannot listen on {config.listen}: {error.strerror}",
            "choose another address with --listen HOST:PORT",
        )
    return Failure(f"cannot use the data directory {config.data_dir}: {error}")
