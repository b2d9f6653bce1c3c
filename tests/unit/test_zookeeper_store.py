"""The metadata store when ZooKeeper, or the way to it, fails: nothing is missed, nothing is promised too long."""

from __future__ import annotations

import math
import threading
import time
import uuid
from collections.abc import Iterator, Sequence

import pytest
from metadata_stores import Client
from zookeeper_world import SESSION_TIMEOUT_MS, TICK_TIME_MS, ZooKeeperWorld

from culver.coordination.store import Conflict, Create, Delete, Entry, Event, Put, StoreError
from culver.coordination.zookeeper import ZooKeeperStore
from culver.coordination.zookeeper_client import parse_address
from culver.testing import ZooKeeper


@pytest.fixture(scope="module")
def shared_zookeeper() -> Iterator[ZooKeeper]:
    with ZooKeeper(tick_time_ms=TICK_TIME_MS) as zookeeper:
        yield zookeeper


@pytest.fixture
def world(shared_zookeeper: ZooKeeper) -> Iterator[ZooKeeperWorld]:
    world = ZooKeeperWorld(shared_zookeeper.address, f"/culver/{uuid.uuid4()}")
    yield world
    world.close()


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeper]:
    """One that a test may kill."""
    with ZooKeeper(tick_time_ms=TICK_TIME_MS) as zookeeper:
        yield zookeeper


@pytest.fixture
def own_world(zookeeper: ZooKeeper) -> Iterator[ZooKeeperWorld]:
    world = ZooKeeperWorld(zookeeper.address, "/culver", 2 * SESSION_TIMEOUT_MS)
    yield world
    world.close()


def lease_is_over(world: ZooKeeperWorld, client: Client) -> bool:
    return client.store.lease_until_ms < world.clock.monotonic_ms()


# -- the way to the server ------------------------------------------------------------------------------


def test_a_dropped_connection_costs_neither_the_session_nor_an_event(world: ZooKeeperWorld) -> None:
    owner, other = world.open(), world.open()
    owner.change(Create("/brokers/1", b"", ephemeral=True), Create("/a", b"0"), Create("/b/c", b"0"))
    other.sees("/b/c", b"0")
    world.proxy(owner).drop()
    other.change(Put("/a", b"1"), Delete("/b/c"), Create("/b/d", b"1"), Create("/e/f", b"1"))
    owner.sees("/e/f", b"1")
    world.until(lambda: owner.entries == other.entries, "both being equal")
    # The watches are there again, on old and new entries and directories.
    other.change(
        Put("/a", b"2"), Put("/b/d", b"2"), Create("/e/g", b"2"), Create("/h", b"2"), Delete("/brokers/1")
    )
    owner.sees("/brokers/1", None)
    world.until(lambda: owner.entries == other.entries, "both being equal")
    assert owner.sessions == []


def test_who_is_cut_off_has_no_lease_by_the_time_the_others_see_it_gone(world: ZooKeeperWorld) -> None:
    owner, other = world.open(), world.open()
    owner.change(Create("/brokers/1", b"1", ephemeral=True), Create("/a", b"0"))
    other.sees("/a", b"0")
    leases: list[float] = []
    other.on_event = lambda path, entry: leases.append(
        owner.store.lease_until_ms - world.clock.monotonic_ms()
    )
    world.proxy(owner).cut()
    other.sees("/brokers/1", None)
    assert leases[0] < 0
    other.on_event = lambda path, entry: None
    other.change(Put("/a", b"1"))
    assert owner.sessions == [], "nobody could tell it yet"
    world.proxy(owner).heal()
    world.until(lambda: owner.sessions == [False, True], "a new session")
    assert owner.entries == {"/a": Entry(b"1", 1)}
    assert owner.change(Create("/brokers/1", b"2", ephemeral=True)) is None
    other.sees("/brokers/1", b"2")


