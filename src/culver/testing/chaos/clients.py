"""Client processes of a chaos run: started, killed, frozen and started again, and what their diaries say."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from culver.lifeline import Lifeline
from culver.testing.chaos.client_process import STUCK
from culver.testing.chaos.copier import CopierDuty
from culver.testing.chaos.diary import DiaryReader
from culver.testing.chaos.teller import TellerDuty
from culver.testing.chaos.worker import Workplace

_AWAY_SECONDS = (0.0, 1.0)
_LAST_LINES = 8


class ClientProcess:
    """One client through all its lives. A life is a process; it writes a diary of its own."""

    def __init__(
        self, name: str, duty: TellerDuty | CopierDuty, place: Workplace, directory: Path, begun_s: float
    ) -> None:
        self.name = name
        self.duty = duty
        self._place = place
        self._directory = directory
        self._begun_s = begun_s
        self._diaries: list[DiaryReader] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: Lifeline | None = None
        self._frozen = False
        # How often it ended because its client library did not let it go on.
        self.stuck = 0

    @property
    def lives(self) -> int:
        return len(self._diaries)

    # -- its life -------------------------------------------------------------------------------------------

    def launch(self) -> None:
        name = f"{self.name}.{len(self._diaries)}"
        path = self._directory / f"client-{name}.jsonl"
        told = {
            "name": name,
            "role": "teller" if isinstance(self.duty, TellerDuty) else "copier",
            "bootstrap": self._place.bootstrap,
            "diary": str(path),
            "begun_s": self._begun_s,
            "log": self._place.log_directory is not None,
            "duty": asdict(self.duty),
        }
        self._diaries.append(
            DiaryReader(path, name, self.duty.transactional_id, self._place.history),
        )
        with (self._directory / f"client-{self.name}.log").open("ab") as log, Lifeline() as lifeline:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "culver.testing.chaos.client_process", json.dumps(told)],
                stdin=lifeline.child_end,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
                start_new_session=True,
            )
            lifeline.tie(self._process.pid)
        self._lifeline = lifeline

    def kill(self) -> None:
        """End it at once (SIGKILL)."""
        if self._process is not None:
            self._process.kill()
            self._reap()

    def freeze(self) -> None:
        if self._process is not None:
            self._frozen = True
            self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None and self._frozen:
            self._process.send_signal(signal.SIGCONT)
        self._frozen = False

    def begin_to_stop(self) -> None:
        """Let it finish what it has begun."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self.thaw()

    def stop(self, timeout_s: float) -> str | None:
        """Wait for its end after `begin_to_stop`; None, or what was wrong with it."""
        if self._process is None:
            return None
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return f"did not come to an end within {timeout_s:.0f} s"
        self._reap()
        # Of the signal itself it dies if it had not yet begun.
        return None if code in (0, -signal.SIGTERM, STUCK) else f"ended with {code}: {self._last_lines()}"

    def ended(self) -> str | None:
        """How it ended, if it did so though nobody asked it to."""
        if self._process is None or self._process.poll() is None:
            return None
        code = self._process.returncode
        self._reap()
        self.stuck += code == STUCK
        return f"client {self.name} ended by itself with {code}: {self._last_lines()}"

    def _reap(self) -> None:
        assert self._process is not None
        self._process.wait()
        self._process = None
        self._frozen = False
        if self._lifeline is not None:
            self._lifeline.cut()
            self._lifeline = None

    def _last_lines(self) -> str:
        text = (self._directory / f"client-{self.name}.log").read_text(errors="replace")
        return "\n".join(text.strip().splitlines()[-_LAST_LINES:])

    # -- what it wrote --------------------------------------------------------------------------------------

    def catch_up(self) -> None:
        """Read what it has written since the last time into the history."""
        for diary in self._diaries:
            diary.catch_up()

    @property
    def committed(self) -> int:
        return sum(diary.committed for diary in self._diaries)

    @property
    def aborted(self) -> int:
        return sum(diary.aborted for diary in self._diaries)

    def told(self) -> Counter[str]:
        total: Counter[str] = Counter()
        for diary in self._diaries:
            total += diary.told
        return total


class Mishaps:
    """Kills clients and starts them again, or freezes them for a while, one after the other, until told to end."""

    def __init__(
        self,
        clients: list[ClientProcess],
        gap_s: tuple[float, float],
        frozen_share: float,
        seed: int,
        note: Callable[[str], object],
        complain: Callable[[str], object],
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._clients = clients
        self._gap_s = gap_s
        self._frozen_share = frozen_share
        self._random = random.Random(f"mishaps-{seed}")
        self._note = note
        self._complain = complain
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._live, name="chaos-mishaps", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        """From now on all clients run, and nothing happens to them."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()

    def _live(self) -> None:
        try:
            while not self._stopping.wait(self._random.uniform(*self._gap_s)):
                self.look()
                self._happen(self._random.choice(self._clients))
        except Exception as error:
            self._complain(f"mishaps ended with {type(error).__name__}: {error}")
            raise

    def look(self) -> None:
        """Whoever ended by itself is noticed and started again."""
        for client in self._clients:
            stuck = client.stuck
            how = client.ended()
            if how is not None:
                if client.stuck > stuck:
                    self._note(f"client {client.name} was stuck and has ended itself")
                else:
                    self._complain(how)
                client.launch()

    def _happen(self, client: ClientProcess) -> None:
        if self._random.random() < self._frozen_share:
            for_s = self._random.uniform(0.2, 1.5 * client.duty.timeout_ms / 1000)
            self._note(f"client {client.name} is frozen for {for_s:.1f} s")
            self.counts["frozen"] += 1
            client.freeze()
            self._stopping.wait(for_s)
            client.thaw()
            return
        self.counts["killed"] += 1
        client.kill()
        away_s = self._random.uniform(*_AWAY_SECONDS)
        self._note(f"client {client.name} was killed, for {away_s:.1f} s")
        self._stopping.wait(away_s)
        client.launch()
