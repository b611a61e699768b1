"""Messages sent in steps that never wait, and calls that have no time to wait."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import pickle
import random
import select
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from shmpipe import F_SETPIPE_SZ, Connection, PartlyReceived, Pipe, fcntl
from shmpipe.segment import RD_TURN_BY, W_OPEN, WR_TURN_BY

from .links import KiB, MiB, both_ways, fill_link, link_of, numbered, receive_all
from .steps import at_step, interpreted_only
from .support import Flag, eventually, run_child, run_thread

LARGE = MiB + 3


def words_of(end: Connection) -> Any:
    part = end._receiver or end._sender
    assert part is not None
    return part.ring.view


def writable(end: Connection, seconds: float = 0.0) -> bool:
    return bool(select.select([], [end.outgoing], [], seconds)[1])


def finish(stepped: Any, end: Connection) -> None:
    """Step as an event loop does."""
    while not stepped.step():
        assert writable(end, 20)


# ---------------------------------------------------------------- what it is for


@both_ways
def test_messages_of_every_size(duplex: bool) -> None:
    choice = random.Random(1)
    with link_of("shmpipe", duplex, size=64 * KiB) as (receiver, sender):
        lengths = [0, 1, 8, 4096, 64 * KiB - 9, 64 * KiB - 8, 64 * KiB - 7, 64 * KiB, LARGE]
        lengths += [int(2 ** choice.uniform(0, 19)) for _ in range(200)]
        thread = run_thread(receive_all, receiver)
        for number, length in enumerate(lengths):
            with sender.begin_send_bytes(numbered(number, length)) as stepped:
                assert (stepped.sent, stepped.left) == (False, length)
                finish(stepped, sender)
                assert stepped.sent
        sender.close()
        assert thread.join() == [numbered(n, length) for n, length in enumerate(lengths)]


def test_objects_with_buffers_of_their_own() -> None:
    obj = [1, b"x" * 100_000, {"y": bytearray(50_000)}, "z" * 10]
    with link_of("shmpipe", False, size=16 * KiB) as (receiver, sender):
        thread = run_thread(receiver.recv)
        finish(sender.begin_send(obj), sender)
        assert thread.join() == obj
        with pytest.raises(AttributeError, match="local object"):
            sender.begin_send(lambda: None)
        with pytest.raises(OSError, match="read-only"):
            receiver.begin_send(1)


def test_part_of_a_buffer() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        assert sender.begin_send_bytes(b"0123456789", 2, 3).step()
        assert receiver.recv_bytes() == b"234"
        with pytest.raises(ValueError, match="offset"):
            sender.begin_send_bytes(b"", 1)


@pytest.mark.parametrize("policy", ["write-size", "page", "half", "edge-half", "full-edge"])
@pytest.mark.parametrize("size", [4, 64])
def test_whenever_it_shows_writable_a_step_gets_on(policy: str, size: int) -> None:
    """Or event loops would spin."""
    receiver, sender = Pipe(False, size=size * KiB, write_size=4 * KiB, wake=policy)
    choice = random.Random(size)
    with receiver, sender:
        for length in (500, 3000, size * KiB - 8, size * KiB, 5 * size * KiB):
            stepped = sender.begin_send_bytes(bytes(length))
            sent = received = 0
            while received <= sent:
                if writable(sender):
                    before = stepped.left
                    if stepped.step():
                        sent += 1
                        stepped = sender.begin_send_bytes(bytes(length))
                    else:
                        assert stepped.left < before or not writable(sender)
                elif choice.random() < 0.5 or sent > 30:
                    received += receiver.try_recv_bytes() is not None
                if sent > 30 and received > 20:
                    break
            stepped.cancel()


def test_the_state_of_the_other_side_does_not_matter_to_a_small_message() -> None:
    """One up to the write size is never streamed: so nobody's turn is taken for it."""
    receiver, sender = Pipe(False, size=64 * KiB, write_size=8 * KiB)
    with receiver, sender:
        fill_link(sender)
        stepped = sender.begin_send_bytes(bytes(8 * KiB - 8))
        for _ in range(70):
            if stepped.step():
                break
            assert not words_of(sender)[WR_TURN_BY]
            receiver.recv_bytes()
        assert stepped.sent and not words_of(sender)[W_OPEN]


