"""Messages in parts whose sender or receiver is stopped at every step in turn.

Whether it is killed there or interrupted by an exception: of a message that it was in the middle
of, others see all or nothing, and what comes behind it is received as if nothing had happened.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy
import pytest

from shmpipe import Connection, Pipe, collecting, locking

from .steps import Boom, at_step, boom, die, every_step, interpreted_only
from .support import ChildDied, run_child

pytestmark = interpreted_only

RING = 4096
SIZE = 4096  # bytes of a message: more than the ring, so it goes in parts
RECEIVING = (
    *("receiving", "collecting", "arrivals"),
    *("bytering", "frames", "assembling", "objects", "keeping"),
)
SENDING = ("sending", "bytering", "frames")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look soon for those who have died."""
    monkeypatch.setattr(locking, "PATIENCE", 0.005)
    monkeypatch.setattr(collecting, "WATCH_SENDER", 0.01)


def numbered_array(number: int) -> Any:
    return numpy.full(2100, number, numpy.uint32)  # large enough to go beside its pickle


def receive_into(end: Connection) -> bytes:
    buffer = bytearray(SIZE)
    assert end.recv_bytes_into(buffer) == SIZE
    return bytes(buffer)


def numbered(number: int) -> bytes:
    return number.to_bytes(4, "little") * (SIZE // 4)


def number_of(message: Any) -> int:
    """The number in a message, which has to be whole."""
    if isinstance(message, bytes):
        number = int.from_bytes(message[:4], "little")
        assert message == numbered(number)
    else:
        number = int(message[0])
        assert (message == numbered_array(number)).all()
    return number


WAYS: dict[str, tuple[Callable[..., Any], Callable[[Connection], Any]]] = {
    "recv_bytes": (lambda end, n: end.send_bytes(numbered(n)), lambda end: end.recv_bytes()),
    "recv_bytes_into": (lambda end, n: end.send_bytes(numbered(n)), receive_into),
    "recv": (lambda end, n: end.send(numbered_array(n)), lambda end: end.recv()),
}
all_ways = pytest.mark.parametrize("way", WAYS)
# (by instructions instead of lines, every how many of them); to kill is slower than to interrupt
some_kills = pytest.mark.parametrize(
    ("opcodes", "stride"),
    [
        (False, 11),
        pytest.param(False, 1, marks=every_step),
        pytest.param(True, 5, marks=every_step),
    ],
)
all_lines = pytest.mark.parametrize("opcodes", [False, pytest.param(True, marks=every_step)])


def from_a_child(send: Callable[..., Any]) -> tuple[Connection, Any]:
    """The receiver of a pipe that another process fills with numbered messages."""
    receiver, sender = Pipe(False, size=RING)

    def send_for_ever() -> None:
        number = 0
        while True:
            send(sender, number)
            number += 1

    child = run_child(send_for_ever, close=[receiver])
    sender.close()
    return receiver, child


@all_ways
@some_kills
def test_receiver_killed_at_every_step(way: str, opcodes: bool, stride: int) -> None:
    send, receive = WAYS[way]

    def take_one(step: int) -> None:
        with at_step(step, die, RECEIVING, opcodes):
            receive(receiver)

    receiver, sending = from_a_child(send)
    with receiver:
        expected, died = 0, True
        for step in range(0, 100_000, stride):
            victim = run_child(take_one, step)
            try:
                victim.join()
                died = False
            except ChildDied:
                pass
            dropped = receiver.stats().frames_dropped
            number = number_of(receive(receiver))
            # The victim had taken it, or had not, or was in the middle.
            assert number in (expected, expected + 1)
            assert receiver.stats().frames_dropped - dropped <= 1
            expected = number + 1
            if not died:
                break
    assert step > 100
    sending.kill()


@all_ways
@all_lines
def test_receiver_interrupted_at_every_step(way: str, opcodes: bool) -> None:
    send, receive = WAYS[way]
    receiver, sending = from_a_child(send)
    with receiver:
        expected = 0
        for step in range(100_000):
            try:
                with at_step(step, boom, RECEIVING, opcodes) as point:
                    assert number_of(receive(receiver)) == expected
                    expected += 1
            except Boom:
                pass
            number = number_of(receive(receiver))
            assert number in (expected, expected + 1)
            expected = number + 1
            if not point.reached:
                break
    assert step > 100
    sending.kill()


def receive_until_end(receiver: Connection) -> list[bytes]:
    return list(iter(receiver.recv_bytes, b"end"))


def check_all(found: list[bytes], steps: Iterable[int]) -> Iterator[int]:
    """Markers of all steps; before each, whole or not at all, the message it comes behind."""
    messages = iter(found)
    for step in steps:
        message = next(messages)
        if message != b"%d" % step:
            assert number_of(message) == step
            yield step
            message = next(messages)
        assert message == b"%d" % step
    assert next(messages, None) is None


def stop_at_every_step(send_one: Callable[[Connection, int], bool], stride: int) -> None:
    """`send_one` sends a numbered message, stopped at that step; False: there are not so many."""
    receiver, sender = Pipe(False, size=RING)
    with receiver, sender:
        receiving = run_child(receive_until_end, receiver, close=[sender])
        step, reached = 0, True
        while reached:
            step += stride
            with contextlib.suppress(ChildDied, Boom):
                reached = send_one(sender, step)
            sender.send_bytes(b"%d" % step)
        sender.send_bytes(b"end")
        sent = list(check_all(receiving.join(), range(stride, step + 1, stride)))
        assert step > 100
        assert sent[-1] == step


@some_kills
def test_sender_killed_at_every_step(opcodes: bool, stride: int) -> None:
    def send(sender: Connection, step: int) -> bool:
        with at_step(step, die, SENDING, opcodes) as point:
            sender.send_bytes(numbered(step))
        return point.reached

    stop_at_every_step(lambda *args: run_child(send, *args).join(), stride)


@all_lines
def test_sender_interrupted_at_every_step(opcodes: bool) -> None:
    def send(sender: Connection, step: int) -> bool:
        with at_step(step, boom, SENDING, opcodes) as point:
            sender.send_bytes(numbered(step))
        return point.reached

    stop_at_every_step(send, 1)