def test_a_network_that_swallows_everything_is_noticed(world: ZooKeeperWorld) -> None:
    owner, other = world.open(), world.open()
    owner.change(Create("/brokers/1", b"1", ephemeral=True))
    other.sees("/brokers/1", b"1")
    world.proxy(owner).freeze()
    # A busy client, too: what it sends must not pass for a sign of life.
    calls = [owner.begin(Create(f"/a/{number}", b"")) for number in range(20)]
    other.sees("/brokers/1", None)
    assert lease_is_over(world, owner)
    world.until(lambda: all(call.done for call in calls), "the calls to be given up")
    assert all(type(call.error) is StoreError for call in calls)
    world.proxy(owner).heal()
    world.until(lambda: owner.sessions == [False, True], "a new session")
    world.until(lambda: owner.entries == other.entries == dict(world.open().entries), "all being equal")


def test_a_call_made_while_there_is_no_connection_is_made_when_it_is_back(world: ZooKeeperWorld) -> None:
    client = world.open()
    proxy = world.proxy(client)
    proxy.cut()
    world.pass_ms(SESSION_TIMEOUT_MS / 20)
    calls = [client.begin(Create("/a", b"")), client.begin_ids("kind", 5), client.begin(Create("/b", b""))]
    world.pass_ms(SESSION_TIMEOUT_MS / 10)
    proxy.heal()
    world.until(lambda: all(call.done for call in calls), "the calls to be made")
    # The first may have been on its way when the connection went.
    assert [call.error for call in calls[1:]] == [None, None]
    assert client.sessions == []


def test_a_call_is_given_up_when_no_server_answers_for_the_sessions_timeout(world: ZooKeeperWorld) -> None:
    client = world.open()
    world.proxy(client).cut()
    world.until(lambda: lease_is_over(world, client), "the lease to end")
    started_ms = world.clock.monotonic_ms()
    calls = [client.begin(Create("/a", b"")), client.begin_ids("kind", 5)]
    world.until(lambda: all(call.done for call in calls), "the calls to be given up")
    assert world.clock.monotonic_ms() - started_ms < 2 * SESSION_TIMEOUT_MS
    assert all(type(call.error) is StoreError for call in calls)


def test_nothing_is_missed_however_often_the_connection_goes(world: ZooKeeperWorld) -> None:
    """Three writers, two of them and the reader with connections that keep breaking."""
    writers, reader = [world.open() for _ in range(3)], world.open()
    told: dict[str, int] = {}

    def forward_only(path: str, entry: Entry | None) -> None:
        if entry is None:
            told.pop(path, None)
            return
        assert told.get(path, -1) < entry.version, f"{path} went back"
        told[path] = entry.version

    reader.on_event = forward_only
    kinds = {name: f"/{name}" for name in ("a", "b", "c")}
    for round in range(12):
        calls = []
        for number in range(30):
            writer = writers[number % 3]
            path = f"{kinds['abc'[number % 3]]}/{(round * 7 + number) % 13}"
            step = (round + number) % 4
            change = (
                Delete(path)
                if step == 3
                else Create(path, b"%d" % round)
                if step == 0
                else Put(path, b"%d" % round)
            )
            calls.append(writer.begin(change))
        for client in (reader, writers[round % 2]):
            world.proxy(client).drop()
        world.until(lambda calls=calls: all(call.done for call in calls), "the calls")  # type: ignore[misc]
        assert all(call.error is None or isinstance(call.error, StoreError) for call in calls)
    truth = world.open().entries
    for client in (*writers, reader):
        world.until(lambda client=client: client.entries == truth, "all being equal")  # type: ignore[misc]
    assert reader.sessions == []


def test_what_one_change_changed_is_told_together(world: ZooKeeperWorld) -> None:
    """A topic's entry and its new partitions, say: who saw one without the other would take the topic for broken."""
    writer, reader = world.open(), world.open()
    torn: list[str] = []

    def take(events: Sequence[Event]) -> None:
        reader._take(events)
        counts = {
            path: int(entry.value) for path, entry in reader.entries.items() if path.startswith("/topics")
        }
        for path, count in counts.items():
            made = sum(other.startswith(f"/partitions/{path[8:]}-") for other in reader.entries)
            if made != count:
                torn.append(f"{path} has {made} of {count}")

    reader.store._on_events = take  # type: ignore[attr-defined]
    calls = []
    for count in range(1, 21):
        for topic in ("one", "two"):
            path, value = f"/topics/{topic}", b"%d" % count
            topic_change = Create(path, value) if count == 1 else Put(path, value)
            calls.append(writer.begin(topic_change, Create(f"/partitions/{topic}-{count}", b"")))
    calls.append(
        writer.begin(Delete("/topics/one"), *(Delete(f"/partitions/one-{number}") for number in range(1, 21)))
    )
    world.until(
        lambda: all(call.done for call in calls) and reader.entries == writer.entries, "all to be told"
    )
    assert [call.error for call in calls] == [None] * len(calls)
    assert torn == []


