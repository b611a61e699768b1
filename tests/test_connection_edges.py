"""Corners of a connection's calls: failures among several objects, limits, odd buffers."""

from __future__ import annotations

import errno
import math
import pickle
import signal
from collections.abc import Callable
from multiprocessing import BufferTooShort
from multiprocessing.connection import wait
from typing import Any

import numpy
import pytest

import shmpipe
from shmpipe.segment import WR_LONG

from .links import KiB, MiB, both_kinds, both_ways, link_of, outcome
from .steps import Boom, at_step, boom, interpreted_only
from .support import PAGE, run_child, run_thread
from .tasks import eventually
from .test_connection_api import raises_os_error
from .test_stopped import LIMIT, TOTAL, partly_sent, stopped

RECEIVING = ("connection", "receiving", "collecting", "arrivals", "bytering")


class Raises:
    """Unpickling it raises this."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __reduce__(self) -> Any:
        return raise_it, (self.error,)


def raise_it(error: BaseException) -> None:
    raise error


class Frozen(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(name)


ERRORS = [
    ValueError("mine"),
    TimeoutError("mine"),
    EOFError("mine"),
    KeyboardInterrupt("mine"),
    SystemExit("mine"),
    Frozen("mine"),
]
all_errors = pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)


# ---------------------------------------------------------------- several objects


@all_errors
@pytest.mark.parametrize("before", [0, 2])
def test_recv_many_hands_over_what_came_before_a_failure(error: Any, before: int) -> None:
    with link_of("shmpipe") as (receiver, sender):
        sender.send_many([*range(before), Raises(error), "behind"])
        with pytest.raises(type(error), match="mine") as caught:
            receiver.recv_many()
        assert caught.value.received == list(range(before))
        # Everything else is where every call, and every watcher, looks for it.
        assert receiver.poll()
        assert wait([receiver], 0) == [receiver]
        assert pickle.loads(receiver.recv_bytes()) == "behind"
        assert not receiver.poll()
        assert wait([receiver], 0) == []


@interpreted_only
def test_recv_many_interrupted_at_every_step() -> None:
    """Of the objects taken, those are handed over that it has; only the one in work may be lost."""
    with link_of("shmpipe") as (receiver, sender):
        for step in range(100_000):
            sender.send_many(range(3))
            found: list[int] = []
            try:
                with at_step(step, boom, RECEIVING) as point:
                    found = receiver.recv_many()
            except Boom as error:
                found = getattr(error, "received", [])
            while receiver.poll():
                found.append(receiver.recv())
            assert found == sorted(set(found))
            assert len(found) >= 2
            if not point.reached:
                break
        assert found == [0, 1, 2]
        assert step > 50


@all_errors
def test_iteration_does_not_end_at_what_unpickling_raises(error: Any) -> None:
    with link_of("shmpipe") as (receiver, sender):
        sender.send_many([1, Raises(error), 3])
        sender.close()
        found = iter(receiver)
        assert next(found) == 1
        with pytest.raises(type(error), match="mine"):
            next(found)
        assert list(receiver) == [3]


def test_sending_none_at_all() -> None:
    """Is still a call on the end, which may be closed or receive only."""
    receiver, sender = shmpipe.Pipe(False)
    with receiver, sender:
        assert sender.send_many([]) == 0
        with raises_os_error("connection is read-only"):
            receiver.send_many([])
        sender.close()
        with raises_os_error("handle is closed"):
            sender.send_many([])


# ---------------------------------------------------------------- maxlength


@both_kinds
@pytest.mark.parametrize("size", [100 * KiB, 64 * MiB])
def test_too_long_a_message_is_refused_before_it_is_received(kind: str, size: int) -> None:
    def send() -> type[Exception] | None:
        try:
            sender.send_bytes(bytes(size))
        except OSError as error:
            return type(error)
        return None

    options: dict[str, Any] = {"size": 64 * KiB} if kind == "shmpipe" else {}
    with link_of(kind, False, **options) as (receiver, sender):
        sending = run_child(send, close=[receiver])
        with raises_os_error("bad message length"):
            receiver.recv_bytes(100)
        assert receiver.closed
        assert sending.join() is BrokenPipeError


@both_kinds
def test_too_long_a_message_on_a_duplex_end(kind: str) -> None:
    with link_of(kind, True) as (receiver, sender):
        sending = run_thread(outcome, lambda: sender.send_bytes(bytes(4 * MiB)))
        with raises_os_error("bad message length"):
            receiver.recv_bytes(100)
        with raises_os_error("connection is write-only"):
            receiver.poll()
        receiver.send("other way")
        assert sender.recv() == "other way"
        assert sending.alive()  # nobody takes it, as long as there is an end that could
        receiver.close()
        assert issubclass(sending.join(), OSError)


@pytest.mark.parametrize("size", [1000, 200 * KiB])
def test_too_long_a_message_is_left_to_others(size: int) -> None:
    receiver, sender = shmpipe.Pipe(False, size=64 * KiB)
    with receiver, sender:
        other = run_child(lambda: [receiver.recv_bytes(size), receiver.recv_bytes()])
        other.wait_asleep()  # stopped with the lock it would keep this one waiting
        other.kill(signal.SIGSTOP)
        sending = run_child(
            lambda: [sender.send_bytes(bytes(size)), sender.send_bytes(b"next")], close=[receiver]
        )
        with raises_os_error("bad message length"):
            receiver.recv_bytes(size - 1)
        other.kill(signal.SIGCONT)
        assert other.join() == [bytes(size), b"next"]
        sending.join()


def test_rest_of_a_message_that_is_too_long() -> None:
    """The part of it that an earlier call has received is given up."""
    receiver, sender, sending = partly_sent()
    with receiver, sender:
        with stopped(sending), pytest.raises(TimeoutError):
            receiver.recv_bytes(timeout=LIMIT)
        other = run_child(receiver.recv_bytes, close=[sender])
        with raises_os_error("bad message length"):
            receiver.recv_bytes(TOTAL - 1)
        sending.join()
        sender.send_bytes(b"next")
        assert other.join() == b"next"


@both_ways
@pytest.mark.parametrize("count", [1, 3, 400])
@pytest.mark.parametrize("extra", ["", "x" * 70_000])
def test_maxlength_counts_an_object_as_one_plain_pickle(
    duplex: bool, count: int, extra: str
) -> None:
    """Which is shorter than it is in the pipe, where its buffers lie beside the pickle."""
    arrays = [numpy.full(8193, number % 100, numpy.uint8) for number in range(count)]
    with link_of("shmpipe", duplex, size=8 * MiB) as (receiver, sender):
        sender.send([extra, arrays])
        length = len(receiver.recv_bytes())
        sender.send([extra, arrays])
        assert len(receiver.recv_bytes(length)) == length
        sender.send([extra, arrays])
        with raises_os_error("bad message length"):
            receiver.recv_bytes(length - 1)


# ---------------------------------------------------------------- limits of time and size

TIMED: dict[str, Callable[[Any, Any], Any]] = {
    "poll": lambda end, timeout: end.poll(timeout),
    "recv": lambda end, timeout: end.recv(timeout=timeout),
    "recv_bytes": lambda end, timeout: end.recv_bytes(timeout=timeout),
    "recv_bytes_into": lambda end, timeout: end.recv_bytes_into(bytearray(99), timeout=timeout),
    "recv_many": lambda end, timeout: end.recv_many(timeout=timeout),
    "send": lambda end, timeout: end.send(1, timeout=timeout),
    "send_bytes": lambda end, timeout: end.send_bytes(b"1", timeout=timeout),
    "send_many": lambda end, timeout: end.send_many([1], timeout=timeout),
}


@pytest.mark.parametrize("call", TIMED)
@pytest.mark.parametrize("data", [False, True])
def test_no_number_of_seconds(call: str, data: bool) -> None:
    with link_of("shmpipe") as (end, other):
        if data:
            other.send("there")
        for timeout, error in ((math.nan, ValueError), ("1", TypeError)):
            with pytest.raises(error):
                TIMED[call](end, timeout)
        assert end.poll() is data
        assert not other.poll()


def float_name(number: float) -> str:
    return str(number)[:10]


@pytest.mark.parametrize("call", TIMED)
@pytest.mark.parametrize("timeout", [math.inf, 10**400, 1.7e308, 1e18, 1e10], ids=float_name)
def test_endless_numbers_of_seconds(call: str, timeout: float) -> None:
    with link_of("shmpipe", size=4096, spin=0) as (end, other):
        if "send" in call:
            while end.try_send_bytes(bytes(100)):
                pass
            while end.try_send_bytes(b""):
                pass
        calling = run_thread(TIMED[call], end, timeout)
        calling.wait_asleep()
        if "send" in call:
            while other.poll(0.1):
                other.recv_bytes()
        else:
            other.send("there")
        calling.join()


@pytest.mark.parametrize("make", [shmpipe.Pipe, shmpipe.pipe])
@pytest.mark.parametrize("name", ["size", "max_size"])
@pytest.mark.parametrize("value", [-1, (1 << 31) + 1, 1 << 32, (1 << 32) + 4096, 1 << 40, 1 << 62])
def test_sizes_that_no_pipe_has(make: Any, name: str, value: int) -> None:
    with pytest.raises(OSError, match=rf"\b{name} {value}: allowed are 0 to 2147483648") as caught:
        make(**{name: value})
    assert caught.value.errno == errno.EINVAL


# ---------------------------------------------------------------- buffers


@both_kinds
def test_released_view(kind: str) -> None:
    view = memoryview(bytearray(3))
    view.release()
    with link_of(kind) as (receiver, sender):
        sender.send_bytes(b"abc")
        for call in (sender.send_bytes, receiver.recv_bytes_into):
            with pytest.raises(ValueError, match="released"):
                call(view)
        assert receiver.recv_bytes() == b"abc"


UNFIT: dict[str, Callable[[], Any]] = {
    "read-only": lambda: bytes(8),
    "strided": lambda: memoryview(bytearray(16))[::2],
    "Fortran order": lambda: numpy.zeros((8, 2), numpy.uint8, order="F"),
}


@both_kinds
@pytest.mark.parametrize("name", UNFIT)
@pytest.mark.parametrize("offset", [0, 3])
def test_into_complains_about_the_length_first(kind: str, name: str, offset: int) -> None:
    target = UNFIT[name]()
    with link_of(kind) as (receiver, sender):
        with pytest.raises(ValueError, match="offset"):
            receiver.recv_bytes_into(target, 17)
        sender.send_bytes(b"too long for all of them")
        with pytest.raises(BufferTooShort) as caught:
            receiver.recv_bytes_into(target, offset)
        assert caught.value.args == (b"too long for all of them",)
        sender.send_bytes(b"fits")
        with pytest.raises(TypeError):
            receiver.recv_bytes_into(target, offset)
        # Both have cost their message.
        sender.send_bytes(b"next")
        assert receiver.recv_bytes() == b"next"


@both_kinds
def test_into_a_format_that_python_does_not_know(kind: str) -> None:
    with link_of(kind) as (receiver, sender):
        sender.send_bytes(b"stays")
        with pytest.raises(ValueError, match="dtype"):
            receiver.recv_bytes_into(numpy.zeros(4, "M8[s]"))
        assert receiver.recv_bytes() == b"stays"


class Resizes:
    """Pickling it changes the length of a bytearray."""

    def __init__(self, data: bytearray, change: Callable[[bytearray], Any]) -> None:
        self.data = data
        self.change = change

    def __reduce__(self) -> Any:
        self.change(self.data)
        return int, ()


@both_kinds
@pytest.mark.parametrize("size", [100, 70_000, 300_000])
def test_bytearray_that_grows_while_the_rest_is_pickled(kind: str, size: int) -> None:
    data = bytearray(b"x") * size
    with link_of(kind) as (receiver, sender):
        receiving = run_thread(receiver.recv)
        sender.send([data, Resizes(data, lambda data: data.extend(b"y" * 1_000_000))])
        assert receiving.join() == [b"x" * size, 0]
        assert type(receiving.join()[0]) is bytearray


def test_bytearray_that_shrinks_while_the_rest_is_pickled() -> None:
    data = bytearray(b"x") * 300_000
    with link_of("shmpipe") as (receiver, sender):
        # (The standard library has copied it by then.)
        with pytest.raises(BufferError, match="shorter"):
            sender.send([data, Resizes(data, bytearray.clear)])
        sender.send("next")
        assert receiver.recv() == "next"


def test_a_send_goes_on_when_its_message_fits() -> None:
    """It waited for whole pages, and so for the receiver to take all that is there."""
    receiver, sender = shmpipe.Pipe(duplex=False, size=2 * PAGE, write_size=PAGE)
    with receiver, sender:
        for letter in (b"a", b"b"):
            sender.send_bytes(letter * 1500)
        thread = run_thread(sender.send_bytes, b"g" * 6000)
        words = sender._sender.ring.view
        eventually(lambda: words[WR_LONG])
        assert receiver.recv_bytes() == b"a" * 1500
        thread.join()
        assert receiver.recv_bytes() == b"b" * 1500
        assert receiver.recv_bytes() == b"g" * 6000
