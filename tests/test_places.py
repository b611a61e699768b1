"""A process has a segment once, whatever copies of its ends it holds; and who decides about it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

import shmpipe
from shmpipe import filelock
from shmpipe.connection import _rebuild as rebuild_connection
from shmpipe.pipe import _rebuild as rebuild_pipe

from .kinds import fill
from .links import link_of
from .support import Flag, eventually, run_child, run_thread


class Handed:
    """A descriptor on its way here, as multiprocessing hands it over."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def detach(self) -> int:
        return os.dup(self.fd)


def copy_of(end: Any) -> Any:
    """What arrives when an end is sent to the process that it comes from."""
    if isinstance(end, shmpipe.Connection):
        memory, sock = end._segment.memory.fileno(), end._bell.writer_fd()
        state = *end._rings, end.readable, end.writable, None
        return rebuild_connection(Handed(memory), Handed(sock), *state)
    memory, sock = end._side.ring.segment.memory.fileno(), end._side.bell.writer_fd()
    return rebuild_pipe(type(end), Handed(memory), Handed(sock), 16, None)


def test_more_copies_of_an_end_than_a_segment_has_places() -> None:
    with link_of("shmpipe") as (a, b):
        copies = []
        for number in range(300):
            copy = copy_of(a)
            copies.append(copy)
            copy.send(number)
            assert b.recv() == number
        with open("/proc/self/maps") as maps:
            inode = os.fstat(a._segment.memory.fileno()).st_ino
            assert sum(f" {inode} " in line for line in maps) == 1
        for copy in copies:
            copy.close()
        a.send("still works")
        assert b.recv() == "still works"


def test_copy_outlives_the_end_it_was_made_of() -> None:
    a, b = shmpipe.Pipe()
    b.send("before")
    copy = copy_of(a)
    a.close()
    b.send("after")
    assert [copy.recv(), copy.recv()] == ["before", "after"]
    another = copy_of(copy)
    copy.close()
    run_child(another.send, "from a child").join()
    assert b.recv() == "from a child"
    another.close()
    with pytest.raises(EOFError):
        b.recv()
    b.close()


def test_threads_with_a_copy_each() -> None:
    """They exclude each other as threads that share one end do."""
    reader, writer = shmpipe.pipe(1 << 16)
    copies = [copy_of(writer) for _ in range(4)]
    writer.close()

    def pour(number: int) -> None:
        with copies[number] as copy:
            for _ in range(3000):
                copy.write(b"%d" % number * 100)

    pouring = [run_thread(pour, number) for number in range(4)]
    with reader:
        counts = dict.fromkeys(b"0123", 0)
        while data := reader.read(100):
            assert len(set(data)) == 1
            counts[data[0]] += len(data)
    for one in pouring:
        one.join()
    assert set(counts.values()) == {300_000}


def test_ends_attached_and_closed_by_many_threads() -> None:
    """Whoever attaches when the last end is just being closed has a whole end nevertheless."""
    a, b = shmpipe.Pipe()
    memory, sock = os.dup(a._segment.memory.fileno()), os.dup(a._bell.writer_fd())
    a.close()
    stop = False

    def attach() -> int:
        count = 0
        while not stop:
            end = rebuild_connection(Handed(memory), Handed(sock), 0, 1, True, True, None)
            end.send(count)
            end._segment.lend(end)
            end.close()
            count += 1
        return count

    attaching = [run_thread(attach) for _ in range(4)]
    b.close()  # nobody receives, so sends fail
    for one in attaching:
        with pytest.raises(BrokenPipeError):
            one.join()
    os.close(memory)
    os.close(sock)


def test_place_is_given_back_and_taken_by_the_next() -> None:
    with link_of("shmpipe") as (a, b):
        a.send(0)
        assert b.recv() == 0
        users = a._segment.places.users
        assert len(users()) == 1
        for number in range(300):
            child = run_child(a.send, number)
            assert b.recv() == number
            child.join()
        assert len(users()) <= 256


# ---------------------------------------------------------------- the lock of rare decisions


def decide(end: Any, act: Any) -> None:
    end._segment.exclusively(act)


def test_lock_excludes_threads_forks_and_the_holders_of_copies() -> None:
    with link_of("shmpipe") as (a, b), Flag() as inside, Flag() as go:
        copy = copy_of(a)

        def hold() -> None:
            inside.set()
            go.wait()

        holding = run_thread(decide, a, hold)
        inside.wait()
        copy.close()  # which would give up a record lock
        got: list[str] = []
        thread = run_thread(decide, b, lambda: got.append("thread"))
        child = run_child(decide, b, lambda: None)
        time.sleep(0.1)
        assert not got and thread.alive() and child.alive()
        go.set()
        for one in (holding, thread, child):
            one.join()
        assert got == ["thread"]


def test_lock_is_dropped_with_its_holder() -> None:
    with link_of("shmpipe") as (a, b):
        with Flag() as inside:
            child = run_child(decide, a, lambda: (inside.set(), signal.pause()))
            inside.wait()
            child.kill()
        decide(b, lambda: None)


