"""Ends that go to other processes, in every way and at any time."""

from __future__ import annotations

import multiprocessing
import pickle
import socket
import struct
from collections.abc import Iterator
from multiprocessing import reduction
from typing import Any

import pytest

import shmpipe

from .kinds import asleep
from .links import (
    KiB,
    MiB,
    both_kinds,
    both_ways,
    link_of,
    make_link,
    numbered,
    receive_all,
    stop_resource_sharer,
    waiting_its_turn,
)
from .support import START_METHODS, Flag, eventually, run_child, run_process, run_thread

every_start_method = pytest.mark.parametrize("method", START_METHODS)
# Handing over through a connection needs a thread and a socket that would stay for good.
handing_over = pytest.mark.usefixtures(stop_resource_sharer.__name__)

SIZES = [10, 5000, 100_000, 5 * MiB]


def send_all(end: Any, *others: Any) -> None:
    for other in others:
        other.close()
    with end:
        for number, size in enumerate(SIZES):
            end.send_bytes(numbered(number, size))


def echo(end: Any, *others: Any) -> int:
    """Send back whatever comes, until end of file; how much that was."""
    for other in others:
        other.close()
    count = 0
    with end:
        while True:
            try:
                message = end.recv()
            except EOFError:
                return count
            end.send(message)
            count += 1


def expected() -> list[bytes]:
    return [numbered(number, size) for number, size in enumerate(SIZES)]


def converse(end: Any) -> None:
    """With an `echo` at the other end."""
    for thing in ("text", numbered(1, 5 * MiB), {"n": [1, 2, 3]}, b"", None):
        sending = run_thread(end.send, thing)
        assert end.recv() == thing
        sending.join()


# ---------------------------------------------------------------- inherited, and as arguments


@both_kinds
@both_ways
def test_inherited_by_fork(kind: str, duplex: bool) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        child = run_child(send_all, sender, receiver)
        sender.close()
        assert receive_all(receiver) == expected()
        child.join()
    with link_of(kind, duplex) as (receiver, sender):
        child = run_child(receive_all, receiver, sender)
        receiver.close()
        send_all(sender)
        assert child.join() == expected()


@both_kinds
@both_ways
@every_start_method
def test_as_argument(kind: str, duplex: bool, method: str) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        others = [receiver] if method == "fork" else []
        process = run_process(method, send_all, sender, *others)
        # Nobody tells when the child has attached: this copy may go at once.
        sender.close()
        assert receive_all(receiver) == expected()
        process.join()
    with link_of(kind, duplex) as (receiver, sender):
        others = [sender] if method == "fork" else []
        process = run_process(method, receive_all, receiver, *others)
        receiver.close()
        send_all(sender)
        assert process.join() == expected()


def use_both_ends(first: Any, second: Any) -> list[Any]:
    first.send("to the second")
    second.send("to the first")
    return [second.recv(), first.recv()]


@both_kinds
@every_start_method
def test_both_ends_as_arguments(kind: str, method: str) -> None:
    with link_of(kind) as (a, b):
        assert run_process(method, use_both_ends, a, b).join() == ["to the second", "to the first"]
        a.send("still works")
        assert b.recv() == "still works"


@both_kinds
@both_ways
@every_start_method
def test_data_in_flight_when_it_goes(kind: str, duplex: bool, method: str) -> None:
    with link_of(kind, duplex) as (receiver, sender):
        for number in range(10):
            sender.send(number)
        assert receiver.recv() == 0
        sender.close()
        process = run_process(method, receive_all, receiver)
        receiver.close()
        assert [pickle.loads(data) for data in process.join()] == list(range(1, 10))


@every_start_method
def test_options_and_state_go_along(method: str) -> None:
    with link_of("shmpipe", size=128 * KiB, spin=0) as (a, b):
        b.send_bytes(b"too long")
        with pytest.raises(OSError, match="bad message length"):
            a.recv_bytes(3)
        assert run_process(method, describe, a).join() == (False, True, 128 * KiB)
        assert run_process(method, describe, b).join() == (True, True, 128 * KiB)


