"""The data directory: all partition logs of a broker, their checkpoint, and the lock that keeps others out.

lock                held while a broker runs on the directory
log-checkpoint      see culver.log.checkpoint; rewritten now and then, and on a clean stop
clean-shutdown      there only between a clean stop and the next start
identity            whose directory this is: see culver.log.identity
topic-ids           of partitions made lately: see culver.log.topic_identity
loss-possible       there while bytes may have been lost and the cluster has not been told
topic-0/ ...        one directory per partition
*.deleted/          partitions on their way out
*.stray/            partitions of topics that the metadata did not know, set aside for a new one of that name
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Lock as ThreadLock

from culver.clock import Clock
from culver.config import TopicConfig
from culver.filesystem import FileSystem, Lock
from culver.log import names
from culver.log.checkpoint import CHECKPOINT_FILE, Checkpoint, encode_checkpoints, load_checkpoints
from culver.log.identity import DataDirectoryOfAnother, DirectoryIdentity, Identity
from culver.log.limits import LogLimits
from culver.log.open_files import OpenFiles
from culver.log.partition_log import PartitionLog
from culver.log.topic_identity import RecentTopicIds, read_topic_id
from culver.logging import get_logger

__all__ = ["DataDirectoryLocked", "DataDirectoryOfAnother", "Identity", "LogStore"]

_log = get_logger("culver.log")

LOCK_FILE = "lock"
CLEAN_FILE = "clean-shutdown"

TopicPartition = tuple[str, int]


class DataDirectoryLocked(Exception):
    """Another broker runs on the data directory."""


class CheckpointOrder:
    """Keeps a checkpoint that is being written on a thread from replacing a later one."""

    def __init__(self) -> None:
        self.writing = ThreadLock()
        self.written = 0
        self._numbers = itertools.count(1)

    def next_number(self) -> int:
        return next(self._numbers)


class CheckpointTask:
    """A checkpoint of all logs, to be written on any thread, after the files that it vouches for."""

    __slots__ = ("_content", "_files", "_fs", "_number", "_order", "_path")

    def __init__(
        self,
        fs: FileSystem,
        path: str,
        content: bytes,
        files: list[tuple[str, bytes]],
        order: CheckpointOrder,
    ) -> None:
        self._fs = fs
        self._order = order
        self._number = order.next_number()
        self._path = path
        self._content = content
        self._files = files

    def run(self) -> None:
        """Raises OSError when the checkpoint cannot be written: the one before it still holds."""
        with self._order.writing:
            if self._number < self._order.written:
                return
            for path, content in self._files:
                # Its partition may have been deleted meanwhile.
                with contextlib.suppress(FileNotFoundError):
                    self._fs.write_atomic(path, content, sync=False)
            self._fs.write_atomic(self._path, self._content)
            self._order.written = self._number


class RemovalTask:
    """Files and directories that nobody needs any more, to be removed on any thread."""

    __slots__ = ("_fs", "directories", "files")

    def __init__(self, fs: FileSystem, directories: list[str], files: list[str]) -> None:
        self._fs = fs
        self.directories = directories
        self.files = files

    def run(self) -> None:
        """What is already gone is fine; other failures are logged and tried again at the next start."""
        for path in self.files:
            self._attempt(self._fs.remove, path)
        for path in self.directories:
            self._attempt(self._fs.remove_tree, path)

    def _attempt(self, remove: Callable[[str], None], path: str) -> None:
        try:
            remove(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            _log.warning("could not remove", path=path, error=str(error))


class LogStore:
    """All partition logs under one directory. Open it with `open`, leave it with `close`."""

    def __init__(self, fs: FileSystem, clock: Clock, directory: str, limits: LogLimits, lock: Lock) -> None:
        self._fs = fs
        self._clock = clock
        self.directory = directory
        self._limits = limits
        self._lock = lock
        self._files = OpenFiles(fs, limits.open_files_max)
        self.logs: dict[TopicPartition, PartitionLog] = {}
        # Whether the last stop was clean; a restart after a crash is worth a word in the broker's log.
        self.was_clean = False
        # Directories of partitions that the metadata does not know. They are left alone.
        self.strays: list[str] = []
        self._doomed: list[str] = []
        self._numbers = itertools.count()
        self._checkpoint_order = CheckpointOrder()
        self._recent_ids = RecentTopicIds(fs, directory)
        # Names in the checkpoint on disk whose log has been deleted since.
        self._checkpointed: set[str] = set()
        self._outdated: set[str] = set()

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        clock: Clock,
        directory: str,
        config_of: Callable[[str], TopicConfig | None],
        *,
        limits: LogLimits | None = None,
        topic_id_of: Callable[[str], bytes | None] | None = None,
    ) -> LogStore:
        """Lock the directory and recover every log in it.

        `config_of` gives a topic's configuration, or None for a topic that does not exist any more. A directory that
        was made for another topic id than `topic_id_of` gives is left alone like one of an unknown topic.
        """
        fs.make_directory(directory)
        try:
            lock = fs.lock(f"{directory}/{LOCK_FILE}")
        except BlockingIOError:
            raise DataDirectoryLocked(
                f"another broker is running on the data directory {directory}; "
                "stop it, or choose another directory"
            ) from None
        try:
            store = cls(fs, clock, directory, limits or LogLimits(), lock)
            store._load(config_of, topic_id_of or (lambda _: None))
        except BaseException:
            lock.release()
            raise
        return store

    def _load(
        self, config_of: Callable[[str], TopicConfig | None], topic_id_of: Callable[[str], bytes | None]
    ) -> None:
        listing = self._fs.list(self.directory)
        self.was_clean = CLEAN_FILE in listing
        self._owner = DirectoryIdentity(self._fs, self.directory, was_clean=self.was_clean)
        checkpoints = load_checkpoints(self._fs, self._path(CHECKPOINT_FILE))
        self._checkpointed = set(checkpoints)
        if self.was_clean:
            # From here on a crash must lead to recovery.
            self._fs.remove(self._path(CLEAN_FILE))
        # Also for partitions that the process before made, and died before their names were durable.
        self._fs.sync_directory(self.directory)
        self._recent_ids.load()
        silent: set[str] = set()
        for name in listing:
            partition = names.parse_partition_directory(name)
            if partition is None:
                if name.endswith(names.DELETED):
                    self._doomed.append(self._path(name))
                continue
            config = config_of(partition[0])
            topic_id = topic_id_of(partition[0])
            found_id = read_topic_id(self._fs, self._path(name))
            if found_id is None:
                silent.add(name)
            known_id = found_id or self._recent_ids.ids.get(name)
            if config is None or (topic_id is not None and known_id not in (None, topic_id)):
                self.strays.append(name)
                continue
            log = PartitionLog.open(
                self._fs,
                self._clock,
                self._path(name),
                config,
                clean=self.was_clean,
                checkpoint=checkpoints.get(name),
                limits=self._limits,
                files=self._files,
            )
            log.topic_id = known_id or topic_id
            if log.topic_id is not None and found_id is None:
                log.note_topic_id(log.topic_id)
            self._add(partition, log)
        self._recent_ids.keep_only(silent)

    def _add(self, partition: TopicPartition, log: PartitionLog) -> None:
        self.logs[partition] = log
        log.on_checkpoint_outdated = lambda _: self._write_checkpoint()
        log.on_failure = lambda failed: self._owner.log_failed(failed.directory)

    # -- whose it is -----------------------------------------------------------------------------------------

    @property
    def identity(self) -> Identity | None:
        """What the directory says about itself; None until it is claimed for the first time."""
        return self._owner.known

    @property
    def directory_id(self) -> str:
        """Of its own, for as long as the directory exists; "" until it is claimed for the first time."""
        return self._owner.known.directory_id if self._owner.known is not None else ""

    @property
    def lost_bytes_possible(self) -> bool:
        """Whether records that were acknowledged by this broker may be missing; so it is in a new directory, too."""
        return self._owner.loss_possible

    def claim(self, cluster_id: str, broker_id: int) -> Identity:
        """Take the directory for this broker, for good. DataDirectoryOfAnother when it belongs to another."""
        return self._owner.claim(cluster_id, broker_id, self._clock.now_ms())

    def losses_settled(self) -> None:
        """The cluster counts on nothing that may have been lost here: forget `lost_bytes_possible`, for good.

        Until this is called every start says so again, so that a broker that dies on its way cannot forget it.
        """
        self._owner.losses_settled()

    # -- partitions ------------------------------------------------------------------------------------------

    def get(self, topic: str, partition: int) -> PartitionLog | None:
        return self.logs.get((topic, partition))

    def __iter__(self) -> Iterator[PartitionLog]:
        return iter(self.logs.values())

    def __len__(self) -> int:
        return len(self.logs)

    def create(
        self, topic: str, partition: int, config: TopicConfig, topic_id: bytes | None = None
    ) -> PartitionLog:
        """A new, empty log. OSError when the disk refuses."""
        assert (topic, partition) not in self.logs
        name = names.partition_directory(topic, partition)
        if name in self.strays:
            self.strays.remove(name)
            self._put_aside(name)
        if name in self._outdated:
            # The checkpoint on disk speaks of an earlier partition of this name. After a crash it would be
            # taken for this one, which would then seem to have lost its records.
            self._write_checkpoint()
        if topic_id is not None:
            self._recent_ids.add(name, topic_id)
        log = PartitionLog.create(
            self._fs,
            self._clock,
            self._path(name),
            config,
            limits=self._limits,
            files=self._files,
            topic_id=topic_id,
        )
        self._add((topic, partition), log)
        return log

    def delete(self, topic: str, partition: int) -> None:
        """Take the partition away at once; its files go with the next removal."""
        log = self.logs.pop((topic, partition))
        log.abandon()
        name = names.partition_directory(topic, partition)
        if name in self._checkpointed:
            self._outdated.add(name)
        self._doom(name)

    def set_aside(self, topic: str, partition: int) -> str:
        """Make way for a new log where this one cannot be used; returns the directory that has its files now."""
        log = self.logs.pop((topic, partition))
        log.abandon()
        return self._put_aside(names.partition_directory(topic, partition))

    def _put_aside(self, name: str) -> str:
        """Rename a directory rather than delete it: somebody may miss it. Metadata can be lost, too."""
        if name in self._checkpointed:
            self._outdated.add(name)
        aside = self._free_name(names.STRAY)
        self._fs.rename(self._path(name), aside)
        _log.warning("set a directory aside", directory=name, now=aside)
        return aside

    def _doom(self, name: str) -> None:
        doomed = self._free_name(names.DELETED)
        self._fs.rename(self._path(name), doomed)
        self._doomed.append(doomed)

    def _free_name(self, suffix: str) -> str:
        # Topic names may be as long as file names may be: the new name must not be longer than the old one.
        while True:
            path = self._path(f"{next(self._numbers)}{suffix}")
            if not self._fs.exists(path):
                return path

    def begin_removal(self) -> RemovalTask | None:
        """What may be removed by now: deleted partitions, and segments deleted long enough ago."""
        now_ms = self._clock.now_ms()
        files = [path for log in self.logs.values() for path in log.take_doomed(now_ms)]
        if not files and not self._doomed:
            return None
        directories, self._doomed = self._doomed, []
        return RemovalTask(self._fs, directories, files)

    # -- checkpoints -----------------------------------------------------------------------------------------

    def begin_checkpoint(self) -> CheckpointTask:
        """Write down how far the logs are flushed: recovery after a crash reads only what came later."""
        files = [file for log in self.logs.values() if (file := log.progress_file()) is not None]
        checkpoints: dict[str, Checkpoint] = {
            names.partition_directory(topic, partition): log.checkpoint()
            for (topic, partition), log in self.logs.items()
        }
        self._checkpointed = set(checkpoints)
        content = encode_checkpoints(checkpoints)
        return CheckpointTask(self._fs, self._path(CHECKPOINT_FILE), content, files, self._checkpoint_order)

    def _write_checkpoint(self) -> None:
        self.begin_checkpoint().run()
        self._outdated.clear()

    def close(self, *, threads: int = 1) -> None:
        """Close every log and leave the mark of a clean stop. Logs that failed are marked as not trusted.

        With more threads the syncs run side by side and share the filesystem's commits, which matters for a
        thousand logs with unsynced data.
        """
        if threads > 1:
            self._flush_all(threads)
        for log in self.logs.values():
            log.close()
        try:
            self._write_checkpoint()
            self._fs.write_atomic(self._path(CLEAN_FILE), b"")
        except OSError as error:
            _log.error("could not leave a clean data directory", directory=self.directory, error=str(error))
        self._lock.release()

    def _flush_all(self, threads: int) -> None:
        tasks = [(log, task) for log in self.logs.values() if (task := log.begin_flush()) is not None]
        with ThreadPoolExecutor(threads, thread_name_prefix="culver-close") as pool:
            futures = [pool.submit(task.run) for _, task in tasks]
        for (log, task), future in zip(tasks, futures, strict=True):
            log.finish_flush(task, future.exception())

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"