def test_lock_does_not_live_on_in_a_fork_by_another_thread() -> None:
    with link_of("shmpipe") as (a, b), Flag() as inside, Flag() as forked, Flag() as end:

        def in_child() -> None:
            def hold() -> None:
                inside.set()
                time.sleep(30)

            threading.Thread(target=decide, args=(a, hold), daemon=True).start()
            inside.wait()
            if not os.fork():
                forked.set()
                end.wait()
                os._exit(0)
            forked.wait()
            os.kill(os.getpid(), signal.SIGKILL)

        child = run_child(in_child)
        eventually(lambda: not child.alive())
        decide(b, lambda: None)
        end.set()
        child.kill()


def test_lock_is_not_kept_by_a_fork_at_the_moment_it_is_made(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nobody in the child knows the descriptor that a thread of the parent was just opening."""
    real = filelock.owned
    children: list[Any] = []

    def opened_and_forked(*args: Any) -> Any:
        made = real(*args)
        children.append(run_child(private_descriptors))
        return made

    def private_descriptors() -> int:
        count = 0
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                named = "shmpipe" in os.readlink(f"/proc/self/fd/{name}")
                count += named and bool(fcntl.fcntl(int(name), fcntl.F_GETFL) & os.O_APPEND)
        go.wait()
        return count

    with link_of("shmpipe") as (a, b), Flag() as go:
        monkeypatch.setattr(filelock, "owned", opened_and_forked)
        decide(a, lambda: None)
        monkeypatch.undo()
        run_thread(decide, b, lambda: None).join(10)
        go.set()
        assert children[0].join() == 0


def test_threads_that_decide_beside_forks() -> None:
    with link_of("shmpipe") as (a, b):
        stop = False

        def keep_deciding(end: Any) -> None:
            while not stop:
                decide(end, lambda: None)

        deciding = [run_thread(keep_deciding, end) for end in (a, b)]
        children = [run_child(time.sleep, 50) for _ in range(60)]
        stop = True
        for one in deciding:
            one.join(10)
        for child in children:
            child.kill()


@contextlib.contextmanager
def handling(handler: Any) -> Iterator[None]:
    old = signal.signal(signal.SIGUSR2, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGUSR2, old)


def test_handler_inside_the_lock_uses_the_same_pipe() -> None:
    with link_of("shmpipe") as (a, b):
        sent = []

        def handler(*_: Any) -> None:
            a.send("from the handler")
            sent.append(1)

        def interrupted() -> None:
            signal.raise_signal(signal.SIGUSR2)
            time.sleep(0)

        with handling(handler):
            decide(a, interrupted)
        assert sent
        assert b.recv() == "from the handler"


class Boom(Exception):
    pass


def test_handler_that_raises_inside_the_lock() -> None:
    def handler(*_: Any) -> None:
        raise Boom

    with link_of("shmpipe") as (a, b), handling(handler):
        with pytest.raises(Boom) as kept:
            decide(a, lambda: signal.raise_signal(signal.SIGUSR2))
        run_child(decide, b, lambda: None).join()
        run_thread(decide, b, lambda: None).join()
        del kept


def test_lock_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record lock stands in, among processes only."""
    real = filelock.owned

    def without_proc(make: Any, *args: Any) -> Any:
        if make is os.open:
            raise FileNotFoundError
        return real(make, *args)

    monkeypatch.setattr(filelock, "owned", without_proc)
    with link_of("shmpipe") as (a, b), Flag() as inside, Flag() as go:
        child = run_child(decide, a, lambda: (inside.set(), go.wait()))
        inside.wait()
        waiting = run_thread(decide, b, lambda: None)
        time.sleep(0.1)
        assert waiting.alive()
        go.set()
        child.join()
        waiting.join()


# ---------------------------------------------------------------- handlers


@pytest.mark.parametrize("raising", [False, True])
def test_pipes_made_and_used_under_a_storm_of_signals(raising: bool) -> None:
    """The handlers make and use pipes of their own, or raise; nobody waits for ever."""
    handled = 0
    busy = storm = True

    def handler(*_: Any) -> None:
        nonlocal handled
        handled += 1
        try:
            if not raising:
                make_and_use()
            elif busy:
                raise Boom
        finally:
            if (
                storm
            ):  # not before: on a slow machine handlers would do nothing but interrupt others
                signal.setitimer(signal.ITIMER_REAL, 0.0007)

    old = signal.signal(signal.SIGALRM, handler)
    hook, sys.unraisablehook = sys.unraisablehook, bool  # what is raised in finalizers
    until = time.monotonic() + 2
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0003)
        while time.monotonic() < until:
            with contextlib.suppress(Boom):
                busy = True
                try:
                    make_and_use()
                finally:
                    busy = False
    finally:
        storm = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
        sys.unraisablehook = hook
    assert handled
    run_thread(make_and_use).join()


def make_and_use() -> None:
    a, b = shmpipe.Pipe()
    a.send(1)
    assert b.recv() == 1
    a.close()
    b.close()
    r, w = shmpipe.pipe(4096)
    fill(w, 1)
    r.close()
    w.close()
