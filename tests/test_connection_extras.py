"""What our connections have beyond the standard library's: time limits, batches, iteration."""

from __future__ import annotations

import contextlib
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import pytest

from shmpipe import Pipe

from .kinds import asleep
from .links import KiB, MiB, both_ways, fill_link, link_of, numbered
from .support import run_child, run_thread

SENDS: dict[str, Callable[..., Any]] = {
    "send": lambda end, **limit: end.send(["x" * KiB], **limit),
    "send of an array": lambda end, **limit: end.send(numpy.ones(5000), **limit),
    "send_bytes": lambda end, **limit: end.send_bytes(bytes(KiB), **limit),
    "send_bytes of a part": lambda end, **limit: end.send_bytes(bytes(2 * KiB), 5, KiB, **limit),
    "send_bytes, larger than the ring": lambda end, **limit: end.send_bytes(bytes(MiB), **limit),
    "send, larger than the ring": lambda end, **limit: end.send(numpy.ones(MiB), **limit),
}
RECEIVES: dict[str, Callable[..., Any]] = {
    "recv": lambda end, **limit: end.recv(**limit),
    "recv_bytes": lambda end, **limit: end.recv_bytes(**limit),
    "recv_bytes with maxlength": lambda end, **limit: end.recv_bytes(100, **limit),
    "recv_bytes_into": lambda end, **limit: end.recv_bytes_into(bytearray(100), **limit),
    "recv_many": lambda end, **limit: end.recv_many(**limit),
}
every_send = pytest.mark.parametrize("send", SENDS, ids=str)
every_receive = pytest.mark.parametrize("receive", RECEIVES, ids=str)

# ---------------------------------------------------------------- time limits


@both_ways
@every_receive
def test_timeout_of_a_receive(duplex: bool, receive: str) -> None:
    with link_of("shmpipe", duplex) as (receiver, sender):
        for limit in (0, 0.0, -1, 0.05):
            with pytest.raises(TimeoutError):
                RECEIVES[receive](receiver, timeout=limit)
        expected = pickle.dumps("x")
        for limit in (0, 10, None):
            sender.send_bytes(expected)
            result = RECEIVES[receive](receiver, timeout=limit)
            assert result in ("x", ["x"], expected, len(expected))
        sender.close()
        for limit in (0, 10, None):
            with pytest.raises(EOFError):
                RECEIVES[receive](receiver, timeout=limit)


@both_ways
@every_send
def test_timeout_of_a_send(duplex: bool, send: str) -> None:
    with link_of("shmpipe", duplex, size=64 * KiB) as (receiver, sender):
        count = fill_link(sender)
        for limit in (0, -1, 0.05):
            with pytest.raises(TimeoutError):
                SENDS[send](sender, timeout=limit)
        assert [receiver.recv_bytes() for _ in range(count)] == [
            numbered(number, KiB) for number in range(count)
        ]
        assert not receiver.poll()
        # With room or with a reader, the same calls work.
        thread = run_thread(lambda: [SENDS[send](sender, timeout=limit) for limit in (30, None)])
        assert receiver.recv_bytes() == receiver.recv_bytes()
        thread.join()
        receiver.close()
        for limit in (0, 10, None):
            with pytest.raises(BrokenPipeError):
                SENDS[send](sender, timeout=limit)


@both_ways
@every_receive
def test_receive_within_the_time_limit(duplex: bool, receive: str) -> None:
    with link_of("shmpipe", duplex) as (receiver, sender):
        waiting = run_thread(lambda: RECEIVES[receive](receiver, timeout=30))
        asleep(waiting)
        sender.send("x")
        assert waiting.join() in ("x", ["x"], pickle.dumps("x", 5), len(pickle.dumps("x", 5)))


@both_ways
@every_send
def test_send_within_the_time_limit(duplex: bool, send: str) -> None:
    with link_of("shmpipe", duplex, size=64 * KiB) as (receiver, sender):
        count = fill_link(sender)
        waiting = run_thread(lambda: SENDS[send](sender, timeout=30))
        asleep(waiting)
        for number in range(count):
            assert receiver.recv_bytes() == numbered(number, KiB)
        assert len(receiver.recv_bytes()) >= KiB
        waiting.join()


@both_ways
@pytest.mark.parametrize(
    "call",
    [
        lambda end: end.send(1, "soon"),
        lambda end: end.send_bytes(b"abc", 0, 1, 0.1),
        lambda end: end.send(1, timeout="soon"),
        lambda end: end.send_bytes(b"abc", timeout="soon"),
    ],
)
def test_timeout_is_a_number_and_a_keyword(duplex: bool, call: Callable[[Any], Any]) -> None:
    with link_of("shmpipe", duplex) as (receiver, sender):
        with pytest.raises(TypeError):
            call(sender)
        assert not receiver.poll()


