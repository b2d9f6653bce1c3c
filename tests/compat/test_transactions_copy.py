"""Exactly once: copying in transactions with the offsets in them, with workers killed at any step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient
from real_clients import CLIENTS
from transactional_topics import copy_with_kills, end_offsets, fill, read_to_end

RECORDS = 240
KILLS = 4


@pytest.mark.parametrize("seed", [1])
@pytest.mark.parametrize("client", CLIENTS)
def test_killed_workers_leave_every_record_in_the_target_once(
    client: str,
    seed: int,
    bootstrap: str,
    new_topic: Callable[..., str],
    admin: AdminClient,
    group: str,
) -> None:
    source, target = new_topic(2), new_topic(2)
    values = fill(bootstrap, source, RECORDS)
    copy_with_kills(client, bootstrap, source, target, group, seed=seed, kills=KILLS)
    committed = read_to_end(bootstrap, target, "read_committed")
    assert sorted(committed) == values
    everything = Counter(read_to_end(bootstrap, target, "read_uncommitted"))
    assert everything >= Counter(values)
    assert everything.total() > RECORDS, "some were written in transactions that were aborted"
    # Nothing is left open.
    assert end_offsets(admin, target, "read_committed") == end_offsets(admin, target, "read_uncommitted")
