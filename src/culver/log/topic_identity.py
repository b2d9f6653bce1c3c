"""Which topic a partition's directory belongs to, told by the topic's id.

A topic that is deleted and made anew under its name is another topic. A broker that was down meanwhile tells by the
id that what it holds belongs to the old one.

The id is in `partition.metadata` in the partition's directory, in Kafka's form. To make a file takes long where
thousands of partitions are made in one request, so it is left to the log's first flush. Until then the id is a line
in `topic-ids`, one file for all partitions: that is enough for a process that is killed, and before its first flush
nothing of a log outlives more than that.
"""

from __future__ import annotations

import base64
import binascii

from culver.filesystem import FileSystem

METADATA_FILE = "partition.metadata"
TOPIC_IDS_FILE = "topic-ids"
_FORM = "version: 0\ntopic_id: "
_TOPIC_ID_BYTES = 16
_TEXT_CHARACTERS = 22


def topic_id_file(directory: str, topic_id: bytes) -> tuple[str, bytes]:
    """(path, content) of a directory's metadata file."""
    return f"{directory}/{METADATA_FILE}", (_FORM + _text(topic_id)).encode()


def read_topic_id(fs: FileSystem, directory: str) -> bytes | None:
    """None when there is no such file, or a power cut has taken what was in it."""
    try:
        text = fs.read(f"{directory}/{METADATA_FILE}").decode("ascii", errors="replace")
    except FileNotFoundError:
        return None
    return _parse(text[len(_FORM) :][:_TEXT_CHARACTERS]) if text.startswith(_FORM) else None


def _text(topic_id: bytes) -> str:
    return base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()


def _parse(text: str) -> bytes | None:
    try:
        topic_id = base64.urlsafe_b64decode(text + "==")
    except (binascii.Error, ValueError):
        return None
    return topic_id if len(topic_id) == _TOPIC_ID_BYTES else None


class RecentTopicIds:
    """The file `topic-ids`: a line for each directory whose own file may not be written yet. The last one counts."""

    def __init__(self, fs: FileSystem, data_directory: str) -> None:
        self._fs = fs
        self._path = f"{data_directory}/{TOPIC_IDS_FILE}"
        self._size_bytes = 0
        self.ids: dict[str, bytes] = {}

    def load(self) -> None:
        try:
            content = self._fs.read(self._path)
        except FileNotFoundError:
            return
        self._size_bytes = len(content)
        for line in content.decode("ascii", errors="replace").split("\n"):
            name, _, text = line.partition(" ")
            topic_id = _parse(text)
            if topic_id is not None:
                self.ids[name] = topic_id

    def add(self, name: str, topic_id: bytes) -> None:
        """One small write at the file's end."""
        self.ids[name] = topic_id
        line = self._line(name, topic_id)
        file = self._fs.open(self._path, create=True)
        try:
            file.pwrite(line, self._size_bytes)
        finally:
            file.close()
        self._size_bytes += len(line)

    def keep_only(self, names: set[str]) -> None:
        """Write the file anew without those whose directories know by themselves, or are gone."""
        if not self._size_bytes:
            return
        self.ids = {name: topic_id for name, topic_id in self.ids.items() if name in names}
        content = b"".join(self._line(name, topic_id) for name, topic_id in self.ids.items())
        if len(content) != self._size_bytes:
            self._fs.write_atomic(self._path, content, sync=False)
            self._size_bytes = len(content)

    @staticmethod
    def _line(name: str, topic_id: bytes) -> bytes:
        return f"\n{name} {_text(topic_id)}".encode()
