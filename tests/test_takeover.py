"""The locks of the dead are taken over; those of the living are not, however still they stand."""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import shmpipe
from shmpipe import identity
from shmpipe.segment import RD_TURN_BY, WR_TURN_BY

from .kinds import pure_only
from .support import eventually, run_child, run_thread


def in_killed_child(act: Callable[[], Any]) -> None:
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            act()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)


def announce_only(lock: Any) -> None:
    """As far as a process gets that dies just before it takes the lock."""
    lock.mine = lock.segment.place(lock.index)
    lock.numbers[lock.mine] += 1


GONE = ((1 << 22) + 1) << 40 | 1  # the name of a process that no longer runs

died = pytest.mark.parametrize(
    "how", [lambda lock: lock.enter(), announce_only], ids=["inside", "before"]
)


@died
def test_lock_of_a_dead_writer(how: Callable[[Any], None]) -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        in_killed_child(lambda: how(writer._side.lock))
        assert writer.write(b"after") == 5
        assert reader.read(10) == b"after"


@died
def test_lock_of_a_dead_reader(how: Callable[[Any], None]) -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        writer.write(b"before")
        in_killed_child(lambda: how(reader._side.lock))
        assert reader.read(10) == b"before"


@pytest.mark.parametrize("turn", [False, True], ids=["lock", "turn"])
@pytest.mark.parametrize("wait", [0.0, 0.03])
def test_calls_too_short_to_wait_take_over_together(wait: float, turn: bool) -> None:
    """Each of them is out of time before it may look for the dead; one of many has to."""
    receiver, sender = shmpipe.Pipe(duplex=False)
    with receiver, sender:
        sender.send_bytes(b"before")
        for part in (sender._sender, receiver._receiver):
            lock = part.turn if turn else part.side.lock
            words = part.ring.view
            if turn:  # what makes calls wait for it
                words[WR_TURN_BY if part is sender._sender else RD_TURN_BY] = GONE
            in_killed_child(lock.enter)

        def sent() -> bool:
            with contextlib.suppress(TimeoutError):
                sender.send_bytes(b"after", timeout=wait)
                return True
            return False

        def received(wanted: bytes) -> bool:
            with contextlib.suppress(TimeoutError):
                assert receiver.recv_bytes(timeout=wait) == wanted
                return True
            return False

        eventually(sent, 5)
        eventually(lambda: received(b"before"), 5)
        eventually(lambda: received(b"after"), 5)


def test_lock_taken_over_by_many_at_once() -> None:
    reader, writer = shmpipe.pipe(1 << 20)
    with reader, writer:
        in_killed_child(writer._side.lock.enter)
        children = [run_child(writer.write, b"%04d" % number) for number in range(8)]
        assert [child.join() for child in children] == [4] * 8
        data = reader.read(100)
        assert sorted(data[i : i + 4] for i in range(0, 32, 4)) == [b"%04d" % i for i in range(8)]
        lock = writer._side.lock
        assert lock.acquire(False)
        assert not lock.acquire(False)  # released once, not twice
        lock.release()


def test_lock_of_a_stopped_writer_is_left_alone() -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        told, tell = os.pipe()
        child = os.fork()
        if not child:
            lock = writer._side.lock
            lock.enter()
            os.write(tell, b"x")
            os.kill(os.getpid(), signal.SIGSTOP)
            writer._side.ring.put(memoryview(b"first"), False)
            lock.release()
            lock.leave()
            os._exit(0)
        assert os.read(told, 1) == b"x"
        os.close(told)
        os.close(tell)
        in_killed_child(lambda: announce_only(writer._side.lock))  # a dead one beside it
        second = run_thread(writer.write, b"second")
        time.sleep(0.5)  # some looks at who may hold the lock
        assert writer.stats().bytes_written == 0
        os.kill(child, signal.SIGCONT)
        os.waitpid(child, 0)
        assert second.join() == 6
        assert reader.read(20) == b"firstsecond"


