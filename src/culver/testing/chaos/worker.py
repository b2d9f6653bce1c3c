"""A client of a chaos run on a thread of its own."""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from typing import TypeAlias

from culver.testing.history import History

# Milliseconds since the run began.
Clock: TypeAlias = Callable[[], float]

_COMPLAINTS_MAX = 1000


class Worker(ABC):
    """Works until told to stop. `errors` counts what it was told by name."""

    def __init__(self, name: str, history: History, now_ms: Clock) -> None:
        self.name = name
        self.errors: Counter[str] = Counter()
        self._history = history
        self._now_ms = now_ms
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
