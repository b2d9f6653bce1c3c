"""The test tools that Culver gives to others."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from culver.testing import Broker, BrokerFailed, leaks

SETTLE_SECONDS = 0.05


# --- leaks ---


def test_a_block_that_cleans_up_is_fine(tmp_path: Path) -> None:
    with leaks.forbidden(SETTLE_SECONDS):
        (tmp_path / "file").write_text("x")
        thread = threading.Thread(target=lambda: None)
        thread.start()
        thread.join()
        subprocess.run([sys.executable, "-c", ""], check=True)


def test_an_open_file_is_a_leak(tmp_path: Path) -> None:
    opened = []
    with (
        pytest.raises(leaks.Leaked, match=r"left behind:\n  file descriptor \d+: .*/kept-open"),
        leaks.forbidden(SETTLE_SECONDS),
    ):
        opened.append(open(tmp_path / "kept-open", "w"))  # noqa: SIM115
    opened[0].close()


def test_a_running_thread_is_a_leak() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="straggler")
    with pytest.raises(leaks.Leaked, match="thread straggler"), leaks.forbidden(SETTLE_SECONDS):
        thread.start()
    stop.set()
    thread.join()


def test_a_child_process_is_a_leak_until_it_has_been_waited_for() -> None:
    children: list[subprocess.Popen[bytes]] = []
    with pytest.raises(leaks.Leaked, match=r"process \d+: .*"), leaks.forbidden(SETTLE_SECONDS):
        children.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.DEVNULL))
    children[0].wait()


def test_a_reference_cycle_is_no_leak(tmp_path: Path) -> None:
    class Cycle:
        def __init__(self) -> None:
            self.file = open(tmp_path / "cycle", "w")  # noqa: SIM115
            self.me = self

    with pytest.warns(ResourceWarning, match="unclosed file"), leaks.forbidden():
        Cycle()


# --- the broker ---


def test_a_broker_is_ready_with_its_topics_and_leaves_nothing_behind() -> None:
    with Broker(
        topics={"orders": 3}, config={"culver.flush": "os", "auto.create.topics.enable": False}
    ) as broker:
        host, port = broker.bootstrap_servers.split(":")
        assert (host, int(port) > 0) == ("127.0.0.1", True)
        assert broker.running
        assert sorted(path.name for path in broker.data_dir.glob("orders-*")) == [
            "orders-0",
            "orders-1",
            "orders-2",
        ]
        pid, data_dir = broker.pid, broker.data_dir
    assert not broker.running
    assert not data_dir.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_broker_restarts_on_the_same_port_with_the_same_data(tmp_path: Path) -> None:
    with Broker(topics={"orders": 1}, data_dir=tmp_path / "data") as broker:
        address = broker.bootstrap_servers
        broker.restart()
        broker.kill()
        assert not broker.running
        broker.start()
        assert broker.bootstrap_servers == address
        broker.create_topic("payments", partitions=2, config={"cleanup.policy": "compact"})
    assert (tmp_path / "data" / "orders-0").is_dir()
    assert (tmp_path / "data" / "payments-1").is_dir()


def test_a_broker_that_cannot_start_says_why() -> None:
    with pytest.raises(
        BrokerFailed, match=r"(?s)ended at start with exit code 2; its log:.*no\.such\.setting"
    ):
        Broker(config={"no.such.setting": 1}).start()


def test_a_broker_that_ends_badly_is_a_failure_of_the_test() -> None:
    broker = Broker().start()
    os.kill(broker.pid, signal.SIGKILL)
    with pytest.raises(BrokerFailed, match="exit code -9"):
        broker.close()


def test_a_failed_test_is_not_hidden_by_its_broker() -> None:
    def failing_test() -> None:
        with Broker() as broker:
            os.kill(broker.pid, signal.SIGKILL)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        failing_test()


def test_a_broker_dies_with_the_process_that_started_it(tmp_path: Path) -> None:
    script = "; ".join(
        [
            "import os, signal",
            "from culver.testing import Broker",
            "print(Broker().start().pid, flush=True)",
            "os.kill(os.getpid(), signal.SIGKILL)",
        ]
    )
    parent = subprocess.run(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        timeout=60,
        env=os.environ | {"TMPDIR": str(tmp_path)},  # nobody is left to remove the broker's directory
    )
    assert parent.returncode == -signal.SIGKILL
    try:
        broker = os.pidfd_open(int(parent.stdout))
    except ProcessLookupError:
        return
    try:
        assert select.select([broker], [], [], 10)[0], "the broker outlived its parent by ten seconds"
    finally:
        os.close(broker)


def test_what_is_asked_of_a_broker_before_its_start_is_refused() -> None:
    broker = Broker()
    for attribute in ("bootstrap_servers", "pid", "data_dir"):
        with pytest.raises(BrokerFailed):
            getattr(broker, attribute)
    assert broker.log_text == ""


def test_importing_the_test_tools_is_light() -> None:
    script = "import sys, culver.testing.pytest_plugin; print(*sys.modules)"
    loaded = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, check=True
    ).stdout.split()
    assert not {"confluent_kafka", "click", "asyncio", "culver.protocol", "msgspec"} & set(loaded)


# --- the pytest plugin ---


def test_the_fixtures_give_a_broker_and_a_topic_of_its_own(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture(scope="session")
        def culver_broker_options():
            return {"topics": {"from-options": 1}}
        """
    )
    pytester.makepyfile(
        """
        import pytest

        seen = []

        def partitions(broker, topic):
            return len(list(broker.data_dir.glob(topic + "-?")))

        def test_first(culver_broker, culver_topic):
            seen.append(culver_topic)
            assert partitions(culver_broker, culver_topic) == 1
            assert partitions(culver_broker, "from-options") == 1

        @pytest.mark.culver_topic(partitions=3, config={"retention.ms": 1000})
        @pytest.mark.parametrize("text", ["a b/c"])
        def test_second(culver_broker, culver_topic, text):
            seen.append(culver_topic)
            assert partitions(culver_broker, culver_topic) == 3

        def test_third(culver_topic_factory):
            seen.extend([culver_topic_factory(), culver_topic_factory(partitions=2)])
            assert len(set(seen)) == 4
        """
    )
    pytester.runpytest_subprocess("--strict-markers").assert_outcomes(passed=3)