def test_received_in_steps_too() -> None:
    """Both sides in one thread, and nothing ever waits."""
    with link_of("shmpipe", False, size=8 * KiB) as (receiver, sender):
        stepped = sender.begin_send_bytes(numbered(7, LARGE))
        kept: list[int] = []
        while True:
            stepped.sent or stepped.step()
            try:
                message = receiver.recv_bytes(timeout=0.0)
            except PartlyReceived as error:
                kept.append(error.kept)
            except TimeoutError:
                assert not kept  # the first part has not come
            else:
                break
        assert message == numbered(7, LARGE)
        assert kept == sorted(kept) and kept[-1] > LARGE - 16 * KiB


def test_packed() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        sender.send([1, 2])
        unpack = receiver.recv_packed()
        assert unpack() == [1, 2] and unpack() == [1, 2]
        with pytest.raises(TimeoutError):
            receiver.recv_packed(timeout=0)
        sender.close()
        with pytest.raises(EOFError):
            receiver.recv_packed()


# ---------------------------------------------------------------- the end, early or late


@pytest.mark.parametrize("how", ["cancel", "block", "dropped"])
def test_given_up(how: str) -> None:
    with link_of("shmpipe", False, size=8 * KiB) as (receiver, sender):
        stepped = sender.begin_send_bytes(bytes(LARGE))
        assert not stepped.step() and words_of(sender)[WR_TURN_BY]
        if how == "cancel":
            stepped.cancel()
            stepped.cancel()
            assert not stepped.sent
        elif how == "block":
            with stepped:
                pass
        else:
            del stepped
            gc.collect()
        assert not words_of(sender)[WR_TURN_BY]
        thread = run_thread(receiver.recv)
        sender.send("next")
        assert thread.join() == "next"
        assert receiver.stats().frames_dropped == 1


def test_after_the_end() -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        sent, given_up, late = (sender.begin_send(number) for number in range(3))
        assert sent.step()
        given_up.cancel()
        for stepped in (sent, given_up):
            with pytest.raises(RuntimeError, match="sent already, or given up"):
                stepped.step()
        sender.close()
        with pytest.raises(OSError, match="handle is closed"):
            late.step()
        assert list(receiver) == [0]


@pytest.mark.parametrize("size", [10, LARGE])
def test_inside_this_threads_own_block(size: int) -> None:
    """It would be said to be writable, and never be sent."""
    with link_of("shmpipe", False, size=8 * KiB) as (receiver, sender):
        with sender.reserve(3) as view:
            stepped = sender.begin_send_bytes(bytes(size))
            with pytest.raises(OSError, match="lent") as caught:
                stepped.step()
            assert caught.value.errno == errno.EBUSY
            view[:] = b"abc"
        assert receiver.recv_bytes() == b"abc"
        again = sender.begin_send_bytes(b"again")
        assert again.step() and receiver.recv_bytes() == b"again"


def test_beside_another_threads_block() -> None:
    with link_of("shmpipe", False, size=8 * KiB) as (receiver, sender):
        entered, over = threading.Event(), threading.Event()

        def reserve() -> None:
            with sender.reserve(3) as view:
                entered.set()
                over.wait(20)
                view[:] = b"abc"

        thread = run_thread(reserve)
        entered.wait(20)
        stepped = sender.begin_send_bytes(b"later")
        assert not stepped.step() and not stepped.sent
        over.set()
        thread.join()
        assert stepped.step()
        assert [receiver.recv_bytes(), receiver.recv_bytes()] == [b"abc", b"later"]


def test_in_the_middle_of_a_stream() -> None:
    """What this thread sends would wait for ever; others wait."""
    with link_of("shmpipe", False, size=8 * KiB) as (receiver, sender):
        stepped = sender.begin_send_bytes(bytes(LARGE))
        stepped.step()
        for call in (lambda: sender.send(1), lambda: sender.send_bytes(b"", timeout=0.0)):
            with pytest.raises(OSError, match="lent") as caught:
                call()
            assert caught.value.errno == errno.EBUSY
        with pytest.raises(BufferError):
            sender.close()
        second = sender.begin_send(2)
        assert not second.step() and not second.sent
        thread = run_thread(sender.send, 3)
        child = run_child(sender.send, 4)
        receiving = run_thread(lambda: [receiver.recv_bytes(), receiver.recv(), receiver.recv()])
        finish(stepped, sender)
        thread.join()
        child.join()
        first, *others = receiving.join()
        assert len(first) == LARGE and sorted(others) == [3, 4]
        assert second.step() and receiver.recv() == 2


