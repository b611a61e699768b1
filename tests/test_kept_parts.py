"""Whose is a message that a receive was stopped in the middle of, and what becomes of it."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import resource
from collections.abc import Callable
from typing import Any

import numpy
import pytest

from shmpipe import F_SETPIPE_SZ, Connection, PartlyReceived, Pipe, collecting, fcntl, segment
from shmpipe.assembling import Assembly, Plain, Room
from shmpipe.bytering import ByteRing
from shmpipe.objects import Message

from .links import (
    MiB,
    check_message,
    link_of,
    message,
    receive_all,
    stop_resource_sharer,
    waiting_its_turn,
)
from .steps import Boom, at_step, boom, die, interpreted_only
from .support import PAGE, Child, Flag, eventually, run_child, run_thread
from .test_stopped import LIMIT, TOTAL, partly_sent, stopped
from .test_torn_frames import freeze, thaw

__all__ = ["stop_resource_sharer"]

RING = 64 * 1024
WHOLE = bytes(range(256)) * (TOTAL // 256)  # what partly_sent() sends


def stop_in_the_middle(receiver: Connection, sending: Child) -> None:
    """Take the first parts of a message, whose sender stands still, and keep them."""
    with stopped(sending), pytest.raises(TimeoutError):
        receiver.recv_bytes(timeout=LIMIT)


def copy_of(end: Connection) -> Connection:
    """The same end again in the same process, by another mapping."""
    there, here = multiprocessing.Pipe()
    with there, here:
        there.send(end)
        copy: Connection = here.recv()
        return copy


# ---------------------------------------------------------------- what is not begun


def take_what_is_there(receiver: Connection) -> list[Any]:
    return receiver.recv_many()


@pytest.mark.parametrize("whole", [1, 3])
def test_recv_many_begins_nothing_that_it_cannot_return(whole: int) -> None:
    """Nobody would have known that there is a part to go on with, and it would go with a process
    that forks, hands its end over, or ends.
    """
    receiver, sender = Pipe(False, size=RING)
    with receiver, sender:
        for number in range(whole):
            sender.send(number)
        sending = run_thread(sender.send_bytes, bytes(4 * RING))
        eventually(lambda: sender.stats().bytes_written > RING // 2)
        assert run_child(take_what_is_there, receiver, close=[sender]).join() == [*range(whole)]
        assert receiver.recv_bytes(timeout=20) == bytes(4 * RING)
        sending.join()
        assert receiver.stats().frames_dropped == 0


# ---------------------------------------------------------------- after a fork


def test_kept_part_stays_with_the_parent() -> None:
    receiver, sender, sending = partly_sent()
    with receiver, sender:
        stop_in_the_middle(receiver, sending)
        # The child's copy of the part is none: taking more would leave a hole in the parent's.
        child = run_child(receiver.try_recv_bytes, close=[sender])
        assert child.join() is None
        assert receiver.recv_bytes(timeout=30) == WHOLE
        sending.join()
        assert receiver.stats().frames_dropped == 0


def test_child_waits_until_the_parent_has_gone_on() -> None:
    """Although it waits, it does not keep the parent from going on."""
    receiver, sender, sending = partly_sent()
    with receiver, sender:
        stop_in_the_middle(receiver, sending)
        child = run_child(receiver.recv_bytes, close=[sender])
        waiting_its_turn(child)
        assert receiver.recv_bytes(timeout=30) == WHOLE
        sender.send_bytes(b"next")
        assert child.join() == b"next"
        sending.join()


def test_closing_in_the_child_gives_up_nothing_of_the_parents() -> None:
    receiver, sender, sending = partly_sent()
    with receiver, sender:
        stop_in_the_middle(receiver, sending)
        run_child(receiver.close, close=[sender]).join()
        other = run_child(receiver.try_recv_bytes, close=[sender])
        assert other.join() is None
        assert receiver.recv_bytes(timeout=30) == WHOLE
        sending.join()


@pytest.mark.parametrize("ends_by", ["close", "death"])
def test_child_goes_on_behind_a_keeper_that_has_gone(ends_by: str) -> None:
    receiver, sender, sending = partly_sent()

    def receive() -> tuple[bool, bytes]:
        return receiver.poll(0), receiver.recv_bytes(timeout=30)

    def keep() -> None:
        stop_in_the_middle(receiver, sending)
        is_kept.set()
        go_on.wait()
        if ends_by == "death":
            die()
        receiver.close()
        gone.wait()

    with receiver, sender, Flag() as is_kept, Flag() as go_on, Flag() as gone:
        keeper = run_child(keep, close=[sender])
        is_kept.wait()
        child = run_child(receive, close=[sender])
        waiting_its_turn(child)
        go_on.set()
        sender.send_bytes(b"next")
        assert child.join() == (False, b"next")
        gone.set()
        if ends_by == "close":
            keeper.join()
        sending.join()
        assert receiver.stats().frames_dropped == 1


# ---------------------------------------------------------------- several ends, several processes


@pytest.mark.usefixtures("stop_resource_sharer")
def test_another_end_of_the_same_process_goes_on() -> None:
    receiver, sender, sending = partly_sent()
    with receiver, sender, copy_of(receiver) as copy:
        stop_in_the_middle(receiver, sending)
        assert copy.recv_bytes(timeout=30) == WHOLE
        sender.send_bytes(b"next")
        assert receiver.recv_bytes(timeout=10) == b"next"
        sending.join()


@pytest.mark.usefixtures("stop_resource_sharer")
@pytest.mark.parametrize("first", [False, True])
def test_part_is_kept_until_the_last_end_is_closed(first: bool) -> None:
    receiver, sender, sending = partly_sent()
    copy = copy_of(receiver)
    with receiver, sender, copy:
        stop_in_the_middle(receiver, sending)
        (receiver if first else copy).close()
        left = copy if first else receiver
        assert left.recv_bytes(timeout=30) == WHOLE
        sending.join()
        assert left.stats().frames_dropped == 0


def hold_the_turn(receiver: Connection, held: Flag, over: Flag) -> list[Any]:
    """Stand still with the readers' turn for a while, then receive all that comes."""
    turn = receiver._receiver.turn
    turn.enter()
    held.set()
    over.wait()
    turn.release()
    turn.leave()
    return receive_all(receiver)


