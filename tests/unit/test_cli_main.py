"""The command line as a whole: what is imported, how failures end, what help says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from culver.cli import main as main_module
from culver.cli.failure import EXIT_CODE_MEANINGS, ExitCode, Failure
from culver.cli.main import COMMANDS, cli, run
from culver.cli.output import duration
from culver.cli.session import Session
from culver.config.sources import NO_SETTINGS

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


def commands(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every command and group, by its words."""
    context = click.Context(group)
    found = []
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        found.append((*path, name))
        if isinstance(command, click.Group):
            found += commands(command, (*path, name))
    return found


def command_at(path: tuple[str, ...]) -> click.Command:
    command: click.Command = cli
    for name in path:
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), name)
        assert found is not None
        command = found
    return command


@pytest.mark.parametrize("path", commands(cli), ids=" ".join)
def test_variables_that_options_are_read_from_are_no_settings(path: tuple[str, ...]) -> None:
    """Otherwise a broker would refuse to start where one of them is set."""
    named = [option.envvar for option in command_at(path).params if option.envvar]
    assert {name for name in named if isinstance(name, str)} <= NO_SETTINGS


def test_serve_loads_neither_the_kafka_client_nor_rich() -> None:
    script = "\n".join(
        [
            "import sys",
            "from culver.cli.main import run",
            "assert run(['serve', '--help']) == 0",
            "heavy = {'rich', 'confluent_kafka', 'requests', 'asyncio'} & sys.modules.keys()",
            "assert not heavy, heavy",
        ]
    )
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL)


def test_help_lists_the_commands_without_importing_them() -> None:
    script = (
        "import sys; from culver.cli.main import run; run(['-h']); sys.exit('confluent_kafka' in sys.modules)"
    )
    listed = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    for name in COMMANDS:
        assert f"\n  {name} " in listed


@pytest.mark.parametrize("path", commands(cli), ids=" ".join)
def test_every_command_explains_itself(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert run([*path, "--help"]) == ExitCode.OK
    printed = capsys.readouterr().out
    assert printed.startswith(f"Usage: culver {' '.join(path)}")
    assert "--help" in printed


def test_every_exit_code_is_explained_in_the_help_and_the_documentation(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert EXIT_CODE_MEANINGS.keys() == set(ExitCode)
    run(["--help"])
    printed = " ".join(capsys.readouterr().out.split())
    documented = DOCS.read_text()
    for code, meaning in EXIT_CODE_MEANINGS.items():
        assert f"{int(code)} {meaning}" in printed
        assert f"| {int(code)} | {meaning} |" in documented


@pytest.mark.parametrize("path", commands(cli), ids=" ".join)
def test_every_command_is_documented(path: tuple[str, ...]) -> None:
    assert f"culver {' '.join(path)}" in DOCS.read_text()


@pytest.mark.parametrize(
    ("raised", "code", "complaint"),
    [
        (Failure("it broke", "mend it", code=ExitCode.NOT_FOUND), 4, "culver: it broke\n  mend it\n"),
        (KeyboardInterrupt(), 130, ""),
        (click.Abort(), 130, ""),
        (click.UsageError("no such thing"), 2, "Error: no such thing\n"),
        (
            ZeroDivisionError("oops"),
            70,
            "culver: unexpected ZeroDivisionError: oops\n"
            "  this is a fault in culver; CULVER_DEBUG=1 shows where it happened\n",
        ),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_a_failure_is_a_message_and_an_exit_code_and_never_a_traceback(
    raised: BaseException,
    code: int,
    complaint: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise raised

    monkeypatch.delenv("CULVER_DEBUG", raising=False)
    monkeypatch.setattr(main_module.cli, "invoke", fail)
    assert run(["serve"]) == code
    assert capsys.readouterr().err == complaint


def test_a_reader_that_goes_away_is_no_reason_to_complain() -> None:
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [sys.executable, "-m", "culver", "--help"], stdout=write_end, stderr=subprocess.PIPE, text=True
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (ExitCode.BROKEN_PIPE, "")


def test_options_may_stand_before_or_after_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Session] = []

    @click.command()
    @main_module.client_options
    @click.pass_obj
    def probe(session: Session) -> None:
        seen.append(session)

    monkeypatch.setenv("CULVER_BOOTSTRAP", "from-environment:1")
    monkeypatch.setattr(main_module.cli, "get_command", lambda *_: probe)
    assert run(["probe"]) == 0
    assert run(["-b", "before:1", "-o", "json", "-X", "a=1", "probe"]) == 0
    assert run(["-b", "before:1", "probe", "-b", "after:1", "-o", "json", "-X", "b=2=3"]) == 0
    assert [each.bootstrap for each in seen] == ["from-environment:1", "before:1", "after:1"]
    assert [each.json for each in seen] == [False, True, True]
    assert [each.client_settings for each in seen] == [{}, {"a": "1"}, {"b": "2=3"}]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, None), (0, "0.0s"), (59.94, "59.9s"), (60, "1m 0s"), (3_725, "1h 2m"), (90_061, "1d 1h")],
)
def test_a_length_of_time_is_printed_in_its_two_largest_units(
    seconds: float | None, text: str | None
) -> None:
    assert duration(seconds) == text