def test_broken_pipe() -> None:
    for size in (3000, LARGE):
        receiver, sender = Pipe(False, size=4 * KiB)
        with receiver, sender:
            sender.send_bytes(bytes(2000))
            stepped = sender.begin_send_bytes(bytes(size))
            assert not stepped.step()
            receiver.close()
            assert writable(sender, 10)
            with pytest.raises(BrokenPipeError):
                stepped.step()
            assert not words_of(sender)[WR_TURN_BY] and not stepped.sent


def die_in_the_middle(sender: Connection) -> None:
    stepped = sender.begin_send_bytes(bytes(LARGE))
    stepped.step()
    assert stepped.left < LARGE
    os._exit(9)


def test_killed_in_the_middle() -> None:
    with link_of("shmpipe", False, size=8 * KiB) as (receiver, sender):
        child = run_child(die_in_the_middle, sender, close=[receiver])
        eventually(lambda: not child.alive())
        receiving = run_thread(receiver.recv)
        stepped = sender.begin_send("next")
        eventually(stepped.step)
        assert receiving.join() == "next"


def step_on(stepped: Any, sender: Connection) -> str:
    with pytest.raises(RuntimeError):
        stepped.step()
    stepped.cancel()
    del stepped
    return "nothing"


def test_forked_child_has_begun_nothing() -> None:
    with link_of("shmpipe", False, size=8 * KiB) as (receiver, sender):
        stepped = sender.begin_send_bytes(numbered(5, LARGE))
        stepped.step()
        assert run_child(step_on, stepped, sender).join() == "nothing"
        receiving = run_thread(receiver.recv_bytes)
        finish(stepped, sender)
        assert receiving.join() == numbered(5, LARGE)


def test_resized_in_the_middle() -> None:
    with link_of("shmpipe", False, size=64 * KiB) as (receiver, sender):
        stepped = sender.begin_send_bytes(numbered(5, LARGE))
        assert not stepped.step()
        fcntl(receiver, F_SETPIPE_SZ, 256 * KiB)
        receiving = run_thread(receiver.recv_bytes)
        finish(stepped, sender)
        assert receiving.join() == numbered(5, LARGE)


def test_while_the_ring_may_not_grow() -> None:
    with link_of("shmpipe", False, size=256 * KiB) as (receiver, sender):
        sender.send_bytes(b"lent")
        with receiver.recv_view() as view:
            for number in range(100):
                stepped = sender.begin_send_bytes(numbered(number, 2000))
                if not stepped.step():
                    break
            assert view == b"lent"
        assert stepped.step()
        for n in range(number + 1):
            assert receiver.recv_bytes() == numbered(n, 2000)


# ---------------------------------------------------------------- calls with no time to wait


def hold_the_lock(end: Connection, writing: bool, held: Flag) -> None:
    part: Any = end._sender if writing else end._receiver
    part.lock.enter()
    held.set()
    threading.Event().wait()


@pytest.mark.slow
@pytest.mark.parametrize("writing", [False, True])
def test_lock_of_the_dead(writing: bool) -> None:
    """Calls that never wait long enough for a look find out about it together."""
    with link_of("shmpipe", False) as (receiver, sender), Flag() as held:
        end = sender if writing else receiver
        if not writing:
            sender.send_bytes(b"1")
        child = run_child(hold_the_lock, end, writing, held)
        held.wait()
        child.kill()
        if writing:
            assert eventually(lambda: sender.try_send_bytes(b"1"), 20)
        else:
            assert eventually(receiver.try_recv_bytes, 20) == b"1"


def keep_a_turn(receiver: Connection, begun: Flag) -> None:
    thread = run_thread(receiver.recv_bytes)
    eventually(lambda: words_of(receiver)[RD_TURN_BY])
    begun.set()
    thread.join()


def test_no_time_for_another_receivers_large_message() -> None:
    with link_of("shmpipe", False, size=8 * KiB) as (receiver, sender), Flag() as begun:
        stepped = sender.begin_send_bytes(bytes(LARGE))
        stepped.step()
        child = run_child(keep_a_turn, receiver, begun)
        begun.wait()
        for _ in range(20):
            assert receiver.try_recv_bytes() is None
        finish(stepped, sender)
        child.join()
        sender.send(1)
        assert receiver.recv(timeout=20) == 1


