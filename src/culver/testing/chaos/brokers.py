"""The brokers of a chaos run as somebody looks after them: who should run does, and whoever ends unasked is noticed."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from culver.testing.announced_process import BrokerFailed
from culver.testing.broker import Broker
from culver.testing.chaos.cluster import ChaosCluster
from culver.testing.cluster import ClusterFailed
from culver.wire_client import Unreachable

STOP_SECONDS = 60.0
WHOLE_SECONDS = 90.0
_MEMBERS_MAX = 4
_CARE_SECONDS = 0.1
_LAST_LINES = 12
# A process that has not come to the point where it takes care of signals dies of one.
_HARDLY_BEGUN = "exit code -15"


class Brokers:
    """Kills, freezes and stops them on demand; starts one again that ended by itself, and remembers that it did."""

    def __init__(self, cluster: ChaosCluster, note: Callable[[str], object]) -> None:
        self.cluster = cluster
        self.added: Broker | None = None
        self.complaints: list[str] = []
        # Why the metadata store may be out of reach. A broker that is started meanwhile may end again.
        self.store_trouble: set[str] = set()
        self.largest_bytes = 0
        self._note = note
        self._lock = threading.RLock()
        self._held: set[int] = set()  # down or frozen on purpose
        self._excused: set[int] = set()  # were started, or ran, while the store was out of reach
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._care, name="chaos-care", daemon=True)
        self._thread.start()

    def up(self) -> list[Broker]:
        """Those that run and that nothing has been done to."""
        with self._lock:
            return [
                broker
                for broker in self.cluster.brokers
                if broker.running and broker.broker_id not in self._held
            ]

    def close(self) -> None:
        self._stopping.set()
        self._thread.join()

    # -- what is done to them -------------------------------------------------------------------------------

    def kill(self, broker: Broker) -> None:
        with self._lock:
            self._held.add(broker.broker_id)
            broker.kill()

    def freeze(self, broker: Broker) -> None:
        with self._lock:
            if broker.running:
                self._held.add(broker.broker_id)
                broker.suspend()

    def thaw(self, broker: Broker) -> None:
        with self._lock:
            self._held.discard(broker.broker_id)
            broker.resume()

    def stop(self, broker: Broker) -> bool:
        """Ask it to end, and insist that it does so well. False when something else has been done to it already."""
        with self._lock:
            if broker not in self.up():
                return False
            self._held.add(broker.broker_id)
        begun_s = time.monotonic()
        try:
            broker.stop(STOP_SECONDS)
        except BrokerFailed as failure:
            if _HARDLY_BEGUN in str(failure):
                self._note(f"broker {broker.broker_id} was told to stop before it had begun to listen")
            else:
                self._complain(f"broker {broker.broker_id} did not stop well: {_last_lines(str(failure))}")
        else:
            self._note(f"broker {broker.broker_id} took {time.monotonic() - begun_s:.1f} s to stop")
        return True

    def launch(self, broker: Broker) -> None:
        """Start it; whether it gets ready is not waited for."""
        with self._lock:
            self._held.discard(broker.broker_id)
            if not broker.running:
                broker.kill()  # reaps what is left of it
                broker.launch()

    def launch_all(self) -> None:
        for broker in list(self.cluster.brokers):
            self.thaw(broker)
            self.launch(broker)

    def add(self) -> Broker | None:
        """One more, if there is room; it is ready when this returns."""
        if self.added is not None or len(self.cluster.brokers) >= _MEMBERS_MAX or self.store_trouble:
            return None
        try:
            self.added = self.cluster.add_broker("rack-x")
        except (BrokerFailed, ClusterFailed) as failure:
            self._complain(f"a broker could not be added: {_last_lines(str(failure))}")
            return None
        return self.added

    def drain(self, broker: Broker) -> None:
        """Move everything off it, stop it and forget it."""
        others = [each.broker_id for each in self.cluster.brokers if each is not broker]
        deadline_s = time.monotonic() + WHOLE_SECONDS
        while True:
            targets = {}
            for key, state in self.cluster.latest().items():
                if broker.broker_id in state.replicas:
                    kept = [each for each in state.replicas if each != broker.broker_id]
                    spare = [each for each in others if each not in kept]
                    targets[key] = (kept + spare)[: max(1, min(len(state.replicas), len(others)))]
            with contextlib.suppress(Unreachable):
                if not targets and not self.cluster.moving() and self.stop(broker):
                    break
            if time.monotonic() > deadline_s:
                self._complain(f"broker {broker.broker_id} could not be drained, it still has {targets}")
                return
            refused = self.cluster.reassign(targets) if targets else None
            if refused:
                self._note(f"drain: {refused}")
            time.sleep(1.0)
        with self._lock:
            self.cluster.brokers.remove(broker)
            self._held.discard(broker.broker_id)  # one that is added later may have the same id
            self.added = None
        self._keep_log(broker)
        broker.close()
        self._note(f"broker {broker.broker_id} is gone")

    # -- waiting --------------------------------------------------------------------------------------------

    def wait_until_whole(self, timeout_s: float = WHOLE_SECONDS) -> bool:
        """Until all run and are in sync; a complaint when that does not come."""
        deadline_s = time.monotonic() + timeout_s
        trouble: str | None = "not asked"
        while True:
            try:
                trouble = self.cluster.whole()
            except Unreachable as error:
                trouble = str(error)
            if trouble is None:
                return True
            if time.monotonic() > deadline_s:
                self._complain(f"not whole after {timeout_s:.0f} s: {trouble}")
                return False
            time.sleep(0.1)

    # -- care -----------------------------------------------------------------------------------------------

    def _care(self) -> None:
        while not self._stopping.wait(_CARE_SECONDS):
            with self._lock:
                for broker in self.cluster.brokers:
                    if self.store_trouble:
                        self._excused.add(broker.broker_id)
                    if broker.broker_id in self._held:
                        continue
                    if broker.running:
                        self.largest_bytes = max(self.largest_bytes, _resident_bytes(broker.pid))
                    else:
                        self._ended(broker)

    def _ended(self, broker: Broker) -> None:
        """It ended though nobody asked it to."""
        last = _last_lines(broker.log_text)
        number = broker.broker_id
        self._note(f"broker {number} ended by itself: {last.splitlines()[-1:]}")
        if number not in self._excused:
            self._complain(f"broker {number} ended by itself: {last}")
        if not self.store_trouble:
            self._excused.discard(number)
        self.launch(broker)

    def _complain(self, text: str) -> None:
        self._note(f"COMPLAINT {text}")
        self.complaints.append(text)

    def keep_logs(self) -> None:
        """Put what the brokers logged beside their data."""
        for broker in self.cluster.brokers:
            self._keep_log(broker)

    def _keep_log(self, broker: Broker) -> None:
        (self.cluster.directory / f"broker-{broker.broker_id}.log").write_text(broker.log_text)


def _resident_bytes(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
    except (OSError, IndexError):
        return 0


def _last_lines(text: str) -> str:
    return "\n".join(text.strip().splitlines()[-_LAST_LINES:])