def describe(end: Any) -> tuple[bool, bool, int]:
    return end.readable, end.writable, shmpipe.fcntl(end, shmpipe.F_GETPIPE_SZ)


def pass_on(method: str, end: Any) -> Any:
    process = run_process(method, receive_all, end)
    end.close()
    return process.join()


@both_kinds
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_passed_on_to_a_grandchild(kind: str, method: str) -> None:
    with link_of(kind, False) as (receiver, sender):
        child = run_child(pass_on, method, receiver, close=[sender])
        receiver.close()
        send_all(sender)
        assert child.join(60) == expected()


# ---------------------------------------------------------------- through connections


def receive_ends(carrier: Any, count: int) -> int:
    """Get ends through `carrier` and echo on each of them in turn."""
    with carrier:
        return sum([echo(carrier.recv()) for _ in range(count)])


@both_kinds
@pytest.mark.parametrize("carrier_kind", ["stdlib", "shmpipe"])
@every_start_method
@handing_over
def test_through_a_connection(kind: str, carrier_kind: str, method: str) -> None:
    with link_of(carrier_kind) as (carrier, far):
        others = [carrier] if method == "fork" else []
        process = run_process(method, receive_and_close, far, 3, *others)
        far.close()
        for _ in range(3):
            mine, theirs = make_link(kind)
            carrier.send(theirs)
            theirs.close()  # at once: it may not have arrived
            with mine:
                converse(mine)
        assert process.join() == 15


def receive_and_close(carrier: Any, count: int, *others: Any) -> int:
    for other in others:
        other.close()
    return receive_ends(carrier, count)


@both_kinds
@handing_over
def test_inside_other_objects_and_many_at_a_time(kind: str) -> None:
    def in_child() -> int:
        a.close()
        ends = b.recv()["ends"]
        for number, end in enumerate(ends):
            with end:
                end.send(number)
        return len(ends)

    with link_of(kind) as (a, b):
        child = run_child(in_child)
        b.close()
        links = [make_link(kind, False) for _ in range(5)]
        a.send({"ends": [sender for _, sender in links]})
        for _, sender in links:
            sender.close()
        for number, (receiver, _) in enumerate(links):
            with receiver:
                assert receiver.recv() == number
                with pytest.raises(EOFError):
                    receiver.recv()
        assert child.join() == 5


@both_kinds
@handing_over
def test_back_and_forth(kind: str) -> None:
    """One end goes to the other process and comes back several times, with data under way."""

    def in_child() -> None:
        far.close()
        for number in range(6):
            end = near.recv()
            assert end.recv() == ("parent", number)
            end.send(("child", number))
            near.send(end)
            end.close()
            near.recv()  # the parent has it

    with link_of(kind) as (far, near), link_of(kind) as (mine, travels):
        child = run_child(in_child, close=[mine])
        near.close()
        for number in range(6):
            mine.send(("parent", number))
            far.send(travels)
            travels.close()
            travels = far.recv()
            assert mine.recv() == ("child", number)
            far.send("got it")
        child.join()
        travels.send("still works")
        assert mine.recv() == "still works"
        travels.close()
        with pytest.raises(EOFError):
            mine.recv()


@both_kinds
@handing_over
def test_through_itself(kind: str) -> None:
    """An end that travels over its own link."""
    with link_of(kind) as (a, b):
        child = run_child(lambda: echo(b.recv()), close=[a])
        a.send(b)
        b.close()
        converse(a)
        a.close()
        assert child.join() == 5


@both_kinds
@both_ways
@handing_over
def test_pickled_by_hand_over_a_socket(kind: str, duplex: bool) -> None:
    ours, theirs = socket.socketpair()

    def in_child() -> None:
        ours.close()
        with theirs, theirs.makefile("rb") as stream:
            (length,) = struct.unpack("<I", stream.read(4))
            send_all(pickle.loads(stream.read(length)))

    receiver, sender = make_link(kind, duplex)
    with ours, theirs, receiver:
        child = run_child(in_child, close=[receiver, sender])
        theirs.close()
        data = bytes(reduction.ForkingPickler.dumps(sender))
        sender.close()
        ours.sendall(struct.pack("<I", len(data)) + data)
        assert receive_all(receiver) == expected()
        child.join()