@pytest.mark.parametrize("waits", [False, True])
def test_closed_while_another_process_has_the_turn(waits: bool) -> None:
    """What this process has of a message is lost, and the others go on behind it, at once.

    ``waits``: also where a call of another thread wanted to go on with it, and waits for the turn.
    """
    receiver, sender, sending = partly_sent()
    with receiver, sender, Flag() as held, Flag() as over:
        stop_in_the_middle(receiver, sending)
        child = run_child(hold_the_turn, receiver, held, over, close=[sender])
        held.wait()
        if waits:
            thread = run_thread(receiver.recv_bytes)
            thread.wait_asleep(settle=0.02)  # it looks ten times a second
        receiver.close()
        over.set()
        if waits:
            with pytest.raises(OSError, match="handle is closed"):
                thread.join()
        sending.join()
        sender.send_bytes(b"next")
        sender.close()
        assert child.join() == [b"next"]


def test_poll_elsewhere_agrees_with_recv() -> None:
    """What another process goes on with is not there to be received."""
    receiver, sender, sending = partly_sent()
    with receiver, sender:
        stop_in_the_middle(receiver, sending)
        sending.wait_asleep()
        assert run_child(lambda: (receiver.poll(0), receiver.poll(0.1))).join() == (False, False)
        assert receiver.poll(0)
        assert receiver.recv_bytes() == WHOLE
        assert not receiver.poll(0)
        sending.join()


