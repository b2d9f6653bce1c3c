"""Create, publish and delete files so that a crash at any moment leaves either nothing or all of them."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Callable

import crc32c

from culver.pipelines.log_store.errors import LogStoreError

TEMPORARY_SUFFIX = ".tmp"
_CHUNK_BYTES = 1 << 20
# A directory that retention has just emptied may be removed between making it and creating a file in it.
_ATTEMPTS = 20


def write_new(path: str, write: Callable[[str], None]) -> None:
    """Let `write` fill a temporary file, then publish it under `path`. Survives a power cut once this returns."""
    temporary = path + TEMPORARY_SUFFIX
    directory = os.path.dirname(path)
    for attempt in range(_ATTEMPTS):
        try:
            os.makedirs(directory, exist_ok=True)
            write(temporary)
            sync_file(temporary)
            os.rename(temporary, path)
            break
        except (FileNotFoundError, FileExistsError):
            if attempt == _ATTEMPTS - 1:
                raise
    sync_directory(directory)


def write_bytes(path: str, data: bytes) -> None:
    """Replace the file at `path` in one step."""

    def fill(temporary: str) -> None:
        with open(temporary, "wb") as file:
            file.write(data)

    write_new(path, fill)


def create_exclusively(path: str, data: bytes) -> bool:
    """Create `path` with all of `data` in it, in one step; False when somebody else has created it.

    A hard link is that step: it fails when the name exists, on local disks and over NFS alike, and the name never
    shows a file that is half written.
    """
    directory = os.path.dirname(path)
    temporary = os.path.join(directory, uuid.uuid4().hex + TEMPORARY_SUFFIX)
    with open(temporary, "wb") as file:
        file.write(data)
    sync_file(temporary)
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP):
            raise LogStoreError(
                f"the filesystem of {directory} has no hard links, which commits need",
                "keep the store on a local disk or on NFS",
            ) from error
        raise
    finally:
        remove(temporary)
    sync_directory(directory)
    return True


def sync_file(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: str) -> None:
    """Make the names in a directory survive a power cut, and its own name in its parent."""
    for directory in (path, os.path.dirname(path)):
        with contextlib.suppress(FileNotFoundError):  # emptied by retention: its names were not needed
            sync_file(directory or ".")


def remove(path: str) -> bool:
    """Delete a file; False when it was gone already."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    return True


def remove_empty_directories(directory: str, root: str) -> None:
    """Delete `directory` and its parents below `root` as far as they are empty."""
    while directory != root and directory.startswith(root + os.sep):
        try:
            os.rmdir(directory)
        except OSError:
            return
        directory = os.path.dirname(directory)


def checksum(path: str) -> int:
    """The CRC-32C of a whole file."""
    value = 0
    with open(path, "rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            value = crc32c.crc32c(chunk, value)
    return int(value)