@pytest.mark.slow
@pytest.mark.timeout_s(120)
def test_writer_whose_other_thread_keeps_the_interpreter() -> None:
    """Its thread may stand still for a second at any bytecode, also with the lock in hand."""
    reader, writer = shmpipe.pipe(spin=0)
    until = time.monotonic() + 8

    def pour(hog: bool) -> int:
        reader.close()
        if hog:
            threading.Thread(target=keep_interpreter, args=(until,), daemon=True).start()
        count = 0
        while time.monotonic() < until:
            writer.write(b"%064d" % count)
            count += 1
        return count

    children = [run_child(pour, hog) for hog in (True, False)]
    writer.close()
    got = 0
    while data := reader.read(65536):
        got += len(data)
    reader.close()
    assert got == 64 * sum(child.join() for child in children)


def keep_interpreter(until: float) -> None:
    while time.monotonic() < until:
        sum(range(20_000_000))  # one call, which does not let other threads run
        time.sleep(0.002)


@pure_only
def test_lock_left_behind_by_a_raising_handler_is_found_again() -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        writer._side.lock.enter()
        assert writer.write(b"same thread") == 11
        writer._side.lock.enter()
        assert run_thread(writer.write, b", another").join(30) == 9
        assert reader.read(50) == b"same thread, another"


@pure_only
def test_lock_left_behind_is_found_again_by_calls_without_time() -> None:
    receiver, sender = shmpipe.Pipe(False)
    with receiver, sender:
        sender._sender.lock.enter()
        assert run_thread(sender.try_send_bytes, b"x").join()
        receiver._receiver.lock.enter()
        assert run_thread(receiver.try_recv_bytes).join() == b"x"


@pure_only
def test_call_from_a_handler_inside_a_call() -> None:
    reader, writer = shmpipe.pipe()
    refused = []

    def handler(*_: Any) -> None:
        with pytest.raises(RuntimeError, match="reentrant"):
            writer.write(b"handler")
        refused.append(1)

    put = writer._side.ring.put

    def put_with_a_signal(*args: Any) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return put(*args)

    old = signal.signal(signal.SIGUSR1, handler)
    with reader, writer:
        try:
            writer._side.ring.put = put_with_a_signal
            assert writer.write(b"main") == 4
            del writer._side.ring.put
        finally:
            signal.signal(signal.SIGUSR1, old)
        assert refused
        assert reader.read(20) == b"main"
        assert writer.write(b"x") == 1


def test_sleeping_reader_is_woken_for_what_a_dead_writer_had_published() -> None:
    reader, writer = shmpipe.pipe()
    with reader, writer:
        sleeper = run_child(reader.read, 10, close=[writer])
        sleeper.wait_asleep()

        def publish() -> None:
            writer._side.lock.enter()
            writer._side.ring.put(memoryview(b"data"), False)

        in_killed_child(publish)
        # Whoever needs the lock next finds out.
        shmpipe.fcntl(writer, shmpipe.F_SETPIPE_WRITE_SZ, 8192)
        assert sleeper.join() == b"data"


@pure_only
@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_killed_between_publishing_and_waking_a_reader(long: bool) -> None:
    """Another process still holds the writing end, so there is no hang-up to notice."""
    reader, writer = shmpipe.pipe(spin=0)
    with reader, writer:
        sleeper = run_child(reader.read, 10, close=[writer])
        child = os.fork()  # before the sleeper can know of it
        if not child:
            time.sleep(0.2 if long else 0)
            writer._side.wake_readers = lambda: os.kill(os.getpid(), signal.SIGKILL)
            writer.write(b"data")
        os.waitpid(child, 0)
        assert sleeper.join() == b"data"


@pure_only
@pytest.mark.parametrize("long", [False, True], ids=["short", "long"])
def test_killed_between_freeing_and_waking_a_writer(long: bool) -> None:
    reader, writer = shmpipe.pipe(4096, spin=0)
    with reader, writer:
        writer.write(bytes(4096))
        victim = os.fork()
        if not victim:
            reader.read(96)  # in use, so that the sleeper knows of it
            time.sleep(0.2 if long else 0.01)
            reader._side.wake_writers = lambda freed: os.kill(os.getpid(), signal.SIGKILL)
            reader.read(4000)
        sleeper = run_child(writer.write, b"y" * 4096, close=[reader])
        os.waitpid(victim, 0)
        assert sleeper.join() == 4096


