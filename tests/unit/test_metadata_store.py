"""The contract of the metadata store, kept by every adapter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from culver.coordination.local import LocalStore
from culver.coordination.store import Change, Conflict, Create, Delete, Entry, MetadataStore, Put, StoreError
from culver.scheduler import T, Timer


class InlineScheduler:
    """Runs work when `run` is called, so that a test decides what is under way and what is not."""

    def __init__(self) -> None:
        self.waiting: list[Callable[[], None]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.waiting.append(lambda: (callback(), None)[1])

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        raise AssertionError("the store needs no timers")

    def run_blocking(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], object],
        delay_ms: float = 0.0,
    ) -> None:
        def run() -> None:
            try:
                result = work()
            except BaseException as error:  # noqa: BLE001 - handed on, as a thread would
                done(None, error)
            else:
                done(result, None)

        self.waiting.append(run)

    def run(self) -> int:
        ran = 0
        while self.waiting:
            self.waiting.pop(0)()
            ran += 1
        return ran


@pytest.fixture
def scheduler() -> InlineScheduler:
    return InlineScheduler()


@pytest.fixture
def store(tmp_path: Path, scheduler: InlineScheduler) -> Iterator[MetadataStore]:
    store = LocalStore(str(tmp_path / "metadata.sqlite"), scheduler)
    yield store
    store.close()


def change(store: MetadataStore, scheduler: InlineScheduler, *changes: Change) -> BaseException | None:
    outcome: list[BaseException | None] = []
    store.change(changes, outcome.append)
    scheduler.run()
    (error,) = outcome
    return error


def test_what_was_created_is_there_with_version_zero(
    store: MetadataStore, scheduler: InlineScheduler
) -> None:
    assert change(store, scheduler, Create("/a", b"1")) is None
    assert store.load() == {"/a": Entry(b"1", 0)}


def test_each_put_raises_the_version(store: MetadataStore, scheduler: InlineScheduler) -> None:
    change(store, scheduler, Create("/a", b"1"))
    assert change(store, scheduler, Put("/a", b"2", 0)) is None
    assert change(store, scheduler, Put("/a", b"3")) is None
    assert store.load() == {"/a": Entry(b"3", 2)}


@pytest.mark.parametrize(
    "refused",
    [Create("/a", b"x"), Put("/a", b"x", 7), Put("/b", b"x"), Delete("/a", 7), Delete("/b")],
    ids=str,
)
def test_a_condition_that_does_not_hold_is_a_conflict(
    store: MetadataStore, scheduler: InlineScheduler, refused: Change
) -> None:
    change(store, scheduler, Create("/a", b"1"))
    error = change(store, scheduler, refused)
    assert isinstance(error, Conflict)
    assert error.path == refused.path
    assert store.load() == {"/a": Entry(b"1", 0)}


def test_changes_are_made_all_or_none(store: MetadataStore, scheduler: InlineScheduler) -> None:
    change(store, scheduler, Create("/a", b"1"))
    assert isinstance(change(store, scheduler, Create("/b", b"1"), Create("/a", b"2")), Conflict)
    assert set(store.load()) == {"/a"}


def test_a_conflict_does_not_disturb_changes_that_share_its_commit(
    store: MetadataStore, scheduler: InlineScheduler
) -> None:
    outcomes: list[BaseException | None] = []
    for path in ("/first", "/a", "/a", "/b"):
        store.change([Create(path, b"")], outcomes.append)
    # The first job starts at once; the three that queue up behind it go together in one more.
    assert scheduler.run() == 2
    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), Conflict, type(None)]
    assert set(store.load()) == {"/first", "/a", "/b"}


def test_a_deleted_path_can_be_created_again(store: MetadataStore, scheduler: InlineScheduler) -> None:
    change(store, scheduler, Create("/a", b"1"))
    assert change(store, scheduler, Delete("/a", 0)) is None
    assert change(store, scheduler, Create("/a", b"2")) is None
    assert store.load() == {"/a": Entry(b"2", 0)}


def test_ids_are_handed_out_once_even_across_restarts(tmp_path: Path, scheduler: InlineScheduler) -> None:
    taken: list[int | None] = []
    for _ in range(2):
        store = LocalStore(str(tmp_path / "metadata.sqlite"), scheduler)
        store.allocate_ids("producer", 10, lambda first, _error: taken.append(first))
        store.allocate_ids("other", 5, lambda first, _error: taken.append(first))
        store.allocate_ids("producer", 10, lambda first, _error: taken.append(first))
        scheduler.run()
        store.close()
    assert taken == [0, 0, 10, 20, 5, 30]


def test_state_survives_a_reopening(tmp_path: Path, scheduler: InlineScheduler) -> None:
    store = LocalStore(str(tmp_path / "metadata.sqlite"), scheduler)
    change(store, scheduler, Create("/a", b"1"))
    store.close()
    store = LocalStore(str(tmp_path / "metadata.sqlite"), scheduler)
    assert store.load() == {"/a": Entry(b"1", 0)}
    store.close()


def test_closing_finishes_what_was_asked_for(tmp_path: Path, scheduler: InlineScheduler) -> None:
    store = LocalStore(str(tmp_path / "metadata.sqlite"), scheduler)
    store.change([Create("/a", b"1")], lambda _error: None)
    store.change([Create("/b", b"1")], lambda _error: None)
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.change([Create("/c", b"1")], lambda _error: None)


def test_a_file_that_is_no_store_is_refused_with_its_name(tmp_path: Path, scheduler: InlineScheduler) -> None:
    path = tmp_path / "metadata.sqlite"
    path.write_bytes(b"this is no database, whatever its name says" * 100)
    with pytest.raises(StoreError, match=r"metadata\.sqlite"):
        LocalStore(str(path), scheduler)
