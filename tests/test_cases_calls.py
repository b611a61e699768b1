"""What users of pipes suffer from, by its number in the project's list: 09 to 16, and 25.

What single calls do, and leave behind. The comment above each test says what was reported.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import pickle
import signal
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from .kinds import asleep
from .links import (
    KiB,
    MiB,
    both_kinds,
    both_ways,
    fill_link,
    is_interrupted,
    link_of,
    make_link,
    numbered,
    receive_all,
)
from .support import Flag, eventually, run_child, run_thread

# ---------------------------------------------------------------- 09: threads share an end

# Reported: two threads that receive on one end get each other's bytes.


@both_ways
@pytest.mark.parametrize("length", [10, 200_000])
def test_09_threads_share_the_receiving_end(duplex: bool, length: int) -> None:
    def receive() -> list[tuple[int, str]]:
        found = []
        while True:
            try:
                found.append(receiver.recv())
            except EOFError:
                return found

    with link_of("shmpipe", duplex) as (receiver, sender):
        threads = [run_thread(receive) for _ in range(3)]
        for number in range(400):
            sender.send((number, chr(97 + number % 26) * length))
        sender.close()
        found = [item for thread in threads for item in thread.join()]
    assert Counter(number for number, _ in found) == Counter(range(400))
    assert all(text == chr(97 + number % 26) * length for number, text in found)


# ---------------------------------------------------------------- 10: Ctrl-C

# Reported: Ctrl-C does not get through to a blocked call of a C library.


@both_kinds
@both_ways
@pytest.mark.parametrize("call", ["recv", "recv_bytes", "recv_bytes_into", "poll"])
def test_10_interrupted_receive(kind: str, duplex: bool, call: str) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "recv": lambda: receiver.recv(),
        "recv_bytes": lambda: receiver.recv_bytes(),
        "recv_bytes_into": lambda: receiver.recv_bytes_into(bytearray(100)),
        "poll": lambda: receiver.poll(None),
    }

    def in_child() -> Any:
        assert is_interrupted(calls[call])
        interrupted.set()
        return receiver.recv()

    with link_of(kind, duplex) as (receiver, sender), Flag() as interrupted:
        child = run_child(in_child, close=[sender])
        asleep(child)
        child.kill(signal.SIGINT)
        interrupted.wait()
        sender.send("link works")
        assert child.join() == "link works"


@both_kinds
@both_ways
def test_10_interrupted_send(kind: str, duplex: bool) -> None:
    def in_child() -> bool:
        def send_for_ever() -> None:
            while True:
                sender.send_bytes(b"." * KiB)

        result = is_interrupted(send_for_ever)
        interrupted.set()
        sender.send_bytes(b"link works")
        return result

    with link_of(kind, duplex) as (receiver, sender), Flag() as interrupted:
        child = run_child(in_child, close=[receiver])
        sender.close()
        asleep(child)
        child.kill(signal.SIGINT)
        interrupted.wait()
        found = receive_all(receiver)
        assert child.join()
        assert Counter(found) == {b"." * KiB: len(found) - 1, b"link works": 1}
        assert found[-1] == b"link works"


# ---------------------------------------------------------------- 13: objects that do not pickle

# Reported: an object that will not pickle, or not unpickle, takes the link with it.


class WillNotUnpickle(Exception):
    """As exceptions whose __init__ takes more than what is in args."""

    def __init__(self, one: int, two: int) -> None:
        super().__init__("only one argument")


@both_kinds
@both_ways
def test_13_object_that_does_not_pickle(kind: str, duplex: bool) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        for unpicklable in (lambda: 0, [bytes(100_000), threading.Lock()], (n for n in ())):
            with pytest.raises((TypeError, AttributeError)):
                sender.send(unpicklable)
            assert not receiver.poll()
        sender.send("n")
        assert receiver.recv() == "n"
        assert not receiver.poll()


@both_kinds
@both_ways
@pytest.mark.parametrize("length", [0, 20_000])
def test_13_object_that_does_not_unpickle(kind: str, duplex: bool, length: int) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        sender.send([bytes(length), bytearray(length), WillNotUnpickle(1, 2)])
        sender.send("next")
        with pytest.raises(TypeError, match="two"):
            receiver.recv()
        assert receiver.recv() == "next"
        assert not receiver.poll()


# ---------------------------------------------------------------- 15: larger than the ring

# Reported: an object larger than the ring is never accepted.


@both_kinds
@both_ways
def test_15_object_larger_than_the_ring(kind: str, duplex: bool) -> None:
    data = numbered(15, MiB) * 64
    with link_of(kind, duplex) as (receiver, sender):
        child = run_child(sender.send, {"data": data}, close=[receiver])
        eventually(receiver.poll)
        received = receiver.recv()
        assert received == {"data": data} and type(received["data"]) is bytes
        child.join()
        sender.send("next")
        assert receiver.recv() == "next"


# ---------------------------------------------------------------- 16: a loop over many ends

# Reported: "drop-in" that is not. The calls one by one are in test_connection_api.py; here the
# report that no single call shows.


@both_kinds
@both_ways
def test_16_loop_over_many_ends_skips_the_silent_one(kind: str, duplex: bool) -> None:
    links = [make_link(kind, duplex) for _ in range(8)]
    silent = 3
    for number, (_, sender) in enumerate(links):
        if number != silent:
            sender.send(number)
    receivers = {receiver: number for number, (receiver, _) in enumerate(links)}
    ready = multiprocessing.connection.wait(receivers, 5)
    assert sorted(receivers[end] for end in ready) == [0, 1, 2, 4, 5, 6, 7]
    for end in ready:
        assert end.recv() == receivers[end]
    assert multiprocessing.connection.wait(receivers, 0) == []
    assert not links[silent][0].poll()
    for receiver, sender in links:
        receiver.close()
        sender.close()


# ---------------------------------------------------------------- 25: somebody sets O_NONBLOCK

# Reported: the event loop makes the descriptor non-blocking, and recv() fails now and then.


@both_ways
def test_25_descriptor_made_nonblocking_receiving(duplex: bool) -> None:
    with link_of("shmpipe", duplex) as (receiver, sender):
        os.set_blocking(receiver.fileno(), False)
        for call, answer in [
            (receiver.recv, "text"),
            (receiver.recv_bytes, pickle.dumps("text")),
            (lambda: receiver.poll(30) and receiver.recv(), "text"),
        ]:
            waiting = run_thread(call)
            asleep(waiting)
            sender.send_bytes(pickle.dumps("text"))
            assert waiting.join() == answer
        large = run_thread(sender.send_bytes, bytes(4 * MiB))
        assert receiver.recv_bytes() == bytes(4 * MiB)
        large.join()


@both_ways
def test_25_descriptor_made_nonblocking_sending(duplex: bool) -> None:
    with link_of("shmpipe", duplex) as (receiver, sender):
        os.set_blocking(sender.fileno(), False)
        os.set_blocking(sender.outgoing.fileno(), False)
        count = fill_link(sender)
        waiting = run_thread(sender.send_bytes, numbered(count, KiB))
        asleep(waiting)
        assert [receiver.recv_bytes() for _ in range(count)] == [
            numbered(number, KiB) for number in range(count)
        ]
        waiting.join()
        assert receiver.recv_bytes() == numbered(count, KiB)
