"""Every call of a connection as the standard library has it: results, checks, exceptions, states.

Whatever is compared with a message text here is looked for by programs, or by multiprocessing.
"""

from __future__ import annotations

import array
import multiprocessing
import pickle
import re
import threading
import uuid
from collections.abc import Callable
from typing import Any

import numpy
import pytest

import shmpipe

from .kinds import asleep
from .links import both_kinds, both_ways, link_of, make_link, outcome
from .support import run_thread

RECEIVING: dict[str, Callable[[Any], Any]] = {
    "recv": lambda end: end.recv(),
    "recv_bytes": lambda end: end.recv_bytes(),
    "recv_bytes with maxlength": lambda end: end.recv_bytes(10),
    "recv_bytes_into": lambda end: end.recv_bytes_into(bytearray(10)),
    "poll": lambda end: end.poll(),
    "poll with time": lambda end: end.poll(0.01),
}
SENDING: dict[str, Callable[[Any], Any]] = {
    "send": lambda end: end.send("x"),
    "send_bytes": lambda end: end.send_bytes(b"x"),
    "send_bytes of nothing": lambda end: end.send_bytes(b""),
}
# Arguments so bad that a check of them before the check of the state would show.
BAD_RECEIVING: dict[str, Callable[[Any], Any]] = {
    "recv_bytes, bad": lambda end: end.recv_bytes(-1),
    "recv_bytes_into, bad": lambda end: end.recv_bytes_into("text", -1),
}
BAD_SENDING: dict[str, Callable[[Any], Any]] = {
    "send, bad": lambda end: end.send(threading.Lock()),
    "send_bytes, bad": lambda end: end.send_bytes("text", -1),
}


def raises_os_error(text: str) -> Any:
    return pytest.raises(OSError, match=f"^{re.escape(text)}$")


# ---------------------------------------------------------------- making and closing


@both_kinds
@pytest.mark.parametrize(
    ("duplex", "two_way"), [(True, True), (1, True), (False, False), (0, False), (None, False)]
)
def test_directions(kind: str, duplex: Any, two_way: bool) -> None:
    with link_of(kind, duplex) as (first, second):
        assert (first.readable, first.writable) == (True, two_way)
        assert (second.readable, second.writable) == (two_way, True)
        assert not first.closed and not second.closed


@both_kinds
def test_duplex_is_the_default_and_a_positional_argument(kind: str) -> None:
    make = {"stdlib": multiprocessing.Pipe, "shmpipe": shmpipe.Pipe}[kind]
    for made, two_way in [(make(), True), (make(False), False), (make(duplex=False), False)]:
        with made[0] as first, made[1]:
            assert first.writable is two_way
    with pytest.raises(TypeError):
        make(True, 65536)


def test_bad_arguments_of_ours() -> None:
    for options, error in [
        ({"size": -1}, OSError),
        ({"size": 1 << 40}, OSError),
        ({"size": "1"}, TypeError),
        ({"wake": "never"}, ValueError),
        ({"spin": -1}, ValueError),
        ({"spin": "long"}, TypeError),
        ({"write_size": 0}, OSError),
        ({"write_size": 1 << 30}, OSError),
        ({"max_size": 65536}, PermissionError),
        ({"sise": 65536}, TypeError),
    ]:
        with pytest.raises(error):
            shmpipe.Pipe(**options)  # type: ignore[arg-type]


@both_kinds
@both_ways
def test_close(kind: str, duplex: bool) -> None:
    with link_of(kind, duplex) as ends:
        for end in ends:
            states = end.readable, end.writable
            end.close()
            assert end.closed
            end.close()
            assert (end.readable, end.writable) == states
            with raises_os_error("handle is closed"):
                end.fileno()
            assert end.__enter__() is end


@both_kinds
@both_ways
@pytest.mark.parametrize("call", RECEIVING | SENDING | BAD_RECEIVING | BAD_SENDING, ids=str)
def test_calls_of_a_closed_end(kind: str, duplex: bool, call: str) -> None:
    with link_of(kind, duplex) as ends:
        for end in ends:
            end.close()
            with raises_os_error("handle is closed"):
                (RECEIVING | SENDING | BAD_RECEIVING | BAD_SENDING)[call](end)