def test_time_limit_of_a_poll_is_that_of_stdlib() -> None:
    with link_of("shmpipe") as (receiver, _), pytest.raises(TypeError):
        receiver.recv(0.1)


# ---------------------------------------------------------------- without waiting


@both_ways
def test_try_send_bytes(duplex: bool) -> None:
    with link_of("shmpipe", duplex, size=64 * KiB) as (receiver, sender):
        assert sender.try_send_bytes(b"abc") is True
        assert sender.try_send_bytes(b"0123456", 2) is True
        assert sender.try_send_bytes(b"0123456", 2, 3) is True
        assert sender.try_send_bytes(memoryview(b"\1\0\2\0").cast("h"), 1) is True
        assert sender.try_send_bytes(b"") is True
        expected = [b"abc", b"23456", b"234", b"\0\2\0", b""]
        assert [receiver.recv_bytes() for _ in expected] == expected
        for arguments in ((b"abc", -1), (b"abc", 4), (b"abc", 0, -1), (b"abc", 0, 4)):
            with pytest.raises(ValueError):
                sender.try_send_bytes(*arguments)
        with pytest.raises(TypeError):
            sender.try_send_bytes("text")
        with pytest.raises(ValueError):  # it never fits, so trying again would be for ever
            sender.try_send_bytes(bytes(MiB))
        count = fill_link(sender)
        assert sender.try_send_bytes(bytes(KiB)) is False
        assert receiver.recv_bytes() == numbered(0, KiB)
        assert sender.try_send_bytes(bytes(KiB)) is True
        assert sender.try_send_bytes(bytes(KiB)) is False
        for number in range(1, count):
            assert receiver.recv_bytes() == numbered(number, KiB)
        assert receiver.recv_bytes() == bytes(KiB)
        assert not receiver.poll()
        receiver.close()
        with pytest.raises(BrokenPipeError):
            sender.try_send_bytes(b"x")
        sender.close()
        with pytest.raises(OSError, match="handle is closed"):
            sender.try_send_bytes(b"x")


@both_ways
def test_try_recv_bytes(duplex: bool) -> None:
    with link_of("shmpipe", duplex) as (receiver, sender):
        assert receiver.try_recv_bytes() is None
        for message in (b"abc", b"", bytes(100_000)):
            sender.send_bytes(message)
            assert receiver.try_recv_bytes() == message
            assert receiver.try_recv_bytes() is None
        sender.send_bytes(b"last")
        sender.close()
        assert receiver.try_recv_bytes() == b"last"
        for _ in range(2):
            with pytest.raises(EOFError):
                receiver.try_recv_bytes()
        receiver.close()
        with pytest.raises(OSError, match="handle is closed"):
            receiver.try_recv_bytes()


def test_trying_the_wrong_way() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        with pytest.raises(OSError, match="connection is read-only"):
            receiver.try_send_bytes(b"x")
        with pytest.raises(OSError, match="connection is read-only"):
            receiver.send_many([1])
        with pytest.raises(OSError, match="connection is write-only"):
            sender.try_recv_bytes()
        with pytest.raises(OSError, match="connection is write-only"):
            sender.recv_many()
        with pytest.raises(OSError, match="connection is write-only"):
            next(iter(sender))


# ---------------------------------------------------------------- batches


def items(count: int) -> list[Any]:
    return [(number, "x" * (number % 300)) for number in range(count)]


@both_ways
def test_send_many(duplex: bool) -> None:
    with link_of("shmpipe", duplex) as (receiver, sender):
        sender.send_many([])
        assert not receiver.poll()
        sender.send_many(items(100))
        sender.send_many(iter(items(5)))
        sender.send_many({"key": 1})
        received = [receiver.recv() for _ in range(106)]
        assert received == [*items(100), *items(5), "key"]
        with pytest.raises(TypeError):
            sender.send_many(5)
        assert not receiver.poll()


@both_ways
def test_send_many_fills_the_link_and_goes_on(duplex: bool) -> None:
    sizes = [10, 3000, 70_000, 10, 300_000, 10]
    arrays = [numpy.full(size, number) for number, size in enumerate(sizes)]
    with link_of("shmpipe", duplex, size=64 * KiB) as (receiver, sender):
        thread = run_thread(sender.send_many, [*items(2000), *arrays])
        assert [receiver.recv() for _ in range(2000)] == items(2000)
        for number, size in enumerate(sizes):
            array = receiver.recv()
            assert array.shape == (size,) and (array == number).all()
        thread.join()


