"""Scripts with commands and what they print, in the manner of etcd's data-driven tests.

A script is a list of blocks, with an empty line between them:

    # A comment: why this block is here.
    command with arguments
    another command
    ----
    what they print together

`check` runs the commands and compares. With CULVER_REWRITE=1 in the environment the expected output in the file
is replaced by the actual one, to be read and committed.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SEPARATOR = "----"


@dataclass
class Block:
    """Some commands, with the comments before and between them, and the output that is expected."""

    lines: list[str]
    expected: list[str]

    @property
    def commands(self) -> list[str]:
        return [line for line in self.lines if line and not line.startswith("#")]


def parse(text: str) -> list[Block]:
    """The blocks of a script; a block without commands is a comment that stands alone."""
    blocks: list[Block] = []
    current = Block([], [])
    in_output = False
    for line in text.splitlines():
        if not line.strip():
            if current.lines:
                blocks.append(current)
            current, in_output = Block([], []), False
        elif line == SEPARATOR:
            in_output = True
        else:
            (current.expected if in_output else current.lines).append(line)
    if current.lines:
        blocks.append(current)
    return blocks


def render(blocks: list[Block]) -> str:
    """A script from its blocks."""
    parts = []
    for block in blocks:
        lines = list(block.lines)
        if block.commands:
            lines += [SEPARATOR, *block.expected]
        parts.append("\n".join(lines))
    return "\n\n".join(parts) + "\n"


def check(path: Path, run: Callable[[str], list[str]]) -> None:
    """Run every command of the script through `run` and compare what it prints."""
    blocks = parse(path.read_text())
    actual = []
    for block in blocks:
        printed = [line for command in block.commands for line in run(command)]
        actual.append(Block(block.lines, printed))
    if os.environ.get("CULVER_REWRITE"):
        path.write_text(render(actual))
        return
    assert render(actual) == render(blocks), f"{path.name} prints something else"
