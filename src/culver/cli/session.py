"""What every command knows: which broker to talk to, how to print, how long to wait."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import click

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
DEFAULT_TIMEOUT_SECONDS = 15.0

Command = TypeVar("Command", bound=Callable[..., Any])


@dataclass(slots=True)
class Session:
    """The options that may stand before or after the command's name."""

    bootstrap: str = DEFAULT_BOOTSTRAP
    output: str = "table"
    timeout_s: float = DEFAULT_TIMEOUT_SECONDS
    verbose: bool = False
    client_settings: dict[str, str] = field(default_factory=dict)

    @property
    def json(self) -> bool:
        return self.output == "json"


def name_value(text: str, option: str) -> tuple[str, str]:
    """Split `name=value`; a usage error when there is no name or no equals sign."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise click.BadParameter(f"{text!r} is not of the form name=value", param_hint=option)
    return name.strip(), value


def _into_session(attribute: str) -> Callable[[click.Context, click.Parameter, Any], None]:
    def store(context: click.Context, _: click.Parameter, value: Any) -> None:
        # None and () mean "not given here": the same option may have been given before the command's name.
        if value not in (None, (), False):
            setattr(context.ensure_object(Session), attribute, value)

    return store


def _add_client_settings(context: click.Context, _: click.Parameter, values: tuple[str, ...]) -> None:
    session = context.ensure_object(Session)
    session.client_settings.update(name_value(value, "'-X'") for value in values)


def output_option(command: Command) -> Command:
    """-o, for commands that print results."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(["table", "json"]),
        expose_value=False,
        callback=_into_session("output"),
        help="How to print results.  [default: table]",
    )(command)


def settings_options(command: Command) -> Command:
    """--config and --set, for commands that run something with settings."""
    for decorate in (
        click.option(
            "--set", "settings", metavar="NAME=VALUE", multiple=True, help="One setting; repeatable."
        ),
        click.option(
            "--config",
            "file",
            metavar="FILE.toml",
            envvar="CULVER_CONFIG",
            help="A file with settings.  [default: $CULVER_CONFIG]",
        ),
    ):
        command = decorate(command)
    return command


def client_options(command: Command) -> Command:
    """The options of every command that talks to a broker."""
    for decorate in (
        click.option(
            "-X",
            "client_settings",
            metavar="NAME=VALUE",
            multiple=True,
            expose_value=False,
            callback=_add_client_settings,
            help="A setting of the Kafka client (librdkafka), such as security.protocol=ssl.",
        ),
        click.option(
            "-v",
            "--verbose",
            is_flag=True,
            expose_value=False,
            callback=_into_session("verbose"),
            help="Show the Kafka client's own log on stderr.",
        ),
        click.option(
            "--timeout",
            "timeout_s",
            metavar="SECONDS",
            type=click.FloatRange(min=0.1),
            expose_value=False,
            callback=_into_session("timeout_s"),
            help=f"How long to wait for the broker.  [default: {DEFAULT_TIMEOUT_SECONDS:g}]",
        ),
        output_option,
        click.option(
            "-b",
            "--bootstrap",
            metavar="HOST:PORT[,...]",
            expose_value=False,
            callback=_into_session("bootstrap"),
            help=f"The broker to talk to.  [default: $CULVER_BOOTSTRAP or {DEFAULT_BOOTSTRAP}]",
        ),
    ):
        command = decorate(command)
    return command
