"""`culver produce`: write records to a topic, from arguments, files or stdin."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import click
from confluent_kafka import KafkaError, KafkaException, Message, Producer

from culver.cli import record_json
from culver.cli.clients import Cluster
from culver.cli.failure import ExitCode, Failure
from culver.cli.output import note, print_json, progress
from culver.cli.record_format import unescape
from culver.cli.record_json import Outgoing
from culver.cli.session import Session, client_options, name_value

_READ_BYTES = 1 << 16
_LARGEST_RECORD_BYTES = 1_000_000_000
_POLL_EVERY_RECORDS = 512
_DELIVERY_SECONDS = 60.0
_AUTO_CREATION_SECONDS = 2.0
_CREATION_POLL_SECONDS = 0.05


@click.command()
@click.argument("topic")
@click.argument("values", metavar="[VALUE]...", nargs=-1)
@click.option(
    "-l",
    "--lines-from",
    "files",
    metavar="FILE",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, allow_dash=True),
    help="One record per line of this file; repeatable; - is stdin.",
)
@click.option("--whole", is_flag=True, help="Each file is one record, not one per line.")
@click.option("-D", "--delimiter", default="\\n", metavar="TEXT", help="What ends a record.  [default: \\n]")
@click.option("-k", "--key", metavar="KEY", help="The key of every record.")
@click.option("-K", "--key-delimiter", metavar="TEXT", help="A line is KEY, this, VALUE.")
@click.option("-H", "--header", "headers", metavar="NAME=VALUE", multiple=True, help="A header; repeatable.")
@click.option("-Z", "--null", "null_empty", is_flag=True, help="An empty key or value is null (a tombstone).")
@click.option("--json", "as_json", is_flag=True, help="A line is JSON as `culver consume --json` prints it.")
@click.option(
    "-p", "--partition", type=click.IntRange(min=0), help="The partition.  [default: by the key's hash]"
)
@click.option(
    "-t", "--timestamp", "timestamp_ms", type=click.IntRange(min=1), metavar="MS", help="Instead of now."
)
@click.option(
    "-z", "--compression", type=click.Choice(["none", "gzip", "snappy", "lz4", "zstd"]), default="none"
)
@click.option("-a", "--acks", type=click.Choice(["0", "1", "all"]), default="all", show_default=True)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing about what was written.")
@client_options
@click.pass_obj
def produce(
    session: Session,
    topic: str,
    values: tuple[str, ...],
    files: tuple[str, ...],
    whole: bool,
    delimiter: str,
    key: str | None,
    key_delimiter: str | None,
    headers: tuple[str, ...],
    null_empty: bool,
    as_json: bool,
    partition: int | None,
    timestamp_ms: int | None,
    compression: str,
    acks: str,
    quiet: bool,
) -> None:
    """Write records to TOPIC: the VALUEs, or else the lines of files or of stdin.

    \b
    culver produce orders hello world
    culver produce orders -k customer-1 paid
    culver produce orders -K : -z zstd -l orders.txt
    culver consume orders --json | culver produce copy --json
    """
    if values and files:
        raise click.UsageError("give VALUEs or --lines-from, not both")
    if as_json and (key_delimiter or whole):
        raise click.UsageError("with --json, the key is in the line and a record is a line")
    defaults = Outgoing(
        value=None,
        key=key.encode() if key is not None else None,
        headers=tuple(
            (name, value.encode()) for name, value in (name_value(each, "'-H'") for each in headers)
        ),
        partition=partition,
        timestamp_ms=timestamp_ms,
    )
    parse = _parser(as_json, _separator(key_delimiter, "--key-delimiter"), null_empty, defaults)
    cluster = Cluster(session)
    writing = Writing(cluster, topic, acks, compression)
    with _input(values, files, None if whole else _separator(delimiter, "--delimiter")) as chunks:
        writing.write(_records(chunks, parse))
    if session.json:
        print_json(writing.summary())
    elif not quiet:
        note(f"{writing.count} records to {topic}: {writing.describe()}")


# --- where records come from ---


def _separator(text: str | None, option: str) -> bytes | None:
    if text is None:
        return None
    try:
        separator = unescape(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None
    if not separator:
        raise click.BadParameter("may not be empty", param_hint=option)
    return separator


@contextlib.contextmanager
def _input(
    values: tuple[str, ...], files: tuple[str, ...], delimiter: bytes | None
) -> Iterator[Iterator[tuple[str, bytes]]]:
    """The raw records, each with the place it comes from for error messages."""
    if values:
        yield ((f"value {number}", value.encode()) for number, value in enumerate(values, 1))
        return
    names = files or ("-",)
    if names == ("-",) and sys.stdin.isatty():
        note("one record per line; Ctrl-D ends")
    total = sum(os.path.getsize(name) for name in names if name != "-")
    if "-" in names or not total:
        yield _lines(names, delimiter, lambda _: None)
        return
    with progress("writing", total, unit_bytes=True) as advance:
        yield _lines(names, delimiter, advance)


def _lines(
    names: Iterable[str], delimiter: bytes | None, advance: Callable[[int], None]
) -> Iterator[tuple[str, bytes]]:
    for name in names:
        with contextlib.ExitStack() as stack:
            file: BinaryIO = sys.stdin.buffer if name == "-" else stack.enter_context(open(name, "rb"))
            place = "stdin" if name == "-" else name
            if delimiter is None:
                data = file.read()
                advance(len(data))
                yield place, data
                continue
            for number, line in enumerate(_split(file, delimiter, advance), 1):
                yield f"{place}, line {number}", line


def _split(file: BinaryIO, delimiter: bytes, advance: Callable[[int], None]) -> Iterator[bytes]:
    """Pieces between delimiters as they arrive; nothing after the last delimiter means no further piece."""
    rest = b""
    # read1 gives what is there: a record typed or piped in is sent when its line is complete.
    while chunk := file.read1(_READ_BYTES):  # type: ignore[attr-defined]
        advance(len(chunk))
        *pieces, rest = (rest + chunk).split(delimiter)
        yield from pieces
    if rest:
        yield rest


def _parser(
    as_json: bool, key_delimiter: bytes | None, null_empty: bool, defaults: Outgoing
) -> Callable[[bytes], Outgoing]:
    def nullable(data: bytes) -> bytes | None:
        return None if null_empty and not data else data

    def parse_json(line: bytes) -> Outgoing:
        record = record_json.decode(line)
        return Outgoing(
            value=record.value,
            key=record.key if record.key is not None else defaults.key,
            headers=defaults.headers + record.headers,
            partition=defaults.partition if defaults.partition is not None else record.partition,
            timestamp_ms=defaults.timestamp_ms or record.timestamp_ms,
        )

    def parse_line(line: bytes) -> Outgoing:
        if key_delimiter is None:
            return replace(defaults, value=nullable(line))
        key, found, value = line.partition(key_delimiter)
        if not found:
            return replace(defaults, value=nullable(line))
        return replace(defaults, key=nullable(key), value=nullable(value))

    return parse_json if as_json else parse_line


def _records(chunks: Iterable[tuple[str, bytes]], parse: Callable[[bytes], Outgoing]) -> Iterator[Outgoing]:
    for place, data in chunks:
        try:
            yield parse(data)
        except ValueError as error:
            raise Failure(f"{place}: {error}", code=ExitCode.USAGE) from None


# --- where they go ---


@dataclass(slots=True)
class Written:
    """What one partition has acknowledged."""

    records: int = 0
    first_offset: int = -1
    last_offset: int = -1


@dataclass(slots=True)
class Writing:
    """Hands records to the producer, keeps count of what was acknowledged, stops at the first refusal."""

    cluster: Cluster
    topic: str
    acks: str
    compression: str
    count: int = 0
    partitions: dict[int, Written] = field(default_factory=dict)
    error: KafkaError | None = None

    def write(self, records: Iterator[Outgoing]) -> None:
        producer = self.cluster.producer(
            acks=self.acks,
            enable_idempotence=self.acks == "all",
            compression_type=self.compression,
            # As the Java client does, so that a key goes to the same partition whoever writes it.
            partitioner="murmur2_random",
            # The broker decides what is too large.
            message_max_bytes=_LARGEST_RECORD_BYTES,
            message_timeout_ms=int(max(_DELIVERY_SECONDS, self.cluster.timeout_s) * 1000),
            topic_metadata_propagation_max_ms=int(self.cluster.timeout_s * 1000),
            queue_buffering_max_kbytes=64 << 10,
        )
        self._check_topic(producer)
        try:
            for number, record in enumerate(records):
                if self.error is not None:
                    break
                self._send(producer, record)
                if number % _POLL_EVERY_RECORDS == 0:
                    producer.poll(0)
        finally:
            # Also after Ctrl-C or a bad line: what was accepted before is written.
            self._flush(producer)
        if self.error is not None:
            self.cluster.fail(self.error, f"writing to topic {self.topic} (after {self.count} records)")

    def _check_topic(self, producer: Producer) -> None:
        """Ask for the topic first (the broker may create it), so that a refusal is known at once."""
        begun = time.monotonic()
        while True:
            try:
                metadata = producer.list_topics(self.topic, timeout=self.cluster.timeout_s)
            except KafkaException as error:
                self.cluster.fail(error.args[0], f"topic {self.topic}")
            found = metadata.topics[self.topic].error
            if found is None:
                return
            if time.monotonic() - begun > self._creation_seconds(found):
                self.cluster.fail(found, f"topic {self.topic}")
            producer.poll(_CREATION_POLL_SECONDS)

    def _creation_seconds(self, error: KafkaError) -> float:
        """How long the error may only mean that the topic is being created."""
        if error.code() == KafkaError.LEADER_NOT_AVAILABLE:
            return self.cluster.timeout_s
        # Kafka answers that the topic is unknown, and creates it behind the answer; or never does.
        return _AUTO_CREATION_SECONDS if error.code() == KafkaError.UNKNOWN_TOPIC_OR_PART else 0.0

    def _send(self, producer: Producer, record: Outgoing) -> None:
        optional: dict[str, Any] = {}
        if record.partition is not None:
            optional["partition"] = record.partition
        if record.timestamp_ms is not None:
            optional["timestamp"] = record.timestamp_ms
        if record.headers:
            optional["headers"] = list(record.headers)
        while True:
            try:
                producer.produce(
                    self.topic, record.value, record.key, on_delivery=self._on_delivery, **optional
                )
                return
            except BufferError:  # the queue is full: wait for acknowledgements
                producer.poll(0.1)
            except KafkaException as error:
                self.error = error.args[0]
                return

    def _on_delivery(self, error: KafkaError | None, record: Message) -> None:
        if error is not None:
            self.error = self.error or error
            return
        self.count += 1
        written = self.partitions.setdefault(record.partition() or 0, Written())
        written.records += 1
        offset = record.offset()
        if offset is not None and offset >= 0:  # with acks=0 nobody knows it
            written.first_offset = offset if written.first_offset < 0 else written.first_offset
            written.last_offset = offset

    def _flush(self, producer: Producer) -> None:
        left = producer.flush(max(_DELIVERY_SECONDS, self.cluster.timeout_s))
        if left and self.error is None:
            self.cluster.unanswered(f"writing to topic {self.topic} ({left} records not acknowledged)")

    def summary(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "records": self.count,
            "partitions": [
                {
                    "partition": partition,
                    "records": written.records,
                    "first_offset": written.first_offset,
                    "last_offset": written.last_offset,
                }
                for partition, written in sorted(self.partitions.items())
            ],
        }

    def describe(self) -> str:
        if not self.partitions:
            return "nothing to write"
        return ", ".join(
            f"partition {partition}"
            + (f" offsets {written.first_offset}-{written.last_offset}" if written.first_offset >= 0 else "")
            for partition, written in sorted(self.partitions.items())
        )
