"""`culver gateway`: HTTP in front of a cluster, in a process of its own, until told to stop."""

from __future__ import annotations

import os
import socket

import click

from culver.cli.failure import ExitCode, Failure
from culver.cli.gateway_process import listen
from culver.cli.serve import cannot_listen_for_http
from culver.cli.session import Session, client_options, name_value, settings_options


@click.command()
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Where to listen; port 0 picks a free one.  [default: 127.0.0.1:8080]",
)
@settings_options
@click.option(
    "--listen-fd", type=int, hidden=True, help="A socket that listens already, from `culver serve`."
)
@client_options
@click.pass_obj
def gateway(
    session: Session, http: str | None, file: str | None, settings: tuple[str, ...], listen_fd: int | None
) -> int:
    """Serve HTTP in front of a cluster, Culver or Kafka, until SIGTERM or Ctrl-C.

    When ready it prints one line, `http http://HOST:PORT`. `culver serve` runs one by itself; this one is for another
    machine, or for a cluster of another kind.
    """
    overrides = dict(name_value(each, "'--set'") for each in settings)
    if http is not None:
        overrides["culver.http.listen"] = http

    from culver.config import load_broker_config, load_gateway_settings
    from culver.errors import KafkaError
    from culver.logging import configure_logging

    try:
        log = load_broker_config(file, os.environ, overrides)
        given = load_gateway_settings(file, os.environ, overrides)
    except KafkaError as error:
        raise Failure(
            f"the configuration cannot be used: {error.message}",
            "`culver config --gateway` explains the settings",
            code=ExitCode.USAGE,
        ) from None
    configure_logging(log.log_level, log.log_format)

    # Only now: it takes a moment, and a mistake in the settings is told at once.
    from culver.gateway.run import serve
    from culver.gateway.settings import GatewaySettings

    chosen = GatewaySettings(**given, bootstrap=session.bootstrap, client_settings=session.client_settings)
    try:
        listener = listen(chosen.http) if listen_fd is None else socket.socket(fileno=listen_fd)
    except OSError as error:
        raise cannot_listen_for_http(chosen.http, error) from None
    with listener:
        try:
            return serve(chosen, listener)
        except ValueError as error:
            raise Failure(str(error), code=ExitCode.USAGE) from None
