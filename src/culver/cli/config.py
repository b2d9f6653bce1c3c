"""`culver config`: the reference of all settings in the terminal."""

from __future__ import annotations

import difflib
import textwrap

import click

from culver.cli.failure import ExitCode, Failure
from culver.cli.output import print_json, print_table
from culver.cli.session import Session, output_option
from culver.config.reference import SettingRow, setting_rows

_WIDTH = 100


@click.command()
@click.argument("name", required=False)
@click.option("--broker", "scope", flag_value="broker", help="Only settings of brokers.")
@click.option("--topic", "scope", flag_value="topic", help="Only settings of topics.")
@click.option("--gateway", "scope", flag_value="gateway", help="Only settings of the gateway.")
@output_option
@click.pass_obj
def config(session: Session, name: str | None, scope: str | None) -> None:
    """Explain the settings of brokers, topics and the gateway: all in brief, or those whose name contains NAME.

    \b
    culver config                      every setting with its default
    culver config retention            what has to do with retention, explained
    culver config --topic -o json      for programs
    """
    rows = [row for row in setting_rows() if scope is None or row.scope == scope]
    if name is not None:
        rows = _named(name, rows)
    if session.json:
        print_json([row._asdict() for row in rows])
    elif name is None:
        columns = ["scope", "setting", "type", "default", "allowed"]
        print_table(columns, [row._asdict() | {"setting": row.name, "allowed": row.range} for row in rows])
    else:
        print("\n".join(_explained(row) for row in rows), end="")


def _named(name: str, rows: list[SettingRow]) -> list[SettingRow]:
    """The settings of exactly this name, or else those that contain it."""
    exact = [row for row in rows if row.name == name]
    found = exact or [row for row in rows if name.lower() in row.name]
    if not found:
        close = difflib.get_close_matches(name, [row.name for row in rows], n=3)
        hint = (
            f"did you mean {' or '.join(dict.fromkeys(close))}?"
            if close
            else "`culver config` lists them all"
        )
        raise Failure(f"no setting has a name with {name!r} in it", hint, code=ExitCode.NOT_FOUND)
    return found


def _explained(row: SettingRow) -> str:
    facts = [
        ("type", row.type),
        ("default", row.default + (f", or what the broker's {row.synonym} says" if row.synonym else "")),
        ("allowed", row.range),
        ("set with", _ways_to_set(row)),
    ]
    lines = [f"{row.name}  ({row.scope} setting)"]
    lines += textwrap.wrap(row.documentation, _WIDTH, initial_indent="  ", subsequent_indent="  ")
    lines += [f"  {label + ':':<10}{text}" for label, text in facts if text]
    return "\n".join(lines) + "\n"


def _ways_to_set(row: SettingRow) -> str:
    if row.scope == "topic":
        return f"culver topic alter TOPIC --set {row.name}=VALUE"
    ways = f"culver serve --set {row.name}=VALUE, or ${row.environment}"
    return f"{ways}; also while the broker runs" if row.dynamic else ways
