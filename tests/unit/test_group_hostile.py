"""Group requests with any values that fit on the wire: each gets an answer that can be sent, nothing breaks."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from culver.core.coordinator_effects import Append, Effects, RequestContext
from culver.core.group_coordinator import GroupCoordinator
from culver.core.group_partition import GroupPartition
from culver.core.group_records import decode_change
from culver.core.group_settings import GroupSettings
from culver.errors import ErrorCode
from culver.protocol.apis import APIS
from culver.protocol.schema import Message, encoder
from message_values import random_message, versions_of

REQUESTS = {
    "join_group": 11,
    "sync_group": 14,
    "heartbeat": 12,
    "leave_group": 13,
    "offset_commit": 8,
    "offset_fetch": 9,
    "offset_delete": 47,
    "describe_groups": 15,
    "list_groups": 16,
    "delete_groups": 42,
}
CASES = [(name, key, version) for name, key in REQUESTS.items() for version in versions_of(APIS[key].request)]


class AnyTopic:
    """Every topic exists under every id."""

    def topic_name(self, topic_id: bytes) -> str | None:
        return "t"

    def topic_id(self, name: str) -> bytes | None:
        return b"t" * 16

    def partition_exists(self, name: str, partition: int) -> bool:
        return len(name) <= 249


class Abused:
    """A coordinator with a group or two, whose log takes everything."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.ids = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.unanswered: dict[int, tuple[type[Message], int]] = {}
        self.coordinator = GroupCoordinator(
            GroupSettings(offsets_topic_num_partitions=1, group_max_session_timeout_ms=2**31 - 1),
            AnyTopic(),
            self.new_id,
            lambda: 1_000,
        )
        self.coordinator.load_begin(0)
        self.coordinator.load_done(0, 0)

    def new_id(self, stem: str) -> str:
        self.ids += 1
        return f"{stem}-{self.ids}"

    def ask(self, name: str, key: int, version: int, token: int) -> None:
        request = random_message(APIS[key].request, version, self.rng)
        self.make_it_hurt(request)
        self.unanswered[token] = (APIS[key].response, version)
        context = RequestContext("c" * self.rng.choice([1, 20_000]), "/h", version)
        self.carry_out(getattr(self.coordinator, f"handle_{name}")(request, context, token, token * 100.0))

    def make_it_hurt(self, request: Any) -> None:
        """Random names never meet; give the request ones that do, so that it gets past the first checks."""
        rng = self.rng
        likely: dict[str, list[Any]] = {
            "group_id": ["g", "h", ""],
            "member_id": ["", "c-1", "one-2"],
            "group_instance_id": [None, None, "one"],
            "protocol_type": ["consumer"],
            "protocol_name": ["range", None],
            "session_timeout_ms": [6_000, 10_000],
            "generation_id": [1, 2, -1],
            "generation_id_or_member_epoch": [-1, 1],
        }
        for field, values in likely.items():
            if hasattr(request, field) and rng.random() < 0.7:
                setattr(request, field, rng.choice(values))
        for protocol in getattr(request, "protocols", []):
            protocol.name = rng.choice(["range", "sticky"])

    def carry_out(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                self.log += [(record.key, record.value) for record in effect.records]
                self.carry_out(self.coordinator.append_done(effect, ErrorCode.NONE, 0))
            else:
                token: Any = effect.token
                response: Any = effect.response
                expected, version = self.unanswered.pop(token)
                assert isinstance(response, expected)
                encoder(expected, version)(response)


@pytest.mark.parametrize("seed", range(20))
def test_any_sequence_of_group_requests_is_answered(seed: int) -> None:
    rng = Random(seed)
    abused = Abused(rng)
    for token in range(400):
        name, key, version = rng.choice(CASES)
        abused.ask(name, key, version, token)
        if rng.random() < 0.1:
            abused.carry_out(abused.coordinator.expire(token * 100.0 + 5_000))
    abused.carry_out(abused.coordinator.unload(0, 0))
    assert not abused.unanswered

    fresh = GroupPartition(0)
    for key_bytes, value in abused.log:
        change = decode_change(key_bytes, value)
        assert change is not None
        fresh.replay(change)
