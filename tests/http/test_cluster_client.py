"""The gateway's cluster client: what it asks of brokers, how it finds them, and what it does about bad ones."""

from __future__ import annotations

import asyncio
import struct
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

import confluent_kafka
import pytest
from wire_produce import connected, produce, run, until

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster import connections
from culver.gateway.cluster.cluster import Cluster, OffsetAt, Unreachable
from culver.gateway.cluster.groups import (
    alter_offsets,
    committed_offsets,
    delete_group,
    describe_groups,
    list_groups,
)
from culver.gateway.cluster.offsets import EARLIEST, LATEST
from culver.gateway.cluster.topics import (
    ConfigResource,
    ConfigSource,
    ResourceKind,
    alter_configs,
    create_partitions,
    create_topic,
    delete_records,
    delete_topics,
    describe_configs,
)
from culver.gateway.cluster.transactions import describe_transactions, list_transactions
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.membership.group_member import GroupMember
from culver.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from culver.testing import Broker
from culver.testing import Cluster as Brokers
from culver.wire_client import host_and_port

ORDERS = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 2}, config={"group.initial.rebalance.delay.ms": 0}) as started:
        yield started


def whoever() -> DescribeClusterRequest:
    return DescribeClusterRequest(include_cluster_authorized_operations=False)


def test_a_cluster_that_is_not_there_yet_is_found_once_it_is() -> None:
    async def scenario() -> None:
        with Broker() as there:
            address = there.bootstrap_servers
            there.stop()
            async with connected(address) as cluster:
                with pytest.raises(Unreachable):
                    await cluster.view()
                there.restart()
                view = []

                async def found() -> bool:
                    try:
                        view.append(await cluster.view())
                    except Unreachable:
                        return False
                    return True

                await until(found)
                assert list(view[0].brokers) == [there.broker_id]

    run(scenario)


def test_views_are_shared_and_young_enough(broker: Broker) -> None:
    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            views = await asyncio.gather(*(cluster.view() for _ in range(100)))
            assert all(view is views[0] for view in views)
            assert len(views[0].topics["orders"].partitions) == 2
            await asyncio.to_thread(broker.create_topic, "young")
            assert await cluster.view(max_age_ms=60_000) is views[0]

            async def seen() -> bool:
                cluster.forget_view()
                return "young" in (await cluster.view(max_age_ms=60_000)).topics

            await until(seen)

    run(scenario)


