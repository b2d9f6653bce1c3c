"""Several broker processes on one machine: start them, start a dead one again, stop one after the other.

One thread that waits for signals and for what the brokers print. A broker that ends before it was ever ready is a
mistake to be told about (a taken port, a bad setting), so everything is stopped and its exit code is passed on. One
that ends later is started again, after a pause that grows with each quick death.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from culver.cli.failure import ExitCode
from culver.cli.gateway_process import GatewayProcess
from culver.cli.restart_pause import RestartPause
from culver.lifeline import Lifeline
from culver.logging import get_logger

_log = get_logger("culver.supervisor")

STOP_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """How one broker is started. `arguments` are those of `culver serve` but for its address."""

    broker_id: int
    listen: str
    advertise: str | None
    arguments: tuple[str, ...]

    @property
    def port_is_picked(self) -> bool:
        return self.listen.endswith(":0")


@dataclass(slots=True)
class _Broker:
    """One broker process, or the pause until it is started again."""

    plan: BrokerPlan
    listen: str
    process: subprocess.Popen[bytes] | None = None
    lifeline: Lifeline | None = None
    # What clients are told, once it has been ready.
    address: str = ""
    ready: bool = False
    output: bytearray = field(default_factory=bytearray)
    started_at_s: float = 0.0
    # When to start it again, or, while stopping, when to kill it.
    due_at_s: float | None = None
    pause: RestartPause = field(default_factory=RestartPause)

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "culver", "serve", "--broker-id", str(self.plan.broker_id)]
        command += ["--listen", self.listen]
        if self.plan.advertise is not None:
            command += ["--advertise", self.plan.advertise]
        return [*command, *self.plan.arguments]


class Supervisor:
    """Runs the brokers until SIGTERM, SIGINT or SIGHUP. `run` returns the exit code."""

    def __init__(
        self, plans: Sequence[BrokerPlan], data_dir: str, gateway: GatewayProcess | None = None
    ) -> None:
        self._brokers = [_Broker(plan, plan.listen) for plan in plans]
        self._gateway = gateway
        self._data_dir = data_dir
        self._selector = selectors.DefaultSelector()
        self._announced = False
        self._exit_code: int = ExitCode.OK
        # None: not stopping. Otherwise the brokers that are yet to be told.
        self._to_stop: list[_Broker] | None = None

    def run(self) -> int:
        with self._signals() as signals:
            self._selector.register(signals, selectors.EVENT_READ)
            try:
                for broker in self._brokers:
                    self._start(broker)
                while self._to_stop is None or any(broker.process for broker in self._brokers):
                    self._step(signals)
            finally:
                self._kill_all()
                self._selector.close()
        return self._exit_code

    @contextlib.contextmanager
    def _signals(self) -> Iterator[int]:
        """The descriptor from which the numbers of arriving signals can be read."""
        read_end, write_end = os.pipe()
        os.set_blocking(read_end, False)
        os.set_blocking(write_end, False)
        before_fd = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
        before = {number: signal.signal(number, lambda _number, _frame: None) for number in numbers}
        try:
            yield read_end
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_fd)
            os.close(read_end)
            os.close(write_end)

    # -- one turn -------------------------------------------------------------------------------------------

    def _step(self, signals: int) -> None:
        dues = [broker.due_at_s for broker in self._brokers if broker.due_at_s is not None]
        timeout_s = max(0.0, min(dues) - time.monotonic()) if dues else None
        for key, _ in self._selector.select(timeout_s):
            if key.fd == signals:
                for number in os.read(signals, 4096):
                    if number != signal.SIGCHLD:
                        self._told_to_stop(signal.Signals(number))
            else:
                self._read(key.data)
        for broker in self._brokers:
            if broker.process is not None and broker.process.poll() is not None:
                self._ended(broker, broker.process.returncode)
        now_s = time.monotonic()
        for broker in self._brokers:
            if broker.due_at_s is not None and broker.due_at_s <= now_s:
                broker.due_at_s = None
                if self._to_stop is None:
                    self._start(broker)
                else:
                    self._kill(broker)
        self._stop_next()

    def _start(self, broker: _Broker) -> None:
        broker.output.clear()
        broker.ready = False
        broker.started_at_s = time.monotonic()
        with Lifeline() as lifeline:
            broker.process = subprocess.Popen(
                broker.command(),
                stdin=lifeline.child_end,
                stdout=subprocess.PIPE,
                # A Ctrl-C at the terminal is for the supervisor, which then stops the brokers in turn.
                start_new_session=True,
            )
            lifeline.tie(broker.process.pid)
        broker.lifeline = lifeline
        assert broker.process.stdout is not None
        self._selector.register(broker.process.stdout, selectors.EVENT_READ, broker)

    def _read(self, broker: _Broker) -> None:
        assert broker.process is not None
        assert broker.process.stdout is not None
        chunk = os.read(broker.process.stdout.fileno(), 4096)
        if not chunk:
            self._selector.unregister(broker.process.stdout)
            return
        broker.output += chunk
        while (end := broker.output.find(b"\n")) >= 0:
            words = broker.output[:end].decode(errors="replace").split()
            del broker.output[: end + 1]
            if len(words) >= 2 and words[0] == "ready":
                self._became_ready(broker, words[1])

    def _became_ready(self, broker: _Broker, address: str) -> None:
        broker.ready = True
        broker.address = address
        if broker.plan.port_is_picked and broker.plan.advertise is None:
            broker.listen = address  # the next start keeps the port, so that clients find it where it was
        if self._announced:
            _log.warning("broker is ready again", broker=broker.plan.broker_id, address=address)
        elif all(each.ready for each in self._brokers) and self._to_stop is None:
            self._announced = True
            addresses = ",".join(each.address for each in self._brokers)
            ids = ",".join(str(each.plan.broker_id) for each in self._brokers)
            print(f"ready {addresses} brokers={ids} data={self._data_dir}", flush=True)
            if self._gateway is not None:
                self._gateway.start(addresses)

    def _ended(self, broker: _Broker, exit_code: int) -> None:
        was_ready = broker.address != ""
        self._release(broker)
        if self._to_stop is not None:
            broker.due_at_s = None
            if exit_code != 0 and self._announced:  # one that is stopped while it starts may end as it likes
                _log.error("broker ended badly", broker=broker.plan.broker_id, reason=_reason(exit_code))
                self._exit_code = self._exit_code or ExitCode.FAILED
            return
        if not was_ready:
            # It has said why on stderr.
            _log.error("broker did not start", broker=broker.plan.broker_id, reason=_reason(exit_code))
            self._exit_code = exit_code if exit_code > 0 else ExitCode.FAILED
            self._begin_to_stop()
            return
        now_s = time.monotonic()
        pause_s = broker.pause.after(now_s - broker.started_at_s)
        if exit_code == ExitCode.IN_USE and broker.plan.port_is_picked:
            broker.listen = broker.plan.listen  # somebody took its port meanwhile: any other will do
        _log.error(
            "broker died and is started again",
            broker=broker.plan.broker_id,
            reason=_reason(exit_code),
            pause_s=pause_s,
        )
        broker.due_at_s = now_s + pause_s

    # -- stopping -------------------------------------------------------------------------------------------

    def _told_to_stop(self, number: signal.Signals) -> None:
        if self._to_stop is None:
            _log.info("stopping the brokers one after the other", signal=number.name)
            self._begin_to_stop()
            return
        # Asked twice: no more waiting for one another.
        while self._to_stop:
            self._stop(self._to_stop.pop(0))

    def _begin_to_stop(self) -> None:
        if self._gateway is not None:
            self._gateway.stop()  # first, so that what it has accepted is written
        for broker in self._brokers:
            broker.due_at_s = None
        self._to_stop = [broker for broker in self._brokers if broker.process is not None]
        if not self._announced:
            # Not a cluster yet: nobody has anything to hand over.
            while self._to_stop:
                self._stop(self._to_stop.pop(0))

    def _stop_next(self) -> None:
        """A broker is told to stop when the one before it has ended: it may have handed its leaderships to it."""
        if not self._to_stop or any(broker.due_at_s is not None for broker in self._brokers):
            return
        self._stop(self._to_stop.pop(0))

    def _stop(self, broker: _Broker) -> None:
        if broker.process is not None:
            broker.process.send_signal(signal.SIGTERM)
            broker.due_at_s = time.monotonic() + STOP_SECONDS

    def _kill(self, broker: _Broker) -> None:
        _log.error(
            "broker did not stop and is killed", broker=broker.plan.broker_id, after_s=f"{STOP_SECONDS:g}"
        )
        assert broker.process is not None
        broker.process.kill()

    def _kill_all(self) -> None:
        """Whatever happened, no broker is left behind."""
        for broker in self._brokers:
            if broker.process is not None:
                broker.process.kill()
                broker.process.wait()
                self._release(broker)

    def _release(self, broker: _Broker) -> None:
        assert broker.process is not None
        if broker.process.stdout is not None:
            with contextlib.suppress(KeyError):
                self._selector.unregister(broker.process.stdout)
            broker.process.stdout.close()
        if broker.lifeline is not None:
            broker.lifeline.cut()
        broker.process = broker.lifeline = None
        broker.ready = False


def _reason(exit_code: int) -> str:
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"killed by signal {-exit_code}"
