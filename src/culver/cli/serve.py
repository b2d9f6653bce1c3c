"""`culver serve`: read the configuration, then run a broker, or several, until told to stop.

Light on imports: everything here counts into the time from the command to the first request served.
"""

from __future__ import annotations

import errno
import glob
import os
import socket
from typing import TYPE_CHECKING, Any

import click

from culver.cli.failure import ExitCode, Failure
from culver.cli.session import name_value, settings_options

if TYPE_CHECKING:
    from culver.cli.gateway_process import GatewayProcess
    from culver.cli.supervisor import BrokerPlan
    from culver.config import BrokerConfig

# What a broker always has in its data directory; see culver.log.store.
_LOCK_FILE = "lock"
_SHARED_METADATA_FILE = "metadata.sqlite"
_BROKERS_MAX = 1000


@click.command()
@click.option("--data-dir", metavar="DIR", help="Where the records are kept.  [default: ./culver-data]")
@click.option(
    "--listen",
    metavar="HOST:PORT",
    help="Where to listen; port 0 picks a free one.  [default: 127.0.0.1:9092]",
)
@click.option(
    "--http",
    metavar="HOST:PORT",
    help="Where to serve the HTTP API and the console; port 0 picks a free one.  [default: 127.0.0.1:8080]",
)
@click.option("--no-http", is_flag=True, help="Serve no HTTP.")
@click.option("--advertise", metavar="HOST:PORT", help="The address that clients are told to use.")
@click.option(
    "--brokers",
    metavar="N",
    type=click.IntRange(1, _BROKERS_MAX),
    help="Run N brokers, one process each; ids and ports count up from --broker-id and --listen.",
)
@click.option(
    "--broker-id", metavar="ID", type=click.IntRange(min=0), help="This broker's number.  [default: 1]"
)
@click.option(
    "--coordination",
    metavar="STORE",
    help="Where the cluster's metadata lives: local, local:FILE or zookeeper://HOST:PORT,.../PATH.  "
    "[default: local]",
)
@click.option(
    "--rack", metavar="NAME", help="Where the broker stands.  [default: none; with --brokers the host's name]"
)
@settings_options
def serve(
    data_dir: str | None,
    listen: str | None,
    http: str | None,
    no_http: bool,
    advertise: str | None,
    brokers: int | None,
    broker_id: int | None,
    coordination: str | None,
    rack: str | None,
    file: str | None,
    settings: tuple[str, ...],
) -> int:
    """Run a broker until SIGTERM or Ctrl-C, or with --brokers N a whole cluster on this machine.

    When ready it prints one line, `ready HOST:PORT`, with all addresses where there are several, and then a line `http
    http://HOST:PORT` when the HTTP API and the console are. `culver config` explains every setting. A flag beats an
    environment variable, which beats the file.
    """
    overrides = dict(name_value(each, "'--set'") for each in settings)
    flags = {
        "data.dir": data_dir,
        "listen": listen,
        "culver.http.listen": http,
        "culver.http.enable": "false" if no_http else None if http is None else "true",
        "advertise": advertise,
        "node.id": None if broker_id is None else str(broker_id),
        "culver.coordination": coordination,
        "broker.rack": rack,
    }
    if broker_id is not None:
        overrides.pop("broker.id", None)  # another name of node.id: the flag beats both
    overrides |= {name: value for name, value in flags.items() if value is not None}
    config, http_settings = _configuration(file, overrides)
    passed_on = ([] if file is None else ["--config", file]) + [
        word for each in settings for word in ("--set", each)
    ]
    gateway = _gateway(config, http_settings, passed_on)
    if brokers is None:
        return _run_broker(config, gateway)

    from culver.cli.supervisor import Supervisor
    from culver.logging import configure_logging

    plans = _plans(config, brokers, ["--no-http", *passed_on])
    configure_logging(config.log_level, config.log_format)
    return Supervisor(plans, config.data_dir, gateway).run()


def _configuration(file: str | None, overrides: dict[str, str]) -> tuple[BrokerConfig, dict[str, Any]]:
    """The broker's settings, and those of the gateway that are given."""
    from culver.config import load_broker_config, load_gateway_settings
    from culver.errors import KafkaError

    try:
        config = load_broker_config(file, os.environ, overrides)
        http_settings = load_gateway_settings(file, os.environ, overrides)
    except KafkaError as error:
        raise _unusable(error.message or str(error)) from None
    fault = coordination_fault(config.culver_coordination)
    if fault is not None:
        raise _unusable(f"culver.coordination: {fault}")
    return config, http_settings


def _unusable(reason: str) -> Failure:
    return Failure(
        f"the configuration cannot be used: {reason}",
        "`culver config` explains every setting",
        code=ExitCode.USAGE,
    )


