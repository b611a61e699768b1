"""Messages that are lent where they lie, or written where they belong; and every misuse of that."""

from __future__ import annotations

import errno
import multiprocessing
import os
import random
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import numpy
import pytest

from shmpipe import (
    F_GETPIPE_SZ,
    F_SETPIPE_SZ,
    F_SETPIPE_WRITE_SZ,
    Connection,
    Pipe,
    fcntl,
    ioctl,
    locking,
)
from shmpipe.segment import ALIGN, PAGES, R_KEEPER, RD_LENT, RD_TURN_BY, WR_LENT, WR_TURN_BY

from .kinds import asleep
from .links import KiB, MiB, both_ways, link_of, numbered, stop_resource_sharer, waiting_its_turn
from .steps import Boom, at_step, boom, die, every_step, interpreted_only
from .support import ChildDied, Flag, eventually, run_child, run_thread

__all__ = ["stop_resource_sharer"]

FIONREAD = 0x541B


def words_of(end: Connection) -> Any:
    part = end._receiver or end._sender
    assert part is not None
    return part.ring.view


def nothing_is_lent(end: Connection) -> bool:
    words = words_of(end)
    return not any(words[word] for word in (RD_LENT, WR_LENT, RD_TURN_BY, WR_TURN_BY, R_KEEPER))


@contextmanager
def busy() -> Iterator[None]:
    with pytest.raises(OSError, match="a message is lent") as caught:
        yield
    assert caught.value.errno == errno.EBUSY


def lent(receiver: Connection, sender: Connection, which: str) -> Any:
    """A block of either kind: the message is 8 bytes."""
    if which == "reserve":
        return sender.reserve(8)
    sender.send_bytes(b"12345678")
    return receiver.recv_view()


def borrower(receiver: Connection, sender: Connection, which: str) -> Connection:
    return sender if which == "reserve" else receiver


def borrow_for_good(receiver: Connection, borrowed: Flag) -> None:
    with receiver.recv_view():
        borrowed.set()
        threading.Event().wait()


either = pytest.mark.parametrize("which", ["recv_view", "reserve"])

# ---------------------------------------------------------------- what it is for


@both_ways
def test_messages_of_every_size(duplex: bool) -> None:
    """They wrap around the ring's end at every place, and are contiguous all the same."""
    with link_of("shmpipe", duplex, size=32 * KiB) as (receiver, sender):
        for number in range(600):
            size = number * 331 % (32 * KiB - 8)
            with sender.reserve(size) as room:
                assert (len(room), room.format, room.readonly) == (size, "B", False)
                room[:] = numbered(number, size)
            with receiver.recv_view() as view:
                assert (len(view), view.format, view.readonly) == (size, "B", True)
                assert view == numbered(number, size)
        assert sender.stats().writes == sender.stats().reads == 600
        assert ioctl(receiver.incoming, FIONREAD) == 0
        assert nothing_is_lent(receiver)


def test_mixed_with_the_other_calls() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        chance = random.Random(7)
        for number in range(300):
            size = chance.choice([0, 1, 8, 100, 5000, 70_000])
            if chance.random() < 0.5:
                sender.send_bytes(numbered(number, size))
            else:
                with sender.reserve(size) as room:
                    room[:] = numbered(number, size)
            if chance.random() < 0.5:
                assert receiver.recv_bytes() == numbered(number, size)
            else:
                with receiver.recv_view() as view:
                    assert view == numbered(number, size)


def test_several_messages_behind_each_other() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        for number in range(100):
            sender.send_bytes(numbered(number, 1000))
        for number in range(100):
            with receiver.recv_view() as view:
                assert view == numbered(number, 1000)
        assert not receiver.poll()


def test_arrays_without_a_copy() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        for number in range(20):
            with sender.reserve(80_000) as room:
                numbers = numpy.frombuffer(room, numpy.float64)
                numbers[:] = number
                del numbers
            with receiver.recv_view() as view:
                numbers = numpy.frombuffer(view, numpy.float64)
                assert not numbers.flags.writeable
                assert numbers.sum() == 10_000 * number
                del numbers