def test_a_connection_that_nobody_needs_is_closed(broker: Broker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_IDLE_MAX_S", 0.05)
    monkeypatch.setattr(connections, "_LOOK_FOR_IDLE_S", 0.05)

    async def scenario() -> None:
        pool = connections.Connections("test")
        connection = await pool.get(host_and_port(broker.bootstrap_servers), "nothing much")
        await until(lambda: connection.closed)
        assert not (await pool.get(connection.address, "nothing much")).closed
        await pool.close()

    run(scenario)


def test_offsets_are_looked_up_by_time_and_unknown_partitions_have_an_error(broker: Broker) -> None:
    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            await create_topic(cluster, "timed", partitions=1)
            await produce(cluster, "timed", [b"a", b"b", b"c"])  # at 1000, 1001 and 1002 ms
            place, nowhere = TopicPartition("timed", 0), TopicPartition("nowhere", 0)
            found = [await cluster.list_offsets({place: at}) for at in (EARLIEST, LATEST, 1001, 5000)]
            assert [answer[place].offset for answer in found] == [0, 3, 1, -1]
            assert found[2][place].timestamp_ms == 1001
            both = await cluster.list_offsets({place: LATEST, nowhere: LATEST}, committed=True)
            assert isinstance(both[place], OffsetAt)
            assert both[nowhere].code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    run(scenario)


def test_topics_are_made_changed_and_deleted(broker: Broker) -> None:
    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            await create_topic(cluster, "made", partitions=1, configs={"retention.ms": "60000"})
            with pytest.raises(KafkaError) as refused:
                await create_topic(cluster, "made", partitions=1)
            assert refused.value.code is ErrorCode.TOPIC_ALREADY_EXISTS
            resource, nothing = (
                ConfigResource(ResourceKind.TOPIC, "made"),
                ConfigResource(ResourceKind.TOPIC, "-"),
            )
            there = ConfigResource(ResourceKind.BROKER, str(broker.broker_id))
            found = await describe_configs(cluster, [resource, nothing, there])
            entries = {entry.name: entry for entry in found[resource]}
            assert (entries["retention.ms"].value, entries["retention.ms"].source) == (
                "60000",
                ConfigSource.TOPIC,
            )
            assert isinstance(found[nothing], KafkaError)
            assert found[there]
            await alter_configs(cluster, resource, {"retention.ms": None, "cleanup.policy": "compact"})
            entries = {entry.name: entry for entry in (await describe_configs(cluster, [resource]))[resource]}
            assert entries["cleanup.policy"].value == "compact"
            assert entries["retention.ms"].source != ConfigSource.TOPIC
            await create_partitions(cluster, "made", 3)
            assert len((await cluster.view()).topics["made"].partitions) == 3
            assert await delete_topics(cluster, ["made"]) == {"made": None}
            assert "made" not in (await cluster.view()).topics

    run(scenario)


def test_records_are_deleted_from_the_beginning(broker: Broker) -> None:
    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            await create_topic(cluster, "cut", partitions=1)
            await produce(cluster, "cut", [b"a", b"b", b"c"])
            place, nowhere = TopicPartition("cut", 0), TopicPartition("nowhere", 0)
            found = await delete_records(cluster, {place: 2, nowhere: 1})
            assert found[place] == 2
            assert isinstance(found[nowhere], KafkaError)
            assert (await cluster.list_offsets({place: EARLIEST}))[place].offset == 2

    run(scenario)


def test_groups_of_both_protocols_are_listed_and_described(broker: Broker) -> None:
    classic = confluent_kafka.Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": "classic", "client.id": "old"}
    )
    classic.subscribe(["orders"])

    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            assigned: dict[TopicPartition, int | None] = {}

            async def revoked(_: set[TopicPartition]) -> None: ...

            member = GroupMember(
                cluster,
                "modern",
                ["orders"],
                instance_name="new",
                on_assigned=assigned.update,
                on_revoked=revoked,
            )
            await member.start()
            await until(lambda: classic.poll(0) is None and len(classic.assignment()) == 2)
            await until(lambda: len(assigned) == 2)
            listed = {group.group: group for group in await list_groups(cluster)}
            assert (listed["classic"].type, listed["modern"].type) == ("classic", "consumer")
            assert listed["modern"].state == "Stable"
            described = await describe_groups(cluster, ["classic", "modern", "none"])
            for name, client in (("classic", "old"), ("modern", "new")):
                (only,) = described[name].members
                assert only.client_id == client
                assert sorted(only.assignment) == [TopicPartition("orders", 0), TopicPartition("orders", 1)]
            assert described["none"].error is not None
            assert described["none"].error.code is ErrorCode.GROUP_ID_NOT_FOUND
            await member.close()

    try:
        run(scenario)
    finally:
        classic.close()


def test_offsets_of_groups_are_set_read_and_deleted(broker: Broker) -> None:
    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            for number in range(300):
                await alter_offsets(cluster, f"many-{number}", {ORDERS: number})
            names = [f"many-{number}" for number in range(300)]
            found = await committed_offsets(cluster, [*names, "none"])
            assert [found[name][ORDERS].offset for name in names] == list(range(300))
            assert found["none"] == {}
            await delete_group(cluster, "many-7")
            assert (await committed_offsets(cluster, ["many-7"]))["many-7"] == {}
            with pytest.raises(KafkaError) as refused:
                await delete_group(cluster, "many-7")
            assert refused.value.code is ErrorCode.GROUP_ID_NOT_FOUND

    run(scenario)


