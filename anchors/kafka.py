"""Apache Kafka: its jars from Maven Central, one KRaft node, its command-line tools and its Java client."""

from __future__ import annotations

import base64
import fcntl
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Self, TypeAlias

from anchors import Unavailable
from anchors.broker_process import HOST, BrokerProcess, StartFailed, free_port

Artifacts: TypeAlias = tuple[tuple[str, str, str], ...]
"""Group, name and version of what Maven is to fetch."""

VERSION = "4.3.1"
ARTIFACTS = (
    ("org.apache.kafka", "kafka_2.13", VERSION),
    ("org.apache.kafka", "kafka-tools", VERSION),
    ("org.apache.logging.log4j", "log4j-slf4j-impl", "2.25.1"),
)
# The last client that speaks the first generation of the protocol of transactions, whatever the broker offers.
OLD_CLIENT_VERSION = "3.9.1"
OLD_CLIENT_ARTIFACTS = (("org.apache.kafka", "kafka-clients", OLD_CLIENT_VERSION),)
CACHES = Path(__file__).resolve().parent.parent / ".cache"
CACHE = CACHES / f"kafka-{VERSION}"
MAVEN_TIMEOUT_SECONDS = 600

# What kafka-server-start.sh and kafka-run-class.sh give the broker unless told otherwise.
BROKER_JVM_FLAGS = (
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
)
# Tools live for a second or two: a small heap and the quickest compiler tier start them faster.
TOOL_JVM_FLAGS = ("-Xmx256M", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

QUIET_LOGGING = """\
status = error
appenders = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d %p %c: %m%n
rootLogger.level = error
rootLogger.appenderRefs = console
rootLogger.appenderRef.console.ref = console
"""

# A single node cannot replicate its internal topics three times; all else is Kafka's default.
SINGLE_NODE_PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
}


def java() -> str:
    """The Java launcher."""
    found = shutil.which("java")
    if found is None:
        raise Unavailable("no java on the path (Debian: apt install openjdk-17-jdk-headless)")
    return found


def jars() -> Path:
    """The directory with Kafka's jars, fetched once with Maven into the repository's `.cache`."""
    return _fetched(CACHE, ARTIFACTS)


def old_client_jars() -> Path:
    """The same for a Java client of before Kafka 4."""
    return _fetched(CACHES / f"kafka-clients-{OLD_CLIENT_VERSION}", OLD_CLIENT_ARTIFACTS)


def _fetched(cache: Path, artifacts: Artifacts) -> Path:
    java()
    target = cache / "jars"
    if target.is_dir():
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "fetch.lock").open("w") as lock:
        # Test runs may start side by side; one fetches and the others wait for it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _fetch(cache, target, artifacts)
    return target


def _fetch(cache: Path, target: Path, artifacts: Artifacts) -> None:
    maven = shutil.which("mvn")
    _, first, version = artifacts[0]
    if maven is None:
        raise Unavailable(f"no mvn on the path to fetch Kafka {version} with (Debian: apt install maven)")
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId>"
        f"<version>{version}</version></dependency>"
        for group, artifact, version in artifacts
    )
    pom = cache / "pom.xml"
    pom.write_text(
        '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
        "<groupId>culver.anchors</groupId><artifactId>kafka</artifactId><version>1</version>"
        f"<dependencies>{dependencies}</dependencies></project>\n"
    )
    partial = cache / "jars.partial"
    shutil.rmtree(partial, ignore_errors=True)
    command = [maven, "--batch-mode", "--quiet", "-f", str(pom), "dependency:copy-dependencies"]
    command.append(f"-DoutputDirectory={partial}")
    try:
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_SECONDS)
    except subprocess.CalledProcessError as error:
        reason = (error.stdout or error.stderr or "").strip()[-600:]
        raise Unavailable(f"Maven could not fetch Kafka {version}: {reason}") from error
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"Maven did not fetch Kafka {version} in {MAVEN_TIMEOUT_SECONDS} s") from error
    if not list(partial.glob(f"{first}-*.jar")):
        raise Unavailable(f"Maven fetched no {first} {version}")
    # The rename makes the jars appear all at once: an interrupted fetch is never taken for a whole one.
    partial.rename(target)


