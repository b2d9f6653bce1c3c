"""The command line, run as people run it, against a broker of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from culver.testing import Broker
from culver.testing.pytest_plugin import TopicFactory

TIMEOUT_SECONDS = 60


class Shell:
    """Runs culver against one broker."""

    def __init__(self, bootstrap: str) -> None:
        self.environment = os.environ | {"CULVER_BOOTSTRAP": bootstrap}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "culver", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "culver", *arguments],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_SECONDS,
        )

    def out(self, *arguments: str, stdin: str = "") -> str:
        """What a command that succeeds prints."""
        done = self.run(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *arguments: str) -> Any:
        return json.loads(self.out(*arguments, "-o", "json"))

    def fails(self, code: int, *arguments: str, stdin: str = "") -> str:
        """The complaint of a command that fails with this exit code."""
        done = self.run(*arguments, stdin=stdin)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        return done.stderr


@pytest.fixture(scope="module")
def culver_broker() -> Iterator[Broker]:
    # Kafka's default waits three seconds for more members before a group may begin.
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        yield broker


@pytest.fixture(scope="module")
def shell(culver_broker: Broker) -> Shell:
    return Shell(culver_broker.bootstrap_servers)


# --- produce and consume ---


def test_what_is_produced_is_consumed(shell: Shell, culver_topic: str) -> None:
    done = shell.run("produce", culver_topic, "hello", "wörld")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == f"2 records to {culver_topic}: partition 0 offsets 0-1\n"
    assert shell.out("consume", culver_topic) == "hello\nwörld\n"


def test_lines_of_stdin_and_of_files_are_records(shell: Shell, culver_topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("c\nd\n")
    (tmp_path / "whole").write_text("e\nf")
    shell.out("produce", culver_topic, stdin="a\nb")
    shell.out("produce", culver_topic, "-l", str(tmp_path / "lines"))
    shell.out("produce", culver_topic, "--whole", "-l", str(tmp_path / "whole"))
    shell.out("produce", culver_topic, "-D", ";", stdin="g;h;")
    assert shell.out("consume", culver_topic, "-f", "%s|") == "a|b|c|d|e\nf|g|h|"


@pytest.mark.culver_topic(config={"retention.ms": -1})
def test_keys_nulls_headers_and_timestamps_go_through(shell: Shell, culver_topic: str) -> None:
    options = ["-K", ":", "-Z", "-H", "trace=a1", "-H", "kind=test", "-t", "1769860800123"]
    shell.out("produce", culver_topic, *options, stdin="k1:v1\nk2:\n:v3\nplain\n")
    assert shell.out("consume", culver_topic, "-f", "%o %k(%K)=%s(%S) %h %d\\n").splitlines() == [
        "0 k1(2)=v1(2) trace=a1,kind=test 2026-01-31T12:00:00.123Z",
        "1 k2(2)=(-1) trace=a1,kind=test 2026-01-31T12:00:00.123Z",
        "2 (-1)=v3(2) trace=a1,kind=test 2026-01-31T12:00:00.123Z",
        "3 (-1)=plain(5) trace=a1,kind=test 2026-01-31T12:00:00.123Z",
    ]


@pytest.mark.culver_topic(partitions=3)
def test_json_lines_copy_a_topic_exactly(
    shell: Shell, culver_topic: str, culver_topic_factory: TopicFactory
) -> None:
    copy = culver_topic_factory(partitions=3)
    shell.out(
        "produce",
        culver_topic,
        "-K",
        ":",
        "-H",
        "a=b",
        stdin="".join(f"key{n}:value{n}\n" for n in range(50)),
    )
    original = shell.out("consume", culver_topic, "--json")
    shell.out("produce", copy, "--json", stdin=original)

    def content(lines: str) -> list[dict[str, Any]]:
        records = [json.loads(line) | {"topic": ""} for line in lines.splitlines()]
        return sorted(records, key=lambda record: (record["partition"], record["offset"]))

    assert len(content(original)) == 50
    assert content(shell.out("consume", copy, "-o", "json")) == content(original)


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec(shell: Shell, culver_topic: str, codec: str) -> None:
    lines = "".join(f"record {number} of many alike\n" for number in range(1000))
    summary = shell.run("produce", culver_topic, "-z", codec, "-o", "json", stdin=lines)
    assert json.loads(summary.stdout) == {
        "topic": culver_topic,
        "records": 1000,
        "partitions": [{"partition": 0, "records": 1000, "first_offset": 0, "last_offset": 999}],
    }
    assert shell.out("consume", culver_topic) == lines


@pytest.mark.parametrize("acks", ["0", "1", "all"])
def test_every_level_of_acknowledgement(shell: Shell, culver_topic: str, acks: str) -> None:
    shell.out("produce", culver_topic, "--acks", acks, "a", "b")
    # With acks=0 the command may end before the broker has written.
    assert shell.out("consume", culver_topic, "--follow", "--from", "beginning", "-n", "2") == "a\nb\n"


@pytest.mark.parametrize(
    ("options", "offsets"),
    [
        ([], [0, 1, 2, 3, 4, 5]),
        (["--from", "4"], [4, 5]),
        (["--from", "-2"], [4, 5]),
        (["--from", "-200"], [0, 1, 2, 3, 4, 5]),
        (["--from", "end"], []),
        (["--from", "99"], []),
        (["--until", "2"], [0, 1]),
        (["--until", "-2"], [0, 1, 2, 3]),
        (["--until", "beginning"], []),
        (["--until", "99"], [0, 1, 2, 3, 4, 5]),
        (["--from", "@3000"], [3, 4, 5]),
        (["--from", "@1500", "--until", "@1970-01-01T00:00:04Z"], [2, 3]),
        (["--from", "@now"], []),
        (["-n", "2"], [0, 1]),
        (["--from", "1", "--until", "5", "-n", "3"], [1, 2, 3]),
        (["--follow", "--from", "beginning", "--until", "@4000"], [0, 1, 2, 3]),
        (["--follow", "--from", "beginning", "--until", "3"], [0, 1, 2]),
    ],
)
def test_from_until_and_count_choose_the_records(
    shell: Shell, ladder: str, options: list[str], offsets: list[int]
) -> None:
    assert shell.out("consume", ladder, "-f", "%o ", *options).split() == [str(offset) for offset in offsets]


@pytest.fixture(scope="module")
def ladder(shell: Shell, culver_broker: Broker) -> str:
    """Six records, whose timestamps are their offsets in seconds after 1970 (but for the first)."""
    culver_broker.create_topic("ladder", config={"retention.ms": -1})
    lines = "".join(json.dumps({"value": "x", "timestamp": max(1, 1000 * n)}) + "\n" for n in range(6))
    shell.out("produce", "ladder", "--json", stdin=lines)
    return "ladder"


@pytest.mark.culver_topic(partitions=3)
def test_partitions_can_be_chosen_on_both_sides(shell: Shell, culver_topic: str) -> None:
    for partition in range(3):
        shell.out("produce", culver_topic, "-p", str(partition), f"to {partition}")
    assert shell.out("consume", culver_topic, "-p", "2", "-p", "0", "-f", "%p %s\n").splitlines() in (
        ["0 to 0", "2 to 2"],
        ["2 to 2", "0 to 0"],
    )


@pytest.mark.culver_topic(partitions=8)
def test_a_key_goes_where_the_java_client_puts_it(shell: Shell, culver_topic: str) -> None:
    # murmur2, as computed by Kafka's own producer for eight partitions.
    shell.out("produce", culver_topic, "-K", ":", stdin="a:1\nb:2\nkey:3\n")
    placed = dict(line.split() for line in shell.out("consume", culver_topic, "-f", "%k %p\\n").splitlines())
    assert placed == {key: str(_murmur2_partition(key.encode(), 8)) for key in ("a", "b", "key")}


def _murmur2_partition(key: bytes, partitions: int) -> int:
    mixer, mask = 0x5BD1E995, 0xFFFFFFFF
    value = (0x9747B28C ^ len(key)) & mask
    whole = len(key) // 4 * 4
    for position in range(0, whole, 4):
        word = int.from_bytes(key[position : position + 4], "little") * mixer & mask
        word = (word ^ word >> 24) * mixer & mask
        value = (value * mixer & mask) ^ word
    if rest := key[whole:]:
        value = (value ^ int.from_bytes(rest, "little")) * mixer & mask
    value = (value ^ value >> 13) * mixer & mask
    return ((value ^ value >> 15) & 0x7FFFFFFF) % partitions


def test_follow_waits_for_more_and_ends_quietly_on_ctrl_c(shell: Shell, culver_topic: str) -> None:
    shell.out("produce", culver_topic, "before")
    with shell.start("consume", culver_topic, "--follow", "--from", "beginning") as follower:
        assert follower.stdout is not None
        assert follower.stderr is not None
        assert follower.stdout.readline() == "before\n"
        shell.out("produce", culver_topic, "after")
        assert follower.stdout.readline() == "after\n"
        follower.send_signal(signal.SIGINT)
        assert (follower.stdout.read(), follower.stderr.read()) == ("", "")
    assert follower.returncode == 130


def test_a_reader_that_had_enough_is_no_reason_to_complain(shell: Shell, culver_topic: str) -> None:
    shell.out("produce", culver_topic, stdin="".join(f"{number:0100}\n" for number in range(20_000)))
    with shell.start("consume", culver_topic) as consumer:
        assert consumer.stdout is not None
        assert consumer.stderr is not None
        assert consumer.stdout.readline() == f"{0:0100}\n"
        consumer.stdout.close()
        assert consumer.stderr.read() == ""
    assert consumer.returncode == 141


def test_long_work_shows_a_progress_bar_only_on_a_terminal(
    shell: Shell, culver_topic: str, tmp_path: Path
) -> None:
    (tmp_path / "lines").write_text("line\n" * 1000)
    command = [sys.executable, "-m", "culver", "produce", culver_topic, "-l", str(tmp_path / "lines")]
    terminal, stderr = os.openpty()
    try:
        environment = shell.environment | {"TERM": "xterm"}
        subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stderr=stderr, check=True)
        assert b"writing" in os.read(terminal, 1 << 16)
    finally:
        os.close(terminal)
        os.close(stderr)
    assert "writing" not in shell.run(*command[3:]).stderr


# --- groups ---


@pytest.mark.culver_topic(partitions=2)
def test_a_group_goes_on_where_it_left_off(shell: Shell, culver_topic: str) -> None:
    group = f"group-of-{culver_topic}"
    shell.out("produce", culver_topic, "-p", "0", "a", "b", "c")
    assert shell.out("consume", culver_topic, "--group", group, "-n", "2") == "a\nb\n"
    shell.out("produce", culver_topic, "-p", "0", "d")
    assert shell.out("consume", culver_topic, "--group", group) == "c\nd\n"
    assert shell.out("consume", culver_topic, "--group", group) == ""
    assert shell.out("consume", culver_topic, "--group", f"{group}-2", "--from", "end") == ""


def test_lag_is_shown_in_records_and_in_seconds(shell: Shell, culver_topic: str) -> None:
    group = f"group-of-{culver_topic}"
    hour_ago_ms = time.time_ns() // 1_000_000 - 3_600_000
    shell.out("produce", culver_topic, "read")
    shell.out("produce", culver_topic, "-t", str(hour_ago_ms), "oldest unread")
    shell.out("produce", culver_topic, "newest unread")
    shell.out("consume", culver_topic, "--group", group, "-n", "1")
    (described,) = shell.json("group", "describe", group)
    assert (described["group"], described["state"], described["lag"]) == (group, "empty", 2)
    assert 3600 <= described["lag_seconds"] < 3700
    (partition,) = described["partitions"]
    assert (partition["committed"], partition["start"], partition["end"], partition["lag"]) == (1, 0, 3, 2)
    assert "lag 2, 1h 0m behind" in shell.out("group", "describe", group)
    shell.out("consume", culver_topic, "--group", group)
    (described,) = shell.json("group", "describe", group)
    assert (described["lag"], described["lag_seconds"]) == (0, 0.0)


def test_a_group_can_be_moved_and_the_move_be_seen_before(shell: Shell, ladder: str) -> None:
    group = "mover"
    shell.out("consume", ladder, "--group", group)

    def seek(*options: str) -> int:
        (row,) = shell.json("group", "seek", group, *options)
        return int(row["new"])

    def committed() -> int:
        (described,) = shell.json("group", "describe", group)
        return int(described["partitions"][0]["committed"])

    assert (seek("--to", "beginning", "--dry-run"), committed()) == (0, 6)
    assert (seek("--to", "beginning"), committed()) == (0, 0)
    assert (seek("--to", "@2000"), committed()) == (2, 2)
    assert (seek("--shift", "3"), committed()) == (5, 5)
    assert (seek("--shift", "-4"), committed()) == (1, 1)
    assert (seek("--to", "-2", "--topic", f"{ladder}:0"), committed()) == (4, 4)
    assert (seek("--to", "1000"), committed()) == (6, 6)
    assert (seek("--to", "3"), committed()) == (3, 3)
    assert shell.out("consume", ladder, "--group", group, "-f", "%o ").split() == ["3", "4", "5"]
    assert "exclude" not in shell.fails(2, "group", "seek", group)
    assert "committed no offsets" in shell.fails(4, "group", "seek", "never-seen", "--to", "end")
    assert shell.json("group", "seek", "fresh", "--to", "2", "-t", ladder)[0]["new"] == 2


def test_a_group_is_described_although_a_topic_of_it_is_gone(
    shell: Shell, culver_topic: str, culver_topic_factory: TopicFactory
) -> None:
    doomed, group = culver_topic_factory(), f"group-of-{culver_topic}"
    for topic in (culver_topic, doomed):
        shell.out("produce", topic, "x")
        shell.out("consume", topic, "--group", group)
    shell.out("topic", "delete", doomed, "--yes")
    (described,) = shell.json("group", "describe", group)
    assert [row["topic"] for row in described["partitions"]] == [culver_topic]
    assert [row["topic"] for row in shell.json("group", "seek", group, "--to", "beginning")] == [culver_topic]


def test_a_group_in_use_cannot_be_moved_or_deleted(shell: Shell, culver_topic: str) -> None:
    group = f"group-of-{culver_topic}"
    shell.out("produce", culver_topic, "x")
    with shell.start("consume", culver_topic, "--group", group, "--follow") as member:
        assert member.stdout is not None
        assert member.stdout.readline() == "x\n"
        assert {"group": group, "state": "stable", "members": 1} in shell.json("group", "list")
        assert "in use: 1 members" in shell.fails(1, "group", "seek", group, "--to", "end")
        shell.fails(1, "group", "delete", group, "--yes")
        assert "culver-cli" in shell.out("group", "describe", group, "--members")
        member.send_signal(signal.SIGINT)
    (described,) = shell.json("group", "describe", group)
    assert described["lag"] == 0, "what was printed before Ctrl-C is committed"
    assert shell.out("group", "delete", group, "--yes") == f"group {group}: deleted\n"
    assert f"there is no group {group}" in shell.fails(4, "group", "describe", group)
    assert f"there is no group {group}" in shell.fails(4, "group", "delete", group, "--yes")


# --- topics ---


def test_the_life_of_a_topic(shell: Shell) -> None:
    name = "life-of-a-topic"
    assert (
        shell.out("topic", "create", name, "-p", "2", "--set", "retention.ms=5000")
        == f"topic {name}: created\n"
    )
    assert "already exists" in shell.fails(1, "topic", "create", name)
    assert shell.out("topic", "create", name, "--if-not-exists") == f"topic {name}: exists already\n"
    shell.out("produce", name, "-p", "1", "a", "b", "c")
    assert shell.json("topic", "list", "life-*") == [
        {"topic": name, "partitions": 2, "replicas": 1, "records": 3}
    ]

    (described,) = shell.json("topic", "describe", name)
    assert [(row["partition"], row["start"], row["end"]) for row in described["partitions"]] == [
        (0, 0, 0),
        (1, 0, 3),
    ]
    assert {"setting": "retention.ms", "value": "5000", "source": "topic"} in described["settings"]
    (described,) = shell.json("topic", "describe", name, "--all-settings")
    assert {"setting": "cleanup.policy", "value": "delete", "source": "default"} in described["settings"]

    shell.out("topic", "alter", name, "-p", "5", "--dry-run")
    shell.out("topic", "alter", name, "-p", "3", "--set", "cleanup.policy=compact", "--unset", "retention.ms")
    (described,) = shell.json("topic", "describe", name)
    settings = {row["setting"]: row["value"] for row in described["settings"] if row["source"] == "topic"}
    assert (len(described["partitions"]), settings) == (3, {"cleanup.policy": "compact"})

    assert "--yes" in shell.fails(2, "topic", "delete", name)
    assert shell.out("topic", "delete", name, "--yes") == f"topic {name}: deleted\n"
    assert f"topic {name}: does not exist" in shell.fails(4, "topic", "describe", name)
    assert shell.out("topic", "delete", name, "--if-exists") == f"topic {name}: does not exist\n"


@pytest.mark.culver_topic(partitions=2)
def test_trim_deletes_the_oldest_records(shell: Shell, culver_topic: str) -> None:
    shell.out("produce", culver_topic, "-p", "0", "a", "b", "c")
    shell.out("produce", culver_topic, "-p", "1", "d")
    (first, second) = shell.json("topic", "trim", culver_topic, "--before", "2", "--dry-run")
    assert (first["deleted"], first["new_start"], second["deleted"], second["new_start"]) == (2, 2, 1, 1)
    assert len(shell.out("consume", culver_topic).split()) == 4
    shell.out("topic", "trim", culver_topic, "--before", "2", "-p", "0", "--yes")
    assert sorted(shell.out("consume", culver_topic).split()) == ["c", "d"]
    assert shell.out("consume", culver_topic, "--from", "0", "-p", "0") == "c\n"
    assert "--yes" in shell.fails(2, "topic", "trim", culver_topic, "--before", "end")


def test_tables_are_for_people(shell: Shell, ladder: str) -> None:
    listed = shell.out("topic", "list", "lad*").splitlines()
    assert [line.split() for line in listed] == [
        ["TOPIC", "PARTITIONS", "REPLICAS", "RECORDS"],
        ["ladder", "1", "1", "6"],
    ]
    assert "topic ladder  (id " in shell.out("topic", "describe", ladder)


def test_internal_topics_are_listed_only_on_demand(shell: Shell, ladder: str) -> None:
    shell.out("consume", ladder, "--group", "makes-the-offsets-topic")
    assert "__consumer_offsets" not in shell.out("topic", "list")
    assert "__consumer_offsets" in shell.out("topic", "list", "--all")


# --- failures ---


def test_what_is_not_there_is_exit_code_4(shell: Shell, culver_topic: str) -> None:
    assert "topic no-such: does not exist" in shell.fails(4, "topic", "describe", "no-such")
    assert "topic no-such: does not exist" in shell.fails(4, "topic", "alter", "no-such", "-p", "3")
    assert "topic no-such: does not exist" in shell.fails(4, "topic", "trim", "no-such", "--before", "end")
    assert "topic no-such: does not exist" in shell.fails(4, "topic", "delete", "no-such", "--yes")
    assert "topic no-such: does not exist" in shell.fails(4, "consume", "no-such")
    assert "has no partition 9, only 0 to 0" in shell.fails(4, "consume", culver_topic, "-p", "9")
    assert "does not exist" in shell.fails(4, "produce", culver_topic, "-p", "9", "x")
    assert "there is no group no-such" in shell.fails(4, "group", "describe", "no-such")


def test_what_the_broker_refuses_is_exit_code_1_with_its_reason(shell: Shell, culver_topic: str) -> None:
    shell.fails(1, "topic", "create", "bad/name")
    shell.fails(1, "topic", "create", "bad-setting", "--set", "no.such.setting=1")
    shell.fails(1, "topic", "create", "bad-value", "--set", "retention.ms=soon")
    shell.fails(1, "topic", "alter", culver_topic, "--partitions", "1")
    shell.out("topic", "alter", culver_topic, "--set", "max.message.bytes=100")
    assert "max.message.bytes=N" in shell.fails(1, "produce", culver_topic, "x" * 1000)


@pytest.mark.parametrize(
    "arguments",
    [
        ["no-such-command"],
        ["topic", "create"],
        ["topic", "create", "x", "--partitions", "0"],
        ["topic", "create", "x", "--set", "nonsense"],
        ["topic", "alter", "x"],
        ["consume", "x", "--from", "nowhere"],
        ["consume", "x", "-f", "%q"],
        ["consume", "x", "-f", "%s", "--json"],
        ["produce", "x", "value", "-l", os.devnull],
        ["produce", "x", "-H", "nonsense", "value"],
        ["produce", "x", "-D", ""],
        ["group", "seek", "x"],
        ["group", "seek", "x", "--to", "end", "--shift", "1"],
        ["topic", "list", "-b", "localhost:port"],
        ["topic", "list", "-X", "no.such.setting=1"],
        ["-o", "xml", "topic", "list"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_exit_code_2(shell: Shell, arguments: list[str]) -> None:
    assert shell.fails(2, *arguments)


def test_a_line_that_is_not_json_is_named(shell: Shell, culver_topic: str) -> None:
    complaint = shell.fails(2, "produce", culver_topic, "--json", stdin='{"value": "good"}\nbad\n')
    assert complaint.startswith("culver: stdin, line 2: ")
    assert shell.out("consume", culver_topic) == "good\n"


def test_a_broker_that_cannot_be_reached_is_exit_code_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    complaint = Shell(f"127.0.0.1:{port}").fails(3, "topic", "list")
    assert complaint.startswith(f"culver: cannot reach a broker at 127.0.0.1:{port}: Connection refused\n")
    assert "culver serve" in complaint


def test_something_that_is_no_broker_is_exit_code_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        shell = Shell(f"127.0.0.1:{listener.getsockname()[1]}")
        assert "no answer from" in shell.fails(3, "topic", "list", "--timeout", "0.5")
        assert "no answer from" in shell.fails(3, "group", "list", "--timeout", "0.5")
        assert "no answer from" in shell.fails(3, "produce", "x", "value", "--timeout", "0.5")
