"""CRC-32C: the function alone, without what its package imports to know its own version.

The package `crc32c` reads its distribution's metadata when imported, which costs a broker about 3 MB and
20 ms; the extension module inside it needs none of that.
"""

from __future__ import annotations

import importlib.util
from importlib.machinery import PathFinder
from typing import Protocol

from culver.filesystem import Buffer


class Checksum(Protocol):
    """The CRC of some bytes, or of what came before (`value`) and these."""

    def __call__(self, data: Buffer, value: int = 0, /) -> int: ...


def _extension() -> Checksum | None:
    package = importlib.util.find_spec("crc32c")
    found = PathFinder.find_spec("crc32c._crc32c", package.submodule_search_locations) if package else None
    if found is None or found.loader is None:
        return None
    module = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    function: Checksum | None = getattr(module, "crc32c", None)
    return function


def _load() -> Checksum:
    function = _extension()
    if function is None or function(b"123456789") != 0xE3069283:
        from crc32c import crc32c  # another layout of the package: the front door

        return crc32c
    return function


crc32c: Checksum = _load()
