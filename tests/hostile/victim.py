"""The broker under attack, and what must be true of it afterwards."""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from culver.errors import ErrorCode
from culver.protocol.messages.create_topics import (
    CreatableTopic,
    CreatableTopicConfig,
    CreateTopicsRequest,
)
from culver.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from culver.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from culver.protocol.records import Record, decode_records, encode_batch
from culver.testing import Broker
from raw_connection import RawConnection

BYSTANDER = "bystander"  # a topic that no attack names
PREY = "prey"  # what attacks are about
COMPACTED = "compacted"  # where the broker has to look into batches

PARALLEL = 100  # attacks that are under way at the same time
ANSWER_SECONDS = 20.0
# A round trip takes about a millisecond. The bound allows for a busy machine, not for a broker that is held up.
ROUND_TRIP_SECONDS_MAX = 2.0
MIB = 1 << 20


class Victim:
    """One broker, and a client that does it no harm."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        host, _, port = broker.bootstrap_servers.rpartition(":")
        self.address = (host, int(port))
        self._written = 0
        self._writing = threading.Lock()

    # --- what must hold ---

    def resident_bytes(self) -> int:
        return self._status_bytes("VmRSS")

    @contextlib.contextmanager
    def grows_by_less_than(self, limit_bytes: int) -> Iterator[None]:
        """The most memory that the process ever had in the block is within the limit, over what it had before."""
        # 5 sets the peak back to what is resident now.
        Path(f"/proc/{self.broker.pid}/clear_refs").write_text("5")
        before = self.resident_bytes()
        yield
        self.settle()
        grown = self._status_bytes("VmHWM") - before
        assert grown < limit_bytes, f"the broker grew by {grown / MIB:.1f} MiB"

    def settle(self) -> None:
        """Give the broker the time to take in all that it is willing to take: until its memory stays the same."""
        same = 0
        last = self.resident_bytes()
        while same < 10:
            self.round_trip()
            now = self.resident_bytes()
            same = same + 1 if abs(now - last) < 200_000 else 0
            last = now

    def _status_bytes(self, name: str) -> int:
        for line in Path(f"/proc/{self.broker.pid}/status").read_text().splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) * 1024
        raise AssertionError("the broker is gone")

    def round_trip(self) -> float:
        """Produce one record on a new connection and read it back at the offset it must have; seconds taken."""
        began = time.perf_counter()
        with RawConnection(self.address) as connection:
            self._round_trip_on(connection)
        return time.perf_counter() - began

    def _round_trip_on(self, connection: RawConnection) -> None:
        with self._writing:
            self._produce_and_fetch(connection)

    def _produce_and_fetch(self, connection: RawConnection) -> None:
        value = b"record %d" % self._written
        produced = connection.call(produce_request(BYSTANDER, record_batch(value)), 9)
        (result,) = produced.responses[0].partition_responses
        assert result.error_code == ErrorCode.NONE, result
        assert result.base_offset == self._written, "someone else wrote into the bystander's log"
        fetched = connection.call(fetch_request(BYSTANDER, self._written), 11)
        (data,) = fetched.responses[0].partitions
        assert data.error_code == ErrorCode.NONE
        (record,) = decode_records(bytes(data.records), MIB)
        assert record.value == value
        self._written += 1

    def check(self) -> None:
        """It lives, has no complaint about itself, and serves others in their normal time."""
        assert self.broker.running
        took = self.round_trip()
        assert took < ROUND_TRIP_SECONDS_MAX, f"a round trip took {took:.3f} s"
        log = self.broker.log_text
        assert "unexpected" not in log, log[-3000:]
        assert "Traceback" not in log, log[-3000:]

    @contextlib.contextmanager
    def others_are_served(self) -> Iterator[None]:
        """While the block runs, another client goes on producing and fetching, and never has to wait long."""
        stop = threading.Event()
        slowest: list[float] = [0.0]
        failure: list[BaseException] = []

        def work() -> None:
            try:
                with RawConnection(self.address, timeout_seconds=ANSWER_SECONDS) as connection:
                    while not stop.wait(0.01):
                        began = time.perf_counter()
                        self._round_trip_on(connection)
                        slowest[0] = max(slowest[0], time.perf_counter() - began)
            except BaseException as error:  # noqa: BLE001 - told by the test's own thread below
                failure.append(error)

        client = threading.Thread(target=work)
        client.start()
        try:
            yield
        finally:
            stop.set()
            client.join()
        if failure:
            raise AssertionError("another client was not served") from failure[0]
        assert slowest[0] < ROUND_TRIP_SECONDS_MAX, f"another client waited {slowest[0]:.3f} s"

    # --- attacks ---

    def attack(self, streams: Iterable[bytes]) -> None:
        """Send each stream of bytes on a connection of its own. Each gets an answer or its connection closed.

        The client's half is closed after sending, so that a broker that waits for more learns there is none.
        """
        waiting: list[bytes] = []
        for stream in streams:
            waiting.append(stream)
            if len(waiting) == PARALLEL:
                self._attack_with(waiting)
                waiting.clear()
        self._attack_with(waiting)

    def _attack_with(self, streams: Sequence[bytes]) -> None:
        with selectors.DefaultSelector() as selector:
            for stream in streams:
                connection = socket.create_connection(self.address, timeout=ANSWER_SECONDS)
                # The broker may close before all is sent, which is an answer too.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.sendall(stream)
                    connection.shutdown(socket.SHUT_WR)
                connection.setblocking(False)
                selector.register(connection, selectors.EVENT_READ)
            left = len(streams)
            deadline = time.monotonic() + ANSWER_SECONDS
            try:
                while left:
                    ready = selector.select(max(0.0, deadline - time.monotonic()))
                    assert ready, f"{left} of {len(streams)} connections got neither an answer nor an end"
                    for key, _ in ready:
                        connection = key.fileobj  # type: ignore[assignment]
                        if _is_over(connection):
                            selector.unregister(connection)
                            connection.close()
                            left -= 1
            finally:
                for key in list(selector.get_map().values()):
                    key.fileobj.close()  # type: ignore[union-attr]


def _is_over(connection: socket.socket) -> bool:
    try:
        return not connection.recv(1 << 16)
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


def record_batch(value: bytes = b"value", key: bytes | None = b"key", compression: int = 0) -> bytes:
    timestamp = int(time.time() * 1000)
    return bytes(encode_batch([Record(0, timestamp, key, value, ())], compression=compression))


def produce_request(topic: str, records: bytes, acks: int = 1) -> ProduceRequest:
    return ProduceRequest(
        acks=acks,
        timeout_ms=10_000,
        topic_data=[
            TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=0, records=memoryview(records))]
            )
        ],
    )


def fetch_request(topic: str, offset: int, max_bytes: int = MIB, max_wait_ms: int = 0) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=max_bytes,
        topics=[
            FetchTopic(
                topic=topic,
                partitions=[FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)],
            )
        ],
    )


def create_topic_request(name: str, **configs: str) -> CreateTopicsRequest:
    """In names of configs `_` stands for `.`."""
    settings = [
        CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()
    ]
    return CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=1, replication_factor=1, configs=settings)],
        timeout_ms=10_000,
    )


@contextlib.contextmanager
def victim_broker(**config: str | int) -> Iterator[Victim]:
    """A broker with the topics that attacks need. In names of settings `_` stands for `.`."""
    settings = {name.replace("_", "."): value for name, value in config.items()}
    with Broker(topics={BYSTANDER: 1, PREY: 2}, config=settings) as broker:
        broker.create_topic(COMPACTED, config={"cleanup.policy": "compact"})
        victim = Victim(broker)
        for _ in range(20):  # so that first uses are behind it
            victim.round_trip()
        yield victim
        victim.check()
