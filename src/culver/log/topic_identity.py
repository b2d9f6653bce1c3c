"""The topic id in a partition's directory: `partition.metadata`, in Kafka's form.

A topic that is deleted and made anew under its name is another topic. A broker that was down meanwhile tells by the
id that what it holds belongs to the old one.
"""

from __future__ import annotations

import base64
import binascii

from culver.filesystem import FileSystem

METADATA_FILE = "partition.metadata"
_FORM = "version: 0\ntopic_id: "
_TOPIC_ID_BYTES = 16
_TEXT_CHARACTERS = 22


def write_topic_id(fs: FileSystem, directory: str, topic_id: bytes) -> str:
    """Returns the file's path. It is synced with the log's first flush: without one nothing here is durable."""
    path = f"{directory}/{METADATA_FILE}"
    text = _FORM + base64.urlsafe_b64encode(topic_id).rstrip(b"=").decode()
    file = fs.open(path, create=True)
    try:
        file.pwrite(text.encode(), 0)
    finally:
        file.close()
    return path


def read_topic_id(fs: FileSystem, directory: str) -> bytes | None:
    """None when there is no such file, or a power cut has taken what was in it."""
    try:
        text = fs.read(f"{directory}/{METADATA_FILE}").decode("ascii", errors="replace")
    except FileNotFoundError:
        return None
    if not text.startswith(_FORM):
        return None
    try:
        topic_id = base64.urlsafe_b64decode(text[len(_FORM) :][:_TEXT_CHARACTERS] + "==")
    except (binascii.Error, ValueError):
        return None
    return topic_id if len(topic_id) == _TOPIC_ID_BYTES else None
