"""Ask before something that cannot be undone."""

from __future__ import annotations

import sys

import click

from culver.cli.failure import ExitCode, Failure

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask.")


def confirm(question: str, yes: bool) -> None:
    """Go on only if somebody says so; without a terminal, insist on --yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure(
            f"{question} Not without --yes when there is no terminal to ask on.", code=ExitCode.USAGE
        )
    click.confirm(question, abort=True, err=True)
