"""The diary of a client process: a line before and after everything it does, for a history that survives its death.

A line is handed to the kernel before what it speaks of is begun, so whatever a killed client did can be read. A last
line without an end speaks of something that was never begun.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from culver.testing.history import (
    Commit,
    CommittedRead,
    History,
    Outcome,
    Partition,
    Poll,
    Send,
    Transaction,
)
from culver.testing.transaction_checker import original

_COMPLAINTS_MAX = 1000


class Diary:
    """The client's side. `begun_s` is the run's beginning, by the clock that all processes of a machine share."""

    def __init__(self, path: Path, begun_s: float) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._begun_s = begun_s

    def now_ms(self) -> float:
        return round((time.monotonic() - self._begun_s) * 1000, 1)

    def write(self, event: str, **details: Any) -> None:
        line = json.dumps({"event": event, "ms": self.now_ms()} | details, separators=(",", ":"))
        os.write(self._file, line.encode() + b"\n")

    def close(self) -> None:
        os.close(self._file)


class DiaryReader:
    """The run's side: puts what a client wrote into the history, as often as asked, each line once."""

    def __init__(self, path: Path, producer: str, transactional_id: str, history: History) -> None:
        self._path = path
        self._producer = producer
        self._transactional_id = transactional_id
        self._history = history
        self._read_bytes = 0
        self._rest = b""
        self._transactions: dict[int, Transaction] = {}
        self._numbers: Counter[Partition] = Counter()
        # How often it lost its place as a reader: what it reads does not follow on what it read before.
        self._places = 0
        self.committed = 0
        self.aborted = 0
        self.told: Counter[str] = Counter()

    def catch_up(self) -> None:
        """Read what has been written since the last time."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._read_bytes)
                new = file.read()
        except FileNotFoundError:
            return  # has not come to write anything
        self._read_bytes += len(new)
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            entry = json.loads(line)
            getattr(self, f"_{entry['event']}")(entry)

    # -- lines ----------------------------------------------------------------------------------------------

    def _ready(self, entry: dict[str, Any]) -> None:
        """It owns its transactional id."""

    def _does(self, entry: dict[str, Any]) -> None:
        """Something that may take long: for people who ask why a client does not get on."""

    def _begin(self, entry: dict[str, Any]) -> None:
        """What it is about to do in a transaction: `sends` of [topic, partition, value]; a teller's `amounts` beside
        them; or, of a copier, the `group` it reads in, `reads` of [topic, partition, position, offsets] with the
        offsets of the originals in the order of the copies, and `offsets` of [topic, partition, offset] to commit."""
        transaction = Transaction(self._producer, self._transactional_id, entry["number"])
        self._transactions[transaction.number] = transaction
        self._history.transactions.append(transaction)
        for topic, index, value in entry["sends"]:
            partition = (topic, index)
            number = self._numbers[partition]
            self._numbers[partition] += 1
            send = Send(self._producer, partition, value.encode(), number, invoked_ms=entry["ms"])
            transaction.sends.append(send)
        self._history.sends += transaction.sends
        for send, amount in zip(transaction.sends, entry.get("amounts", ()), strict=False):
            self._history.transfers[send.value] = amount
        if "group" in entry:
            self._copied(transaction, entry)

    def _copied(self, transaction: Transaction, entry: dict[str, Any]) -> None:
        originals = iter([original(send.value) for send in transaction.sends])
        group = entry["group"]
        for topic, index, position, offsets in entry["reads"]:
            self._history.polls.append(
                Poll(
                    self._producer,
                    (topic, index),
                    position,
                    [(offset, next(originals)) for offset in offsets],
                    entry["ms"],
                    group,
                    self._places,
                    committed_only=True,
                )
            )
        transaction.commits = [
            Commit(group, self._producer, (topic, index), offset, entry["ms"], outcome=transaction.outcome)
            for topic, index, offset in entry["offsets"]
        ]
        self._history.commits += transaction.commits

    def _written(self, entry: dict[str, Any]) -> None:
        """The brokers have acknowledged its records, at `offsets`; they are in the log, whatever becomes of them."""
        for send, offset in zip(self._transactions[entry["number"]].sends, entry["offsets"], strict=True):
            if offset is not None:
                send.outcome = Outcome.OK
                send.offset = offset if offset >= 0 else None

    def _commit(self, entry: dict[str, Any]) -> None:
        self._transactions[entry["number"]].commit_asked()

    def _committed(self, entry: dict[str, Any]) -> None:
        self._transactions[entry["number"]].committed(entry["ms"])
        self.committed += 1

    def _aborted(self, entry: dict[str, Any]) -> None:
        """It has been aborted. Nothing is concluded from that: if a commit was asked for, it may have been made."""
        self.aborted += 1

    def _placed(self, entry: dict[str, Any]) -> None:
        """Where its group stands, as it was told: `offsets` of [topic, partition, offset], -1 for none."""
        self._places += 1
        for topic, index, offset in entry["offsets"]:
            self._history.committed_reads.append(
                CommittedRead(entry["group"], (topic, index), offset, entry["asked_ms"], entry["ms"])
            )

    def _told(self, entry: dict[str, Any]) -> None:
        self.told[entry["error"]] += 1

    def _complaint(self, entry: dict[str, Any]) -> None:
        """Something that cannot be right."""
        if len(self._history.complaints) < _COMPLAINTS_MAX:
            self._history.complaints.append(
                f"{self._producer} at {entry['ms'] / 1000:.2f} s: {entry['text']}"
            )
