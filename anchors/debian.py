"""What Debian packages provide: kcat, a C compiler, librdkafka's headers. Found, never installed."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from anchors import Unavailable

COMPILE_TIMEOUT_SECONDS = 120


def kcat() -> str:
    """The kcat program (older Debian releases call it kafkacat)."""
    for name in ("kcat", "kafkacat"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise Unavailable("no kcat on the path (Debian: apt install kcat)")


def c_compiler() -> str:
    for name in ("cc", "gcc", "clang"):
        found = shutil.which(name)
        if found is not None:
            return found
    raise Unavailable("no C compiler on the path (Debian: apt install gcc libc6-dev)")


def compile_c(source: Path, program: Path, *libraries: str) -> Path:
    """Compiles one C file into `program`; a missing header or library makes it `Unavailable`."""
    program.parent.mkdir(parents=True, exist_ok=True)
    command = [
        c_compiler(),
        "-O2",
        "-Wall",
        "-Wextra",
        "-std=gnu11",
        "-o",
        str(program),
        str(source),
        "-lpthread",
    ]
    command += [f"-l{library}" for library in libraries]
    result = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_SECONDS)
    if result.returncode != 0:
        raise Unavailable(f"{source.name} does not compile here: {result.stderr.strip()[-600:]}")
    return program


def librdkafka_version() -> str:
    """The version of librdkafka's development files, as text such as 2.0.2."""
    header = _include_directory() / "librdkafka" / "rdkafka.h"
    for line in header.read_text(errors="replace").splitlines():
        if line.startswith("#define RD_KAFKA_VERSION"):
            number = int(line.split()[2], 16)
            return f"{number >> 24}.{number >> 16 & 255}.{number >> 8 & 255}"
    raise Unavailable(f"{header} names no version")


def _include_directory() -> Path:
    for directory in (Path("/usr/include"), Path("/usr/local/include")):
        if (directory / "librdkafka" / "rdkafka.h").exists():
            return directory
    raise Unavailable("no librdkafka headers (Debian: apt install librdkafka-dev)")
