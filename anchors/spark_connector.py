"""Spark's own Kafka connector: its jars from Maven Central, for the JVM to which Culver's source is compared."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from pathlib import Path

from anchors import Unavailable, kafka

VERSION = "4.2.0"
# Each by itself: the connector's parents name repositories that are not there, and PySpark has the rest.
ARTIFACTS = (
    f"org.apache.spark:spark-sql-kafka-0-10_2.13:{VERSION}",
    "org.apache.spark:spark-token-provider-kafka-0-10_2.13:4.0.0",
    "org.apache.kafka:kafka-clients:3.9.1",
    "org.apache.commons:commons-pool2:2.12.0",
)
CACHE = Path(__file__).resolve().parent.parent / ".cache" / f"spark-connector-{VERSION}"
MAVEN_TIMEOUT_SECONDS = 300


def jars() -> list[Path]:
    """The connector's jars, fetched once with Maven into the repository's `.cache`."""
    kafka.java()
    target = CACHE / "jars"
    if not target.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with (CACHE / "fetch.lock").open("w") as lock:
            # Test runs may start side by side; one fetches and the others wait for it.
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not target.is_dir():
                _fetch(target)
    return sorted(target.glob("*.jar"))


def _fetch(target: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise Unavailable(
            "no mvn on the path to fetch Spark's Kafka connector with (Debian: apt install maven)"
        )
    partial = CACHE / "jars.partial"
    shutil.rmtree(partial, ignore_errors=True)
    for artifact in ARTIFACTS:
        command = [maven, "--batch-mode", "--quiet", "dependency:copy", f"-Dartifact={artifact}"]
        command.append(f"-DoutputDirectory={partial}")
        try:
            subprocess.run(
                command, check=True, capture_output=True, text=True, timeout=MAVEN_TIMEOUT_SECONDS, cwd=CACHE
            )
        except subprocess.CalledProcessError as error:
            reason = (error.stdout or error.stderr or "").strip()[-600:]
            raise Unavailable(f"Maven could not fetch {artifact}: {reason}") from error
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"Maven did not fetch {artifact} in {MAVEN_TIMEOUT_SECONDS} s") from error
    if len(list(partial.glob("*.jar"))) != len(ARTIFACTS):
        raise Unavailable("Maven did not fetch all jars of Spark's Kafka connector")
    # The rename makes the jars appear all at once: an interrupted fetch is never taken for a whole one.
    partial.rename(target)
