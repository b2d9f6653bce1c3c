"""The way from a command to the broker: Kafka clients, their settings, and their errors in plain words."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from functools import cached_property
from typing import Any, NoReturn, TypeAlias, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicCollection, TopicPartition

from culver.cli.admin_types import AdminClient, ClusterMetadata, OffsetSpec, TopicDescription
from culver.cli.failure import ExitCode, Failure
from culver.cli.position import Kind, Position
from culver.cli.session import Session

Result = TypeVar("Result")
Client = TypeVar("Client")
# (topic, partition): hashable and sortable, as confluent-kafka's TopicPartition is not by value.
Partition: TypeAlias = tuple[str, int]

_CONNECT_TIMEOUT_SECONDS = 3.0
_NOT_FOUND = frozenset(
    {
        KafkaError.UNKNOWN_TOPIC_OR_PART,
        KafkaError._UNKNOWN_TOPIC,
        KafkaError._UNKNOWN_PARTITION,
        KafkaError.GROUP_ID_NOT_FOUND,
    }
)
_UNREACHABLE = frozenset(
    {
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
        KafkaError._MSG_TIMED_OUT,
        KafkaError._RESOLVE,
        KafkaError._WAIT_COORD,
        KafkaError.REQUEST_TIMED_OUT,
    }
)
_HINTS = {
    KafkaError.TOPIC_ALREADY_EXISTS: "choose another name, or pass --if-not-exists",
    KafkaError.UNKNOWN_TOPIC_OR_PART: "`culver topic list` shows the topics there are",
    KafkaError._UNKNOWN_TOPIC: "`culver topic list` shows the topics there are",
    KafkaError._UNKNOWN_PARTITION: "`culver topic describe` shows the partitions there are",
    KafkaError.GROUP_ID_NOT_FOUND: "`culver group list` shows the groups there are",
    KafkaError.NON_EMPTY_GROUP: "stop its consumers first",
    KafkaError.INVALID_CONFIG: "`culver config` explains the settings",
    KafkaError.MSG_SIZE_TOO_LARGE: "`culver topic alter TOPIC --set max.message.bytes=N` allows larger ones",
    KafkaError.LEADER_NOT_AVAILABLE: "`culver cluster why-unhealthy` says what it waits for",
    KafkaError.NOT_ENOUGH_REPLICAS: "`culver cluster why-unhealthy` says which replicas are missing",
    KafkaError.INVALID_REPLICATION_FACTOR: "`culver cluster status` shows the brokers there are",
    KafkaError.TOPIC_EXCEPTION: "a name has 1 to 249 letters, digits, dots, underscores or dashes",
}


class Cluster:
    """One command's connections to the broker, opened when first used."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._last_error: KafkaError | None = None

    # --- clients ---

    def settings(self, **more: Any) -> dict[str, Any]:
        """A client's configuration: `more` with underscores for dots, then what the user gave with -X."""
        return {
            "bootstrap.servers": self._session.bootstrap,
            "client.id": "culver-cli",
            "error_cb": self._remember_error,
            # 0 silences librdkafka, which would otherwise write to stderr between our own lines.
            "log_level": 6 if self._session.verbose else 0,
            **{name.replace("_", "."): value for name, value in more.items()},
            **self._session.client_settings,
        }

    @cached_property
    def admin(self) -> AdminClient:
        return self._connect(AdminClient, self.settings())

    def producer(self, **more: Any) -> Producer:
        return self._connect(Producer, self.settings(**more))

    def consumer(self, **more: Any) -> Consumer:
        more = {"group_id": "culver-cli", "enable_auto_commit": False} | more
        return self._connect(Consumer, self.settings(**more))

    def _connect(self, client: Callable[[dict[str, Any]], Client], settings: dict[str, Any]) -> Client:
        self.check_reachable()
        try:
            return client(settings)
        except KafkaException as error:
            raise Failure(
                f"the Kafka client refuses its settings: {_text(error.args[0])}",
                "-X takes the settings of librdkafka, by their names and within their ranges",
                code=ExitCode.USAGE,
            ) from None

    def check_reachable(self) -> None:
        """Fail at once when nothing listens: the Kafka client itself would try until its time is up."""
        reason = "no address given"
        for address in self._session.bootstrap.split(","):
            host, port = _host_and_port(address.strip())
            try:
                socket.create_connection((host, port), timeout=_CONNECT_TIMEOUT_SECONDS).close()
            except OSError as error:
                reason = error.strerror or str(error)
            else:
                return
        raise Failure(
            f"cannot reach a broker at {self._session.bootstrap}: {reason}",
            "start one with `culver serve`, or name another with --bootstrap or CULVER_BOOTSTRAP",
            code=ExitCode.UNREACHABLE,
        )

    def _remember_error(self, error: KafkaError) -> None:
        self._last_error = error

    # --- answers ---

    @property
    def timeout_s(self) -> float:
        return self._session.timeout_s

    def result(self, future: Future[Result], what: str) -> Result:
        """Wait for an answer; `what` says in the error message what was being done to what."""
        try:
            return future.result(self.timeout_s)
        except KafkaException as error:
            self.fail(error.args[0], what)
        except FutureTimeout:
            self.unanswered(what)

    def fail(self, error: KafkaError, what: str) -> NoReturn:
        """End the command because of this Kafka error."""
        if error.code() in _UNREACHABLE:
            self.unanswered(what, error)
        code = ExitCode.NOT_FOUND if error.code() in _NOT_FOUND else ExitCode.FAILED
        raise Failure(f"{what}: {_text(error)}", _HINTS.get(error.code(), ""), code=code)

    def unanswered(self, what: str, error: KafkaError | None = None) -> NoReturn:
        """End the command because the broker did not answer."""
        known = self._last_error or error
        reason = f" ({_text(known)})" if known is not None else ""
        raise Failure(
            f"{what}: no answer from {self._session.bootstrap} within {self.timeout_s:g} s{reason}",
            "is it a Kafka broker, and is the address it advertises reachable from here? (-v shows more)",
            code=ExitCode.UNREACHABLE,
        )

    # --- questions ---

    def topic_names(self) -> list[str]:
        return sorted(self._metadata().topics)

    def existing_partitions(self) -> set[Partition]:
        """Every partition of every topic: a group may have committed to some that are gone."""
        topics = self._metadata().topics
        return {(name, partition) for name, topic in topics.items() for partition in topic.partitions}

    def _metadata(self) -> ClusterMetadata:
        try:
            return self.admin.list_topics(timeout=self.timeout_s)
        except KafkaException as error:
            self.fail(error.args[0], "listing topics")

    def describe_topics(self, names: Iterable[str]) -> list[TopicDescription]:
        """The topics in the order asked for. Never creates one."""
        names = list(dict.fromkeys(names))
        if not names:
            return []
        futures = self.admin.describe_topics(TopicCollection(names), request_timeout=self.timeout_s)
        return [self.result(futures[name], f"topic {name}") for name in names]

    def partitions(self, topics: Iterable[str], only: Iterable[int] = ()) -> list[Partition]:
        """Every partition of the topics, or of each only these."""
        chosen = sorted(set(only))
        found: list[Partition] = []
        for topic in self.describe_topics(topics):
            existing = sorted(partition.id for partition in topic.partitions)
            for partition in chosen:
                if partition not in existing:
                    raise Failure(
                        f"topic {topic.name} has no partition {partition}, only 0 to {len(existing) - 1}",
                        code=ExitCode.NOT_FOUND,
                    )
            found += [(topic.name, partition) for partition in chosen or existing]
        return found

    def offsets(self, partitions: Iterable[Partition], spec: OffsetSpec) -> dict[Partition, int]:
        """Ask the leaders for an offset of each partition; -1 where no record has so late a timestamp."""
        question = {TopicPartition(*partition): spec for partition in partitions}
        if not question:
            return {}
        futures = self.admin.list_offsets(question, request_timeout=self.timeout_s)
        return {
            (asked.topic, asked.partition): self.result(
                future, f"offsets of topic {asked.topic} partition {asked.partition}"
            ).offset
            for asked, future in futures.items()
        }

    def start_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return self.offsets(partitions, OffsetSpec.earliest())  # type: ignore[no-untyped-call]

    def end_offsets(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        return self.offsets(partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]

    def locate(self, position: Position, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset that a position means in each partition. A fixed offset is taken as it is."""
        partitions = list(partitions)
        match position.kind:
            case Kind.BEGINNING:
                return self.start_offsets(partitions)
            case Kind.END:
                return self.end_offsets(partitions)
            case Kind.OFFSET:
                return dict.fromkeys(partitions, position.number)
            case Kind.LAST:
                starts, ends = self.start_offsets(partitions), self.end_offsets(partitions)
                return {each: max(starts[each], ends[each] - position.number) for each in partitions}
            case Kind.TIME:
                found = self.offsets(partitions, OffsetSpec.for_timestamp(position.number))
                ends = self.end_offsets(each for each, offset in found.items() if offset < 0)
                return found | ends


def _text(error: KafkaError) -> str:
    """The client's words without its prefixes, its own names for a few things that are not there."""
    if error.code() in _NOT_FOUND:
        return "does not exist"
    return error.str().removeprefix("Broker: ").removeprefix("Local: ").strip()


def as_topic_partitions(offsets: Mapping[Partition, int]) -> list[TopicPartition]:
    return [
        TopicPartition(topic, partition, offset) for (topic, partition), offset in sorted(offsets.items())
    ]


def _host_and_port(address: str) -> tuple[str, int]:
    host, colon, port = address.rpartition(":")
    if not colon:
        return address, 9092
    if not port.isdigit():
        raise Failure(f"{address!r} is no broker address: expected HOST:PORT", code=ExitCode.USAGE)
    return host.strip("[]"), int(port)
