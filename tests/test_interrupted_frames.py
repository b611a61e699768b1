"""Messages that are cut short in the middle by an exception, and messages that are very large.

Ctrl-C and time limits end a large send or receive half way; the link goes on with whole messages.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from .kinds import asleep
from .links import (
    MiB,
    both_kinds,
    both_ways,
    check_message,
    is_interrupted,
    link_of,
    message,
    numbered,
    numbers_of,
    receive_all,
    waiting_its_turn,
)
from .support import Flag, eventually, run_child, run_thread
from .test_cases_system import available_memory
from .test_torn_frames import LARGE, RING, both_sizes, freeze, sending_half_way, thaw

GiB = 1 << 30

# ---------------------------------------------------------------- KeyboardInterrupt

SENDS: dict[str, Callable[[Any], Any]] = {
    "send": lambda end: end.send(numpy.zeros(LARGE, numpy.uint8)),
    "send_bytes": lambda end: end.send_bytes(bytes(LARGE)),
    "send_many": lambda end: end.send_many([bytes(LARGE)]),
}
RECEIVES: dict[str, Callable[[Any], Any]] = {
    "recv": lambda end: end.recv(),
    "recv_bytes": lambda end: end.recv_bytes(),
    "recv_bytes_into": lambda end: end.recv_bytes_into(bytearray(LARGE)),
}


@both_ways
@both_sizes
@pytest.mark.parametrize("send", SENDS)
@pytest.mark.parametrize("received", [False, True], ids=["unread", "half read"])
def test_interrupted_send(duplex: bool, ring: int, send: str, received: bool) -> None:
    def in_child() -> bool:
        result = is_interrupted(lambda: SENDS[send](sender))
        done.set()
        go_on.wait()
        sender.send_bytes(message(1, 1, LARGE))
        sender.send_bytes(message(1, 2, 100))
        return result

    with link_of("shmpipe", duplex, size=ring) as (receiver, sender), Flag() as done:
        with Flag() as go_on:
            child = run_child(in_child, close=[receiver])
            sender.close()
            asleep(child)
            receiving = None
            if received:
                freeze(child)
                receiving = run_thread(receive_all, receiver)
                eventually(lambda: receiver.incoming.stats().bytes_read >= ring // 2)
                child.kill(signal.SIGINT)
                thaw(child)
            else:
                child.kill(signal.SIGINT)
            done.wait()
            if receiving is None:
                # Somebody can still send, but of the one given up there is nothing to receive.
                assert receiver.try_recv_bytes() is None
                assert not receiver.poll()
                with pytest.raises(TimeoutError):
                    receiver.recv(timeout=0.05)
            go_on.set()
            found = (receiving or run_thread(receive_all, receiver)).join()
            assert child.join()
        assert [check_message(data) for data in found] == [(1, 1), (1, 2)]


@both_ways
@both_sizes
@pytest.mark.parametrize("receive", RECEIVES)
def test_interrupted_receive(duplex: bool, ring: int, receive: str) -> None:
    def in_child() -> tuple[bool, list[bytes]]:
        result = is_interrupted(lambda: RECEIVES[receive](receiver))
        done.set()
        return result, receive_all(receiver)

    def send() -> None:
        sender.send_bytes(message(1, 0, LARGE))
        sender.send_bytes(message(1, 1, 100))
        sender.send_bytes(message(1, 2, LARGE))

    with link_of("shmpipe", duplex, size=ring) as (receiver, sender), Flag() as done:
        sending = run_child(send, close=[receiver])
        asleep(sending)
        freeze(sending)
        child = run_child(in_child, close=[sender])
        sender.close()
        eventually(lambda: receiver.incoming.stats().bytes_read >= ring // 2)
        waiting_its_turn(child)
        child.kill(signal.SIGINT)
        done.wait()
        thaw(sending)
        sending.join()
        interrupted, data = child.join()
        assert interrupted
        found = [check_message(item) for item in data]
        # The next receive of the same process goes on with the one that was in the middle.
        assert found == [(1, 0), (1, 1), (1, 2)]


class Interruptions:
    """Turns SIGINT into KeyboardInterrupt, but only inside of the call that is meant."""

    def __init__(self, ready: Flag) -> None:
        self.count = 0
        self._armed = False
        signal.signal(signal.SIGINT, self._handle)
        ready.set()

    def _handle(self, *_: Any) -> None:
        if self._armed:
            self._armed = False
            raise KeyboardInterrupt

    def interrupted(self, call: Callable[[], Any]) -> bool:
        try:
            self._armed = True
            call()
            self._armed = False
        except KeyboardInterrupt:
            self.count += 1
            return True
        return False


def send_with_interrupts(sender: Any, count: int, ready: Flag) -> tuple[set[int], int]:
    """Send numbered messages, ``count`` or as many as it takes until one send is interrupted;
    the numbers of those whose send was, and how many were sent.
    """
    interruptions = Interruptions(ready)
    interrupted: set[int] = set()
    number = 0
    while number < count or not interrupted:
        data = message(1, number, (300, 200_000, 50_000)[number % 3])
        if interruptions.interrupted(lambda data=data: sender.send_bytes(data)):  # type: ignore[misc]
            interrupted.add(number)
        number += 1
    return interrupted, number


def receive_with_interrupts(
    receiver: Any, ready: Flag, hit: Flag
) -> tuple[int, list[tuple[int, int]]]:
    """Receive to the end; how often that was interrupted, and what has come."""
    interruptions = Interruptions(ready)
    found: list[tuple[int, int]] = []
    ended = False

    def receive() -> None:
        nonlocal ended
        try:
            data = receiver.recv_bytes()
        except EOFError:
            ended = True
        else:
            found.append(check_message(data))

    while not ended:
        if interruptions.interrupted(receive) and interruptions.count == 1:
            hit.set()
    return interruptions.count, found


def interrupt_often(child: Any, ready: Flag, seed: int) -> None:
    chance = random.Random(seed)
    ready.wait()
    while child.alive():
        child.kill(signal.SIGINT)
        time.sleep(chance.uniform(0.0005, 0.008))


@pytest.mark.slow
@both_ways
@both_sizes
def test_sends_interrupted_at_any_time(duplex: bool, ring: int) -> None:
    count = 400
    with link_of("shmpipe", duplex, size=ring) as (receiver, sender), Flag() as ready:
        child = run_child(send_with_interrupts, sender, count, ready, close=[receiver])
        sender.close()
        receiving = run_thread(receive_all, receiver)
        interrupt_often(child, ready, ring)
        interrupted, sent = child.join()
        numbers = numbers_of(1, [check_message(data) for data in receiving.join()])
    assert numbers == sorted(set(numbers))
    # An interrupted one may have been sent or not; all others have.
    assert set(range(sent)) - set(numbers) <= interrupted


@pytest.mark.slow
@both_ways
@both_sizes
def test_receives_interrupted_at_any_time(duplex: bool, ring: int) -> None:
    def send() -> None:
        for number in range(count):
            sender.send_bytes(message(1, number, (300, 200_000, 50_000)[number % 3]))
        hit.wait()  # the receiver waits for the end meanwhile

    count = 400
    with (
        link_of("shmpipe", duplex, size=ring) as (receiver, sender),
        Flag() as ready,
        Flag() as hit,
    ):
        child = run_child(receive_with_interrupts, receiver, ready, hit, close=[sender])
        sending = run_child(send, close=[receiver])
        sender.close()
        interrupt_often(child, ready, ring)
        interruptions, found = child.join()
        sending.join()
    numbers = numbers_of(1, found)
    assert numbers == sorted(set(numbers))
    assert interruptions > 0
    assert count - len(numbers) <= interruptions


# ---------------------------------------------------------------- time limits


@both_ways
@both_sizes
@pytest.mark.parametrize("send", ["send", "send_bytes"])
def test_time_limit_of_a_send_in_the_middle_of_a_message(
    duplex: bool, ring: int, send: str
) -> None:
    def receive() -> list[tuple[int, int]]:
        return [check_message(data) for data in receive_all(receiver)]

    calls: dict[str, Callable[[], Any]] = {
        "send": lambda: sender.send(numpy.zeros(8 * MiB, numpy.uint8), timeout=0.3),
        "send_bytes": lambda: sender.send_bytes(bytes(8 * MiB), timeout=0.3),
    }
    with link_of("shmpipe", duplex, size=ring) as (receiver, sender):
        sender.send_bytes(message(1, 0, 100))
        child = run_child(receive, close=[sender])
        receiver.close()
        # Not just anywhere: one that stands still inside of a lock keeps others out of it.
        asleep(child)
        freeze(child)
        for _ in range(2):
            with pytest.raises(TimeoutError):
                calls[send]()
        thaw(child)
        sender.send_bytes(message(1, 1, LARGE))
        asleep(child)
        freeze(child)
        with pytest.raises(TimeoutError):
            calls[send]()
        thaw(child)
        sender.send_bytes(message(1, 2, 100))
        sender.close()
        assert child.join() == [(1, 0), (1, 1), (1, 2)]


@both_ways
@both_sizes
def test_time_limit_of_a_receive_in_the_middle_of_a_message(duplex: bool, ring: int) -> None:
    def receive() -> bytes:
        try:
            data: bytes = receiver.recv_bytes(timeout=0.2)
        except TimeoutError:
            data = receiver.recv_bytes()
        return data

    with link_of("shmpipe", duplex, size=ring) as (receiver, sender):
        sending = sending_half_way(sender, receiver)
        freeze(sending)
        receiving = run_thread(receive)
        time.sleep(0.4)  # the limit is over
        thaw(sending)
        # Whether it gave up or went on to the end, the message is received once, and whole.
        assert check_message(receiving.join()) == (1, 0)
        sending.join()
        assert not receiver.poll()
        sender.send_bytes(message(1, 1, LARGE // 100))
        assert check_message(receiver.recv_bytes(timeout=10)) == (1, 1)


@both_ways
def test_many_time_limits(duplex: bool) -> None:
    """Sends that give up, early or in the middle, between sends that do not."""
    with link_of("shmpipe", duplex, size=RING) as (receiver, sender):
        expected = []
        for number in range(60):
            size = (100, 5000, 30_000, 100_000, 500_000)[number % 5]
            data = message(1, number, size)
            try:
                sender.send_bytes(data, timeout=0.002 * (number % 3))
                expected.append((1, number))
            except TimeoutError:
                pass
            if number % 7 == 0:
                while (data := receiver.try_recv_bytes()) is not None:
                    assert check_message(data) == expected.pop(0)
        sender.close()
        assert [check_message(data) for data in receive_all(receiver)] == expected
        assert expected


# ---------------------------------------------------------------- very large


@both_kinds
@both_ways
@pytest.mark.parametrize(
    "size", [2 * MiB - 8, 2 * MiB, 4 * MiB - 8, 4 * MiB - 200, 4 * MiB, 9 * MiB + 3, 20 * MiB]
)
def test_larger_than_the_ring(kind: str, duplex: bool, size: int) -> None:
    data = numbered(1, 1000) * (size // 1000 + 1)
    with link_of(kind, duplex) as (receiver, sender):
        view = memoryview(data)[:size]
        child = run_child(lambda: [sender.send_bytes(view) for _ in range(2)], close=[receiver])
        assert receiver.recv_bytes() == view
        buffer = bytearray(size)
        assert receiver.recv_bytes_into(buffer) == size
        assert buffer == view
        child.join()


@pytest.mark.slow
@pytest.mark.timeout_s(150)
def test_larger_than_four_gibibytes() -> None:
    if available_memory() < 12 * GiB:
        pytest.skip("less than 12 GiB of memory is available")
    size = 4 * GiB + 3 * MiB + 5
    marks = [0, 1, GiB - 1, 2 * GiB - 1, 2 * GiB, 4 * GiB - 1, 4 * GiB, 4 * GiB + 7, size - 1]

    def send() -> None:
        # Pages that were never written to take no memory.
        data = numpy.zeros(size, numpy.uint8)
        data[marks] = range(1, len(marks) + 1)
        sender.send_bytes(data)
        sender.send_bytes(b"next")

    with link_of("shmpipe", False, size=16 * MiB) as (receiver, sender):
        child = run_child(send, close=[receiver])
        buffer = numpy.zeros(size + 1, numpy.uint8)
        assert receiver.recv_bytes_into(buffer, 1) == size
        assert receiver.recv_bytes() == b"next"
        child.join()
    assert buffer[0] == 0
    assert buffer[1:][marks].tolist() == list(range(1, len(marks) + 1))
    assert numpy.count_nonzero(buffer) == len(marks)