@contextlib.contextmanager
def alarm() -> Iterator[TimeoutError]:
    """In a moment a signal's handler raises the error that this gives."""
    its = TimeoutError("the handler's")

    def handler(*_: object) -> None:
        raise its

    before = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        yield its
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("timeout", [None, 30])
@pytest.mark.parametrize("call", ["recv", "recv_many", "poll"])
def test_a_handlers_timeout_is_not_ours(call: str, timeout: float | None) -> None:
    with link_of("shmpipe", False) as (receiver, sender):
        with alarm() as its, pytest.raises(TimeoutError) as caught:
            getattr(receiver, call)(timeout=timeout)
        assert caught.value is its
        sender.send(1)
        assert receiver.recv(timeout=1) == 1


STEPS = ("receiving", "collecting", "arrivals", "sending", "waiting")
AT_ONCE: dict[str, Callable[[Connection, Connection], Any]] = {
    "poll": lambda receiver, sender: receiver.poll(0),
    "try_recv_bytes": lambda receiver, sender: receiver.try_recv_bytes(),
    "recv_bytes": lambda receiver, sender: receiver.recv_bytes(timeout=0),
    "try_send_bytes": lambda receiver, sender: sender.try_send_bytes(b"more"),
}


@interpreted_only
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("call", AT_ONCE)
def test_a_handlers_timeout_comes_out_of_calls_that_do_not_wait(call: str, full: bool) -> None:
    """Wherever it strikes: it is no reason to say that nothing was there, or no space."""
    receiver, sender = Pipe(False, size=4096)
    with receiver, sender:
        while full and sender.try_send_bytes(bytes(500)):
            pass
        for step in range(2000):
            its = TimeoutError("the handler's")

            def strike(its: TimeoutError = its) -> None:
                raise its

            if not full:
                sender.send_bytes(b"first")
            came = None
            with at_step(step, strike, STEPS) as point:
                try:
                    AT_ONCE[call](receiver, sender)
                except TimeoutError as error:
                    came = error
            if not point.reached:
                break
            assert came is its, step
            del came
            while not full and receiver.poll(0):
                receiver.recv_bytes()
        assert step > 10


@pytest.mark.parametrize("timeout", [None, 30])
def test_a_handlers_timeout_in_the_middle_of_a_message(timeout: float | None) -> None:
    """It comes out as it is; only our own say what has been kept."""
    with (
        link_of("shmpipe", False, size=8 * KiB) as (receiver, sender),
        sender.begin_send_bytes(numbered(7, LARGE)) as stepped,
    ):
        stepped.step()
        with alarm() as its, pytest.raises(TimeoutError) as caught:
            receiver.recv_bytes(timeout=timeout)
        assert caught.value is its
        with pytest.raises(PartlyReceived) as late:
            receiver.recv_bytes(timeout=0)
        assert 0 < late.value.kept == pickle.loads(pickle.dumps(late.value)).kept


# ---------------------------------------------------------------- at every fill of the ring


def given_up(sender: Connection, how: str) -> None:
    """A message that has begun, and does not come to its end."""
    if how == "send":
        with contextlib.suppress(TimeoutError):
            sender.send_bytes(bytes(60_000), timeout=0)
    else:
        stepped = sender.begin_send_bytes(bytes(60_000))
        stepped.step()
        stepped.step()
        stepped.cancel()


FILLS = [*range(0, 3000, 8), *range(3080, 4088, 8)]


@pytest.mark.slow
@pytest.mark.parametrize("how", ["send", "steps"])
def test_there_is_always_space_to_give_a_message_up(how: str) -> None:
    """Its parts leave 8 bytes for that, whatever else is in the ring."""
    for fill in FILLS:
        with link_of("shmpipe", False, size=4 * KiB) as (receiver, sender):
            sender.send_bytes(bytes(fill))
            given_up(sender, how)
            assert len(receiver.recv_bytes(timeout=0)) == fill
            with pytest.raises(TimeoutError):
                receiver.recv_bytes(timeout=0)
            sender.send_bytes(b"next", timeout=0)
            assert receiver.recv_bytes(timeout=5) == b"next"


@pytest.mark.slow
def test_a_message_begins_where_there_is_hardly_space() -> None:
    """Before its first part two more words have to fit."""
    data = bytes(range(256)) * 160
    for fill in range(11_800, 12_500, 8):
        with link_of("shmpipe", False, size=16 * KiB, write_size=4 * KiB) as (receiver, sender):
            sender.send_bytes(bytes(fill), timeout=0)
            stepped = sender.begin_send_bytes(data)
            received = []
            while len(received) < 2:
                if not stepped.sent:
                    stepped.step()
                with contextlib.suppress(TimeoutError):
                    received.append(receiver.recv_bytes(timeout=0))
            assert received == [bytes(fill), data]