def test_open_transactions_are_listed_with_what_they_touch(broker: Broker) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "payments"}
    )
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("orders", b"open", partition=0)
    producer.flush(10)

    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            (listed,) = await list_transactions(cluster, states=["Ongoing"])
            assert listed.transactional_id == "payments"
            described = await describe_transactions(cluster, ["payments", "none"])
            assert described["payments"].partitions == (ORDERS,)
            assert abs(described["payments"].started_ms / 1000 - time.time()) < 60
            assert described["none"].code is ErrorCode.TRANSACTIONAL_ID_NOT_FOUND

    try:
        run(scenario)
    finally:
        producer.abort_transaction(10)


# -- brokers that are no use -----------------------------------------------------------------------------------

Answer = Callable[[bytes], bytes]


@asynccontextmanager
async def liar(answer: Answer) -> AsyncIterator[str]:
    """A server that answers every request with what `answer` makes of it."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">i", await reader.readexactly(4))
                writer.write(answer(await reader.readexactly(size)))
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def correlated(request: bytes, body: bytes) -> bytes:
    return struct.pack(">i", 4 + len(body)) + request[4:8] + body


LIES: dict[str, Answer] = {
    "a size of two gigabytes": lambda request: struct.pack(">i", 0x7FFFFFFF) + b"x" * 100,
    "a negative size": lambda request: struct.pack(">i", -1) + b"x" * 100,
    "an answer to something else": lambda request: struct.pack(">ii", 8, 77) + b"\0" * 4,
    "not a Kafka answer": lambda request: b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "half of an answer": lambda request: correlated(request, struct.pack(">hi", 0, 9)),
    "a refusal": lambda request: correlated(request, struct.pack(">hi", 35, 0)),
    "no API at all": lambda request: correlated(request, struct.pack(">hi", 0, 0)),
}


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES.keys())
def test_a_peer_that_lies_loses_its_connection_and_another_is_asked(broker: Broker, lie: Answer) -> None:
    async def scenario() -> None:
        async with liar(lie) as address:
            async with connected(address) as cluster:
                with pytest.raises((Unreachable, KafkaError)):
                    await cluster.ask(whoever(), DescribeClusterResponse)
            async with connected(f"{address},{broker.bootstrap_servers}") as cluster:
                answer = await cluster.ask(whoever(), DescribeClusterResponse)
                assert [entry.broker_id for entry in answer.brokers] == [broker.broker_id]

    run(scenario)


def test_a_peer_that_never_answers_is_given_up_in_time() -> None:
    async def scenario() -> None:
        async with liar(lambda request: b"") as address:
            cluster = Cluster(address, timeout_ms=300)
            began = time.monotonic()
            with pytest.raises(Unreachable):
                await cluster.ask(whoever(), DescribeClusterResponse)
            assert time.monotonic() - began < 3
            await cluster.close()

    run(scenario)


def test_a_request_that_no_broker_knows_is_refused_here(broker: Broker) -> None:
    async def scenario() -> None:
        async with connected(broker.bootstrap_servers) as cluster:
            with pytest.raises(KafkaError) as refused:
                await cluster.ask(whoever(), DescribeClusterResponse, least_version=99)
            assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION

    run(scenario)


def test_a_broker_that_stops_in_its_tracks_does_not_stop_the_others() -> None:
    with Brokers(brokers=3, topics={"orders": 3}) as brokers:

        async def scenario() -> None:
            cluster = Cluster(brokers.bootstrap_servers, timeout_ms=500)
            await cluster.start()
            await cluster.find_coordinators(["one", "two", "three", "four"])
            victim = brokers.broker(brokers.leader("orders", 0))
            victim.suspend()
            try:
                listed = await list_groups(cluster)
                assert listed == []
                for _ in range(3):
                    cluster.forget_view()
                    await cluster.view()
                found = await cluster.list_offsets(
                    {TopicPartition("orders", partition): LATEST for partition in range(3)}, retry_ms=0
                )
                assert sum(isinstance(answer, OffsetAt) for answer in found.values()) >= 1
            finally:
                victim.resume()
            await cluster.close()

        run(scenario)