def test_an_unanswered_change_is_not_reported_as_refused(world: ZooKeeperWorld) -> None:
    client = world.open()
    outcomes = []
    for number in range(15):
        call = client.begin(Create(f"/a/{number}", b""))
        world.proxy(client).drop()
        world.until(lambda call=call: call.done, "an outcome")  # type: ignore[misc]
        assert not isinstance(call.error, Conflict)
        outcomes.append(call.error is None)
    made = [f"/a/{number}" in world.open().entries for number in range(15)]
    assert all(there for there, said_so in zip(made, outcomes, strict=True) if said_so)


# -- the server -----------------------------------------------------------------------------------------


def test_a_server_that_is_killed_and_comes_back(own_world: ZooKeeperWorld, zookeeper: ZooKeeper) -> None:
    clients = [own_world.open() for _ in range(2)]
    clients[0].change(Create("/a", b"1"), Create("/b/empty", b""))
    clients[1].sees("/a", b"1")
    zookeeper.kill()
    own_world.until(lambda: all(lease_is_over(own_world, client) for client in clients), "the leases to end")
    zookeeper.start()
    own_world.until(lambda: not any(lease_is_over(own_world, client) for client in clients), "new leases")
    for client in clients:
        # The server gives every session its full time anew; who finds it too late begins another.
        own_world.until(lambda client=client: client.sessions in ([], [False, True]), "a session")  # type: ignore[misc]
    assert clients[0].change(Create("/brokers/1", b"1", ephemeral=True)) is None
    assert clients[1].change(Put("/a", b"2", 0)) is None
    clients[0].sees("/a", b"2")
    clients[1].sees("/brokers/1", b"1")
    assert clients[0].entries == clients[1].entries
    assert clients[0].entries.keys() == {"/brokers/1", "/a", "/b/empty"}


def test_a_server_that_hangs_and_goes_on(own_world: ZooKeeperWorld, zookeeper: ZooKeeper) -> None:
    clients = [own_world.open() for _ in range(3)]
    for number, client in enumerate(clients):
        client.change(Create(f"/brokers/{number}", b"", ephemeral=True))
    for client in clients:
        own_world.until(lambda client=client: len(client.entries) == 3, "three brokers")  # type: ignore[misc]
    zookeeper.suspend()
    own_world.pass_ms(2 * own_world.session_timeout_ms)
    assert all(lease_is_over(own_world, client) for client in clients)
    zookeeper.resume()

    def seen_gone(path: str, entry: Entry | None) -> None:
        owner = clients[int(path[-1])]
        if entry is None and not owner.sessions:
            assert lease_is_over(own_world, owner), "it was seen to go while it counted on its entry"

    for client in clients:
        client.on_event = seen_gone
    own_world.until(lambda: not any(lease_is_over(own_world, client) for client in clients), "new leases")
    for number, client in enumerate(clients):
        own_world.until(lambda client=client: client.sessions in ([], [False, True]), "a session")  # type: ignore[misc]
        if client.sessions:
            assert client.change(Create(f"/brokers/{number}", b"", ephemeral=True)) is None
    for client in clients:
        own_world.until(lambda client=client: len(client.entries) == 3, "three brokers")  # type: ignore[misc]


def test_the_lease_keeps_to_the_timeout_that_the_server_grants(world: ZooKeeperWorld) -> None:
    """It grants two to twenty of its ticks, whatever is asked for."""
    for asked_ms, granted_ms in ((30_000, 20 * TICK_TIME_MS), (50, 2 * TICK_TIME_MS)):
        world.session_timeout_ms = asked_ms
        client = world.open()
        now_ms = world.clock.monotonic_ms()
        assert now_ms < client.store.lease_until_ms <= now_ms + granted_ms


