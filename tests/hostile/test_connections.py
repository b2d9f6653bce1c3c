"""Connections in great number: up to the limit, beyond it, and after they are gone."""

from __future__ import annotations

import contextlib
import socket

import pytest

from culver.protocol.messages.metadata import MetadataRequest
from hostile.victim import MIB, Victim, victim_broker
from raw_connection import Closed, RawConnection

LIMIT = 150


def is_served(connection: RawConnection) -> bool:
    try:
        return bool(connection.call(MetadataRequest(topics=[]), 4).brokers)
    except (Closed, ConnectionError):
        return False


def test_connections_beyond_the_limit_are_refused_and_those_within_it_served() -> None:
    with victim_broker(max_connections=LIMIT) as victim:
        with contextlib.ExitStack() as opened, victim.others_are_served():
            connections = [opened.enter_context(RawConnection(victim.address)) for _ in range(LIMIT + 100)]
            served = [is_served(connection) for connection in connections]
            # One of the places is the other client's.
            assert served.count(True) == LIMIT - 1
            # Those who got in stay in.
            assert all(
                is_served(connection) for connection, was in zip(connections, served, strict=True) if was
            )
        victim.settle()


def test_a_flood_of_connections_that_come_and_go_leaves_no_trace(victim: Victim) -> None:
    with victim.others_are_served(), victim.grows_by_less_than(20 * MIB):
        for _ in range(3000):
            socket.create_connection(victim.address).close()


def test_a_thousand_idle_connections_cost_little(victim: Victim) -> None:
    with (
        contextlib.ExitStack() as opened,
        victim.others_are_served(),
        victim.grows_by_less_than(30 * MIB),
    ):
        for _ in range(500):
            opened.enter_context(socket.create_connection(victim.address))
        victim.settle()
        for _ in range(500):
            connection = opened.enter_context(socket.create_connection(victim.address))
            connection.shutdown(socket.SHUT_WR)  # half-open: it will never send anything


@pytest.mark.parametrize("idle_ms", [1000])
def test_a_connection_that_stays_silent_is_closed(idle_ms: int) -> None:
    with (
        victim_broker(connections_max_idle_ms=idle_ms) as victim,
        RawConnection(victim.address) as silent,
        RawConnection(victim.address) as partial,
    ):
        partial.send(b"\0\0")
        assert silent.is_closed_by_peer(15)
        assert partial.is_closed_by_peer(15)