@pure_only
def test_call_from_a_finalizer_inside_a_call() -> None:
    """The garbage collector may run it in the middle of a call on the same end."""
    reader, writer = shmpipe.pipe()
    refused = []

    class Garbage:
        def __init__(self) -> None:
            self.me = self

        def __del__(self) -> None:
            with pytest.raises(RuntimeError, match=r"finalizer \(__del__\)"):
                writer.write(b"finalizer")
            refused.append(1)

    put = writer._side.ring.put

    def put_with_a_collection(*args: Any) -> Any:
        Garbage()
        gc.collect()
        return put(*args)

    with reader, writer:
        writer._side.ring.put = put_with_a_collection
        assert writer.write(b"main") == 4
        del writer._side.ring.put
        assert refused
        assert reader.read(20) == b"main"


# ---------------------------------------------------------------- calls that have hardly any time

LIMITED: dict[str, Callable[[Any], Any]] = {
    "try_recv_bytes": lambda end: end.try_recv_bytes(),
    "recv_bytes": lambda end: ended_in_time(lambda: end.recv_bytes(timeout=0.01)),
    "recv_view": lambda end: ended_in_time(lambda: bytes(end.recv_view(timeout=0).__enter__())),
    "poll": lambda end: end.poll(0),
}


def ended_in_time(call: Callable[[], Any]) -> Any:
    with contextlib.suppress(TimeoutError):
        return call()
    return None


@pytest.mark.parametrize("call", LIMITED)
@pytest.mark.parametrize("which", ["lock", "turn"])
def test_receives_with_little_time_take_over_from_the_dead(which: str, call: str) -> None:
    receiver, sender = shmpipe.Pipe(False)
    with receiver, sender:
        sender.send_bytes(b"there")
        in_killed_child(lambda: getattr(receiver._receiver, which).enter())
        eventually(lambda: LIMITED[call](receiver), 10)


@pytest.mark.parametrize("which", ["lock", "turn"])
def test_sends_with_little_time_take_over_from_the_dead(which: str) -> None:
    receiver, sender = shmpipe.Pipe(False)
    with receiver, sender:
        in_killed_child(lambda: getattr(sender._sender, which).enter())
        eventually(lambda: sender.try_send_bytes(b"x"), 10)
        assert receiver.recv_bytes() == b"x"


@pytest.mark.parametrize("victim", ["sender", "receiver"])
def test_tries_after_a_death_in_the_middle_of_a_message(victim: str) -> None:
    """Nobody ever waits, and yet what the dead have left behind is put right."""
    receiver, sender = shmpipe.Pipe(False, size=1 << 16)
    with receiver, sender:
        sending = run_child(sender.send_bytes, bytes(1 << 20), close=[receiver])
        sending.wait_asleep()
        if victim == "receiver":
            os.kill(sending.pid, signal.SIGSTOP)
            receiving = run_child(receiver.recv_bytes, close=[sender])
            receiving.wait_asleep()
            receiving.kill()
        sending.kill()

        def through() -> bool:
            with contextlib.suppress(TimeoutError):
                sender.send_bytes(b"x", timeout=0.02)
            return receiver.try_recv_bytes() == b"x"

        eventually(through, 10)


def misjudged(token: int) -> int:
    """How often a living process looks dead while the last descriptor comes and goes."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, most))
    hoard = []
    with contextlib.suppress(OSError):
        while True:
            hoard.append(os.dup(0))
    os.close(hoard.pop())
    stop = False

    def flicker() -> None:
        while not stop:
            with contextlib.suppress(OSError):
                os.close(os.dup(0))

    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=flicker)
    thread.start()
    found = sum(not identity.is_alive(token) for _ in range(20_000))
    stop = True
    thread.join()
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return found


def test_living_process_is_not_taken_for_dead_for_want_of_descriptors() -> None:
    assert run_child(misjudged, identity.token).join() == 0
