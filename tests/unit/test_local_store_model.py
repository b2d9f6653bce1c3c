"""Any history of clients that come, go, die and stand still: the local store promises the same throughout."""

from __future__ import annotations

import random
import shutil
import sqlite3
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from metadata_stores import Call, Client, SteppedLocalWorld

from culver.coordination.local import LocalStore
from culver.coordination.store import Change, Check, Create, Delete, Entry, Put, StoreError

CLIENTS_MAX = 4
PATHS = ["/controller", "/brokers/1", "/brokers/2", "/a"]
paths = st.sampled_from(PATHS)
versions = st.none() | st.integers(0, 2)


class LocalStoreHistory(RuleBasedStateMachine):
    """The journal in the file is what happened; everyone's view of it is checked against that."""

    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        self.directory = Path(tempfile.mkdtemp())
        self.world = SteppedLocalWorld(self.directory)
        chance = random.Random(seed)
        self.world.time.delay_ms = lambda: chance.choice([0.0, 0.0, 1.0, chance.uniform(0, 60)])
        step = self.world.time.step

        def checked_step() -> bool:
            more = step()
            self.leases_hold()
            return more

        self.world.time.step = checked_step  # type: ignore[method-assign]
        self.first_event: dict[Client, int] = {}
        self.stalled: set[Client] = set()
        self.values = 0
        self.calls: list[tuple[Call, list[bytes]]] = []
        self.ids: list[Call] = []
        self.open()
        self.connection = sqlite3.connect(self.world.path, isolation_level=None)

    # -- what happens -----------------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.clients) < CLIENTS_MAX)
    @rule()
    def open(self) -> None:
        client = self.world.open()
        assert isinstance(client.store, LocalStore)
        self.first_event[client] = client.store._last_change

    @precondition(lambda self: self.world.clients)
    @rule(data=st.data(), count=st.integers(1, 3))
    def change(self, data: st.DataObject, count: int) -> None:
        client = self.pick(data)
        changes: list[Change] = []
        values: list[bytes] = []
        for _ in range(count):
            path = data.draw(paths)
            self.values += 1
            value = b"%d" % self.values
            kind = data.draw(st.sampled_from(["ephemeral", "create", "put", "delete", "check"]))
            if kind in ("ephemeral", "create"):
                changes.append(Create(path, value, ephemeral=kind == "ephemeral"))
                values.append(value)
            elif kind == "put":
                changes.append(Put(path, value, data.draw(versions)))
                values.append(value)
            elif kind == "delete":
                changes.append(Delete(path, data.draw(versions)))
            else:
                changes.append(Check(path, data.draw(st.integers(0, 2))))
        self.calls.append((client.begin(*changes), values))

    @precondition(lambda self: self.world.clients)
    @rule(data=st.data())
    def allocate(self, data: st.DataObject) -> None:
        self.ids.append(self.pick(data).begin_ids("kind", 10))

    @precondition(lambda self: self.world.clients)
    @rule(data=st.data(), how=st.sampled_from(["kill", "close"]))
    def end(self, data: st.DataObject, how: str) -> None:
        client = self.pick(data)
        self.stalled.discard(client)
        if how == "kill":
            self.world.kill(client)
        else:
            client.close()

    @precondition(lambda self: set(self.world.clients) - self.stalled)
    @rule(data=st.data())
    def stall(self, data: st.DataObject) -> None:
        client = data.draw(st.sampled_from([c for c in self.world.clients if c not in self.stalled]))
        self.world.stall(client)
        self.stalled.add(client)

    @precondition(lambda self: self.stalled)
    @rule()
    def resume(self) -> None:
        for client in [client for client in self.world.clients if client in self.stalled]:
            self.world.resume(client)
        self.stalled.clear()

    @rule(duration_ms=st.sampled_from([1, 20, 60, 400, 1900, 2100, 5000]))
    def wait(self, duration_ms: int) -> None:
        self.world.pass_ms(duration_ms)

    def pick(self, data: st.DataObject) -> Client:
        return data.draw(st.sampled_from(self.world.clients))

    # -- what always holds ------------------------------------------------------------------------------

    def leases_hold(self) -> None:
        """Checked at every moment: who trusts its lease is in the database."""
        now_ms = self.world.clock.monotonic_ms()
        sessions = {session for (session,) in self.connection.execute("SELECT id FROM sessions")}
        for client in self.world.clients:
            store = client.store
            assert isinstance(store, LocalStore)
            if now_ms < store.lease_until_ms:
                assert store._session is not None
                assert store._session.id in sessions

    @invariant()
    def ephemeral_entries_have_a_session(self) -> None:
        orphans = self.connection.execute(
            "SELECT path FROM entries WHERE session IS NOT NULL AND session NOT IN (SELECT id FROM sessions)"
        )
        assert orphans.fetchall() == []

    @invariant()
    def everyone_was_told_a_stretch_of_the_journal(self) -> None:
        journal = self.journal()
        for client, first in self.first_event.items():
            assert client.events == journal[first : first + len(client.events)]

    @invariant()
    def what_was_refused_was_not_made_and_the_rest_was(self) -> None:
        made = [entry.value for _path, entry in self.journal() if entry is not None]
        assert len(made) == len(set(made))
        for call, values in self.calls:
            if call.done:
                assert call.error is None or isinstance(call.error, StoreError)
                assert set(values) & set(made) == (set() if call.error else set(values))

    @invariant()
    def no_id_is_given_out_twice(self) -> None:
        firsts = [call.first_id for call in self.ids if call.done]
        assert len(firsts) == len(set(firsts))

    def journal(self) -> list[tuple[str, Entry | None]]:
        rows = self.connection.execute("SELECT path, value, version FROM changes ORDER BY number")
        return [(path, None if value is None else Entry(value, version)) for path, value, version in rows]

    # -- in the end -------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "world"):
            return
        try:
            self.resume()
            self.world.pass_ms(3 * self.world.session_timeout_ms)
            entries = {
                path: Entry(value, version)
                for path, value, version in self.connection.execute(
                    "SELECT path, value, version FROM entries"
                )
            }
            for client in self.world.clients:
                assert client.entries == entries
                assert client.store.lease_until_ms > self.world.clock.monotonic_ms()
                assert client.sessions == [False, True] * (len(client.sessions) // 2)
            living = {client.store._session.id for client in self.world.clients}  # type: ignore[attr-defined]
            rows = self.connection.execute("SELECT id FROM sessions").fetchall()
            assert not self.world.clients or {session for (session,) in rows} == living
        finally:
            self.connection.close()
            self.world.close()
            shutil.rmtree(self.directory)


LocalStoreHistory.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestLocalStoreHistory = LocalStoreHistory.TestCase
