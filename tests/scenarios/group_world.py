"""A coordinator, its log, a clock and some clients, driven by one-line commands.

The log takes records at once unless told otherwise (`hold`, `release`, `fail ERROR`). Clients are known by short
names and remember the member id and generation that they were told.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from group_printing import SHOW, show_record

from culver.core.coordinator_effects import WRITTEN_ANYHOW, Append, Effects, Reply, RequestContext
from culver.core.group_coordinator import GroupCoordinator
from culver.core.group_records import StateRecord
from culver.core.group_settings import GroupSettings
from culver.errors import ErrorCode
from culver.protocol.messages.delete_groups import DeleteGroupsRequest
from culver.protocol.messages.describe_groups import DescribeGroupsRequest
from culver.protocol.messages.heartbeat import HeartbeatRequest
from culver.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from culver.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from culver.protocol.messages.list_groups import ListGroupsRequest
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from culver.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from culver.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from culver.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

PARTITION = 0
START_MS = 1_000_000
BEAT_MS = 5_000
UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def milliseconds(text: str) -> int:
    """A duration such as 300ms, 10s, 5m or 7d."""
    number = text.rstrip("smhd")
    return int(number) * UNITS[text[len(number) :]]


def subscription(topics: str) -> bytes:
    """The metadata of a consumer that reads these topics, separated by commas."""
    names = [name.encode() for name in topics.split(",") if name]
    encoded = b"".join(len(name).to_bytes(2, "big") + name for name in names)
    return b"\x00\x00" + len(names).to_bytes(4, "big") + encoded + b"\xff\xff\xff\xff"


class TopicTable:
    """Topics by name, each with an id that is its name filled up to 16 bytes, and ten partitions."""

    def __init__(self) -> None:
        self.names = {"t", "u", "v"}

    def topic_id(self, name: str) -> bytes | None:
        return name.encode().ljust(16, b".") if name in self.names else None

    def topic_name(self, topic_id: bytes) -> str | None:
        name = topic_id.decode().rstrip(".")
        return name if name in self.names else None

    def partition_exists(self, name: str, partition: int) -> bool:
        return name in self.names and 0 <= partition < 10


@dataclass
class Client:
    """What a client remembers between its requests."""

    member_id: str = ""
    generation: int = -1
    protocol: str = ""


class Asked(NamedTuple):
    """The token of a request: who asked for what."""

    client: str
    what: str
    number: int


@dataclass
class GroupWorld:
    """See the module's text. `run` is the door: a command in, printed lines out."""

    settings: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.now_ms = START_MS
        self.topics = TopicTable()
        self.clients: dict[str, Client] = {}
        self.log: list[StateRecord] = []
        self.held: list[Append] = []
        self.holding = False
        self.failing = ErrorCode.NONE
        self.requests = 0
        self.ids: dict[str, int] = {}
        self.printed: list[str] = []
        self.commands: dict[str, Callable[[list[str], dict[str, str]], None]] = {
            name.removeprefix("do_").replace("_", "-"): getattr(self, name)
            for name in dir(self)
            if name.startswith("do_")
        }
        self.coordinator = self._new_coordinator()
        self._load()

    def run(self, line: str) -> list[str]:
        self.printed = []
        name, *words = line.split()
        options = dict(word.split("=", 1) for word in words if "=" in word)
        self.commands[name]([word for word in words if "=" not in word], options)
        return self.printed

    # --- members ---

    def do_join(self, names: list[str], options: dict[str, str]) -> None:
        for name in names:
            client = self.clients.setdefault(name, Client())
            session_ms = milliseconds(options.get("session", "10s"))
            request = JoinGroupRequest(
                group_id=options.get("group", "g"),
                session_timeout_ms=session_ms,
                rebalance_timeout_ms=milliseconds(options.get("rebalance", "60s")),
                member_id=options.get("member", client.member_id),
                group_instance_id=options.get("instance"),
                protocol_type=options.get("type", "consumer"),
                protocols=[
                    JoinGroupRequestProtocol(
                        name=protocol, metadata=self._subscription(options.get("topics", "t"))
                    )
                    for protocol in options.get("protocols", "range").split(",")
                    if protocol
                ],
            )
            self._ask(name, "join", self.coordinator.handle_join_group, request, options, 9)

    def do_sync(self, names: list[str], options: dict[str, str]) -> None:
        given = {key.removeprefix("@"): value for key, value in options.items() if key.startswith("@")}
        for name in names:
            client = self.clients[name]
            request = SyncGroupRequest(
                group_id=options.get("group", "g"),
                generation_id=int(options.get("generation", client.generation)),
                member_id=options.get("member", client.member_id),
                group_instance_id=options.get("instance"),
                protocol_type=options.get("type", "consumer"),
                protocol_name=options.get("protocol", client.protocol),
                assignments=[
                    SyncGroupRequestAssignment(
                        member_id=self.clients[other].member_id, assignment=self._assignment(assignment)
                    )
                    for other, assignment in given.items()
                ],
            )
            self._ask(name, "sync", self.coordinator.handle_sync_group, request, options, 5)

    def do_heartbeat(self, names: list[str], options: dict[str, str]) -> None:
        for name in names:
            client = self.clients.setdefault(name, Client())
            request = HeartbeatRequest(
                group_id=options.get("group", "g"),
                generation_id=int(options.get("generation", client.generation)),
                member_id=options.get("member", client.member_id),
                group_instance_id=options.get("instance"),
            )
            self._ask(name, "heartbeat", self.coordinator.handle_heartbeat, request, options, 4)

    def do_leave(self, names: list[str], options: dict[str, str]) -> None:
        members = [
            MemberIdentity(
                member_id=options.get("member", self.clients[name].member_id),
                group_instance_id=options.get("instance"),
            )
            for name in names
        ]
        if not names:
            members = [MemberIdentity(member_id="", group_instance_id=options["instance"])]
        request = LeaveGroupRequest(
            group_id=options.get("group", "g"),
            member_id=members[0].member_id,
            members=members,
        )
        asking = names[0] if names else "admin"
        self._ask(asking, "leave", self.coordinator.handle_leave_group, request, options, 5)

    # --- offsets ---

    def do_commit(self, words: list[str], options: dict[str, str]) -> None:
        name = words[0]
        client = self.clients.setdefault(name, Client())
        topics: dict[str, list[OffsetCommitRequestPartition]] = {}
        for word, value in options.items():
            topic, dash, index = word.partition("-")
            if dash:
                offset, _, metadata = value.partition(":")
                topics.setdefault(topic, []).append(
                    OffsetCommitRequestPartition(
                        partition_index=int(index),
                        committed_offset=int(offset),
                        committed_leader_epoch=3,
                        committed_metadata=metadata,
                    )
                )
        request = OffsetCommitRequest(
            group_id=options.get("group", "g"),
            generation_id_or_member_epoch=int(options.get("generation", client.generation)),
            member_id=options.get("member", client.member_id),
            group_instance_id=options.get("instance"),
            retention_time_ms=milliseconds(options["retention"]) if "retention" in options else -1,
            topics=[
                OffsetCommitRequestTopic(
                    name=topic, topic_id=topic.encode().ljust(16, b"."), partitions=partitions
                )
                if int(options.get("version", 9)) >= 10
                else OffsetCommitRequestTopic(name=topic, partitions=partitions)
                for topic, partitions in topics.items()
            ],
        )
        self._ask(name, "commit", self.coordinator.handle_offset_commit, request, options, 9)

    def do_fetch(self, words: list[str], options: dict[str, str]) -> None:
        topics: dict[str, list[int]] = {}
        for word in words:
            topic, _, index = word.partition("-")
            topics.setdefault(topic, []).append(int(index))
        by_id = int(options.get("version", 9)) >= 10
        request = OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id=group,
                    topics=[
                        OffsetFetchRequestTopics(
                            name="" if by_id else topic,
                            topic_id=topic.encode().ljust(16, b"."),
                            partition_indexes=indexes,
                        )
                        for topic, indexes in topics.items()
                    ]
                    if topics
                    else None,
                )
                for group in options.get("group", "g").split(",")
            ],
            require_stable=options.get("stable") == "yes",
        )
        self._ask("admin", "fetch", self.coordinator.handle_offset_fetch, request, options, 9)

    def do_offset_delete(self, words: list[str], options: dict[str, str]) -> None:
        request = OffsetDeleteRequest(
            group_id=options.get("group", "g"),
            topics=[
                OffsetDeleteRequestTopic(
                    name=topic, partitions=[OffsetDeleteRequestPartition(partition_index=int(index))]
                )
                for topic, _, index in (word.partition("-") for word in words)
            ],
        )
        self._ask("admin", "offset-delete", self.coordinator.handle_offset_delete, request, options, 0)

    # --- administration ---

    def do_describe(self, words: list[str], options: dict[str, str]) -> None:
        request = DescribeGroupsRequest(groups=words or ["g"])
        self._ask("admin", "describe", self.coordinator.handle_describe_groups, request, options, 6)

    def do_list(self, words: list[str], options: dict[str, str]) -> None:
        request = ListGroupsRequest(
            states_filter=words, types_filter=[options["type"]] if "type" in options else []
        )
        self._ask("admin", "list", self.coordinator.handle_list_groups, request, options, 5)

    def do_delete(self, words: list[str], options: dict[str, str]) -> None:
        request = DeleteGroupsRequest(groups_names=words)
        self._ask("admin", "delete", self.coordinator.handle_delete_groups, request, options, 2)

    # --- the world ---

    def do_settings(self, _words: list[str], options: dict[str, str]) -> None:
        """Start over with these settings; what is in the log stays."""
        self.settings.update((name, self._setting(value)) for name, value in options.items())
        self.do_restart([], {})

    def do_advance(self, words: list[str], options: dict[str, str]) -> None:
        """Let time pass. `beating=a,b`: these send heartbeats meanwhile; only other answers than ok are shown."""
        if "beating" not in options:
            self._advance(milliseconds(words[0]))
            return
        for _ in range(milliseconds(words[0]) // BEAT_MS):
            self._advance(BEAT_MS)
            shown = len(self.printed)
            self.do_heartbeat(options["beating"].split(","), {})
            self.printed[shown:] = [line for line in self.printed[shown:] if not line.endswith(" ok")]

    def _advance(self, delta_ms: int) -> None:
        """Go through every deadline on the way."""
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

    def do_release(self, _words: list[str], _options: dict[str, str]) -> None:
        """What the log has held is durable now, and so is what follows."""
        self.holding = False
        held, self.held = self.held, []
        for append in held:
            self._append(append)

    def do_fail(self, words: list[str], _options: dict[str, str]) -> None:
        """From now on the log refuses everything, what it has held too."""
        self.failing = ErrorCode[words[0]]
        self.do_release([], {})

    def do_heal(self, _words: list[str], _options: dict[str, str]) -> None:
        self.failing = ErrorCode.NONE

    def do_cancel(self, words: list[str], _options: dict[str, str]) -> None:
        """A client's connection breaks while its request is parked."""
        for token in list(self.coordinator.parked._by_token):
            if isinstance(token, Asked) and token.client in words:
                self.coordinator.cancel(token)
                self.printed.append(f"{token.client} {token.what}: cancelled")

    def do_forget(self, words: list[str], _options: dict[str, str]) -> None:
        """A client restarts and remembers nothing."""
        for word in words:
            self.clients[word] = Client()

    def do_restart(self, _words: list[str], _options: dict[str, str]) -> None:
        """The broker restarts: only what is in the log remains."""
        self.held = []
        self.coordinator = self._new_coordinator()
        self._load()

    def do_move(self, _words: list[str], options: dict[str, str]) -> None:
        """Another broker leads the partition now. What the log held is lost, or `kept=yes` there all the same.

        How the old leader's writes ended is heard of late, and must not matter.
        """
        self._carry_out(self.coordinator.unload(PARTITION, self.now_ms))
        held, self.held, self.holding = self.held, [], False
        if options.get("kept") == "yes":
            self.log += [record for append in held for record in append.records]
        self.coordinator = self._new_coordinator()
        self._load()
        for append in held:
            self._carry_out(self.coordinator.append_done(append, ErrorCode.NONE, self.now_ms))

    def do_unload(self, _words: list[str], _options: dict[str, str]) -> None:
        self._carry_out(self.coordinator.unload(PARTITION, self.now_ms))

    def do_load_begin(self, _words: list[str], _options: dict[str, str]) -> None:
        self.coordinator.load_begin(PARTITION)

    def do_delete_topic(self, words: list[str], _options: dict[str, str]) -> None:
        self.topics.names -= set(words)
        self._carry_out(self.coordinator.on_topics_deleted(words, self.now_ms))

    # --- inside ---

    def _new_coordinator(self) -> GroupCoordinator:
        settings = GroupSettings(**{"offsets_topic_num_partitions": 1, **self.settings})
        return GroupCoordinator(settings, self._topics(), self._new_id, lambda: self.now_ms)

    def _topics(self) -> Any:
        return self.topics

    def _setting(self, value: str) -> Any:
        return int(value)

    def _subscription(self, topics: str) -> bytes:
        return subscription(topics)

    def _assignment(self, text: str) -> bytes:
        return text.encode()

    def _load(self) -> None:
        self.coordinator.load_begin(PARTITION)
        for record in self.log:
            self.coordinator.replay(PARTITION, record.key, record.value)
        self._carry_out(self.coordinator.load_done(PARTITION, self.now_ms))

    def _new_id(self, stem: str) -> str:
        self.ids[stem] = self.ids.get(stem, 0) + 1
        return f"{stem}-{self.ids[stem]}"

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
            elif self.holding:
                self.held.append(effect)
                self.printed.append(f"log: holds {len(effect.records)} records")
            else:
                self._append(effect)

    def _append(self, append: Append) -> None:
        if self.failing is ErrorCode.NONE:
            self.log += append.records
            self.printed += [f"log: {self._show_record(record)}" for record in append.records]
        else:
            self.printed.append(f"log: {self.failing.name}")
            if self.failing in WRITTEN_ANYHOW:
                self.log += append.records
        self._carry_out(self.coordinator.append_done(append, self.failing, self.now_ms))

    def _show_record(self, record: StateRecord) -> str:
        return show_record(record)

    def _reply(self, token: Asked, response: Any) -> None:
        client = self.clients.get(token.client)
        if token.what == "join" and client is not None:
            if response.error_code in (ErrorCode.NONE, ErrorCode.MEMBER_ID_REQUIRED):
                client.member_id = response.member_id
            if response.error_code == ErrorCode.NONE:
                client.generation = response.generation_id
                client.protocol = response.protocol_name
        self.printed += [f"{token.client} {token.what}: {line}" for line in SHOW[token.what](response)]
