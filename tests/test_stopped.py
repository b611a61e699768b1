"""A process that stands still in the middle of a call: who waits with a limit gets TimeoutError."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from shmpipe import Connection, Pipe
from shmpipe.segment import PLUG, RD_ARM, TELLS

from .links import KiB, MiB
from .support import Child, eventually, run_child, task_state

TOTAL = 4 * MiB
LIMIT = 0.15  # seconds


def is_stopped(child: Child) -> bool:
    state = task_state(child.pid, child.pid)
    return state is not None and state[0] == "T"


@contextmanager
def stopped(child: Child) -> Iterator[None]:
    os.kill(child.pid, signal.SIGSTOP)
    eventually(lambda: is_stopped(child))
    try:
        yield
    finally:
        os.kill(child.pid, signal.SIGCONT)


def stop_inside(lock: Any) -> None:
    lock.enter()
    try:
        os.kill(os.getpid(), signal.SIGSTOP)
    finally:
        lock.release()
        lock.leave()


@contextmanager
def held(lock: Any) -> Iterator[None]:
    """Another process stands still inside ``lock``."""
    child = run_child(stop_inside, lock)
    eventually(lambda: is_stopped(child))
    try:
        yield
    finally:
        os.kill(child.pid, signal.SIGCONT)
        child.join(10)


def pause_in_a_stream(sender: Connection) -> None:
    sender.send_bytes(bytes(range(256)) * (TOTAL // 256))


def partly_sent() -> tuple[Connection, Connection, Child]:
    """A pipe whose sender, in another process, has filled it with the first parts of a message."""
    receiver, sender = Pipe(False, size=64 * KiB)
    child = run_child(pause_in_a_stream, sender, close=[receiver])
    child.wait_asleep()
    return receiver, sender, child


WAYS = {
    "recv_bytes": lambda end: end.recv_bytes(timeout=LIMIT),
    "recv_bytes_into": lambda end: end.recv_bytes_into(bytearray(TOTAL), timeout=LIMIT),
    "try_recv_bytes": lambda end: end.try_recv_bytes(),
}


@pytest.mark.parametrize("way", WAYS, ids=str)
def test_rest_of_a_message_does_not_come_in_time(way: str) -> None:
    receiver, sender, child = partly_sent()
    with receiver, sender:
        with stopped(child):
            for _ in range(3):
                if way == "try_recv_bytes":
                    assert WAYS[way](receiver) is None
                else:
                    with pytest.raises(TimeoutError):
                        WAYS[way](receiver)
            assert receiver.poll(0) is False
        assert receiver.recv_bytes(timeout=30) == bytes(range(256)) * (TOTAL // 256)
        child.join(10)
        sender.send_bytes(b"behind it")
        assert receiver.recv_bytes(timeout=10) == b"behind it"
        assert receiver.stats().frames_dropped == 0


def test_rest_never_comes_after_a_timeout() -> None:
    receiver, sender, child = partly_sent()
    with receiver, sender:
        with stopped(child), pytest.raises(TimeoutError):
            receiver.recv_bytes(timeout=LIMIT)
        child.kill(signal.SIGKILL)
        sender.send_bytes(b"behind it")
        assert receiver.recv_bytes(timeout=10) == b"behind it"
        assert receiver.stats().frames_dropped == 1


def test_tries_go_through_a_message_larger_than_the_pipe() -> None:
    receiver, sender, child = partly_sent()
    with receiver, sender:
        message = eventually(receiver.try_recv_bytes, 30)
        assert message == bytes(range(256)) * (TOTAL // 256)
        child.join(10)


def test_receiver_stands_still_inside_a_call() -> None:
    receiver, sender = Pipe(False, size=256 * KiB)
    with receiver, sender:
        with held(receiver._receiver.side.lock):
            for receive in (receiver.recv, receiver.recv_bytes):
                with pytest.raises(TimeoutError):
                    receive(timeout=LIMIT)
            assert receiver.try_recv_bytes() is None
            assert receiver.poll(LIMIT) is False
            sender.send_bytes(b"fits without growth", timeout=LIMIT)
            with pytest.raises(TimeoutError):
                sender.send_bytes(bytes(128 * KiB), timeout=LIMIT)
            assert not sender.try_send_bytes(bytes(128 * KiB))
            with pytest.raises(TimeoutError):
                sender.send_bytes(bytes(MiB), timeout=LIMIT)
        assert receiver.recv_bytes(timeout=10) == b"fits without growth"
        assert not receiver.poll(0)


def test_sender_stands_still_inside_a_call() -> None:
    receiver, sender = Pipe(False, size=256 * KiB)
    with receiver, sender:
        with held(sender._sender.side.lock):
            for size in (8, MiB):
                with pytest.raises(TimeoutError):
                    sender.send_bytes(bytes(size), timeout=LIMIT)
            assert not sender.try_send_bytes(b"x")
            started = time.monotonic()
            with pytest.raises(TimeoutError):
                receiver.recv_bytes(timeout=LIMIT)
            assert time.monotonic() - started >= LIMIT  # not before its time
        sender.send_bytes(b"after")
        assert receiver.recv_bytes(timeout=10) == b"after"


def test_sender_stands_still_in_its_turn() -> None:
    receiver, sender, child = partly_sent()
    with receiver, sender:
        with stopped(child):
            for size in (8, MiB):
                with pytest.raises(TimeoutError):
                    sender.send_bytes(bytes(size), timeout=LIMIT)
            assert not sender.try_send_bytes(b"x")
        assert len(receiver.recv_bytes(timeout=30)) == TOTAL
        child.join(10)
        assert not receiver.poll(0)


def test_stands_still_in_looking_for_the_dead() -> None:
    """Who waits for a lock with a limit does not wait without one for the look at its holder."""
    receiver, sender = Pipe(False)
    with receiver, sender:
        dead = run_child(stop_inside, sender._sender.lock)
        eventually(lambda: is_stopped(dead))
        looking = run_child(
            sender._segment.exclusively, lambda: os.kill(os.getpid(), signal.SIGSTOP)
        )
        eventually(lambda: is_stopped(looking))
        dead.kill()

        def limited() -> bool:
            with contextlib.suppress(TimeoutError):
                sender.send_bytes(b"x", timeout=3 * LIMIT)
                return False
            return not sender.try_send_bytes(b"x")

        assert run_child(limited, close=[receiver]).join(20)
        os.kill(looking.pid, signal.SIGCONT)
        looking.join()
        sender.send_bytes(b"after", timeout=20)
        assert receiver.recv_bytes() == b"after"


def stop_while_ringing(sender: Connection) -> None:
    part: Any = sender._sender
    part.side.bell.ring = lambda ticket: os.kill(os.getpid(), signal.SIGSTOP)
    sender.send_bytes(b"message")


@pytest.mark.parametrize("then", ["goes on", "is killed"])
def test_who_stands_still_while_he_rings_is_waited_for_once(then: str) -> None:
    """Not by every call that finds the ring empty."""
    receiver, sender = Pipe(False)
    with receiver, sender:
        words = receiver._receiver.ring.view  # type: ignore[union-attr]
        receiver.fileno()
        child = run_child(stop_while_ringing, sender, close=[receiver])
        eventually(lambda: is_stopped(child))
        assert words[TELLS] & 1
        assert receiver.recv_bytes(timeout=LIMIT) == b"message"
        assert not words[TELLS] & 1  # which is what a call would wait for
        for _ in range(100):
            assert not receiver.poll()
            assert receiver.try_recv_bytes() is None
        if then == "goes on":
            os.kill(child.pid, signal.SIGCONT)
            child.join()
        else:
            child.kill()
            eventually(lambda: not child.alive())
        assert not words[TELLS] & 1
        sender.send_bytes(b"next")
        assert receiver.poll(20) and receiver.recv_bytes() == b"next"


def test_rings_although_somebody_stands_still_with_the_lock() -> None:
    """Where a message was published before, and nobody has been told of it yet."""
    receiver, sender = Pipe(False)
    with receiver, sender:
        reading: Any = receiver._receiver
        writing: Any = sender._sender
        words = reading.ring.view
        descriptor = receiver.fileno()
        sender.send_bytes(b"message")
        words[RD_ARM] += 1
        reading.side.bell.eat(words[PLUG], words[RD_ARM])
        assert not select.select([descriptor], [], [], 0)[0]
        with held(writing.lock):
            writing.side.wake_readers()
            assert select.select([descriptor], [], [], 0)[0]
        assert receiver.recv_bytes() == b"message"