def test_pickles_are_lent_as_their_bytes() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        sender.send({"a": 1})
        with receiver.recv_view() as view:
            assert multiprocessing.reduction.ForkingPickler.loads(view) == {"a": 1}


def test_what_does_not_lie_there_in_one_piece_is_copied() -> None:
    with link_of("shmpipe", False, size=256 * KiB) as (receiver, sender):
        array = numpy.arange(5000)
        sender.send(array)
        with receiver.recv_view() as view:
            assert (multiprocessing.reduction.ForkingPickler.loads(view) == array).all()
            sender.send_bytes(b"next")
            assert receiver.recv_bytes() == b"next"  # nothing is lent
        large = bytes(range(256)) * (4 * KiB)
        sending = run_thread(sender.send_bytes, large)
        with receiver.recv_view() as view:
            assert view.readonly
            assert view == large
        sending.join()
        with pytest.raises(ValueError, match="released"):
            view[0]


def test_between_two_processes() -> None:
    def send() -> None:
        for number in range(2000):
            with sender.reserve(number * 37 % 20_000) as room:
                room[:] = numbered(number, len(room))

    receiver, sender = Pipe(False, size=64 * KiB)
    with receiver:
        child = run_child(send, close=[receiver])
        sender.close()
        for number in range(2000):
            with receiver.recv_view() as view:
                assert view == numbered(number, number * 37 % 20_000)
        with pytest.raises(EOFError), receiver.recv_view():
            pass
        child.join()


def test_both_directions_at_once() -> None:
    with link_of("shmpipe") as (one, other):
        one.send_bytes(b"there")
        other.send_bytes(b"back")
        with one.recv_view() as view, one.reserve(5) as room:
            with other.recv_view() as theirs:
                room[:] = theirs
            assert view == b"back"
        assert other.recv_bytes() == b"there"


def test_the_other_side_goes_on() -> None:
    with link_of("shmpipe", False, size=64 * KiB) as (receiver, sender):
        for number in range(3):
            sender.send_bytes(numbered(number, 1000))
        with sender.reserve(1000) as room:
            room[:] = numbered(3, 1000)
            for number in range(3):
                assert receiver.recv_bytes() == numbered(number, 1000)
            assert not receiver.poll()
        with receiver.recv_view() as view:
            for number in range(4, 20):
                sender.send_bytes(numbered(number, 1000))
            assert view == numbered(3, 1000)
        assert [receiver.recv_bytes() for _ in range(16)] == [
            numbered(number, 1000) for number in range(4, 20)
        ]


# ---------------------------------------------------------------- exceptions


def test_reserved_is_dropped_on_an_exception() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        with pytest.raises(Boom), sender.reserve(1000):
            boom()
        assert not receiver.poll()
        sender.send_bytes(b"x")
        assert receiver.recv_bytes() == b"x"
        assert receiver.stats().writes == 1


def test_lent_counts_as_received_on_an_exception() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        sender.send_bytes(b"first")
        sender.send_bytes(b"second")
        with pytest.raises(Boom), receiver.recv_view():
            raise Boom
        assert receiver.recv_bytes() == b"second"