@both_kinds
@both_ways
def test_with_closes(kind: str, duplex: bool) -> None:
    first, second = make_link(kind, duplex)
    with first as entered:
        assert entered is first
    assert first.closed
    with pytest.raises(KeyError), second:
        raise KeyError
    assert second.closed


@both_kinds
@pytest.mark.parametrize("call", RECEIVING | BAD_RECEIVING, ids=str)
def test_receiving_from_the_sending_end(kind: str, call: str) -> None:
    with link_of(kind, False) as (_, sender), raises_os_error("connection is write-only"):
        (RECEIVING | BAD_RECEIVING)[call](sender)


@both_kinds
@pytest.mark.parametrize("call", SENDING | BAD_SENDING, ids=str)
def test_sending_to_the_receiving_end(kind: str, call: str) -> None:
    with link_of(kind, False) as (receiver, _), raises_os_error("connection is read-only"):
        (SENDING | BAD_SENDING)[call](receiver)


@both_kinds
@both_ways
def test_end_is_an_ordinary_object(kind: str, duplex: bool) -> None:
    with link_of(kind, duplex) as (first, second):
        assert first == first and first != second
        assert len({first, second, first}) == 2
        for end in (first, second):
            assert type(end).__name__ == "Connection"
            assert "Connection" in repr(end)
            assert isinstance(end.fileno(), int) and end.fileno() == end.fileno() >= 0
        first.close()
        assert "Connection" in repr(first)


# ---------------------------------------------------------------- the peer is gone


@both_kinds
@both_ways
@pytest.mark.parametrize("waiting", [0, 3])
def test_end_of_file(kind: str, duplex: bool, waiting: int) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        for number in range(waiting):
            sender.send(number)
        sender.close()
        for number in range(waiting):
            assert receiver.poll()
            assert receiver.recv() == number
        for _ in range(2):
            for timeout in (0, None, 1, -1):
                assert receiver.poll(timeout) is True
            for call in ("recv", "recv_bytes", "recv_bytes with maxlength", "recv_bytes_into"):
                with pytest.raises(EOFError):
                    RECEIVING[call](receiver)
        assert receiver.readable and not receiver.closed


@both_kinds
@both_ways
@pytest.mark.parametrize("call", SENDING, ids=str)
def test_broken_pipe(kind: str, duplex: bool, call: str) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        receiver.close()
        for _ in range(2):
            with pytest.raises(BrokenPipeError):
                SENDING[call](sender)
        assert sender.writable and not sender.closed


@both_kinds
@both_ways
def test_broken_pipe_of_a_large_message(kind: str, duplex: bool) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        receiver.close()
        with pytest.raises(BrokenPipeError):
            sender.send_bytes(bytes(5 << 20))


@both_kinds
@both_ways
def test_waiting_calls_see_the_peer_close(kind: str, duplex: bool) -> None:
    for call in ("recv", "recv_bytes", "recv_bytes_into"):
        with link_of(kind, duplex) as (receiver, sender):
            waiting = run_thread(RECEIVING[call], receiver)
            asleep(waiting)
            sender.close()
            with pytest.raises(EOFError):
                waiting.join()
    with link_of(kind, duplex) as (receiver, sender):
        waiting = run_thread(receiver.poll, None)
        asleep(waiting)
        sender.close()
        assert waiting.join() is True
    with link_of(kind, duplex) as (receiver, sender):
        waiting = run_thread(sender.send_bytes, bytes(5 << 20))
        asleep(waiting)
        receiver.close()
        # A socket whose peer closes with data unread reports that as a reset.
        with pytest.raises(
            (BrokenPipeError, ConnectionResetError) if kind == "stdlib" else OSError
        ):
            waiting.join()


# ---------------------------------------------------------------- send and recv


class Point:
    def __init__(self, x: int) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.x == other.x

    def __hash__(self) -> int:
        return hash(self.x)


