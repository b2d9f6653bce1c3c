"""Receive buffers grow with what arrives, never with what is announced."""

from __future__ import annotations

from culver.broker.buffers import LARGE_BYTES, ReceiveBuffers

MIB = 1 << 20


def filled(buffers: ReceiveBuffers, size: int) -> None:
    buffers.scratch[:size] = bytes(i % 251 for i in range(size))


def test_a_few_bytes_of_a_huge_request_cost_a_few_bytes() -> None:
    buffers = ReceiveBuffers(budget_bytes=256 * MIB)
    kept, start, end = buffers.keep_from_scratch(0, 8, needed=90 * MIB)
    assert (start, end) == (0, 8)
    assert len(kept) == buffers.held_bytes <= 4096


def test_kept_bytes_are_the_unread_ones() -> None:
    buffers = ReceiveBuffers(budget_bytes=MIB)
    filled(buffers, 1000)
    kept, start, end = buffers.keep_from_scratch(400, 1000, needed=5000)
    assert kept[start:end] == buffers.scratch[400:1000]


def test_a_long_remainder_takes_the_scratch_buffer_along() -> None:
    buffers = ReceiveBuffers(budget_bytes=256 * MIB)
    filled(buffers, 200_000)
    before = buffers.scratch
    kept, start, end = buffers.keep_from_scratch(100_000, 200_000, needed=MIB)
    assert kept is before
    assert buffers.scratch is not before
    assert bytes(kept[start:end]) == bytes(i % 251 for i in range(100_000, 200_000))
    assert start + MIB <= len(kept), "the request fits without moving it again"


def test_growing_doubles_up_to_what_is_needed() -> None:
    buffers = ReceiveBuffers(budget_bytes=256 * MIB)
    kept, start, end = buffers.keep_from_scratch(0, 4000, needed=20_000)
    sizes = [len(kept)]
    while end - start < 20_000:
        end = len(kept)
        if end - start >= 20_000:
            break
        kept, start, end = buffers.grow(kept, start, end, 20_000)
        sizes.append(len(kept))
    assert sizes == [8000, 16000, 20000]
    assert buffers.held_bytes == 20_000


def test_what_is_given_back_is_not_held() -> None:
    buffers = ReceiveBuffers(budget_bytes=10_000)
    first, *_ = buffers.keep_from_scratch(0, 6000, needed=100_000)
    assert buffers.exhausted
    buffers.give_back(first)
    assert buffers.held_bytes == 0
    assert not buffers.exhausted


def test_large_buffers_are_lent_to_few_and_used_again() -> None:
    buffers = ReceiveBuffers(budget_bytes=256 * MIB)
    lent = [buffers.keep_from_scratch(0, 100_000, needed=MIB)[0] for _ in range(40)]
    assert sum(len(buffer) == LARGE_BYTES for buffer in lent) == 16
    for buffer in lent:
        buffers.give_back(buffer)
    assert buffers.held_bytes == 0
    again, *_ = buffers.keep_from_scratch(0, 100_000, needed=MIB)
    assert len(again) == LARGE_BYTES
    assert any(buffers.scratch is buffer for buffer in lent)