# -- opening and closing --------------------------------------------------------------------------------


def test_a_broker_may_start_before_the_server(own_world: ZooKeeperWorld, zookeeper: ZooKeeper) -> None:
    zookeeper.kill()
    starter = threading.Timer(0.3, zookeeper.start)
    starter.start()
    client = own_world.open()
    starter.join()
    assert client.change(Create("/a", b"")) is None
    assert client.sessions == []


def test_without_a_server_opening_fails_and_says_what_to_do(
    own_world: ZooKeeperWorld, zookeeper: ZooKeeper
) -> None:
    zookeeper.kill()
    store = ZooKeeperStore(
        f"zookeeper://{zookeeper.address}/culver",
        own_world.new_scheduler(),
        own_world.clock,
        1000,
        connect_timeout_ms=300,
    )
    with pytest.raises(
        StoreError, match=rf"{zookeeper.address} answered within 0.3 s: start it, or correct the address"
    ):
        store.open(lambda _events: None, lambda _begun: None)
    store.close()


def test_another_server_of_the_ensemble_is_tried(world: ZooKeeperWorld, shared_zookeeper: ZooKeeper) -> None:
    store = ZooKeeperStore(
        f"zookeeper://127.0.0.1:1,{shared_zookeeper.address}/culver/{uuid.uuid4()}/deep",
        world.new_scheduler(),
        world.clock,
        SESSION_TIMEOUT_MS,
    )
    assert store.open(lambda _events: None, lambda _begun: None) == {}
    store.close()


@pytest.mark.parametrize("fault", ["kill", "suspend"])
def test_closing_does_not_wait_for_a_server_that_is_not_there(
    own_world: ZooKeeperWorld, zookeeper: ZooKeeper, fault: str
) -> None:
    fresh, stale = own_world.open(), own_world.open()
    getattr(zookeeper, fault)()
    started = time.monotonic()
    fresh.close()
    own_world.until(lambda: lease_is_over(own_world, stale), "the lease to end")
    stale.close()
    assert time.monotonic() - started < 3 * own_world.session_timeout_ms / 1000
    assert stale.store.lease_until_ms == -math.inf


def test_ten_thousand_entries_are_read_at_opening(world: ZooKeeperWorld) -> None:
    client = world.open()
    for first in range(0, 10_000, 1000):
        paths = [f"/partitions/{number}" for number in range(first, first + 1000)]
        assert client.change(*(Create(path, path.encode()) for path in paths)) is None
    again = world.open()
    assert len(again.entries) == 10_000
    assert all(entry == Entry(path.encode(), 0) for path, entry in again.entries.items())


def test_a_change_that_no_server_would_take_is_refused_with_the_reason(world: ZooKeeperWorld) -> None:
    client = world.open()
    error = client.change(*(Create(f"/a/{number}", b"x" * 1000) for number in range(1000)))
    assert type(error) is StoreError
    assert "make it in parts" in str(error)
    assert client.change(Create("/a/0", b"x" * 900_000)) is None


@pytest.mark.parametrize(
    ("address", "hosts", "path"),
    [
        ("zookeeper://one", "one", "/culver"),
        ("zookeeper://one:2181/", "one:2181", "/culver"),
        ("zookeeper://one:2181,two:2182/a/b/", "one:2181,two:2182", "/a/b"),
        ("zookeeper://[::1]:2181,[::2]/a", "[::1]:2181,[::2]", "/a"),
    ],
)
def test_addresses(address: str, hosts: str, path: str) -> None:
    assert parse_address(address) == (hosts, path)


@pytest.mark.parametrize(
    "address",
    [
        "one:2181",
        "zk://one",
        "zookeeper://",
        "zookeeper:///a",
        "zookeeper://a,,b",
        "zookeeper://a:x",
        "zookeeper://a:0",
        "zookeeper://:2181/a",
        "zookeeper://a//b//c",
        "zookeeper://a/../b",
    ],
)
def test_bad_addresses_are_refused_with_the_form(address: str) -> None:
    with pytest.raises(ValueError, match="zookeeper://HOST:PORT,HOST:PORT/PATH"):
        parse_address(address)
