"""The contract of the metadata store, kept by every adapter."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
from metadata_stores import WORLDS, Client, StoreWorld

from culver.coordination.store import Change, Check, Conflict, Create, Delete, Entry, Put, StoreError


@pytest.fixture(params=WORLDS)
def world(request: pytest.FixtureRequest) -> Iterator[StoreWorld]:
    world = WORLDS[request.param](request)
    yield world
    world.close()


# -- changes --------------------------------------------------------------------------------------------


def test_what_was_created_is_there_with_version_zero(world: StoreWorld) -> None:
    client = world.open()
    assert client.entries == {}
    assert client.change(Create("/a", b"1")) is None
    assert client.entries == {"/a": Entry(b"1", 0)}
    assert world.open().entries == {"/a": Entry(b"1", 0)}


def test_each_put_raises_the_version(world: StoreWorld) -> None:
    client = world.open()
    client.change(Create("/a", b"1"))
    assert client.change(Put("/a", b"2", 0)) is None
    assert client.change(Put("/a", b"3")) is None
    assert client.entries == {"/a": Entry(b"3", 2)}


def test_a_value_may_be_empty_or_any_bytes(world: StoreWorld) -> None:
    client = world.open()
    everything = bytes(range(256)) * 40
    assert client.change(Create("/empty", b""), Create("/bytes", everything)) is None
    assert world.open().entries == {"/empty": Entry(b"", 0), "/bytes": Entry(everything, 0)}


def test_paths_of_two_parts_are_entries_of_their_own(world: StoreWorld) -> None:
    client = world.open()
    paths = [
        "/topics/a.b_c-D",
        "/topics/\u00e9",
        "/partitions/00ff-0",
        "/controller-epoch",
        "/config/broker-default",
    ]
    assert client.change(*(Create(path, path.encode()) for path in paths)) is None
    assert {path: entry.value for path, entry in world.open().entries.items()} == {
        path: path.encode() for path in paths
    }


@pytest.mark.parametrize(
    "refused",
    [
        Create("/a", b"x"),
        Put("/a", b"x", 7),
        Put("/b", b"x"),
        Put("/b", b"x", 0),
        Delete("/a", 7),
        Delete("/b"),
        Delete("/b", 0),
        Check("/a", 7),
        Check("/b", 0),
    ],
    ids=str,
)
def test_a_condition_that_does_not_hold_is_a_conflict(world: StoreWorld, refused: Change) -> None:
    client = world.open()
    client.change(Create("/a", b"1"))
    error = client.change(refused)
    assert isinstance(error, Conflict)
    assert error.path == refused.path
    assert client.entries == world.open().entries == {"/a": Entry(b"1", 0)}


def test_changes_are_made_all_or_none(world: StoreWorld) -> None:
    client = world.open()
    client.change(Create("/a", b"1"))
    error = client.change(Create("/b", b"1"), Put("/a", b"2"), Create("/a", b"2"), Create("/c", b"1"))
    assert isinstance(error, Conflict)
    assert error.path == "/a"
    assert client.entries == world.open().entries == {"/a": Entry(b"1", 0)}


def test_a_check_guards_the_changes_beside_it(world: StoreWorld) -> None:
    client = world.open()
    client.change(Create("/epoch", b""), Create("/a", b"1"))
    assert client.change(Check("/epoch", 0), Put("/a", b"2", 0)) is None
    client.change(Put("/epoch", b""))
    assert isinstance(client.change(Put("/a", b"3", 1), Check("/epoch", 0)), Conflict)
    assert client.change(Check("/epoch", 1), Put("/a", b"3", 1)) is None
    assert client.entries["/a"] == Entry(b"3", 2)


def test_a_check_alone_changes_nothing(world: StoreWorld) -> None:
    client = world.open()
    client.change(Create("/a", b"1"))
    told = len(client.events)
    assert client.change(Check("/a", 0)) is None
    assert client.entries == {"/a": Entry(b"1", 0)}
    assert len(client.events) == told


def test_later_changes_of_one_call_see_the_earlier_ones(world: StoreWorld) -> None:
    client = world.open()
    assert client.change(Create("/a", b"1"), Put("/a", b"2", 0), Delete("/a", 1), Create("/a", b"3")) is None
    assert client.entries == world.open().entries == {"/a": Entry(b"3", 0)}


def test_a_conflict_does_not_disturb_the_calls_around_it(world: StoreWorld) -> None:
    client = world.open()
    calls = [client.begin(Create(path, b"")) for path in ("/first", "/a", "/a", "/b")]
    world.until(lambda: all(call.done for call in calls))
    assert [type(call.error) for call in calls] == [type(None), type(None), Conflict, type(None)]
    assert set(client.entries) == {"/first", "/a", "/b"}


def test_a_deleted_path_can_be_created_again_and_starts_at_version_zero(world: StoreWorld) -> None:
    client = world.open()
    client.change(Create("/a", b"1"))
    client.change(Put("/a", b"2"))
    assert client.change(Delete("/a", 1)) is None
    assert client.entries == {}
    assert client.change(Create("/a", b"3")) is None
    assert client.entries == {"/a": Entry(b"3", 0)}


def test_outcomes_are_reported_in_the_order_of_the_calls(world: StoreWorld) -> None:
    client = world.open()
    calls = []
    for number in range(30):
        calls.append(client.begin(Create(f"/a/{number % 20}", b"")))
        if number % 3 == 0:
            calls.append(client.begin_ids("kind", 2))
    world.until(lambda: all(call.done for call in calls))
    assert client.finished == calls


def test_a_closed_store_takes_nothing_more(world: StoreWorld) -> None:
    client = world.open()
    client.close()
    with pytest.raises(StoreError, match="closed"):
        client.begin(Create("/a", b""))
    with pytest.raises(StoreError, match="closed"):
        client.begin_ids("kind", 1)


def test_closing_finishes_what_was_asked_for(world: StoreWorld) -> None:
    client = world.open()
    for number in range(5):
        client.begin(Create(f"/a/{number}", b""))
    client.close()
    assert set(world.open().entries) == {f"/a/{number}" for number in range(5)}


def test_what_is_not_ephemeral_outlives_every_session(world: StoreWorld) -> None:
    for number in range(3):
        client = world.open()
        assert len(client.entries) == number
        client.change(Create(f"/a/{number}", b""))
        client.close()
    assert len(world.open().entries) == 3


# -- ids ------------------------------------------------------------------------------------------------


def test_ids_are_handed_out_once_across_sessions_and_time(world: StoreWorld) -> None:
    first, second = world.open(), world.open()
    blocks = [client.begin_ids("producer", 10) for _ in range(10) for client in (first, second)]
    world.until(lambda: all(call.done for call in blocks))
    first.close()
    third = world.open()
    blocks += [third.begin_ids("producer", 10) for _ in range(3)]
    world.until(lambda: all(call.done for call in blocks))
    assert all(call.error is None for call in blocks)
    starts = [call.first_id for call in blocks if call.first_id is not None]
    ids = {start + index for start in starts for index in range(10)}
    assert len(ids) == 10 * len(blocks)
    assert min(ids) >= 0


def test_ids_of_another_kind_count_for_themselves(world: StoreWorld) -> None:
    client = world.open()
    assert client.ids("a", 7) == 0
    assert client.ids("b", 3) == 0
    assert client.ids("a", 1) == 7


def test_ids_are_no_entries(world: StoreWorld) -> None:
    client = world.open()
    client.ids("producer", 1000)
    assert client.entries == world.open().entries == {}


# -- events ---------------------------------------------------------------------------------------------


def test_others_are_told_of_every_change(world: StoreWorld) -> None:
    writer, reader = world.open(), world.open()
    writer.change(Create("/a", b"1"), Create("/b/c", b"2"))
    reader.sees("/b/c", b"2")
    writer.change(Put("/a", b"3"))
    reader.sees("/a", b"3")
    writer.change(Delete("/a"))
    reader.sees("/a", None)
    assert reader.entries == writer.entries == {"/b/c": Entry(b"2", 0)}
    writer.change(Create("/a", b"4"))
    reader.sees("/a", b"4")
    assert reader.entries["/a"].version == 0


def test_events_come_before_the_outcome(world: StoreWorld) -> None:
    client, other = world.open(), world.open()
    calls = []
    for number in range(20):
        calls.append(client.begin(Create(f"/a/{number}", b"")))
        other.begin(Create(f"/b/{number}", b""))
    world.until(lambda: all(call.done for call in calls))
    for number, call in enumerate(calls):
        told = {path for path, _entry in client.events[: call.events_before]}
        assert f"/a/{number}" in told


def test_after_a_conflict_the_winner_is_seen_soon(world: StoreWorld) -> None:
    winner, loser = world.open(), world.open()
    winner.change(Create("/a", b"winner"))
    assert isinstance(loser.change(Create("/a", b"loser")), Conflict)
    loser.sees("/a", b"winner")


def test_versions_of_a_path_never_go_back_and_the_last_is_told(world: StoreWorld) -> None:
    writers = [world.open() for _ in range(3)]
    reader = world.open()
    writers[0].change(Create("/counter", b"0"))
    for client in [*writers, reader]:
        client.sees("/counter", b"0")
    told: list[int] = []
    reader.on_event = lambda path, entry: told.append(-1 if entry is None else entry.version)
    calls = [writer.begin(Put("/counter", b"x")) for _ in range(20) for writer in writers]
    world.until(lambda: all(call.done for call in calls))
    assert all(call.error is None for call in calls)
    clients = [*writers, reader]
    world.until(lambda: all(client.entries["/counter"].version == 60 for client in clients), "all 60 puts")
    assert told == sorted(told)


def test_all_see_the_same_in_the_end_whoever_writes(world: StoreWorld) -> None:
    clients = [world.open() for _ in range(3)]
    calls = []
    for number in range(60):
        client = clients[number % 3]
        path = f"/a/{number * 7 % 10}"
        changes = (Create(path, b"%d" % number), Put(path, b"%d" % number), Delete(path))
        calls.append(client.begin(changes[number // 3 % 3]))
    late = world.open()
    clients.append(late)
    world.until(lambda: all(call.done for call in calls))
    truth = world.open().entries
    world.until(lambda: all(client.entries == truth for client in clients), "all being equal")


def test_compare_and_set_loses_no_increment(world: StoreWorld) -> None:
    clients = [world.open() for _ in range(3)]
    clients[0].change(Create("/sum", b"0"))
    for client in clients:
        client.sees("/sum", b"0")
    made = dict.fromkeys(range(3), 0)

    def increment(index: int) -> None:
        client = clients[index]
        entry = client.entries["/sum"]

        def done(error: BaseException | None) -> None:
            assert error is None or isinstance(error, Conflict)
            made[index] += error is None
            if made[index] < 15:
                increment(index)

        client.store.change([Put("/sum", b"%d" % (int(entry.value) + 1), entry.version)], done)

    for index in made:
        increment(index)
    world.until(lambda: all(count == 15 for count in made.values()), "all increments")
    clients[0].sees("/sum", b"45")


# -- sessions -------------------------------------------------------------------------------------------


def test_an_ephemeral_entry_is_an_entry_like_others_while_its_session_lasts(world: StoreWorld) -> None:
    owner, other = world.open(), world.open()
    assert owner.change(Create("/brokers/1", b"1", ephemeral=True)) is None
    other.sees("/brokers/1", b"1")
    assert isinstance(other.change(Create("/brokers/1", b"2", ephemeral=True)), Conflict)
    assert other.change(Put("/brokers/1", b"2", 0)) is None
    owner.sees("/brokers/1", b"2")
    world.pass_ms(2.5 * world.session_timeout_ms)
    assert other.entries == {"/brokers/1": Entry(b"2", 1)}
    assert owner.sessions == other.sessions == []
    assert other.change(Delete("/brokers/1", 1)) is None
    owner.sees("/brokers/1", None)


def test_ephemeral_entries_go_at_once_with_a_session_that_is_closed(world: StoreWorld) -> None:
    owner, other = world.open(), world.open()
    owner.change(Create("/brokers/1", b"1", ephemeral=True), Create("/kept", b""))
    other.sees("/brokers/1", b"1")
    owner.close()
    assert world.open().entries == {"/kept": Entry(b"", 0)}
    other.sees("/brokers/1", None)
    assert other.sessions == []


def test_ephemeral_entries_go_with_a_process_that_dies(world: StoreWorld) -> None:
    owner, other = world.open(), world.open()
    owner.change(
        Create("/brokers/1", b"1", ephemeral=True),
        Create("/controller", b"1", ephemeral=True),
        Create("/kept", b""),
    )
    other.sees("/kept", b"")
    world.kill(owner)
    other.sees("/brokers/1", None)
    other.sees("/controller", None)
    assert other.entries == {"/kept": Entry(b"", 0)}
    assert other.sessions == []
    assert other.change(Create("/brokers/1", b"2", ephemeral=True)) is None


def test_a_restarted_process_soon_finds_its_old_entries_gone(world: StoreWorld) -> None:
    owner = world.open()
    owner.change(Create("/brokers/1", b"1", ephemeral=True))
    world.kill(owner)
    again = world.open()
    again.sees("/brokers/1", None)
    assert again.change(Create("/brokers/1", b"2", ephemeral=True)) is None


def test_an_entry_that_another_made_anew_does_not_go_with_the_old_session(world: StoreWorld) -> None:
    owner, other = world.open(), world.open()
    owner.change(Create("/controller", b"1", ephemeral=True))
    other.sees("/controller", b"1")
    assert other.change(Delete("/controller"), Create("/controller", b"2", ephemeral=True)) is None
    world.kill(owner)
    world.pass_ms(2.5 * world.session_timeout_ms)
    assert world.open().entries == other.entries == {"/controller": Entry(b"2", 0)}


def test_a_stalled_session_is_lost_and_a_new_one_begins_by_itself(world: StoreWorld) -> None:
    owner, other = world.open(), world.open()
    owner.change(Create("/brokers/1", b"1", ephemeral=True))
    other.sees("/brokers/1", b"1")
    world.stall(owner)
    other.sees("/brokers/1", None)
    other.change(Create("/meanwhile", b""))
    world.resume(owner)
    world.until(lambda: owner.sessions == [False, True], "a new session")
    assert set(owner.entries) == {"/meanwhile"}
    assert owner.store.lease_until_ms > -math.inf
    assert owner.change(Create("/brokers/1", b"2", ephemeral=True)) is None
    other.sees("/brokers/1", b"2")
    world.pass_ms(2.5 * world.session_timeout_ms)
    assert owner.sessions == [False, True]
    assert "/brokers/1" in other.entries


def test_a_change_begun_before_the_session_was_lost_does_not_slip_in(world: StoreWorld) -> None:
    owner, other = world.open(), world.open()
    owner.change(Create("/brokers/1", b"1", ephemeral=True))
    other.sees("/brokers/1", b"1")
    world.stall(owner)
    other.sees("/brokers/1", None)
    call = owner.begin(Create("/controller", b"1", ephemeral=True))
    world.resume(owner)
    world.until(lambda: call.done, "the outcome")
    assert isinstance(call.error, StoreError)
    assert not isinstance(call.error, Conflict)
    world.until(lambda: owner.sessions == [False, True], "a new session")
    assert world.open().entries == {}


def test_the_lease_moves_on_while_the_store_answers(world: StoreWorld) -> None:
    client = world.open()
    first_ms = client.store.lease_until_ms
    assert first_ms <= world.clock.monotonic_ms() + world.session_timeout_ms
    for _ in range(20):
        world.pass_ms(world.session_timeout_ms / 5)
        now_ms = world.clock.monotonic_ms()
        assert now_ms < client.store.lease_until_ms <= now_ms + world.session_timeout_ms
    assert client.store.lease_until_ms > first_ms


def test_the_lease_never_outlives_the_entry_as_others_see_it(world: StoreWorld) -> None:
    owner, other = world.open(), world.open()
    owner.change(Create("/brokers/1", b"1", ephemeral=True))
    other.sees("/brokers/1", b"1")
    world.pass_ms(1.3 * world.session_timeout_ms)
    gone_ms: list[float] = []
    other.on_event = lambda path, entry: gone_ms.append(world.clock.monotonic_ms())
    world.stall(owner)
    other.sees("/brokers/1", None)
    assert owner.store.lease_until_ms < gone_ms[0]


def test_there_is_no_lease_without_a_session(world: StoreWorld) -> None:
    owner, other = world.open(), world.open()
    owner.change(Create("/brokers/1", b"1", ephemeral=True))
    other.sees("/brokers/1", b"1")
    world.stall(owner)
    other.sees("/brokers/1", None)
    leases: list[float] = []
    owner.on_session = lambda _begun: leases.append(owner.store.lease_until_ms)
    world.resume(owner)
    world.until(lambda: len(leases) == 2, "a new session")
    assert leases[0] == -math.inf
    assert leases[1] > -math.inf


def test_of_many_candidates_exactly_one_wins_each_election(world: StoreWorld) -> None:
    """The controller's election: whoever creates the entry first; when it dies, one of the others."""
    candidates = [world.open() for _ in range(4)]
    winners: list[Client] = []

    def stand(client: Client, name: bytes) -> None:
        def done(error: BaseException | None) -> None:
            assert error is None or isinstance(error, Conflict)
            if error is None:
                winners.append(client)

        client.store.change([Create("/controller", name, ephemeral=True)], done)

    def run(client: Client, name: bytes) -> None:
        client.on_event = lambda path, entry: stand(client, name) if entry is None else None
        stand(client, name)

    names = {client: b"%d" % number for number, client in enumerate(candidates)}
    for client, name in names.items():
        run(client, name)
    for round in range(3):
        world.until(lambda round=round: len(winners) > round, "a winner")  # type: ignore[misc]
        winner = winners[round]
        for client in candidates:
            client.sees("/controller", names[winner])
        candidates.remove(winner)
        world.kill(winner)
    (last,) = candidates
    last.sees("/controller", names[last])
    world.pass_ms(2 * world.session_timeout_ms)
    assert len(winners) == len(set(winners)) == 4