def coordination_fault(text: str) -> str | None:
    """What is wrong with the name of a metadata store, or nothing."""
    if text == "local":
        return None
    if text.startswith("local:"):
        return None if text != "local:" else "local: needs the name of a file"
    if not text.startswith("zookeeper://"):
        return f"{text!r} is none of local, local:FILE and zookeeper://HOST:PORT,HOST:PORT/PATH"
    from culver.coordination.zookeeper_client import parse_address

    try:
        parse_address(text)
    except ValueError as error:
        return str(error)
    return None


# --- the gateway beside it ---


def _gateway(
    config: BrokerConfig, http_settings: dict[str, Any], passed_on: list[str]
) -> GatewayProcess | None:
    """The gateway, with its socket. None if it is not wanted, or if nobody asked for it and its port is taken."""
    from culver.config import GatewayConfig

    chosen = GatewayConfig(**http_settings)
    if not chosen.enable:
        return None

    from culver.cli.gateway_process import GatewayProcess, listen
    from culver.logging import configure_logging, get_logger

    try:
        listener = listen(chosen.http)
    except OSError as error:
        if "http" in http_settings:
            raise cannot_listen_for_http(chosen.http, error) from None
        configure_logging(config.log_level, config.log_format)
        get_logger("culver.gateway").warning(
            "no HTTP API and no console: cannot listen on the default address; choose one with --http HOST:PORT",
            address=chosen.http,
            reason=error.strerror,
        )
        return None
    return GatewayProcess(listener, chosen.http, passed_on)


def cannot_listen_for_http(address: str, error: OSError) -> Failure:
    """What to tell about an address that HTTP cannot be served on."""
    hint = "choose another address with --http HOST:PORT; port 0 picks a free one"
    if error.errno == errno.EADDRINUSE:
        return Failure(
            f"cannot listen on {address} for HTTP: another process does", hint, code=ExitCode.IN_USE
        )
    return Failure(f"cannot listen on {address} for HTTP: {error.strerror or error}", hint)


# --- one broker ---


def _run_broker(config: BrokerConfig, gateway: GatewayProcess | None) -> int:
    if config.culver_coordination == "local":
        _refuse_directory_of_several(config.data_dir)

    from culver.broker import process
    from culver.broker.membership import BrokerRefused
    from culver.coordination.store import StoreError
    from culver.log.identity import DataDirectoryOfAnother
    from culver.log.store import DataDirectoryLocked

    try:
        return process.serve(config, gateway)
    except (DataDirectoryLocked, BrokerRefused) as error:
        raise Failure(str(error), code=ExitCode.IN_USE) from None
    except DataDirectoryOfAnother as error:
        raise Failure(str(error), code=ExitCode.USAGE) from None
    except StoreError as error:
        raise Failure(str(error)) from None
    except OSError as error:
        raise _explained(error, config) from error


def _refuse_directory_of_several(data_dir: str) -> None:
    names = sorted(
        os.path.basename(os.path.dirname(path)) for path in glob.glob(f"{data_dir}/broker-*/{_LOCK_FILE}")
    )
    if names:
        raise Failure(
            f"{data_dir} holds the data of several brokers: {', '.join(names)}",
            f"run them with --brokers {len(names)}, or choose another directory with --data-dir",
            code=ExitCode.USAGE,
        )


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


# --- several ---


def _plans(config: BrokerConfig, count: int, passed_on: list[str]) -> list[BrokerPlan]:
    """One broker each: ids and ports count up, the metadata is shared, the data is not."""
    from culver.cli.supervisor import BrokerPlan

    if os.path.exists(os.path.join(config.data_dir, _LOCK_FILE)):
        raise Failure(
            f"{config.data_dir} holds the data of a single broker",
            "run it without --brokers, or choose another directory with --data-dir",
            code=ExitCode.USAGE,
        )
    coordination = config.culver_coordination
    if coordination == "local":
        coordination = f"local:{os.path.join(config.data_dir, _SHARED_METADATA_FILE)}"
    rack = config.broker_rack or socket.gethostname()
    try:
        os.makedirs(config.data_dir, exist_ok=True)
    except OSError as error:
        raise _explained(error, config) from error
    return [
        BrokerPlan(
            broker_id=config.broker_id + number,
            listen=_counted_up(config.listen, number, "--listen"),
            advertise=None
            if config.advertise is None
            else _counted_up(config.advertise, number, "--advertise"),
            arguments=(
                *("--data-dir", os.path.join(config.data_dir, f"broker-{config.broker_id + number}")),
                *("--coordination", coordination),
                *("--rack", rack),
                *passed_on,
            ),
        )
        for number in range(count)
    ]


def _counted_up(address: str, number: int, option: str) -> str:
    """The address with the port of the broker of this number; port 0 stays 0."""
    host, _, text = address.rpartition(":")
    port = int(text)
    if port and port + number > 65535:
        raise Failure(
            f"{option} {address}: the port of broker number {number + 1} would be {port + number}",
            "ports count up from the one given and end at 65535",
            code=ExitCode.USAGE,
        )
    return f"{host}:{port + number if port else 0}"
