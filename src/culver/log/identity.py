"""Whose data directory this is, and whether bytes may have been lost since it was last used.

identity         the cluster, the broker and the directory's own id; the kernel's boot id of the last start
loss-possible    there from the moment that bytes may have been lost until the cluster has been told

A process that is killed loses nothing: what it wrote is in the page cache. Bytes go with the machine, which is what
the boot id tells, or when a write or sync fails.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib

import msgspec

from culver.filesystem import FileSystem
from culver.logging import get_logger

_log = get_logger("culver.log")

IDENTITY_FILE = "identity"
LOSS_FILE = "loss-possible"
_VERSION = 1
_ID_BYTES = 16


class DataDirectoryOfAnother(Exception):
    """The data directory belongs to another cluster or broker."""


class Identity(msgspec.Struct, frozen=True):
    """What the identity file says."""

    cluster_id: str
    broker_id: int
    directory_id: str
    boot_id: str
    version: int = _VERSION


_decoder = msgspec.json.Decoder(Identity)


class DirectoryIdentity:
    """The two files, and what they meant when the directory was opened."""

    def __init__(self, fs: FileSystem, directory: str, *, was_clean: bool) -> None:
        self._fs = fs
        self._directory = directory
        self._boot_id = fs.boot_id()
        # None until the directory is claimed for the first time.
        self.known = self._load()
        same_boot = self.known is not None and bool(self._boot_id) and self.known.boot_id == self._boot_id
        self.loss_possible = fs.exists(self._path(LOSS_FILE)) or (not was_clean and not same_boot)

    def _load(self) -> Identity | None:
        path = self._path(IDENTITY_FILE)
        try:
            known = _decoder.decode(self._fs.read(path))
            if known.version != _VERSION:
                raise msgspec.ValidationError(f"version {known.version}")
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise DataDirectoryOfAnother(
                f"{path} cannot be read ({error}), so nobody knows whose data this is. Restore the file; remove it "
                "only if you are sure that the directory belongs to this broker of this cluster"
            ) from error
        return known

    def claim(self, cluster_id: str, broker_id: int, now_ms: int) -> Identity:
        """Take the directory for a broker, or raise DataDirectoryOfAnother. Durable when it returns."""
        known = self.known
        if known is not None and known.cluster_id != cluster_id:
            raise DataDirectoryOfAnother(
                f"the data directory {self._directory} belongs to cluster {known.cluster_id}, and this broker is to "
                f"join cluster {cluster_id}. Give it a directory of its own, or point it at the metadata store of "
                f"cluster {known.cluster_id}"
            )
        if known is not None and known.broker_id != broker_id:
            raise DataDirectoryOfAnother(
                f"the data directory {self._directory} belongs to broker {known.broker_id}, and this is broker "
                f"{broker_id}. Start it with broker id {known.broker_id}, or give it a directory of its own"
            )
        directory_id = (
            known.directory_id if known is not None else self._new_id(cluster_id, broker_id, now_ms)
        )
        claimed = Identity(cluster_id, broker_id, directory_id, self._boot_id)
        if self.loss_possible:
            # Before the boot id is overwritten: a process that dies before it has told the cluster must know again.
            self._mark("the last stop was not clean, and the machine has been started anew since")
        if claimed != known:
            self._fs.write_atomic(self._path(IDENTITY_FILE), msgspec.json.encode(claimed))
            self.known = claimed
        return claimed

    def _new_id(self, cluster_id: str, broker_id: int, now_ms: int) -> str:
        # No two directories share all of these, and a simulated run gives the same id every time.
        seed = f"{cluster_id}\0{broker_id}\0{self._directory}\0{self._boot_id}\0{now_ms}"
        digest = hashlib.sha256(seed.encode()).digest()[:_ID_BYTES]
        return base64.urlsafe_b64encode(digest).rstrip(b"=").decode()

    def log_failed(self, log_directory: str) -> None:
        """Have the next start know that a write or sync failed; the best that a failing disk allows."""
        try:
            self._mark(f"{log_directory} failed")
        except OSError as error:
            _log.error("could not note that a log failed", log=log_directory, error=str(error))

    def _mark(self, reason: str) -> None:
        path = self._path(LOSS_FILE)
        if not self._fs.exists(path):
            self._fs.write_atomic(path, reason.encode())

    def losses_settled(self) -> None:
        """The cluster does not count on what may have been lost any more."""
        self.loss_possible = False
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(self._path(LOSS_FILE))
            self._fs.sync_directory(self._directory)

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"
