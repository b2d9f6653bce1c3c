"""The sockets that kazoo is given: nothing is lost, nothing waits that need not, however the bytes come."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from culver.coordination.zookeeper_transport import Bell, BufferedSocket, wait


@pytest.fixture
def ends() -> Iterator[tuple[BufferedSocket, socket.socket]]:
    near, far = socket.socketpair()
    near.setblocking(False)
    with near, far:
        yield BufferedSocket(near), far


@pytest.fixture
def bell() -> Iterator[Bell]:
    bell = Bell()
    yield bell
    bell.close()


Ends = tuple[BufferedSocket, socket.socket]


def test_what_came_together_is_read_in_parts_without_waiting(ends: Ends) -> None:
    near, far = ends
    far.sendall(b"abcdef")
    assert wait([near], [], 5.0) == ([near], [])
    assert near.recv(4) == b"abcd"
    assert near.pending() == 2
    assert wait([near], [], 0.0) == ([near], [])
    assert near.recv(4) == b"ef"
    assert wait([near], [], 0.0) == ([], [])


def test_what_is_sent_leaves_when_an_answer_is_waited_for(ends: Ends) -> None:
    near, far = ends
    for part in (b"a", b"b", b"c"):
        assert wait([], [near], 5.0) == ([], [near])
        near.send(memoryview(part))
    far.setblocking(False)
    with pytest.raises(BlockingIOError):
        far.recv(10)
    assert wait([near], [], 0.0) == ([], [])
    assert far.recv(10) == b"abc"


def test_more_than_the_kernel_takes_leaves_bit_by_bit(ends: Ends) -> None:
    near, far = ends
    data = bytes(range(256)) * 8192
    received = bytearray()

    def receive() -> None:
        while len(received) < len(data):
            received.extend(far.recv(4096))
        far.sendall(b"done")

    near.send(data)
    assert wait([], [near], 0.0) == ([], []), "there is no room for more"
    receiver = threading.Thread(target=receive)
    receiver.start()
    assert wait([], [near], 10.0) == ([], [near])
    assert wait([near], [], 10.0) == ([near], [])
    receiver.join()
    assert received == data


def test_an_end_of_the_other_side_is_something_to_read(ends: Ends) -> None:
    near, far = ends
    far.close()
    assert wait([near], [], 5.0) == ([near], [])
    assert near.recv(4) == b""


def test_a_ring_from_another_thread_wakes_the_sleeper(ends: Ends, bell: Bell) -> None:
    near, _far = ends
    ringer = threading.Timer(0.05, lambda: bell.send(b"\0"))
    ringer.start()
    assert wait([near, bell], [], 10.0) == ([bell], [])
    ringer.join()
    assert bell.recv(1) == b"\0"
    assert wait([near, bell], [], 0.0) == ([], [])


def test_rings_are_counted(ends: Ends, bell: Bell) -> None:
    near, _far = ends
    for _ in range(3):
        bell.send(b"\0")
    for _ in range(3):
        assert wait([near, bell], [], 5.0) == ([bell], [])
        bell.recv(1)
    assert bell.recv(1) == b""


def test_answers_are_heard_and_requests_leave_however_much_it_rings(ends: Ends, bell: Bell) -> None:
    near, far = ends
    far.sendall(b"answer")
    near.send(b"request")
    for _ in range(1000):
        bell.send(b"\0")
    turns = 0
    while near not in wait([near, bell], [], 5.0)[0]:
        bell.recv(1)
        turns += 1
    assert turns < 100
    assert far.recv(10) == b"request"


def test_a_closed_bell_says_so(bell: Bell) -> None:
    bell.close()
    with pytest.raises(OSError, match="closed"):
        bell.send(b"\0")