@both_kinds
@handing_over
def test_within_one_process(kind: str) -> None:
    """What multiprocessing does with an end that is sent to the process it comes from."""
    with link_of(kind) as (a, b), link_of(kind) as (c, d):
        a.send(c)
        copy = b.recv()
        copy.send("through the copy")
        assert d.recv() == "through the copy"
        c.close()
        assert not d.poll(0.05)
        copy.close()
        with pytest.raises(EOFError):
            d.recv()


@both_kinds
def test_closed_end_is_refused(kind: str) -> None:
    with link_of(kind) as (a, b), link_of(kind) as (c, _):
        c.close()
        with pytest.raises(OSError, match="handle is closed"):
            a.send(c)
        a.send("next")
        assert b.recv() == "next"


# ---------------------------------------------------------------- while it is in use


@pytest.fixture
def busy() -> Iterator[tuple[Any, Any, Any]]:
    """A duplex link of ours with a large message half way, and the thread that sends it."""
    with link_of("shmpipe") as (receiver, sender):
        sending = run_thread(sender.send_bytes, numbered(1, 8 * MiB))
        asleep(sending)
        yield receiver, sender, sending


def test_sender_is_forked_in_the_middle_of_a_message(busy: tuple[Any, Any, Any]) -> None:
    receiver, sender, sending = busy
    child = run_child(sender.send_bytes, b"from the child", close=[receiver])
    waiting_its_turn(child)
    assert receiver.recv_bytes() == numbered(1, 8 * MiB)
    sending.join()
    assert receiver.recv_bytes() == b"from the child"
    child.join()


@every_start_method
def test_receiver_goes_away_in_the_middle_of_a_message(
    busy: tuple[Any, Any, Any], method: str
) -> None:
    receiver, sender, sending = busy
    others = [sender] if method == "fork" else []
    process = run_process(method, receive_all, receiver, *others)
    receiver.close()
    sending.join(60)
    sender.send_bytes(b"behind it")
    sender.close()
    # (A fork also copies the frames of the thread that is inside of send_bytes().)
    assert process.join(20) == [numbered(1, 8 * MiB), b"behind it"]


def test_copies_hold_the_link_open_as_long_as_they_live() -> None:
    with link_of("shmpipe", False) as (receiver, sender), Flag() as go:
        child = run_child(go.wait, close=[receiver])
        process = run_process("spawn", receive_all, receiver)
        receiver.close()
        sender.send_bytes(b"x")
        sender.close()
        asleep(process)  # the forked child still holds a copy
        go.set()
        child.join()
        assert process.join() == [b"x"]


@both_kinds
def test_pool_of_workers_shares_two_ends(kind: str) -> None:
    """As multiprocessing's pool does, with a lock around each end."""
    with link_of(kind, False) as (tasks, put), link_of(kind, False) as (results, give):
        locks = [multiprocessing.get_context("fork").Lock() for _ in range(2)]

        def work() -> int:
            done = 0
            while True:
                with locks[0]:
                    task = tasks.recv()
                if task is None:
                    return done
                done += 1
                with locks[1]:
                    give.send((task, numbered(task, 50_000)))

        workers = [run_child(work, close=[put, results]) for _ in range(3)]
        tasks.close()
        give.close()
        feeding = run_thread(lambda: [put.send(task) for task in [*range(60), None, None, None]])
        found = dict(results.recv() for _ in range(60))
        feeding.join()
        assert found == {task: numbered(task, 50_000) for task in range(60)}
        assert sum(worker.join() for worker in workers) == 60
        eventually(results.poll)
        with pytest.raises(EOFError):
            results.recv()
