"""A transaction coordinator, its log, a clock, partitions that take markers, and some producers; one-line commands.

The log takes records at once and markers are written at once, unless told otherwise (`hold`, `release`, `fail ERROR`;
`hold-markers`, `write-markers`). Producers are known by short names, speak the newer protocol unless their name starts
with `old`, use the transactional id `t`, and remember the producer id and epoch that they were told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from group_world import milliseconds
from transaction_printing import SHOW, show_markers, show_record

from culver.core.coordinator_effects import (
    WRITTEN_ANYHOW,
    Append,
    Effects,
    Reply,
    RequestContext,
    TakeProducerId,
    WriteMarkers,
)
from culver.core.transaction_coordinator import TransactionCoordinator
from culver.core.transaction_records import transaction_record
from culver.core.transaction_settings import TransactionSettings
from culver.errors import ErrorCode
from culver.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from culver.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from culver.protocol.messages.describe_transactions import DescribeTransactionsRequest
from culver.protocol.messages.end_txn import EndTxnRequest
from culver.protocol.messages.init_producer_id import InitProducerIdRequest
from culver.protocol.messages.list_transactions import ListTransactionsRequest

PARTITION = 0
START_MS = 1_000_000


class TenPartitions:
    """Some topics, with ten partitions each."""

    def partition_exists(self, name: str, partition: int) -> bool:
        return name in ("a", "b", "__consumer_offsets") and 0 <= partition < 10


@dataclass
class Producer:
    """What a producer remembers between its requests."""

    is_old: bool
    producer_id: int = -1
    epoch: int = -1


class Asked(NamedTuple):
    """The token of a request: who asked for what."""

    client: str
    what: str
    number: int


@dataclass
class TransactionWorld:
    """See the module's text. `run` is the door: a command in, printed lines out."""

    settings: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now_ms = START_MS
        self.producers: dict[str, Producer] = {}
        self.log: list[tuple[bytes, bytes | None]] = []
        self.held: list[Append] = []
        self.holding = False
        self.held_markers: list[WriteMarkers] = []
        self.holding_markers = False
        self.failing = ErrorCode.NONE
        self.no_ids = False
        self.next_id = 1000
        self.epoch = 0
        self.requests = 0
        self.printed: list[str] = []
        self.commands: dict[str, Callable[[list[str], dict[str, str]], None]] = {
            name.removeprefix("do_").replace("_", "-"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }
        self._load()

    def run(self, line: str) -> list[str]:
        self.printed = []
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        self.commands[name]([word for word in words if "=" not in word], options)
        return self.printed

    # --- producers ---

    def do_init(self, words: list[str], options: dict[str, str]) -> None:
        """`again`: with the id and epoch that the producer has."""
        name = words[0]
        producer = self._producer(name)
        has_id = "again" in words
        request = InitProducerIdRequest(
            transactional_id=options.get("id", "t"),
            transaction_timeout_ms=milliseconds(options.get("timeout", "60s")),
            producer_id=int(options.get("pid", producer.producer_id if has_id else -1)),
            producer_epoch=int(options.get("epoch", producer.epoch if has_id else -1)),
        )
        self._ask(name, "init", self.coordinator.handle_init_producer_id, request, options, 5)

    def do_add(self, words: list[str], options: dict[str, str]) -> None:
        self._add(words, options, "add")

    def do_verify(self, words: list[str], options: dict[str, str]) -> None:
        self._add(words, {"version": "5", **options}, "verify")

    def _add(self, words: list[str], options: dict[str, str], what: str) -> None:
        name, *partitions = words
        producer = self._producer(name)
        by_topic: dict[str, list[int]] = {}
        for word in partitions:
            topic, _, index = word.rpartition("-")
            by_topic.setdefault(topic, []).append(int(index))
        topics = [AddPartitionsToTxnTopic(name=topic, partitions=ids) for topic, ids in by_topic.items()]
        transactional_id = options.get("id", "t")
        producer_id = int(options.get("pid", producer.producer_id))
        epoch = int(options.get("epoch", producer.epoch))
        version = int(options.get("version", 3 if producer.is_old else 5))
        if version < 4:
            request = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=transactional_id,
                v3_and_below_producer_id=producer_id,
                v3_and_below_producer_epoch=epoch,
                v3_and_below_topics=topics,
            )
        else:
            request = AddPartitionsToTxnRequest(
                transactions=[
                    AddPartitionsToTxnTransaction(
                        transactional_id=one,
                        producer_id=producer_id,
                        producer_epoch=epoch,
                        verify_only=what == "verify",
                        topics=topics,
                    )
                    for one in transactional_id.split(",")
                ]
            )
        handle = self.coordinator.handle_add_partitions_to_txn
        self._ask(name, what, handle, request, options, version)

    def do_offsets(self, words: list[str], options: dict[str, str]) -> None:
        """Add the offsets of a group, which are in the partition that its name ends with."""
        name, group = words
        producer = self._producer(name)
        request = AddOffsetsToTxnRequest(
            transactional_id=options.get("id", "t"),
            producer_id=int(options.get("pid", producer.producer_id)),
            producer_epoch=int(options.get("epoch", producer.epoch)),
            group_id=group,
        )
        self._ask(name, "offsets", self.coordinator.handle_add_offsets_to_txn, request, options, 4)

    def do_commit(self, words: list[str], options: dict[str, str]) -> None:
        self._end(words[0], True, options)

    def do_abort(self, words: list[str], options: dict[str, str]) -> None:
        self._end(words[0], False, options)

    def _end(self, name: str, committed: bool, options: dict[str, str]) -> None:
        producer = self._producer(name)
        request = EndTxnRequest(
            transactional_id=options.get("id", "t"),
            producer_id=int(options.get("pid", producer.producer_id)),
            producer_epoch=int(options.get("epoch", producer.epoch)),
            committed=committed,
        )
        what = "commit" if committed else "abort"
        self._ask(name, what, self.coordinator.handle_end_txn, request, options, 4 if producer.is_old else 5)

    # --- administration ---

    def do_describe(self, words: list[str], options: dict[str, str]) -> None:
        request = DescribeTransactionsRequest(transactional_ids=words or ["t"])
        self._ask("admin", "describe", self.coordinator.handle_describe_transactions, request, options, 0)

    def do_list(self, words: list[str], options: dict[str, str]) -> None:
        request = ListTransactionsRequest(
            state_filters=words,
            producer_id_filters=[int(one) for one in options.get("pids", "").split(",") if one],
            duration_filter=milliseconds(options["longer"]) if "longer" in options else -1,
            transactional_id_pattern=options.get("pattern"),
        )
        self._ask("admin", "list", self.coordinator.handle_list_transactions, request, options, 2)

    # --- the world ---

    def do_settings(self, _words: list[str], options: dict[str, str]) -> None:
        """Start over with these settings; what is in the log stays."""
        self.settings.update((name, int(value)) for name, value in options.items())
        self.do_restart([], {})

    def do_advance(self, words: list[str], _options: dict[str, str]) -> None:
        """Let time pass, through every deadline on the way."""
        delta_ms = milliseconds(words[0])
        until_ms = self.now_ms + delta_ms
        while True:
            deadline_ms = self.coordinator.next_deadline_ms()
            if deadline_ms is None or deadline_ms > until_ms:
                break
            self.now_ms = max(self.now_ms, int(deadline_ms))
            before = len(self.printed)
            self._carry_out(self.coordinator.expire(self.now_ms))
            if len(self.printed) > before:
                elapsed = delta_ms - (until_ms - self.now_ms)
                self.printed.insert(before, f"after {elapsed / 1000:g}s:")
        self.now_ms = until_ms

    def do_hold(self, _words: list[str], _options: dict[str, str]) -> None:
        """From now on the log takes its time."""
        self.holding = True

    def do_release(self, words: list[str], _options: dict[str, str]) -> None:
        """What the log has held is durable now, and so is what follows; `once`: and no more than that."""
        self.holding = "once" in words
        held, self.held = self.held, []
        for append in held:
            self._append(append)

    def do_fail(self, words: list[str], _options: dict[str, str]) -> None:
        """From now on the log refuses everything, what it has held too."""
        self.failing = ErrorCode[words[0]]
        self.do_release([], {})

    def do_heal(self, _words: list[str], _options: dict[str, str]) -> None:
        self.failing = ErrorCode.NONE

    def do_hold_markers(self, _words: list[str], _options: dict[str, str]) -> None:
        """From now on partitions take their time with markers."""
        self.holding_markers = True

    def do_write_markers(self, _words: list[str], _options: dict[str, str]) -> None:
        """All markers are written, and so are those to come."""
        self.holding_markers = False
        held, self.held_markers = self.held_markers, []
        for effect in held:
            self._carry_out(self.coordinator.markers_written(effect, self.now_ms))

    def do_refuse_markers(self, _words: list[str], _options: dict[str, str]) -> None:
        """Partitions have seen a newer coordinator."""
        held, self.held_markers = self.held_markers, []
        for effect in held:
            self._carry_out(self.coordinator.markers_refused(effect, self.now_ms))

    def do_ids(self, words: list[str], _options: dict[str, str]) -> None:
        """`none`: there are no producer ids to be had; `some`: there are."""
        self.no_ids = "none" in words

    def do_cancel(self, words: list[str], _options: dict[str, str]) -> None:
        """A producer's connection breaks while its requests wait."""
        for token in list(self.coordinator.parked):
            if isinstance(token, Asked) and token.client in words:
                self.coordinator.cancel(token)
                self.printed.append(f"{token.client} {token.what}: cancelled")

    def do_set(self, words: list[str], options: dict[str, str]) -> None:
        """Make a producer believe that it has another id or epoch."""
        producer = self._producer(words[0])
        producer.producer_id = int(options.get("pid", producer.producer_id))
        producer.epoch = int(options.get("epoch", producer.epoch))

    def do_wear_out(self, words: list[str], options: dict[str, str]) -> None:
        """Write the current state with another epoch into the log, and restart."""
        entry = self.coordinator.entry(options.get("id", "t"))
        assert entry is not None
        assert entry.metadata is not None
        worn = entry.metadata._replace(producer_epoch=int(words[0]))
        record = transaction_record(options.get("id", "t"), worn)
        self.log.append((record.key, record.value))
        for producer in self.producers.values():
            producer.epoch = int(words[0])
        self.do_restart([], {})

    def do_restart(self, _words: list[str], _options: dict[str, str]) -> None:
        """The broker restarts: only what is in the log remains."""
        self.held = []
        self.held_markers = []
        self._load()

    def do_move(self, _words: list[str], options: dict[str, str]) -> None:
        """Another broker leads the partition now. What the log held is lost, or `kept=yes` there all the same.

        How the old leader's writes ended is heard of late, and must not matter.
        """
        old = self.coordinator
        self._carry_out(old.unload(PARTITION, self.now_ms))
        held, self.held, self.holding = self.held, [], False
        if options.get("kept") == "yes":
            self.log += [(record.key, record.value) for append in held for record in append.records]
        markers, self.held_markers = self.held_markers, []
        self._load()
        for append in held:
            self._carry_out(old.append_done(append, ErrorCode.NONE, self.now_ms))
        for effect in markers:
            self._carry_out(old.markers_written(effect, self.now_ms))
        assert not old.parked

    def do_unload(self, _words: list[str], _options: dict[str, str]) -> None:
        self._carry_out(self.coordinator.unload(PARTITION, self.now_ms))

    def do_load_begin(self, _words: list[str], _options: dict[str, str]) -> None:
        self.coordinator.load_begin(PARTITION, self.epoch)

    # --- inside ---

    def _producer(self, name: str) -> Producer:
        return self.producers.setdefault(name, Producer(name.startswith("old")))

    def _load(self) -> None:
        self.epoch += 1
        settings = TransactionSettings(**{"transaction_state_log_num_partitions": 1, **self.settings})
        self.coordinator = TransactionCoordinator(
            settings, TenPartitions(), lambda group: int(group[-1]), lambda: self.now_ms
        )
        self.coordinator.load_begin(PARTITION, self.epoch)
        for key, value in self.log:
            self.coordinator.replay(PARTITION, key, value)
        self._carry_out(self.coordinator.load_done(PARTITION, self.now_ms))

    def _ask(
        self,
        client: str,
        what: str,
        handle: Callable[..., Effects],
        request: Any,
        options: dict[str, str],
        version: int,
    ) -> None:
        self.requests += 1
        context = RequestContext(client, f"/{client}.example", int(options.get("version", version)))
        self._carry_out(handle(request, context, Asked(client, what, self.requests), self.now_ms))

    def _carry_out(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Reply):
                assert isinstance(effect.token, Asked)
                self._reply(effect.token, effect.response)
            elif isinstance(effect, TakeProducerId):
                self._take_id(effect)
            elif isinstance(effect, WriteMarkers):
                self.printed.append(f"markers: {show_markers(effect)}")
                if self.holding_markers:
                    self.held_markers.append(effect)
                else:
                    self._carry_out(self.coordinator.markers_written(effect, self.now_ms))
            elif self.holding:
                self.held.append(effect)
                self.printed.append(f"log: holds {len(effect.records)} records")
            else:
                self._append(effect)

    def _take_id(self, effect: TakeProducerId) -> None:
        taken = None if self.no_ids else self.next_id
        if taken is not None:
            self.next_id += 1
        self._carry_out(self.coordinator.producer_id_taken(effect, taken, self.now_ms))

    def _append(self, append: Append) -> None:
        if self.failing is ErrorCode.NONE:
            self.printed += [f"log: {show_record(record)}" for record in append.records]  # type: ignore[arg-type]
        else:
            self.printed.append(f"log: {self.failing.name}")
        if self.failing is ErrorCode.NONE or self.failing in WRITTEN_ANYHOW:
            self.log += [(record.key, record.value) for record in append.records]
        self._carry_out(self.coordinator.append_done(append, self.failing, self.now_ms))

    def _reply(self, token: Asked, response: Any) -> None:
        producer = self.producers.get(token.client)
        names_epoch = token.what in ("init", "commit", "abort") and response.producer_id >= 0
        if producer is not None and names_epoch and not response.error_code:
            producer.producer_id, producer.epoch = response.producer_id, response.producer_epoch
        self.printed += [f"{token.client} {token.what}: {line}" for line in SHOW[token.what](response)]
