"""Style that can be checked is a test."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LINES_MAX = 500
BANNED_MODULE_WORDS = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}
# Spelled in pieces, so that this file does not accuse itself.
UNFINISHED = re.compile(
    r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" + "XX", "NotImplemented" + "Error"]) + r")\b"
)
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:work|root|farm|home/\w+)/")


def tracked(*patterns: str) -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [ROOT / line for line in listing.stdout.splitlines() if (ROOT / line).is_file()]


PYTHON = [path for path in tracked("*.py") if path.stat().st_size]
SOURCE = [path for path in PYTHON if path.is_relative_to(ROOT / "src")]


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_a_module_says_its_job_in_its_first_line(path: Path) -> None:
    docstring = ast.get_docstring(ast.parse(path.read_text()))
    assert docstring, "the module needs a docstring that says what it is for"
    assert len(docstring.splitlines()[0]) > 15


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_a_module_can_be_read_in_one_go(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES_MAX


@pytest.mark.parametrize("path", SOURCE, ids=name_of)
def test_a_module_is_named_for_what_it_does(path: Path) -> None:
    words = {word for part in path.relative_to(ROOT).parts for word in part.removesuffix(".py").split("_")}
    assert not words & BANNED_MODULE_WORDS


@pytest.mark.parametrize("path", PYTHON, ids=name_of)
def test_nothing_is_left_unfinished(path: Path) -> None:
    found = [line for line in path.read_text().splitlines() if UNFINISHED.search(line)]
    assert not found


def test_no_file_holds_a_path_of_one_machine() -> None:
    accused = []
    for path in tracked():
        try:
            text = path.read_text()
        except UnicodeDecodeError:
            continue
        accused += [f"{name_of(path)}: {line}" for line in text.splitlines() if MACHINE_PATH.search(line)]
    assert not accused


def test_core_and_protocol_have_no_door_to_the_outside() -> None:
    doors = {"asyncio", "socket", "time", "random", "os", "threading", "subprocess", "sqlite3", "uvloop"}
    accused = []
    for layer in ("core", "protocol"):
        for path in (ROOT / "src" / "culver" / layer).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    names = [node.module or ""]
                elif (
                    isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "open"
                ):
                    accused.append(f"{name_of(path)}: open()")
                    continue
                else:
                    continue
                accused += [f"{name_of(path)}: {name}" for name in names if name.split(".")[0] in doors]
    assert not accused


GATEWAY = [path for path in SOURCE if path.is_relative_to(ROOT / "src/culver/gateway")]


@pytest.mark.parametrize("path", GATEWAY, ids=name_of)
def test_nothing_in_the_gateway_swallows_a_cancellation(path: Path) -> None:
    """Python 3.11's wait_for does when what it waits for is there in the same moment; asyncio.timeout does not."""
    assert "asyncio.wait_for(" not in path.read_text()