OBJECTS: list[Any] = [
    None,
    True,
    0,
    -(1 << 200),
    1.5,
    "",
    "text \u20ac \U0001f600",
    b"",
    b"bytes",
    bytearray(b"bytearray"),
    (),
    (1, [2, {3: {4}}]),
    frozenset("abc"),
    Point(3),
    Point,
    len,
    ValueError("text", 3),
    uuid.UUID(int=5),
    range(5),
    array.array("d", [1.0, 2.0]),
    "x" * 20_000,
    bytes(20_000),
    bytearray(20_000),
    ["y" * n for n in range(150)],
]


@both_kinds
@both_ways
def test_objects(kind: str, duplex: bool) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        for obj in OBJECTS:
            sender.send(obj)
            assert receiver.poll()
            received = receiver.recv()
            assert type(received) is type(obj)
            if isinstance(obj, Exception):
                received, obj = received.args, obj.args
            assert received == obj
            assert not receiver.poll()


@both_kinds
def test_both_directions_are_independent(kind: str) -> None:
    with link_of(kind) as (a, b):
        for number in range(5):
            a.send(("from a", number))
            b.send(("from b", number))
        for number in range(5):
            assert a.recv() == ("from b", number)
        assert not a.poll()
        assert b.poll()
        for number in range(5):
            assert b.recv() == ("from a", number)


@both_kinds
@both_ways
def test_objects_and_bytes_mix(kind: str, duplex: bool) -> None:
    obj = {"a": [1, 2], "b": bytes(9000), "c": numpy.arange(1500)}
    with link_of(kind, duplex) as (receiver, sender):
        sender.send_bytes(pickle.dumps(obj, 2))
        sender.send(obj)
        for received in (receiver.recv(), pickle.loads(receiver.recv_bytes())):
            assert (received.pop("c") == obj["c"]).all()
            assert received == {key: obj[key] for key in "ab"}
        sender.send_bytes(b"not a pickle")
        sender.send_bytes(b"")
        sender.send("next")
        with pytest.raises(pickle.UnpicklingError):
            receiver.recv()
        with pytest.raises(EOFError, match="Ran out of input"):
            receiver.recv()
        assert receiver.recv() == "next"


class Reduced:
    """Pickled by the reducer that is registered for it."""

    def __init__(self, value: int) -> None:
        self.value = value


@both_kinds
def test_reducers_registered_with_multiprocessing_are_used(kind: str) -> None:
    from multiprocessing import reduction

    reduction.register(Reduced, lambda obj: (Reduced, (obj.value + 1,)))
    try:
        with link_of(kind) as (a, b):
            a.send([Reduced(1)])
            assert b.recv()[0].value == 2
    finally:
        reduction.ForkingPickler._extra_reducers.pop(Reduced)


@both_kinds
@both_ways
def test_wrong_numbers_of_arguments(kind: str, duplex: bool) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        calls: list[Callable[[], Any]] = [
            lambda: receiver.recv(1),
            lambda: receiver.poll(0, 0),
            lambda: receiver.recv_bytes(5, 5),
            lambda: receiver.recv_bytes_into(bytearray(5), 0, 0),
            lambda: receiver.recv_bytes_into(),
            lambda: sender.send(),
            lambda: sender.send(1, 1),
            lambda: sender.send_bytes(),
            lambda: sender.send_bytes(b"abc", 0, 1, 1),
        ]
        assert [outcome(call) for call in calls] == [TypeError] * len(calls)
        assert not receiver.poll()


# ---------------------------------------------------------------- poll


@both_kinds
@both_ways
def test_poll(kind: str, duplex: bool) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        for timeout in (0, 0.0, -1, -0.5, 0.01):
            assert receiver.poll(timeout) is False
            assert receiver.poll(timeout=timeout) is False
        assert receiver.poll() is False
        waiting = run_thread(receiver.poll, None)
        asleep(waiting)
        sender.send_bytes(b"")
        assert waiting.join() is True
        for timeout in (0, 10, -1, None):
            assert receiver.poll(timeout) is True
        assert receiver.recv_bytes() == b""
        assert receiver.poll() is False
        with pytest.raises(TypeError):
            receiver.poll("soon")
