"""A client of a chaos run on a thread of its own, and where it works."""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from culver.testing.chaos.client_settings import DEBUG, client_settings
from culver.testing.history import History, Partition

_COMPLAINTS_MAX = 1000


@dataclass(frozen=True)
class Workplace:
    """What all clients of a run share."""

    bootstrap: str
    partitions: list[Partition]
    history: History
    # Milliseconds since the run began.
    now_ms: Callable[[], float]
    # Where Kafka's client library writes down what it does, a file for each client; None for nowhere.
    log_directory: Path | None = None

    def settings(self, name: str) -> dict[str, Any]:
        """What all clients have in common."""
        settings = client_settings(self.bootstrap, name)
        if self.log_directory is not None:
            logger = logging.Logger(f"chaos-{name}")
            handler = logging.FileHandler(self.log_directory / f"client-{name}.log", delay=True)
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
            logger.addHandler(handler)
            settings |= {"log_level": 7, "debug": DEBUG, "logger": logger}
        return settings


class Worker(ABC):
    """Works until told to stop. `errors` counts what it was told by name."""

    def __init__(self, name: str, place: Workplace) -> None:
        self.name = name
        self.errors: Counter[str] = Counter()
        self._place = place
        self._history = place.history
        self._now_ms = place.now_ms
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live, name=f"chaos-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Take up nothing new; the thread ends when what was begun is done."""
        self._stopping.set()

    def join(self, timeout_s: float) -> bool:
        """Whether it came to an end in time."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def complain(self, text: str) -> None:
        """Something that cannot be right."""
        if len(self._history.complaints) < _COMPLAINTS_MAX:
            self._history.complaints.append(f"{self.name} at {self._now_ms() / 1000:.2f} s: {text}")

    def _live(self) -> None:
        try:
            self._run()
        except Exception as error:
            self.complain(f"ended with {type(error).__name__}: {error}")
            raise

    @abstractmethod
    def _run(self) -> None: ...
