"""Exit codes of the command line, and the one exception that ends a command with one of them."""

from __future__ import annotations

from enum import IntEnum


class ExitCode(IntEnum):
    """What the command's exit code tells a script. The table in docs/cli.md is this one."""

    OK = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_FOUND = 4
    CORRUPT = 5
    IN_USE = 6
    INTERNAL = 70
    INTERRUPTED = 130
    BROKEN_PIPE = 141


EXIT_CODE_MEANINGS = {
    ExitCode.OK: "done",
    ExitCode.FAILED: "the operation failed; the message says why",
    ExitCode.USAGE: "wrong usage, or a configuration that cannot be used",
    ExitCode.UNREACHABLE: "no broker could be reached, or it did not answer in time",
    ExitCode.NOT_FOUND: "the topic, partition, group, transaction, setting or file does not exist",
    ExitCode.CORRUPT: "damaged data was found",
    ExitCode.IN_USE: "the address, the data directory or the broker id is in use by another process",
    ExitCode.INTERNAL: "a fault in culver itself; CULVER_DEBUG=1 shows where",
    ExitCode.INTERRUPTED: "interrupted with Ctrl-C",
    ExitCode.BROKEN_PIPE: "the reader of the output went away",
}


class Failure(Exception):
    """Ends the command: what happened and to what, then what to do about it."""

    def __init__(self, message: str, hint: str = "", *, code: ExitCode = ExitCode.FAILED) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code
