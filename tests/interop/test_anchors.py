"""The anchors themselves: Kafka starts, serves, survives a kill and leaves nothing behind; the tools run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from anchors import Unavailable, debian, kafka
from anchors.broker_process import serves_metadata

pytestmark = pytest.mark.interop

JAVA_PROGRAM = """
import org.apache.kafka.clients.admin.Admin;
import java.util.Map;

public class ListTopics {
    public static void main(String[] arguments) throws Exception {
        try (Admin admin = Admin.create(Map.of("bootstrap.servers", arguments[0]))) {
            System.out.println(admin.listTopics().names().get());
        }
    }
}
"""


@pytest.fixture(scope="module")
def node() -> Iterator[kafka.Kafka]:
    try:
        anchor = kafka.Kafka({"num.partitions": "3"})
    except Unavailable as reason:
        pytest.skip(str(reason))
    with anchor:
        yield anchor


@pytest.fixture
def own_node() -> Iterator[kafka.Kafka]:
    """A node for one test, which may change or end its process."""
    try:
        anchor = kafka.Kafka()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with anchor:
        yield anchor


def topics(node: kafka.Kafka, *arguments: str) -> str:
    result = kafka.run_tool(
        "org.apache.kafka.tools.TopicCommand", "--bootstrap-server", node.bootstrap, *arguments
    )
    return result.stdout


def test_the_command_line_tools_create_and_describe_a_topic(node: kafka.Kafka) -> None:
    topics(node, "--create", "--topic", "from-tool")
    described = topics(node, "--describe", "--topic", "from-tool")
    assert "PartitionCount: 3" in described, "the property given to the node is in force"


def test_a_java_program_of_one_file_runs_against_the_jars(node: kafka.Kafka, tmp_path: Path) -> None:
    topics(node, "--create", "--if-not-exists", "--topic", "seen-by-java")
    source = tmp_path / "ListTopics.java"
    source.write_text(JAVA_PROGRAM)
    assert "seen-by-java" in kafka.java_source(source, node.bootstrap).stdout


def test_a_failing_tool_raises_with_its_output(node: kafka.Kafka) -> None:
    with pytest.raises(RuntimeError, match="no-such-topic"):
        topics(node, "--describe", "--topic", "no-such-topic")


def test_a_killed_node_restarts_on_the_same_address_with_its_topics(own_node: kafka.Kafka) -> None:
    node = own_node
    topics(node, "--create", "--topic", "kept")
    address, pid = node.bootstrap, node.pid
    node.kill()
    assert not serves_metadata(node.port)
    node.restart()
    assert node.bootstrap == address
    assert node.pid != pid
    assert "kept" in topics(node, "--list")


def test_memory_and_processor_time_are_read_from_the_process(node: kafka.Kafka) -> None:
    assert node.resident_bytes() > 50_000_000
    assert node.cpu_seconds() > 0.1


def test_leaving_ends_the_process_and_removes_its_directory() -> None:
    try:
        anchor = kafka.Kafka()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with anchor:
        pid = anchor.pid
        base = anchor.data_dir.parent
        assert base.is_dir()
    assert not psutil.pid_exists(pid)
    assert not base.exists()


def test_without_maven_the_reason_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kafka, "CACHE", tmp_path)
    monkeypatch.setattr(kafka, "java", lambda: "java")
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="apt install maven"):
        kafka.jars()


def test_without_kcat_the_reason_names_the_package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unavailable, match="apt install kcat"):
        debian.kcat()


def test_a_program_that_does_not_compile_is_unavailable_with_the_reason(tmp_path: Path) -> None:
    source = tmp_path / "broken.c"
    source.write_text("#include <no_such_header.h>\n")
    with pytest.raises(Unavailable, match=r"no_such_header|no C compiler"):
        debian.compile_c(source, tmp_path / "broken")