def test_poll_takes_away_what_a_killed_receiver_leaves() -> None:
    receiver, sender, sending = partly_sent()
    with receiver, sender:
        freeze(sending)
        taken = receiver.stats().bytes_read
        victim = run_child(receiver.recv_bytes, close=[sender])
        eventually(lambda: receiver.stats().bytes_read > taken + RING // 2)
        victim.kill()
        thaw(sending)
        # Nothing of the rest is a message, and it must not keep its sender waiting.
        polling = run_thread(receiver.poll, 20)
        sending.join()
        assert not receiver.poll(0)
        sender.send_bytes(b"next")
        assert polling.join()
        assert receiver.recv_bytes() == b"next"
        assert receiver.stats().frames_dropped == 1


@interpreted_only
def test_poll_beside_one_that_takes_it_away() -> None:
    """At every step of a look at what will be no message another process's poll() removes it."""
    for step in range(1000):
        with link_of("shmpipe", False, size=RING) as (receiver, sender):
            with sender.begin_send_bytes(bytes(3 * RING)) as given_up:
                given_up.step()
            assert receiver.stats().bytes_written > RING // 2

            def elsewhere(receiver: Connection = receiver, sender: Connection = sender) -> None:
                run_child(receiver.poll, 0, close=[sender]).join()

            with at_step(step, elsewhere, ("receiving", "arrivals", "bytering")) as point:
                assert not receiver.poll(0)
            if not point.reached:
                break
    assert step > 10


def broken(sender: Connection, receiver: Connection) -> None:
    receiver.close()
    sender.send_bytes(b"x")


def ended(receiver: Connection, sender: Connection) -> None:
    sender.close()
    receiver.recv_bytes()


FAILING: dict[str, Callable[[Connection, Connection], Any]] = {
    "recv": lambda receiver, sender: receiver.recv_bytes(timeout=0.01),
    "recv_many": lambda receiver, sender: receiver.recv_many(timeout=0.01),
    "view": lambda receiver, sender: receiver.recv_view(timeout=0.01).__enter__(),
    "send": lambda receiver, sender: sender.send_bytes(bytes(3 * RING), timeout=0.01),
    "reserve": lambda receiver, sender: sender.reserve(RING - 8, timeout=0.01).__enter__(),
    "object": lambda receiver, sender: sender.send(bytearray(3 * RING), timeout=0.01),
    "broken": lambda receiver, sender: broken(sender, receiver),
    "ended": ended,
    "too large": lambda receiver, sender: sender.reserve(2 * RING).__enter__(),
    "part": lambda receiver, sender: receiver.recv_bytes(timeout=LIMIT),
    "part into a buffer": lambda receiver, sender: receiver.recv_bytes_into(
        bytearray(TOTAL), timeout=LIMIT
    ),
}


@pytest.mark.parametrize("how", FAILING)
def test_an_error_leaves_nothing_to_the_collector(how: str) -> None:
    """Its frames have what they need of the ring, so it has to go when its handler ends."""
    stopped_inside: Any = contextlib.nullcontext()
    sending = None
    if how.startswith("part"):
        receiver, sender, sending = partly_sent()
        stopped_inside = stopped(sending)
    else:
        receiver, sender = Pipe(False, size=RING)
        if how == "reserve":
            sender.send_bytes(b"x")
    with receiver, sender, stopped_inside:
        gc.collect()
        gc.disable()
        try:
            # (Not pytest.raises(), which has what it caught in a circle of its own.)
            try:
                FAILING[how](receiver, sender)
            except (OSError, EOFError, ValueError) as error:
                failed = type(error)
            assert issubclass(failed, PartlyReceived) is how.startswith("part")
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            assert not [one for one in gc.garbage if isinstance(one, BaseException)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
    if sending is not None:
        sending.kill()


# ---------------------------------------------------------------- too little memory


RECEIVES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "recv_bytes": (lambda end, size: end.send_bytes(bytes(size)), lambda end: end.recv_bytes()),
    "recv": (lambda end, size: end.send(bytes(size)), lambda end: end.recv()),
    "bytearray": (lambda end, size: end.send(bytearray(size)), lambda end: end.recv()),
    "array": (lambda end, size: end.send(numpy.zeros(size, "u1")), lambda end: end.recv()),
}


@pytest.mark.parametrize("way", RECEIVES)
def test_message_that_memory_is_too_small_for_costs_itself_only(way: str) -> None:
    send, receive = RECEIVES[way]

    def receive_with_little_memory() -> tuple[int, list[bytes]]:
        with open("/proc/self/statm") as file:
            used = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + 100 * MiB, -1))
        with pytest.raises(MemoryError):
            receive(receiver)
        return receiver.stats().frames_dropped, receive_all(receiver)

    def send_all() -> None:
        send(sender, 200 * MiB)
        for number in range(3):
            sender.send_bytes(message(1, number, 100 * 1024))

    receiver, sender = Pipe(False, size=RING)
    with receiver, sender:
        receiving = run_child(receive_with_little_memory, close=[sender])
        sending = run_child(send_all, close=[receiver])
        sender.close()
        dropped, found = receiving.join()
        sending.join()
        assert [check_message(data) for data in found] == [(1, 0), (1, 1), (1, 2)]
        assert dropped == 1