@both_ways
def test_send_many_that_fails_half_way(duplex: bool) -> None:
    def fails() -> Iterator[int]:
        yield 1
        yield 2
        raise KeyError("no more")

    with link_of("shmpipe", duplex) as (receiver, sender):
        with pytest.raises(KeyError):
            sender.send_many(fails())
        with pytest.raises(TypeError):
            sender.send_many([3, threading.Lock(), 4])
        sender.send("next")
        received = receiver.recv_many()
        # What came before the failure may have been sent; nothing else, and nothing twice.
        assert received[-1] == "next"
        assert received[:-1] == [1, 2, 3]


@both_ways
def test_recv_many(duplex: bool) -> None:
    with link_of("shmpipe", duplex) as (receiver, sender):
        waiting = run_thread(receiver.recv_many)
        asleep(waiting)
        sender.send(0)
        first = waiting.join()
        sender.send_many(range(1, 20))
        assert first == [0]
        assert receiver.recv_many(1) == [1]
        assert receiver.recv_many(max=5) == [2, 3, 4, 5, 6]
        assert receiver.recv_many(100) == list(range(7, 20))
        with pytest.raises(TimeoutError):
            receiver.recv_many(timeout=0)
        for bad in (0, -1):
            with pytest.raises(ValueError):
                receiver.recv_many(bad)
        sender.send_many("ab")
        sender.close()
        assert receiver.recv_many() == ["a", "b"]
        for _ in range(2):
            with pytest.raises(EOFError):
                receiver.recv_many()


@both_ways
def test_iteration(duplex: bool) -> None:
    with link_of("shmpipe", duplex, size=64 * KiB) as (receiver, sender):
        child = run_child(sender.send_many, items(3000), close=[receiver])
        sender.close()
        iterator = iter(receiver)
        assert next(iterator) == items(1)[0]
        assert list(receiver) == items(3000)[1:]
        child.join()
        assert list(iterator) == []
        receiver.close()
        with pytest.raises(OSError, match="handle is closed"):
            next(iter(receiver))


# ---------------------------------------------------------------- spinning and signals


def test_limits_hold_while_a_call_spins() -> None:
    """A spin of a second must not outlast a limit of a hundredth, nor a signal's handler."""
    receiver, sender = Pipe(False, size=4 * KiB, spin=1.0)
    with receiver, sender:
        fill_link(sender)
        while receiver.try_recv_bytes() is not None:
            pass
        calls: list[Callable[[], Any]] = [
            lambda: receiver.recv_bytes(timeout=0.01),
            lambda: receiver.poll(0.01),
        ]
        for call in calls:
            started = time.process_time()
            with contextlib.suppress(TimeoutError):
                call()
            # Counted in CPU time, which a busy machine does not stretch: it would be a second.
            assert time.process_time() - started < 0.4
        fill_link(sender)
        started = time.process_time()
        for limit in (0.0, 0.01):
            with pytest.raises(TimeoutError):
                sender.send_bytes(bytes(3 * KiB), timeout=limit)
        assert time.process_time() - started < 0.4


def test_handler_runs_while_a_call_spins() -> None:
    receiver, sender = Pipe(False, spin=1.0)
    seen = []

    def handler(*_: Any) -> None:
        seen.append(time.process_time())
        sender.send_bytes(b"from the handler")

    old = signal.signal(signal.SIGALRM, handler)
    try:
        with receiver, sender:
            started = time.process_time()
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            assert receiver.recv_bytes(timeout=30) == b"from the handler"
            assert seen[0] - started < 0.6
    finally:
        signal.signal(signal.SIGALRM, old)


BLOCKED: dict[str, Callable[[Any, Any], Any]] = {
    "recv": lambda receiver, sender: receiver.recv(),
    "recv with a limit": lambda receiver, sender: receiver.recv(timeout=30),
    "poll": lambda receiver, sender: receiver.poll(None),
    "send": lambda receiver, sender: sender.send_bytes(bytes(MiB)),
    "send, whole": lambda receiver, sender: sender.send_bytes(bytes(3 * KiB)),
}


@pytest.mark.parametrize("after", [0.005, 0.1], ids=["soon", "late"])
@pytest.mark.parametrize("call", BLOCKED, ids=str)
def test_handler_that_closes_the_end_ends_the_call(call: str, after: float) -> None:
    receiver, sender = Pipe(False, size=4 * KiB, spin=0)
    with receiver, sender:
        end = receiver
        if call.startswith("send"):
            end = sender
            fill_link(sender)
        old = signal.signal(signal.SIGALRM, lambda *_: end.close())
        try:
            signal.setitimer(signal.ITIMER_REAL, after)
            with pytest.raises(OSError, match="handle is closed"):
                BLOCKED[call](receiver, sender)
        finally:
            signal.signal(signal.SIGALRM, old)
        assert end.closed