@either
def test_an_exception_is_not_replaced_by_one_about_the_view(which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        kept: list[Any] = []
        with pytest.raises(Boom), lent(receiver, sender, which) as view:
            kept.append(numpy.frombuffer(view, "u1")) or boom()
        assert kept[0].sum() == 0
        sender.send_bytes(b"next")
        assert receiver.recv_bytes() == b"next"


# ---------------------------------------------------------------- misuse of the view

REFERENCES: dict[str, Callable[[memoryview], Any]] = {
    "array": lambda view: numpy.frombuffer(view, "u1"),
    "slice": lambda view: view[2:6],
    "array of a slice": lambda view: numpy.frombuffer(view[2:6], "u1"),
    "cast": lambda view: view.cast("I"),
    "memoryview": memoryview,
}


@either
def test_view_after_the_block(which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        with lent(receiver, sender, which) as view:
            pass
        with pytest.raises(ValueError, match="released"):
            view[0]
        with pytest.raises(ValueError, match="released"):
            numpy.frombuffer(view)


@either
@pytest.mark.parametrize("refer", REFERENCES)
def test_something_still_refers_to_the_view(which: str, refer: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        loan = lent(receiver, sender, which)
        view = loan.__enter__()
        kept = REFERENCES[refer](view)
        with pytest.raises(BufferError, match="still refers"):
            loan.__exit__(None, None, None)
        del view
        # It was received, or dropped; and what is kept has nothing to do with the pipe any more.
        assert not receiver.poll()
        assert bytes(kept) == bytes(memoryview(kept).nbytes)
        for number in range(40):
            sender.send_bytes(numbered(number, 900))
            if which == "reserve" and refer == "slice":
                kept[:] = b"!!!!"
            assert receiver.recv_bytes() == numbered(number, 900)
        assert bytes(kept) in (bytes(memoryview(kept).nbytes), b"!!!!")
        with lent(receiver, sender, which):
            pass
        assert nothing_is_lent(receiver)


@either
def test_loan_after_something_was_kept_and_is_gone(which: str) -> None:
    """The next one is of the ring again, and not of the zeros that were put in its place."""
    kept: list[Any] = []

    def keep() -> None:
        with lent(receiver, sender, which) as view:
            kept.append(view[2:])

    with link_of("shmpipe", False) as (receiver, sender):
        try:
            keep()
        except BufferError as error:
            error.__traceback__ = None
        kept.clear()
        with sender.reserve(8) as view:
            view[:] = b"abcdefgh"
        with receiver.recv_view() as view:
            assert view == b"abcdefgh"


def test_view_is_read_only() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        sender.send_bytes(b"12345678")
        with receiver.recv_view() as view, pytest.raises(TypeError):
            view[0] = 1


@either
def test_view_released_by_hand(which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        with lent(receiver, sender, which) as view:
            view.release()
        assert receiver.poll() == (which == "reserve")


@either
def test_view_that_outlives_its_connection(which: str) -> None:
    receiver, sender = Pipe(False)
    with receiver, sender, pytest.raises(BufferError), lent(receiver, sender, which) as view:
        kept = view[:]
    del receiver, sender, view
    assert bytes(kept) == bytes(8)


# ---------------------------------------------------------------- misuse of the end


@either
def test_close_while_lent(which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        end = borrower(receiver, sender, which)
        with lent(receiver, sender, which) as view:
            with pytest.raises(BufferError, match="cannot close"):
                end.close()
            with pytest.raises(BufferError, match="cannot close"):
                run_thread(end.close).join()
            assert not end.closed
            assert len(bytes(view)) == 8
        end.close()


def test_close_of_the_other_end_while_lent() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        sender.send_bytes(b"last")
        with receiver.recv_view() as view:
            sender.close()
            assert view == b"last"
        with pytest.raises(EOFError), receiver.recv_view():
            pass


@pytest.mark.usefixtures("stop_resource_sharer")
def test_close_of_a_copy_while_lent() -> None:
    there, here = multiprocessing.Pipe()
    with link_of("shmpipe", False) as (receiver, sender), there, here:
        there.send(receiver)
        copy = here.recv()
        sender.send_bytes(b"message")
        with receiver.recv_view() as view:
            with busy():
                copy.recv()
            copy.close()
            assert view == b"message"


@either
def test_resize_while_lent(which: str) -> None:
    with link_of("shmpipe", False, write_size=4096) as (receiver, sender):
        before = fcntl(receiver.incoming, F_GETPIPE_SZ)
        with lent(receiver, sender, which) as view:
            content = bytes(view)
            for end in (receiver.incoming, sender.outgoing):
                for size in (4096, 64 * KiB, before):
                    with busy():
                        fcntl(end, F_SETPIPE_SZ, size)
            fcntl(sender.outgoing, F_SETPIPE_WRITE_SZ, 4096)
            assert view == content
        assert fcntl(receiver.incoming, F_GETPIPE_SZ) == before
        assert fcntl(sender.outgoing, F_SETPIPE_SZ, 8192) == 8192


@either
def test_resize_by_another_process_while_lent(which: str) -> None:
    with link_of("shmpipe", False, write_size=4096) as (receiver, sender):
        with lent(receiver, sender, which):
            child = run_child(fcntl, receiver.incoming, F_SETPIPE_SZ, 4096)
            with busy():
                child.join()
        child = run_child(fcntl, receiver.incoming, F_SETPIPE_SZ, 8192)
        assert child.join() == 8192


@pytest.mark.parametrize("size", [-1, 4 * MiB, 4 * MiB - 7, 1 << 70])
def test_sizes_that_never_fit(size: int) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        with pytest.raises(ValueError, match="cannot be reserved: allowed are 0 to 4194296"):
            sender.reserve(size)
        assert nothing_is_lent(receiver)


def test_size_that_is_no_number() -> None:
    with link_of("shmpipe", False) as (_, sender), pytest.raises(TypeError, match="n must be"):
        sender.reserve("8")


def test_largest_size() -> None:
    with link_of("shmpipe", False, size=64 * KiB) as (receiver, sender):
        for number in range(5):
            with sender.reserve(64 * KiB - ALIGN) as room:
                room[:] = numbered(number, len(room))
            with receiver.recv_view() as view:
                assert view == numbered(number, 64 * KiB - ALIGN)


RECEIVES: dict[str, Callable[[Connection], Any]] = {
    "recv": lambda end: end.recv(),
    "recv_bytes": lambda end: end.recv_bytes(),
    "try_recv_bytes": lambda end: end.try_recv_bytes(),
    "recv_bytes_into": lambda end: end.recv_bytes_into(bytearray(10)),
    "recv_many": lambda end: end.recv_many(),
    "recv_view": lambda end: end.recv_view().__enter__(),
    "iteration": lambda end: next(iter(end)),
}
SENDS: dict[str, Callable[[Connection], Any]] = {
    "send": lambda end: end.send(1),
    "send_bytes": lambda end: end.send_bytes(b"x"),
    "large": lambda end: end.send_bytes(bytes(5 * MiB)),
    "try_send_bytes": lambda end: end.try_send_bytes(b"x"),
    "send_many": lambda end: end.send_many([1]),
    "reserve": lambda end: end.reserve(8).__enter__(),
}


@pytest.mark.parametrize("call", RECEIVES)
def test_receive_inside_the_block(call: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        sender.send_bytes(b"first")
        sender.send_bytes(b"second")
        with receiver.recv_view() as view:
            with busy():
                RECEIVES[call](receiver)
            assert view == b"first"
            assert receiver.poll()
        assert receiver.recv_bytes() == b"second"


@pytest.mark.parametrize("call", SENDS)
def test_send_inside_the_block(call: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        with sender.reserve(5) as room:
            with busy():
                SENDS[call](sender)
            room[:] = b"first"
        assert receiver.recv_bytes() == b"first"
        assert not receiver.poll()


def test_wrong_ends() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        with pytest.raises(OSError, match="connection is write-only"):
            sender.recv_view()
        with pytest.raises(OSError, match="connection is read-only"):
            receiver.reserve(1)
        receiver.close()
        sender.close()
        with pytest.raises(OSError, match="handle is closed"):
            receiver.recv_view()
        with pytest.raises(OSError, match="handle is closed"):
            sender.reserve(1)


@either
def test_closed_before_the_block(which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        loan = lent(receiver, sender, which)
        borrower(receiver, sender, which).close()
        with pytest.raises(OSError), loan:
            pass


@either
def test_one_block_each(which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        loan = lent(receiver, sender, which)
        with loan, pytest.raises(RuntimeError, match="one block"):
            loan.__enter__()
        with pytest.raises(RuntimeError, match="one block"):
            loan.__enter__()
        assert nothing_is_lent(receiver)


@either
def test_without_a_block_nothing_is_lent(which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        lent(receiver, sender, which)
        assert nothing_is_lent(receiver)
        assert receiver.poll() == (which == "recv_view")


@either
def test_dropped_without_the_end_of_its_block(which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        loan = lent(receiver, sender, which)
        view = loan.__enter__()
        del loan
        assert nothing_is_lent(receiver)
        if which == "recv_view":
            assert receiver.recv_bytes() == b"12345678"
        with lent(receiver, sender, which) as other:
            assert bytes(view) == bytes(8)  # cut off
            assert len(other) == 8


@either
def test_left_in_another_thread_than_entered(which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        loan = lent(receiver, sender, which)
        run_thread(loan.__enter__).join()
        loan.__exit__(None, None, None)
        with lent(receiver, sender, which):
            pass
        assert nothing_is_lent(receiver)


# ---------------------------------------------------------------- others wait


@either
def test_a_long_block_is_not_taken_for_one_left_behind(which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        calls = {"recv_view": receiver.recv_bytes, "reserve": lambda: sender.send_bytes(b"other")}
        sender.send_bytes(b"12345678")
        with sender.reserve(8) if which == "reserve" else receiver.recv_view() as view:
            others = [run(calls[which]) for run in (run_thread, run_child)]
            time.sleep(0.7)  # some looks at who may have left the turn behind
            assert all(other.alive() for other in others)
            content = bytes(view)
        sender.send_bytes(b"12345678")
        sender.send_bytes(b"12345678")
        if which == "recv_view":
            assert [content, *(other.join() for other in others)] == [b"12345678"] * 3
        else:
            assert sorted(receive_in_parts(receiver, 6)) == sorted(
                [content, b"other", b"other", *[b"12345678"] * 3]
            )
            for other in others:
                other.join()


@either
def test_a_signal_handler_inside_the_block(which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):

        def handle(*_: Any) -> None:
            for call in (SENDS if which == "reserve" else RECEIVES).values():
                with busy():
                    call(borrower(receiver, sender, which))
            handled.append(True)

        handled: list[bool] = []
        before = signal.signal(signal.SIGUSR2, handle)
        try:
            with lent(receiver, sender, which) as view:
                signal.raise_signal(signal.SIGUSR2)
                assert len(bytes(view)) == 8
        finally:
            signal.signal(signal.SIGUSR2, before)
        assert handled == [True]


def receive_in_parts(end: Connection, count: int) -> list[bytes]:
    return [end.recv_bytes() for _ in range(count)]


@pytest.mark.parametrize("run", [run_thread, run_child])
def test_another_receiver_waits(run: Any) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        sender.send_bytes(b"first")
        sender.send_bytes(b"second")
        with receiver.recv_view() as view:
            with pytest.raises(TimeoutError):
                run(lambda: receiver.recv_bytes(timeout=0.05)).join()
            assert run(receiver.try_recv_bytes).join() is None
            other = run(receiver.recv_bytes)
            waiting_its_turn(other)
            assert view == b"first"
        assert other.join() == b"second"
        assert not receiver.poll()


@pytest.mark.parametrize("run", [run_thread, run_child])
def test_another_sender_waits(run: Any) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        with sender.reserve(5) as room:
            with pytest.raises(TimeoutError):
                run(lambda: sender.send_bytes(b"late", timeout=0.05)).join()
            assert run(lambda: sender.try_send_bytes(b"late")).join() is False
            other = run(lambda: sender.send_bytes(b"second"))
            waiting_its_turn(other)
            assert not receiver.poll()
            room[:] = b"first"
        other.join()
        assert receive_in_parts(receiver, 2) == [b"first", b"second"]


@pytest.mark.parametrize("run", [run_thread, run_child])
@either
def test_borrowers_one_after_the_other(which: str, run: Any) -> None:
    def borrow() -> list[bytes]:
        found = []
        for number in range(100):
            if which == "reserve":
                with sender.reserve(400) as room:
                    room[:] = b"%03d" % number + bytes(397)
            else:
                with receiver.recv_view() as view:
                    found.append(bytes(view))
        return found

    with link_of("shmpipe", False) as (receiver, sender):
        runners = [run(borrow) for _ in range(3)]
        if which == "reserve":
            found = receive_in_parts(receiver, 300)
            assert sorted(found) == sorted(b"%03d" % (n // 3) + bytes(397) for n in range(300))
            assert [runner.join() for runner in runners] == [[], [], []]
        else:
            for number in range(300):
                sender.send_bytes(numbered(number, 500))
            found = [message for runner in runners for message in runner.join()]
            assert sorted(found) == [numbered(number, 500) for number in range(300)]


def test_timeouts() -> None:
    with link_of("shmpipe", False, size=64 * KiB) as (receiver, sender):
        for limit in (0, -1, 0.05):
            with pytest.raises(TimeoutError), receiver.recv_view(timeout=limit):
                pass
        for _ in range(3):
            sender.send_bytes(bytes(20_000))
        for limit in (0, -1, 0.05):
            with pytest.raises(TimeoutError), sender.reserve(10_000, timeout=limit):
                pass
        with pytest.raises(ValueError, match="NaN"):
            receiver.recv_view(timeout=float("nan"))
        with receiver.recv_view(timeout=0) as view:
            assert view == bytes(20_000)
        with sender.reserve(10_000, timeout=0):
            pass
        assert nothing_is_lent(receiver)


def test_waits_for_a_message() -> None:
    with link_of("shmpipe", False) as (receiver, sender):

        def take() -> bytes:
            with receiver.recv_view() as view:
                return bytes(view)

        for run in (run_thread, run_child):
            taking = run(take)
            asleep(taking)
            sender.send_bytes(b"message")
            assert taking.join() == b"message"


def test_waits_for_space() -> None:
    with link_of("shmpipe", False, size=64 * KiB) as (receiver, sender):

        def put() -> None:
            with sender.reserve(50_000) as room:
                room[:] = b"x" * 50_000

        for run in (run_thread, run_child):
            sender.send_bytes(bytes(60_000))
            putting = run(put)
            asleep(putting)
            assert receiver.recv_bytes() == bytes(60_000)
            putting.join()
            assert receiver.recv_bytes() == b"x" * 50_000


def test_size_that_stops_fitting_while_it_waits() -> None:
    with link_of("shmpipe", False, size=64 * KiB, write_size=4096) as (receiver, sender):
        sender.send_bytes(bytes(20_000))
        putting = run_thread(sender.reserve(50_000).__enter__)
        asleep(putting)
        assert fcntl(receiver.incoming, F_SETPIPE_SZ, 32 * KiB) == 32 * KiB
        with pytest.raises(ValueError, match="cannot be reserved"):
            putting.join()
        sender.send_bytes(b"x")
        assert receive_in_parts(receiver, 2) == [bytes(20_000), b"x"]


@pytest.mark.parametrize("run", [run_thread, run_child])
def test_borrower_beside_receivers_of_large_messages(run: Any) -> None:
    def borrow() -> int:
        count = 0
        while True:
            try:
                with receiver.recv_view() as view:
                    count += view[:4] == b"size"
            except EOFError:
                return count

    def receive() -> int:
        count = 0
        for found in iter(receiver.recv_bytes, b"over"):
            count += found[:4] == b"size"
        return count

    with link_of("shmpipe", False, size=8 * KiB) as (receiver, sender):
        runners = [run(receive) for _ in range(2)]
        borrowing = run_child(borrow, close=[sender])
        for number in range(200):
            sender.send_bytes(b"size" + bytes(number * 97 % 20_000))
        for runner in runners:
            while runner.alive():
                # (The borrower may take it from them.)
                sender.send_bytes(b"over", timeout=30)
                time.sleep(0.01)
        sender.close()
        assert sum(runner.join() for runner in [*runners, borrowing]) == 200


# ---------------------------------------------------------------- growth


def test_growth_waits_for_the_end_of_a_loan() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        sender.send_bytes(b"small")
        for number in range(20):
            sender.send_bytes(numbered(number, 1000))
        pages = words_of(receiver)[PAGES]
        with receiver.recv_view() as view:
            sending = run_child(sender.send_bytes, bytes(100_000), close=[receiver])
            asleep(sending)
            before = sending.cpu_seconds()
            asleep(sending)
            assert sending.cpu_seconds() == before
            with pytest.raises(TimeoutError):
                sender.send_bytes(bytes(100_000), timeout=0.05)
            assert view == b"small"
            assert words_of(receiver)[PAGES] == pages
        # Nothing else has been received: who waits learns that the ring may grow now.
        sending.join()
        assert words_of(receiver)[PAGES] > pages
        assert receive_in_parts(receiver, 20) == [numbered(number, 1000) for number in range(20)]
        assert receiver.recv_bytes() == bytes(100_000)


def test_growth_goes_on_when_the_borrower_is_killed() -> None:
    with link_of("shmpipe", False) as (receiver, sender), Flag() as borrowed:
        sender.send_bytes(b"small")
        victim = run_child(borrow_for_good, receiver, borrowed)
        borrowed.wait()
        sending = run_thread(sender.send_bytes, bytes(100_000))
        asleep(sending)
        victim.kill()
        sending.join()
        assert receive_in_parts(receiver, 2) == [b"small", bytes(100_000)]


def test_views_after_growth() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        for size in (100, 8000, 40_000, 300_000, 4 * MiB - 8):
            for number in range(4):
                with sender.reserve(size) as room:
                    room[:] = numbered(number, size)
                with receiver.recv_view() as view:
                    assert view == numbered(number, size)


# ---------------------------------------------------------------- death, end of file, forks


@either
def test_borrower_killed(which: str) -> None:
    def borrow() -> None:
        with borrower_block() as view:
            if which == "reserve":
                view[:] = b"xxxxx"
            borrowed.set()
            threading.Event().wait()

    for _ in range(3):
        with link_of("shmpipe", False) as (receiver, sender), Flag() as borrowed:
            sender.send_bytes(b"before")

            def borrower_block() -> AbstractContextManager[memoryview]:
                return sender.reserve(5) if which == "reserve" else receiver.recv_view()

            victim = run_child(borrow)
            borrowed.wait()
            victim.kill()
            assert fcntl(receiver.incoming, F_SETPIPE_SZ, MiB) == MiB
            sender.send_bytes(b"after")
            assert receive_in_parts(receiver, 2) == [b"before", b"after"]
            assert receiver.try_recv_bytes() is None
            with sender.reserve(3) as room:
                room[:] = b"end"
            with receiver.recv_view() as view:
                assert view == b"end"
            assert nothing_is_lent(receiver)


def test_next_borrower_after_a_death() -> None:
    with link_of("shmpipe", False) as (receiver, sender), Flag() as borrowed:
        sender.send_bytes(b"message")
        victim = run_child(borrow_for_good, receiver, borrowed)
        borrowed.wait()
        other = run_thread(receiver.recv_bytes)
        waiting_its_turn(other)
        victim.kill()
        assert other.join() == b"message"


def test_end_of_file() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        sender.send_bytes(b"last")
        sender.close()
        with receiver.recv_view() as view:
            assert view == b"last"
        for limit in (None, 0, 10):
            with pytest.raises(EOFError), receiver.recv_view(timeout=limit):
                pass


def test_broken_pipe_on_entering() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        receiver.close()
        with pytest.raises(BrokenPipeError), sender.reserve(8):
            pass


def test_broken_pipe_on_leaving() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        with pytest.raises(BrokenPipeError), sender.reserve(8):
            receiver.close()
        with pytest.raises(BrokenPipeError):
            sender.send_bytes(b"x")


@either
def test_forked_child_that_leaves_the_block(which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        with lent(receiver, sender, which) as view:
            if which == "reserve":
                view[:] = b"parent's"
            child = os.fork()
            if not child:
                view = None  # type: ignore[assignment]
            else:
                assert os.waitpid(child, 0)[1] == 0
        if not child:
            try:
                # It has borrowed nothing, so it can do everything but take part.
                assert receiver.try_recv_bytes() is None
                receiver.close()
                sender.close()
                os._exit(0)
            finally:
                os._exit(1)
        if which == "reserve":
            assert receiver.recv_bytes() == b"parent's"
        assert not receiver.poll()


@either
def test_child_forked_inside_the_block_borrows_later(which: str) -> None:
    with link_of("shmpipe", False) as (receiver, sender), Flag() as over:

        def borrow() -> bytes:
            over.wait()
            with lent(receiver, sender, which) as view:
                return bytes(view)

        with lent(receiver, sender, which):
            child = run_child(borrow)
        over.set()
        assert len(child.join()) == 8


@both_ways
def test_readiness(duplex: bool) -> None:
    with link_of("shmpipe", duplex) as (receiver, sender):
        poller = select.poll()
        poller.register(receiver.fileno(), select.POLLIN)
        assert poller.poll(0) == []
        with sender.reserve(10):
            assert poller.poll(0) == []
        assert poller.poll(1000)
        with receiver.recv_view():
            pass
        assert poller.poll(0) == []


def test_writability() -> None:
    with link_of("shmpipe", False, size=64 * KiB) as (receiver, sender):
        poller = select.poll()
        poller.register(sender.fileno(), select.POLLOUT)
        assert poller.poll(0)
        with sender.reserve(64 * KiB - ALIGN):
            pass
        assert poller.poll(0) == []
        with receiver.recv_view():
            assert poller.poll(0) == []
        assert poller.poll(1000)


# ---------------------------------------------------------------- stopped at every step

LENDING = ("lending", "bytering", "receiving", "collecting", "arrivals", "sending")


def borrow_once(receiver: Connection, sender: Connection, which: str, number: int) -> None:
    if which == "reserve":
        with sender.reserve(100) as room:
            room[:] = numbered(number, 100)
    else:
        with receiver.recv_view() as view:
            assert view == numbered(number, 100)


# (Finalizers are interrupted as well, and their exceptions only told about.)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@interpreted_only
@either
@pytest.mark.parametrize("opcodes", [False, pytest.param(True, marks=every_step)])
def test_interrupted_at_every_step(which: str, opcodes: bool) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        for step in range(10_000):
            if which == "recv_view":
                sender.send_bytes(numbered(step, 100))
            try:
                with at_step(step, boom, LENDING, opcodes) as point:
                    borrow_once(receiver, sender, which, step)
            except Boom:
                pass
            # Received or not, sent or not; and the next one as if nothing had happened.
            sender.send_bytes(b"next")
            found = receiver.recv_bytes(timeout=30)
            if found != b"next":
                assert found == numbered(step, 100)
                assert receiver.recv_bytes(timeout=30) == b"next"
            assert receiver.try_recv_bytes() is None
            if not point.reached:
                break
        assert step > 20
        assert nothing_is_lent(receiver)
        fcntl(receiver.incoming, F_SETPIPE_SZ, MiB)


@interpreted_only
@either
@pytest.mark.parametrize("stride", [29, pytest.param(1, marks=every_step)])
@pytest.mark.timeout_s(300)
def test_killed_at_every_step(which: str, stride: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(locking, "PATIENCE", 0.005)

    def borrow(step: int) -> None:
        with at_step(step, die, LENDING):
            borrow_once(receiver, sender, which, step)

    with link_of("shmpipe", False) as (receiver, sender):
        died = True
        step = 0
        while died:
            if which == "recv_view":
                sender.send_bytes(numbered(step, 100))
            victim = run_child(borrow, step)
            try:
                victim.join()
                died = False
            except ChildDied:
                pass
            sender.send_bytes(b"next")
            found = receiver.recv_bytes(timeout=30)
            if found != b"next":
                assert found == numbered(step, 100)
                assert receiver.recv_bytes(timeout=30) == b"next"
            step += stride
        assert step > 20
        eventually(lambda: nothing_is_lent(receiver))
