"""Signal handlers that run, raise or use the pipe in the middle of busy calls."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import shmpipe

from .kinds import pure_only
from .support import eventually, run_child

FIONREAD = 0x541B


class Boom(Exception):
    pass


def boom(*_: Any) -> None:
    raise Boom


@contextlib.contextmanager
def ticking(handler: Callable[..., Any], seconds: float) -> Iterator[None]:
    old = signal.signal(signal.SIGALRM, handler)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_handler_that_writes_to_the_same_pipe() -> None:
    reader, writer = shmpipe.pipe(1 << 20, spin=0)
    shmpipe.fcntl(reader, shmpipe.F_SETFL, os.O_NONBLOCK)
    written: list[int] = []

    def handler(*_: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the main program is inside
            written.append(writer.write(b"h" * 8))

    with reader, writer:
        got = 0
        until = time.monotonic() + 3
        with ticking(handler, 0.0005):
            while time.monotonic() < until:
                for _ in range(1000):
                    written.append(writer.write(b"m" * 8))
                got += len(reader.read(1 << 20) or b"")
        got += len(reader.read(1 << 21) or b"")
        assert got == sum(written)
        assert writer._side.lock.acquire(False)
        assert not writer._side.lock.acquire(False)
        writer._side.lock.release()


@pytest.mark.parametrize("end", ["reader", "writer"])
def test_handler_that_raises_in_busy_calls(end: str) -> None:
    """Its exception comes out, no other; and the pipe and its counts stay whole."""
    reader, writer = shmpipe.pipe(4096, spin=0)

    def other() -> None:
        mine, theirs = (writer, reader) if end == "reader" else (reader, writer)
        theirs.close()
        with contextlib.suppress(BrokenPipeError):
            while mine.write(b"x" * 100) if end == "reader" else mine.read(100):
                pass

    child = run_child(other)
    (writer if end == "reader" else reader).close()
    raised = 0
    until = time.monotonic() + 3
    with reader if end == "reader" else writer:
        while time.monotonic() < until:
            try:
                with ticking(boom, random.uniform(0.0002, 0.002)):
                    while True:
                        reader.read(100) if end == "reader" else writer.write(b"x" * 100)
            except Boom:
                raised += 1
        assert raised > 50
        # Still usable, whoever slept where.
        for _ in range(100):
            assert reader.read(100) if end == "reader" else writer.write(b"x" * 100)
    child.join()


@pure_only
def test_exception_between_publishing_and_waking() -> None:
    reader, writer = shmpipe.pipe(spin=0)
    with reader, writer:
        sleeper = run_child(reader.read, 10, close=[writer])
        sleeper.wait_asleep()
        time.sleep(0.05)  # past the semaphore: on its doorbell
        wake, writer._side.wake_readers = writer._side.wake_readers, boom
        with pytest.raises(Boom):
            writer.write(b"x")
        writer._side.wake_readers = wake
        assert sleeper.join() == b"x"


@pure_only
def test_exception_between_freeing_and_waking() -> None:
    reader, writer = shmpipe.pipe(4096, spin=0)
    with reader, writer:
        writer.write(bytes(4096))
        sleeper = run_child(writer.write, b"y" * 4096, close=[reader])
        sleeper.wait_asleep()
        time.sleep(0.05)
        wake, reader._side.wake_writers = reader._side.wake_writers, boom
        with pytest.raises(Boom):
            reader.read(4096)
        reader._side.wake_writers = wake
        assert sleeper.join() == 4096
        eventually(lambda: shmpipe.ioctl(reader, FIONREAD) == 4096)