def classpath() -> str:
    return f"{jars()}{os.sep}*"


def _logging_flags() -> list[str]:
    path = CACHE / "log4j2.properties"
    if not path.exists() or path.read_text() != QUIET_LOGGING:
        partial = CACHE / f"log4j2.{os.getpid()}.partial"
        partial.write_text(QUIET_LOGGING)
        partial.replace(path)
    return [f"-Dlog4j2.configurationFile={path}"]


def run_tool(
    classname: str, *arguments: str, stdin: str = "", timeout_seconds: float = 60, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Runs one of Kafka's command-line tools, such as `org.apache.kafka.tools.TopicCommand`."""
    command = [java(), *TOOL_JVM_FLAGS, "-cp", classpath(), *_logging_flags(), classname, *arguments]
    return _run(command, stdin, timeout_seconds, check)


def java_source(
    path: Path, *arguments: str, stdin: str = "", timeout_seconds: float = 120, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Compiles and runs a Java program of one file, with Kafka's jars on its class path."""
    command = [java(), *TOOL_JVM_FLAGS, "-cp", classpath(), *_logging_flags(), str(path), *arguments]
    return _run(command, stdin, timeout_seconds, check)


def compiled_source(path: Path, directory: Path, client_jars: Path | None = None) -> list[str]:
    """Compiles a Java program of one file into a directory: the command that runs it, without arguments.

    For programs that are started several times, or that the caller wants to watch or to kill.
    """
    library = client_jars or jars()
    compiler = [java(), *TOOL_JVM_FLAGS, "-m", "jdk.compiler/com.sun.tools.javac.Main"]
    # Only the launcher knows `*` in a class path; the compiler wants every jar by name.
    every_jar = os.pathsep.join(str(jar) for jar in library.glob("*.jar"))
    _run([*compiler, "-cp", every_jar, "-d", str(directory), str(path)], "", 120, check=True)
    both = f"{directory}{os.pathsep}{library}{os.sep}*"
    return [java(), *TOOL_JVM_FLAGS, "-cp", both, *_logging_flags(), path.stem]


def _run(
    command: list[str], stdin: str, timeout_seconds: float, check: bool
) -> subprocess.CompletedProcess[str]:
    result = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout_seconds)
    if check and result.returncode != 0:
        raise RuntimeError(
            f"{command[0]} ended with {result.returncode}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
        )
    return result


class Kafka(BrokerProcess):
    """One Kafka node, broker and controller in one process, with the JVM flags of its own start script."""

    name = "Kafka"

    def __init__(self, properties: Mapping[str, str] | None = None, *, directory: Path | None = None) -> None:
        jars()
        super().__init__(directory)
        self._properties = dict(properties or {})
        self._controller_port = free_port()
        self.configuration = self._base / "server.properties"

    def command(self) -> list[str]:
        return [
            java(),
            *BROKER_JVM_FLAGS,
            *_logging_flags(),
            # Native libraries that the JVM unpacks go where they are removed even after a SIGKILL.
            f"-Djava.io.tmpdir={self._base}",
            "-cp",
            classpath(),
            "kafka.Kafka",
            str(self.configuration),
        ]

    def __enter__(self) -> Self:
        try:
            self._format()
        except BaseException:
            self.close()
            raise
        return super().__enter__()

    def write_configuration(self) -> None:
        settings = {
            **SINGLE_NODE_PROPERTIES,
            "listeners": f"PLAINTEXT://{HOST}:{self.port},CONTROLLER://{HOST}:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{HOST}:{self.port}",
            "controller.quorum.bootstrap.servers": f"{HOST}:{self._controller_port}",
            "log.dirs": str(self.data_dir),
            **self._properties,
        }
        self.configuration.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))

    def _format(self) -> None:
        self.write_configuration()
        result = run_tool(
            "kafka.tools.StorageTool",
            "format",
            "--standalone",
            f"--cluster-id={random_id()}",
            f"--config={self.configuration}",
            check=False,
        )
        if result.returncode != 0:
            raise StartFailed(f"Kafka's storage could not be formatted:\n{result.stdout}{result.stderr}")


def random_id() -> str:
    """As `StorageTool random-uuid` prints, without a JVM; a leading dash would read as an option."""
    return "A" + base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")[1:]