# ---------------------------------------------------------------- putting together


def assemblies(size: int) -> list[Assembly]:
    return [Plain(size), Room(memoryview(bytearray(size)), size), Message(size)]


@pytest.mark.parametrize("number", range(3))
def test_no_assembly_takes_a_piece_with_a_hole_before_it(number: int) -> None:
    assembly = assemblies(64)[number]
    assembly.add(memoryview(bytes(8)), 0)
    for position, size in ((9, 8), (-1, 8), (8, 57), (64, 1)):
        with pytest.raises(OSError, match="damaged pipe"):
            assembly.add(memoryview(bytes(size)), position)
    with pytest.raises(OSError, match="damaged pipe"):
        assembly.finished()
    assert assembly.have == 8


def test_shrinking_leaves_space_to_close_a_message() -> None:
    receiver, sender = Pipe(False, size=RING, write_size=PAGE)
    with receiver, sender:
        sender.send_bytes(bytes(PAGE - 8))
        words = receiver._receiver.ring.view
        words[segment.W_OPEN] = 1  # as if its sender were in the middle of it
        with pytest.raises(OSError, match="in the middle"):
            fcntl(receiver, F_SETPIPE_SZ, PAGE)
        words[segment.W_OPEN] = 0
        assert fcntl(receiver, F_SETPIPE_SZ, PAGE) == PAGE
        assert receiver.recv_bytes() == bytes(PAGE - 8)


def test_interrupted_receive_into_a_buffer_leaves_the_buffer_alone() -> None:
    receiver, sender, sending = partly_sent()
    with receiver, sender:
        room = bytearray(TOTAL)
        with stopped(sending), pytest.raises(TimeoutError):
            receiver.recv_bytes_into(room, timeout=LIMIT)
        room[:] = bytes(len(room))
        room += b"x"  # nobody has a view of it any more
        assert receiver.recv_bytes(timeout=30) == WHOLE
        assert not any(room[:-1])
        sending.join()


@interpreted_only
def test_no_memory_where_a_call_was_interrupted_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the interrupted one has prepared must not take the parts of a lost message."""

    def no_memory(*_: Any) -> None:
        raise MemoryError

    receiver, sender, sending = partly_sent()
    with receiver, sender:
        with monkeypatch.context() as patched:
            patched.setattr(ByteRing, "consume", boom)
            with pytest.raises(Boom):
                receiver.recv_bytes()  # begins with it, but leaves its first frame
        with monkeypatch.context() as patched:
            patched.setattr(collecting, "Plain", no_memory)
            with pytest.raises(MemoryError):
                receiver.recv_bytes()
        receiving_next = run_thread(receiver.recv_bytes)
        sending.join()
        sender.send_bytes(b"next")
        assert receiving_next.join() == b"next"
        assert receiver.stats().frames_dropped == 1
